//! How events and reasons are declared, and how their names, fields and meanings are read: one
//! declaration makes the type, the names that users see, and what the documentation is checked
//! against.

use rnic_abi::verbs::{QpState, WcStatus, WrOpcode};
use roce_wire::{Opcode, Psn, Qpn};
use serde::{Deserialize, Serialize};

/// The value of a field.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Value {
    /// A number: of a queue pair, a PSN, bytes, ...
    Number(u64),
    /// Yes or no.
    Flag(bool),
    /// One of a fixed set of names.
    Name(String),
}

/// What a kind of events has beside its time.
#[derive(Clone, Debug)]
pub struct EventSchema {
    /// Its name.
    pub name: String,
    /// What has happened.
    pub meaning: &'static str,
    /// Names and meanings of its fields, in order. A field may be absent from an event.
    pub fields: Vec<(&'static str, &'static str)>,
}

/// What an event can have as a field: one value, none, or several.
pub(crate) trait Field {
    /// Gives each value its name; one that has no name of its own has that of the field.
    fn put(&self, name: &'static str, put: &mut dyn FnMut(&'static str, Value));

    /// Names and meanings of what [`put`](Self::put) may give.
    fn describe(
        name: &'static str,
        meaning: &'static str,
        fields: &mut Vec<(&'static str, &'static str)>,
    ) {
        fields.push((name, meaning));
    }
}

macro_rules! number_fields {
    ($($type:ty: $number:expr,)*) => {
        $(impl Field for $type {
            fn put(&self, name: &'static str, put: &mut dyn FnMut(&'static str, Value)) {
                let number: fn(&$type) -> u64 = $number;
                put(name, Value::Number(number(self)));
            }
        })*
    };
}

number_fields! {
    u8: |number| (*number).into(),
    u32: |number| (*number).into(),
    u64: |number| *number,
    Qpn: |qpn| qpn.value().into(),
    Psn: |psn| psn.value().into(),
}

impl Field for bool {
    fn put(&self, name: &'static str, put: &mut dyn FnMut(&'static str, Value)) {
        put(name, Value::Flag(*self));
    }
}

impl<F: Field> Field for Option<F> {
    fn put(&self, name: &'static str, put: &mut dyn FnMut(&'static str, Value)) {
        if let Some(field) = self {
            field.put(name, put);
        }
    }

    fn describe(
        name: &'static str,
        meaning: &'static str,
        fields: &mut Vec<(&'static str, &'static str)>,
    ) {
        F::describe(name, meaning, fields);
    }
}

/// Names of types that are declared elsewhere: those of their variants.
macro_rules! debug_fields {
    ($($type:ty),*) => {
        $(impl Field for $type {
            fn put(&self, name: &'static str, put: &mut dyn FnMut(&'static str, Value)) {
                put(name, Value::Name(in_words(&format!("{self:?}"))));
            }
        })*
    };
}
debug_fields!(QpState, WcStatus, WrOpcode);

impl Field for Opcode {
    fn put(&self, name: &'static str, put: &mut dyn FnMut(&'static str, Value)) {
        put(name, Value::Name((*self).name().to_owned()));
    }
}

/// `OutOfSequence` is `out_of_sequence`, and what is inside another name follows it:
/// `Refused(Key(Bounds))` is `refused:key:bounds`.
pub(crate) fn in_words(variant: &str) -> String {
    let mut words = String::with_capacity(variant.len() + 8);
    for char in variant.chars() {
        match char {
            '(' => words.push(':'),
            ')' => {}
            _ if char.is_ascii_uppercase() => {
                if !words.is_empty() && !words.ends_with(':') {
                    words.push('_');
                }
                words.push(char.to_ascii_lowercase());
            }
            _ => words.push(char),
        }
    }
    words
}

/// Reasons: an enumeration whose variants have a name and a meaning for users.
macro_rules! reasons {
    (
        $(#[doc = $about:literal])+
        $reasons:ident: $($(#[doc = $meaning:literal])+ $name:ident $(($inner:ty))?,)*
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum $reasons { $($(#[doc = $meaning])+ $name $(($inner))?,)* }

        impl $reasons {
            /// Every name, and its meaning. What stands behind a colon says more.
            pub fn meanings() -> Vec<(String, &'static str)> {
                vec![$((
                    $crate::event::schema::in_words(stringify!($name)),
                    concat!($($meaning),+).trim_ascii(),
                ),)*]
            }

            /// The name.
            pub fn name(self) -> String {
                $crate::event::schema::in_words(&format!("{self:?}"))
            }
        }

        impl $crate::event::schema::Field for $reasons {
            fn put(
                &self,
                name: &'static str,
                put: &mut dyn FnMut(&'static str, $crate::event::schema::Value),
            ) {
                put(name, $crate::event::schema::Value::Name(self.name()));
            }
        }
    };
}

/// The vocabulary: an enumeration of events, whose fields have a name and a meaning for users.
macro_rules! events {
    (
        $(#[doc = $about:literal])+
        $events:ident: $(
            $(#[doc = $meaning:literal])+
            $event:ident { $($(#[doc = $field_meaning:literal])+ $field:ident: $type:ty,)* },
        )*
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $events {
            $($(#[doc = $meaning])+ $event { $($(#[doc = $field_meaning])+ $field: $type,)* },)*
        }

        impl $events {
            /// Its name for users, as in `packet_sent` or `cq_overflow`.
            pub fn name(&self) -> String {
                let name = match self { $(Self::$event { .. } => stringify!($event),)* };
                $crate::event::schema::in_words(name)
            }

            /// Tells each field that it has, in order.
            pub fn fields(&self, put: &mut dyn FnMut(&'static str, Value)) {
                match self {
                    $(Self::$event { $($field),* } => {
                        $(Field::put($field, stringify!($field), put);)*
                    })*
                }
            }

            /// All kinds of events.
            pub fn schema() -> Vec<EventSchema> {
                vec![$({
                    let mut fields = Vec::new();
                    $(<$type as Field>::describe(
                        stringify!($field),
                        concat!($($field_meaning),+).trim_ascii(),
                        &mut fields,
                    );)*
                    EventSchema {
                        name: $crate::event::schema::in_words(stringify!($event)),
                        meaning: concat!($($meaning),+).trim_ascii(),
                        fields,
                    }
                },)*]
            }
        }
    };
}

//! How counters are declared: a structure whose fields have a name and a meaning for users.

macro_rules! counters {
    (
        $(#[doc = $about:literal])+
        $counters:ident: $($(#[doc = $meaning:literal])+ $name:ident,)*
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
        pub struct $counters { $($(#[doc = $meaning])+ pub $name: u64,)* }

        impl $counters {
            /// Every counter's name and its meaning, in one or more sentences.
            pub const MEANINGS: &[(&'static str, &'static str)] =
                &[$((stringify!($name), concat!($($meaning),+).trim_ascii()),)*];

            /// Every counter with its name, in a fixed order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            /// Adds those of another.
            pub fn add(&mut self, other: &Self) {
                $(self.$name = self.$name.wrapping_add(other.$name);)*
            }
        }
    };
}

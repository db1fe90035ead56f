//! How C enums and layouts are written down in this crate.

/// Defines a C enum: an integer type and its constants.
macro_rules! c_enum {
    ($(#[$meta:meta])* $name:ident: $int:ty; $($constant:ident = $value:expr,)*) => {
        $(#[$meta])*
        pub type $name = $int;
        $(
            #[allow(missing_docs)]
            pub const $constant: $name = $value;
        )*
    };
}

/// Asserts size, alignment and field offsets of C structures, and lets them start as zero bytes.
macro_rules! layouts {
    ($($name:ident: $size:literal $align:literal | $($field:ident @ $offset:literal)*;)*) => {
        $(
            // SAFETY: integers, nullable pointers and optional functions, all of which may be zero.
            unsafe impl crate::Zeroed for crate::$name {}

            #[cfg(target_arch = "x86_64")]
            const _: () = {
                assert!(size_of::<crate::$name>() == $size);
                assert!(align_of::<crate::$name>() == $align);
                $(assert!(std::mem::offset_of!(crate::$name, $field) == $offset);)*
            };
        )*
    };
}

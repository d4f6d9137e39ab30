//! Fields of fixed size, and the macro that makes messages of them.

use crate::form::Form;

/// A value of fixed size inside a body.
pub trait Field: Form {
    const BYTES: usize;
    const ZERO: Self;
}

macro_rules! integer_field {
    ($($type:ty),*) => {$(
        impl Field for $type {
            const BYTES: usize = size_of::<$type>();
            const ZERO: Self = 0;
        }
    )*};
}

integer_field!(u8, u16, u32, u64);

impl<const COUNT: usize> Field for [u8; COUNT] {
    const BYTES: usize = COUNT;
    const ZERO: Self = [0; COUNT];
}

/// Makes a type of 16 bytes that no log shows.
macro_rules! hidden {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Default)]
        pub struct $name(pub [u8; 16]);

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(concat!(stringify!($name), "(..)"))
            }
        }

        impl Field for $name {
            const BYTES: usize = 16;
            const ZERO: Self = Self([0; 16]);
        }

        impl $crate::form::Form for $name {
            fn take(bytes: &mut &[u8]) -> Option<Self> {
                $crate::form::Form::take(bytes).map(Self)
            }

            fn put(&self, body: &mut Vec<u8>) {
                $crate::form::Form::put(&self.0, body);
            }
        }
    };
}
pub(super) use hidden;

/// Makes a struct of each message: its fields, its kind, its bytes.
macro_rules! messages {
    ($(
        $(#[$doc:meta])*
        $name:ident = $kind:literal {
            $($(#[$field_doc:meta])* $field:ident: $type:ty,)*
        }
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, PartialEq, Eq, Debug)]
            pub struct $name {
                $($(#[$field_doc])* pub $field: $type,)*
            }

            impl Default for $name {
                fn default() -> Self {
                    Self { $($field: <$type as Field>::ZERO,)* }
                }
            }

            impl $name {
                /// The kind on the wire.
                pub const KIND: u16 = $kind;
                /// Bytes of the body.
                pub const BYTES: usize = 0 $(+ <$type as Field>::BYTES)*;

                pub(super) fn take(mut body: &[u8]) -> Option<Self> {
                    let parsed = Self { $($field: $crate::form::Form::take(&mut body)?,)* };
                    body.is_empty().then_some(parsed)
                }

                pub(super) fn put(&self, body: &mut Vec<u8>) {
                    $($crate::form::Form::put(&self.$field, body);)*
                }
            }

            impl From<$name> for $crate::endpoint_control::EndpointControl {
                fn from(message: $name) -> Self {
                    Self::$name(message)
                }
            }
        )*
    };
}
pub(super) use messages;

//! Enums that travel as a kind and fields, and the macro that reads and writes them.
//!
//! A field is little-endian, without padding. Reading gives the value or nothing: a kind that is
//! not there, bytes that are missing or left, and values without a meaning are refused. What is
//! read is written as the same bytes.

use std::net::{IpAddr, SocketAddr};

/// A value inside of a message.
pub trait Form: Sized {
    /// The value at the front of `bytes`, which go on behind it.
    fn take(bytes: &mut &[u8]) -> Option<Self>;
    /// Writes the value.
    fn put(&self, bytes: &mut Vec<u8>);
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Form for $type {
            fn take(bytes: &mut &[u8]) -> Option<Self> {
                <[u8; size_of::<$type>()]>::take(bytes).map(Self::from_le_bytes)
            }

            fn put(&self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}

integers!(u8, u16, u32, u64);

impl<const COUNT: usize> Form for [u8; COUNT] {
    fn take(bytes: &mut &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk()?;
        *bytes = rest;
        Some(*head)
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self);
    }
}

impl Form for bool {
    fn take(bytes: &mut &[u8]) -> Option<Self> {
        let byte = u8::take(bytes)?;
        (byte <= 1).then_some(byte == 1)
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        bytes.push(u8::from(*self));
    }
}

impl Form for IpAddr {
    fn take(bytes: &mut &[u8]) -> Option<Self> {
        match u8::take(bytes)? {
            4 => <[u8; 4]>::take(bytes).map(Self::from),
            6 => <[u8; 16]>::take(bytes).map(Self::from),
            _ => None,
        }
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::V4(address) => {
                bytes.push(4);
                address.octets().put(bytes);
            }
            Self::V6(address) => {
                bytes.push(6);
                address.octets().put(bytes);
            }
        }
    }
}

impl Form for SocketAddr {
    fn take(bytes: &mut &[u8]) -> Option<Self> {
        Some(Self::new(IpAddr::take(bytes)?, u16::take(bytes)?))
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        self.ip().put(bytes);
        self.port().put(bytes);
    }
}

/// Makes a form of an enum without fields: one byte, the number of the variant.
#[macro_export]
macro_rules! byte_form {
    ($name:ident: $($variant:ident),*) => {
        impl $crate::form::Form for $name {
            fn take(bytes: &mut &[u8]) -> Option<Self> {
                let byte = <u8 as $crate::form::Form>::take(bytes)?;
                [$(Self::$variant),*].into_iter().find(|one| *one as u8 == byte)
            }

            fn put(&self, bytes: &mut Vec<u8>) {
                bytes.push(*self as u8);
            }
        }
    };
}

/// A value that has a maximum, which the macro names: a text in bytes, or a list in items.
pub trait Bounded: Sized {
    /// The value at the front of `bytes`, unless it has more than `maximum`.
    fn take(bytes: &mut &[u8], maximum: usize) -> Option<Self>;
    /// Writes the value, cut to `maximum`.
    fn put(&self, bytes: &mut Vec<u8>, maximum: usize);
}

impl Bounded for String {
    fn take(bytes: &mut &[u8], maximum: usize) -> Option<Self> {
        let length = usize::from(u16::take(bytes)?);
        let (text, rest) = bytes.split_at_checked(length).filter(|_| length <= maximum)?;
        *bytes = rest;
        std::str::from_utf8(text).ok().map(str::to_owned)
    }

    fn put(&self, bytes: &mut Vec<u8>, maximum: usize) {
        let text = &self[..self.floor_char_boundary(maximum)];
        u16::try_from(text.len()).expect("the maxima fit 16 bits").put(bytes);
        bytes.extend_from_slice(text.as_bytes());
    }
}

impl<T: Form> Bounded for Vec<T> {
    fn take(bytes: &mut &[u8], maximum: usize) -> Option<Self> {
        let count = u8::take(bytes).filter(|count| usize::from(*count) <= maximum)?;
        (0..count).map(|_| T::take(bytes)).collect()
    }

    fn put(&self, bytes: &mut Vec<u8>, maximum: usize) {
        let items = &self[..self.len().min(maximum)];
        u8::try_from(items.len()).expect("the maxima of lists fit 8 bits").put(bytes);
        items.iter().for_each(|item| item.put(bytes));
    }
}

/// Makes an enum of messages, each with the number of its kind and its fields. A field with a
/// maximum names it in brackets.
#[macro_export]
macro_rules! forms {
    ($(#[$meta:meta])* $vis:vis enum $name:ident: $kind:ty {
        $($(#[$doc:meta])* $variant:ident = $number:literal $({
            $($(#[$field_doc:meta])* $field:ident: $type:ty $([$maximum:expr])?,)*
        })?,)*
    }) => {
        $(#[$meta])*
        $vis enum $name {
            $($(#[$doc])* $variant $({ $($(#[$field_doc])* $field: $type,)* })?,)*
        }

        impl $name {
            /// The numbers of all kinds.
            $vis const KINDS: &[$kind] = &[$($number),*];

            /// The number of the message's kind.
            $vis const fn kind(&self) -> $kind {
                match self { $(Self::$variant { .. } => $number,)* }
            }

            /// The message of a kind in `bytes`, which are its fields and nothing else.
            $vis fn of_kind(kind: $kind, bytes: &[u8]) -> Option<Self> {
                #[allow(unused_mut, reason = "a message may have no fields")]
                let mut bytes = bytes;
                let message = match kind {
                    $($number => Self::$variant $({
                        $($field: $crate::forms!(@take $type, bytes $(, $maximum)?),)*
                    })?,)*
                    _ => return None,
                };
                bytes.is_empty().then_some(message)
            }

            /// Writes the fields.
            $vis fn put_fields(&self, bytes: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $({ $($field),* })? => {
                        $($($crate::forms!(@put $field, bytes $(, $maximum)?);)*)?
                    })*
                }
            }
        }
    };
    (@take $type:ty, $bytes:ident) => { <$type as $crate::form::Form>::take(&mut $bytes)? };
    (@take $type:ty, $bytes:ident, $maximum:expr) => {
        <$type as $crate::form::Bounded>::take(&mut $bytes, $maximum)?
    };
    (@put $field:ident, $bytes:ident) => { $crate::form::Form::put($field, $bytes) };
    (@put $field:ident, $bytes:ident, $maximum:expr) => {
        $crate::form::Bounded::put($field, $bytes, $maximum)
    };
}

//! Words that a window loads and stores by one access each.

/// A word of 1, 2, 4 or 8 bytes, in the order of the machine's bytes.
pub trait Word: Copy + Send + 'static + sealed::Sealed {
    /// Bytes of the word. It must lie at a multiple of them.
    const BYTES: u8;

    /// The word in the low bytes.
    fn value(self) -> u64;

    /// The word of the low bytes of `value`.
    fn of_value(value: u64) -> Self;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! word {
    ($($word:ty: $bytes:literal),*) => { $(
        impl sealed::Sealed for $word {}

        impl Word for $word {
            const BYTES: u8 = $bytes;

            #[inline]
            fn value(self) -> u64 {
                u64::from(self)
            }

            #[inline]
            #[allow(clippy::cast_possible_truncation, trivial_numeric_casts, reason = "low bytes")]
            fn of_value(value: u64) -> Self {
                value as Self
            }
        }
    )* };
}

word!(u8: 1, u16: 2, u32: 4, u64: 8);

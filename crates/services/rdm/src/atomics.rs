//! Atomic operations on words of many types, as pure functions.
//!
//! The numbers of operations and types are those of `rdma/fi_atomic.h`. Types of 80-bit floating
//! point are not here: Rust has none.

/// The types of words. Complex numbers are two words, real part first.
#[allow(missing_docs, reason = "the names are those of the languages")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Datatype {
    I8 = 0,
    U8 = 1,
    I16 = 2,
    U16 = 3,
    I32 = 4,
    U32 = 5,
    I64 = 6,
    U64 = 7,
    F32 = 8,
    F64 = 9,
    Complex32 = 10,
    Complex64 = 11,
}

impl Datatype {
    /// All types, each at the place of its number.
    pub const ALL: [Self; 12] = [
        Self::I8,
        Self::U8,
        Self::I16,
        Self::U16,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
        Self::F32,
        Self::F64,
        Self::Complex32,
        Self::Complex64,
    ];

    /// The type with this number.
    #[must_use]
    pub fn of(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Bytes of a word.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 | Self::Complex32 => 8,
            Self::Complex64 => 16,
        }
    }

    const fn is_integer(self) -> bool {
        (self as u8) < Self::F32 as u8
    }

    const fn is_complex(self) -> bool {
        matches!(self, Self::Complex32 | Self::Complex64)
    }
}

/// The operations.
#[allow(missing_docs, reason = "the names are those of fi_atomic(3)")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Operator {
    Min = 0,
    Max = 1,
    Sum = 2,
    Product = 3,
    LogicalOr = 4,
    LogicalAnd = 5,
    BitOr = 6,
    BitAnd = 7,
    LogicalXor = 8,
    BitXor = 9,
    Read = 10,
    Write = 11,
    SwapIfEqual = 12,
    SwapIfNotEqual = 13,
    SwapIfLessOrEqual = 14,
    SwapIfLess = 15,
    SwapIfGreaterOrEqual = 16,
    SwapIfGreater = 17,
    MaskedSwap = 18,
}

impl Operator {
    /// All operations, each at the place of its number.
    pub const ALL: [Self; 19] = [
        Self::Min,
        Self::Max,
        Self::Sum,
        Self::Product,
        Self::LogicalOr,
        Self::LogicalAnd,
        Self::BitOr,
        Self::BitAnd,
        Self::LogicalXor,
        Self::BitXor,
        Self::Read,
        Self::Write,
        Self::SwapIfEqual,
        Self::SwapIfNotEqual,
        Self::SwapIfLessOrEqual,
        Self::SwapIfLess,
        Self::SwapIfGreaterOrEqual,
        Self::SwapIfGreater,
        Self::MaskedSwap,
    ];

    /// The operation with this number.
    #[must_use]
    pub fn of(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// True for operations that compare with a further operand.
    #[must_use]
    pub const fn compares(self) -> bool {
        self as u8 >= Self::SwapIfEqual as u8
    }

    /// True if the operation is defined for words of a type.
    #[must_use]
    pub const fn takes(self, datatype: Datatype) -> bool {
        match self {
            Self::BitOr | Self::BitAnd | Self::BitXor | Self::MaskedSwap => datatype.is_integer(),
            Self::Min
            | Self::Max
            | Self::SwapIfLess
            | Self::SwapIfLessOrEqual
            | Self::SwapIfGreater
            | Self::SwapIfGreaterOrEqual => !datatype.is_complex(),
            _ => true,
        }
    }
}

/// Numbers with the operations of all types.
trait Number: Copy + PartialEq {
    const ZERO: Self;
    const ONE: Self;
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
}

macro_rules! numbers {
    ($($type:ty),*; $zero:literal, $one:literal; $sum:ident, $product:ident) => {$(
        impl Number for $type {
            const ZERO: Self = $zero;
            const ONE: Self = $one;
            fn sum(self, other: Self) -> Self {
                $sum!(self, other)
            }
            fn product(self, other: Self) -> Self {
                $product!(self, other)
            }
        }
    )*};
}

macro_rules! wrapping_sum {
    ($a:ident, $b:ident) => {
        $a.wrapping_add($b)
    };
}
macro_rules! wrapping_product {
    ($a:ident, $b:ident) => {
        $a.wrapping_mul($b)
    };
}
macro_rules! plain_sum {
    ($a:ident, $b:ident) => {
        $a + $b
    };
}
macro_rules! plain_product {
    ($a:ident, $b:ident) => {
        $a * $b
    };
}

numbers!(i8, u8, i16, u16, i32, u32, i64, u64; 0, 1; wrapping_sum, wrapping_product);
numbers!(f32, f64; 0.0, 1.0; plain_sum, plain_product);

#[derive(Clone, Copy, PartialEq)]
struct Complex<T>(T, T);

macro_rules! complex {
    ($($type:ty),*) => {$(
        impl Number for Complex<$type> {
            const ZERO: Self = Self(0.0, 0.0);
            const ONE: Self = Self(1.0, 0.0);
            fn sum(self, other: Self) -> Self {
                Self(self.0 + other.0, self.1 + other.1)
            }
            fn product(self, other: Self) -> Self {
                Self(
                    self.0 * other.0 - self.1 * other.1,
                    self.0 * other.1 + self.1 * other.0,
                )
            }
        }
    )*};
}

complex!(f32, f64);

fn truth<T: Number>(value: bool) -> T {
    if value { T::ONE } else { T::ZERO }
}

/// The operations that are defined for all types; `None` for the rest.
fn of_numbers<T: Number>(operator: Operator, old: T, operand: T, compare: T) -> Option<T> {
    let is = |value: T| value != T::ZERO;
    Some(match operator {
        Operator::Sum => old.sum(operand),
        Operator::Product => old.product(operand),
        Operator::LogicalOr => truth(is(old) || is(operand)),
        Operator::LogicalAnd => truth(is(old) && is(operand)),
        Operator::LogicalXor => truth(is(old) != is(operand)),
        Operator::Read => old,
        Operator::Write => operand,
        Operator::SwapIfEqual => {
            if compare == old {
                operand
            } else {
                old
            }
        }
        Operator::SwapIfNotEqual => {
            if compare != old {
                operand
            } else {
                old
            }
        }
        _ => return None,
    })
}

/// The operations that are defined for types with an order.
fn of_ordered<T: Number + PartialOrd>(
    operator: Operator,
    old: T,
    operand: T,
    compare: T,
) -> Option<T> {
    let swapped = |condition: bool| Some(if condition { operand } else { old });
    match operator {
        Operator::Min => swapped(operand < old),
        Operator::Max => swapped(operand > old),
        Operator::SwapIfLess => swapped(compare < old),
        Operator::SwapIfLessOrEqual => swapped(compare <= old),
        Operator::SwapIfGreater => swapped(compare > old),
        Operator::SwapIfGreaterOrEqual => swapped(compare >= old),
        _ => of_numbers(operator, old, operand, compare),
    }
}

macro_rules! integer {
    ($type:ty, $operator:expr, $old:expr, $operand:expr, $compare:expr) => {{
        let of = |bytes: &[u8]| Some(<$type>::from_ne_bytes(bytes.try_into().ok()?));
        let (old, operand, compare) = (of($old)?, of($operand)?, of($compare)?);
        let new = match $operator {
            Operator::BitOr => old | operand,
            Operator::BitAnd => old & operand,
            Operator::BitXor => old ^ operand,
            Operator::MaskedSwap => (operand & compare) | (old & !compare),
            operator => of_ordered(operator, old, operand, compare)?,
        };
        Word::of(&new.to_ne_bytes())
    }};
}

macro_rules! float {
    ($type:ty, $operator:expr, $old:expr, $operand:expr, $compare:expr) => {{
        let of = |bytes: &[u8]| Some(<$type>::from_ne_bytes(bytes.try_into().ok()?));
        let new = of_ordered($operator, of($old)?, of($operand)?, of($compare)?)?;
        Word::of(&new.to_ne_bytes())
    }};
}

macro_rules! pair {
    ($type:ty, $operator:expr, $old:expr, $operand:expr, $compare:expr) => {{
        let of = |bytes: &[u8]| {
            let (real, imaginary) = bytes.split_at_checked(size_of::<$type>())?;
            let of = |bytes: &[u8]| Some(<$type>::from_ne_bytes(bytes.try_into().ok()?));
            Some(Complex(of(real)?, of(imaginary)?))
        };
        let Complex(real, imaginary) =
            of_numbers($operator, of($old)?, of($operand)?, of($compare)?)?;
        let mut word = Word::of(&real.to_ne_bytes());
        word.extend(&imaginary.to_ne_bytes());
        word
    }};
}

/// A word of any type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Word {
    bytes: [u8; 16],
    length: usize,
}

impl Word {
    fn of(bytes: &[u8]) -> Self {
        let mut word = Self { bytes: [0; 16], length: 0 };
        word.extend(bytes);
        word
    }

    fn extend(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    /// Its bytes, as they lie in memory.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// An atomic operation on several words.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The operation.
    pub operator: Operator,
    /// The type of the words.
    pub datatype: Datatype,
    /// The number of words.
    pub count: usize,
    /// Their operands; empty for [`Operator::Read`].
    pub operand: &'a [u8],
    /// The words to compare with; empty unless [`Operator::compares`].
    pub compare: &'a [u8],
}

impl Call<'_> {
    /// The new value of word `index` if it was `old`. `None` if the operation is not defined.
    ///
    /// ```
    /// use weft_rdm::atomics::{Call, Datatype, Operator};
    ///
    /// let operand = 5_u32.to_ne_bytes();
    /// let (operator, datatype) = (Operator::Sum, Datatype::U32);
    /// let add = Call { operator, datatype, count: 1, operand: &operand, compare: &[] };
    /// let new = add.new_value(0, &2_u32.to_ne_bytes()).expect("a sum of integers is defined");
    /// assert_eq!(new.bytes(), 7_u32.to_ne_bytes());
    /// ```
    #[must_use]
    pub fn new_value(&self, index: usize, old: &[u8]) -> Option<Word> {
        let bytes = self.datatype.bytes();
        let of = |words: &'_ [u8]| {
            let at = index * bytes;
            let mut word = [0; 16];
            if let Some(found) = words.get(at..at + bytes) {
                word[..bytes].copy_from_slice(found);
            }
            word
        };
        let (operand, compare) = (of(self.operand), of(self.compare));
        let (operand, compare) = (&operand[..bytes], &compare[..bytes]);
        let operator = self.operator;
        Some(match self.datatype {
            Datatype::I8 => integer!(i8, operator, old, operand, compare),
            Datatype::U8 => integer!(u8, operator, old, operand, compare),
            Datatype::I16 => integer!(i16, operator, old, operand, compare),
            Datatype::U16 => integer!(u16, operator, old, operand, compare),
            Datatype::I32 => integer!(i32, operator, old, operand, compare),
            Datatype::U32 => integer!(u32, operator, old, operand, compare),
            Datatype::I64 => integer!(i64, operator, old, operand, compare),
            Datatype::U64 => integer!(u64, operator, old, operand, compare),
            Datatype::F32 => float!(f32, operator, old, operand, compare),
            Datatype::F64 => float!(f64, operator, old, operand, compare),
            Datatype::Complex32 => pair!(f32, operator, old, operand, compare),
            Datatype::Complex64 => pair!(f64, operator, old, operand, compare),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<const N: usize>(
        (operator, datatype): (Operator, Datatype),
        [old, operand, compare]: [[u8; N]; 3],
    ) -> Option<Vec<u8>> {
        let call = Call { operator, datatype, count: 1, operand: &operand, compare: &compare };
        call.new_value(0, &old).map(|word| word.bytes().to_vec())
    }

    #[test]
    fn each_operation_is_defined_for_the_types_that_it_takes() {
        for operator in Operator::ALL {
            for datatype in Datatype::ALL {
                let words = [1, 2, 3].map(|byte| vec![byte; datatype.bytes()]);
                let [old, operand, compare] = &words;
                let call = Call { operator, datatype, count: 1, operand, compare };
                let defined = call.new_value(0, old).is_some();
                assert_eq!(defined, operator.takes(datatype), "{operator:?} {datatype:?}");
            }
        }
    }

    #[test]
    fn conditions_compare_the_operand_with_the_word() {
        let words = |old: i32, compare: i32| [old, 100, compare].map(i32::to_ne_bytes);
        let swaps = |operator, old, compare| {
            of((operator, Datatype::I32), words(old, compare))
                == Some(100_i32.to_ne_bytes().to_vec())
        };
        let all = |compare| {
            let swaps = |operator| swaps(operator, 0, compare);
            [
                swaps(Operator::SwapIfEqual),
                swaps(Operator::SwapIfNotEqual),
                swaps(Operator::SwapIfLessOrEqual),
                swaps(Operator::SwapIfLess),
                swaps(Operator::SwapIfGreaterOrEqual),
                swaps(Operator::SwapIfGreater),
            ]
        };
        assert_eq!(all(-1), [false, true, true, true, false, false]);
        assert_eq!(all(0), [true, false, true, false, true, false]);
        assert_eq!(all(1), [false, true, false, false, true, true]);
    }

    #[test]
    fn numbers_wrap_and_masks_choose_bits() {
        let bytes = |old: u8, operand: u8, compare: u8| [[old], [operand], [compare]];
        let of_u8 = |operator, words| of((operator, Datatype::U8), words);
        assert_eq!(of_u8(Operator::Sum, bytes(250, 10, 0)), Some(vec![4]));
        assert_eq!(of_u8(Operator::MaskedSwap, bytes(0xf0, 0x3c, 0x0f)), Some(vec![0xfc]));
        assert_eq!(of_u8(Operator::LogicalXor, bytes(5, 9, 0)), Some(vec![0]));
        assert_eq!(of_u8(Operator::Min, bytes(5, 9, 0)), Some(vec![5]));
        let complex = |real: f32, imaginary: f32| {
            let mut bytes = [0; 8];
            bytes[..4].copy_from_slice(&real.to_ne_bytes());
            bytes[4..].copy_from_slice(&imaginary.to_ne_bytes());
            bytes
        };
        let words = [complex(1.0, 2.0), complex(3.0, 4.0), [0; 8]];
        let product = of((Operator::Product, Datatype::Complex32), words);
        assert_eq!(product, Some(complex(-5.0, 10.0).to_vec()));
    }
}

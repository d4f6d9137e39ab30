//! The types of OpenSHMEM's tables: their names in function names, in C and in Rust.

/// A type of a table of the specification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Type {
    /// The word in the name of a function: `longdouble`, or a number of bits, or `mem`.
    pub word: &'static str,
    /// The type in C. Sizes have `void`.
    pub c: &'static str,
    /// The arithmetic type in C that it is another name of on this machine.
    pub basic: &'static str,
    /// The type in Rust.
    pub rust: &'static str,
}

const fn of(word: &'static str, c: &'static str, basic: &'static str, rust: &'static str) -> Type {
    Type { word, c, basic, rust }
}

const FLOAT: Type = of("float", "float", "float", "f32");
const DOUBLE: Type = of("double", "double", "double", "f64");
const LONGDOUBLE: Type = of("longdouble", "long double", "long double", "LongDouble");
const CHAR: Type = of("char", "char", "char", "i8");
const SCHAR: Type = of("schar", "signed char", "signed char", "i8");
const SHORT: Type = of("short", "short", "short", "i16");
const INT: Type = of("int", "int", "int", "i32");
const LONG: Type = of("long", "long", "long", "i64");
const LONGLONG: Type = of("longlong", "long long", "long long", "i64");
const UCHAR: Type = of("uchar", "unsigned char", "unsigned char", "u8");
const USHORT: Type = of("ushort", "unsigned short", "unsigned short", "u16");
const UINT: Type = of("uint", "unsigned int", "unsigned int", "u32");
const ULONG: Type = of("ulong", "unsigned long", "unsigned long", "u64");
const ULONGLONG: Type = of("ulonglong", "unsigned long long", "unsigned long long", "u64");
const INT8: Type = of("int8", "int8_t", "signed char", "i8");
const INT16: Type = of("int16", "int16_t", "short", "i16");
const INT32: Type = of("int32", "int32_t", "int", "i32");
const INT64: Type = of("int64", "int64_t", "long", "i64");
const UINT8: Type = of("uint8", "uint8_t", "unsigned char", "u8");
const UINT16: Type = of("uint16", "uint16_t", "unsigned short", "u16");
const UINT32: Type = of("uint32", "uint32_t", "unsigned int", "u32");
const UINT64: Type = of("uint64", "uint64_t", "unsigned long", "u64");
const SIZE: Type = of("size", "size_t", "unsigned long", "usize");
const PTRDIFF: Type = of("ptrdiff", "ptrdiff_t", "long", "isize");
const COMPLEXF: Type = of("complexf", "float _Complex", "float _Complex", "Complex<f32>");
const COMPLEXD: Type = of("complexd", "double _Complex", "double _Complex", "Complex<f64>");

const BITS8: Type = of("8", "void", "void", "u8");
const BITS16: Type = of("16", "void", "void", "u16");
const BITS32: Type = of("32", "void", "void", "u32");
const BITS64: Type = of("64", "void", "void", "u64");
const BITS128: Type = of("128", "void", "void", "u128");
const MEM: Type = of("mem", "void", "void", "u8");

/// A table of types.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TypeSet {
    /// Remote memory access.
    Rma,
    /// Atomics of any kind.
    Amo,
    /// Atomics that fetch, set and swap alone.
    AmoExtended,
    /// Bitwise atomics.
    AmoBitwise,
    /// Waiting and testing.
    Waiting,
    /// Bitwise reductions.
    ReduceBitwise,
    /// Bitwise reductions of types that the specification left out, as other libraries have them.
    ReduceBitwiseMore,
    /// Maximum and minimum.
    ReduceOrder,
    /// Sum and product, and scans.
    ReduceArithmetic,
    /// Waiting for another value (deprecated).
    Changing,
    /// Bitwise reductions of active sets (deprecated).
    ToAllBitwise,
    /// Maximum and minimum of active sets (deprecated).
    ToAllOrder,
    /// Sum and product of active sets (deprecated).
    ToAllArithmetic,
    /// Elements of a number of bits.
    Bits,
    /// Elements of a number of bits, and bytes.
    BitsAndBytes,
    /// Bytes.
    Bytes,
    /// Elements of 32 and 64 bits (deprecated collectives).
    Words,
}

impl TypeSet {
    /// The types of the table, in the order of the specification.
    #[must_use]
    pub const fn types(self) -> &'static [Type] {
        match self {
            Self::Rma => &[
                FLOAT, DOUBLE, LONGDOUBLE, CHAR, SCHAR, SHORT, INT, LONG, LONGLONG, UCHAR, USHORT,
                UINT, ULONG, ULONGLONG, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64,
                SIZE, PTRDIFF,
            ],
            Self::Amo => &[
                INT, LONG, LONGLONG, UINT, ULONG, ULONGLONG, INT32, INT64, UINT32, UINT64, SIZE,
                PTRDIFF,
            ],
            Self::AmoExtended => &[
                FLOAT, DOUBLE, INT, LONG, LONGLONG, UINT, ULONG, ULONGLONG, INT32, INT64, UINT32,
                UINT64, SIZE, PTRDIFF,
            ],
            Self::AmoBitwise => &[UINT, ULONG, ULONGLONG, INT32, INT64, UINT32, UINT64],
            Self::Waiting => &[
                SHORT, INT, LONG, LONGLONG, USHORT, UINT, ULONG, ULONGLONG, INT32, INT64, UINT32,
                UINT64, SIZE, PTRDIFF,
            ],
            Self::ReduceBitwise => &[
                UCHAR, USHORT, UINT, ULONG, ULONGLONG, INT8, INT16, INT32, INT64, UINT8, UINT16,
                UINT32, UINT64, SIZE,
            ],
            Self::ReduceBitwiseMore => &[SHORT, INT, LONG, LONGLONG],
            Self::ReduceOrder => &[
                CHAR, SCHAR, SHORT, INT, LONG, LONGLONG, PTRDIFF, UCHAR, USHORT, UINT, ULONG,
                ULONGLONG, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64, SIZE, FLOAT,
                DOUBLE, LONGDOUBLE,
            ],
            Self::ReduceArithmetic => &[
                CHAR, SCHAR, SHORT, INT, LONG, LONGLONG, PTRDIFF, UCHAR, USHORT, UINT, ULONG,
                ULONGLONG, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64, SIZE, FLOAT,
                DOUBLE, LONGDOUBLE, COMPLEXD, COMPLEXF,
            ],
            Self::Changing | Self::ToAllBitwise => &[SHORT, INT, LONG, LONGLONG],
            Self::ToAllOrder => &[SHORT, INT, LONG, LONGLONG, FLOAT, DOUBLE, LONGDOUBLE],
            Self::ToAllArithmetic => {
                &[SHORT, INT, LONG, LONGLONG, FLOAT, DOUBLE, LONGDOUBLE, COMPLEXF, COMPLEXD]
            }
            Self::Bits => &[BITS8, BITS16, BITS32, BITS64, BITS128],
            Self::BitsAndBytes => &[BITS8, BITS16, BITS32, BITS64, BITS128, MEM],
            Self::Bytes => &[MEM],
            Self::Words => &[BITS32, BITS64],
        }
    }
}

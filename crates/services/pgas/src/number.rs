//! The numbers that reductions combine, and how.
//!
//! Whole numbers wrap around. `long double` is that of the x87 unit, for which Rust has no type: it
//! is 16 bytes here, of which 10 count.

/// An operation that reductions combine elements by.
pub trait Combine<T> {
    /// Whether any order and grouping of elements gives the same bits. With floating point it does
    /// not: sums are rounded, and a comparison with what is no number is false.
    const IS_EXACT: bool = false;

    /// Combines two elements; the first is that of the lower PE.
    fn combine(left: T, right: T) -> T;
}

macro_rules! operations {
    ($($name:ident: $says:literal),*) => {$(
        #[doc = $says]
        #[derive(Clone, Copy, Debug)]
        pub struct $name;
    )*};
}

operations! {
    And: "Bitwise and.",
    Or: "Bitwise or.",
    Xor: "Bitwise exclusive or.",
    Max: "The larger one.",
    Min: "The smaller one.",
    Sum: "The sum.",
    Product: "The product."
}

/// A complex number in C's layout.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Complex<T> {
    /// The real part.
    pub real: T,
    /// The imaginary part.
    pub imaginary: T,
}

/// C's `long double`.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug)]
pub struct LongDouble([u8; 16]);

macro_rules! whole {
    ($($number:ty),*) => {$(
        impl Combine<$number> for And {
            const IS_EXACT: bool = true;
            #[inline(always)]
            fn combine(left: $number, right: $number) -> $number { left & right }
        }
        impl Combine<$number> for Or {
            const IS_EXACT: bool = true;
            #[inline(always)]
            fn combine(left: $number, right: $number) -> $number { left | right }
        }
        impl Combine<$number> for Xor {
            const IS_EXACT: bool = true;
            #[inline(always)]
            fn combine(left: $number, right: $number) -> $number { left ^ right }
        }
        impl Combine<$number> for Sum {
            const IS_EXACT: bool = true;
            #[inline(always)]
            fn combine(left: $number, right: $number) -> $number { left.wrapping_add(right) }
        }
        impl Combine<$number> for Product {
            const IS_EXACT: bool = true;
            #[inline(always)]
            fn combine(left: $number, right: $number) -> $number { left.wrapping_mul(right) }
        }
        ordered!($number, true);
    )*};
}

macro_rules! ordered {
    ($number:ty, $is_exact:literal) => {
        impl Combine<$number> for Max {
            const IS_EXACT: bool = $is_exact;
            #[inline(always)]
            fn combine(left: $number, right: $number) -> $number {
                if left < right { right } else { left }
            }
        }
        impl Combine<$number> for Min {
            const IS_EXACT: bool = $is_exact;
            #[inline(always)]
            fn combine(left: $number, right: $number) -> $number {
                if right < left { right } else { left }
            }
        }
    };
}

macro_rules! floating {
    ($($number:ty),*) => {$(
        impl Combine<$number> for Sum {
            #[inline(always)]
            fn combine(left: $number, right: $number) -> $number { left + right }
        }
        impl Combine<$number> for Product {
            #[inline(always)]
            fn combine(left: $number, right: $number) -> $number { left * right }
        }
        impl Combine<Complex<$number>> for Sum {
            #[inline(always)]
            fn combine(left: Complex<$number>, right: Complex<$number>) -> Complex<$number> {
                Complex {
                    real: left.real + right.real,
                    imaginary: left.imaginary + right.imaginary,
                }
            }
        }
        impl Combine<Complex<$number>> for Product {
            #[inline(always)]
            fn combine(left: Complex<$number>, right: Complex<$number>) -> Complex<$number> {
                Complex {
                    real: left.real * right.real - left.imaginary * right.imaginary,
                    imaginary: left.real * right.imaginary + left.imaginary * right.real,
                }
            }
        }
        ordered!($number, false);
    )*};
}

whole!(i8, i16, i32, i64, isize, u8, u16, u32, u64, usize);
floating!(f32, f64);

/// Has the x87 unit work on two numbers that are loaded, the right one on top.
#[cfg(target_arch = "x86_64")]
macro_rules! long_double {
    ($operation:ident, $($instruction:literal),*) => {
        impl Combine<LongDouble> for $operation {
            #[inline]
            fn combine(left: LongDouble, right: LongDouble) -> LongDouble {
                let mut result = left;
                // SAFETY: both operands and the result are variables of 16 bytes. The stack of the
                // unit is as before, and its registers are declared as overwritten.
                unsafe {
                    std::arch::asm!(
                        "fld tbyte ptr [{left}]",
                        "fld tbyte ptr [{right}]",
                        $($instruction,)*
                        "fstp tbyte ptr [{left}]",
                        left = in(reg) &raw mut result,
                        right = in(reg) &raw const right,
                        out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                        out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                        options(nostack),
                    );
                }
                result
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
long_double!(Sum, "faddp");
#[cfg(target_arch = "x86_64")]
long_double!(Product, "fmulp");
// The comparison sets the carry when the right one, on top, is below the left one.
#[cfg(target_arch = "x86_64")]
long_double!(Max, "fcomi st, st(1)", "fcmovb st, st(1)", "fstp st(1)");
#[cfg(target_arch = "x86_64")]
long_double!(Min, "fcomi st, st(1)", "fcmovnbe st, st(1)", "fstp st(1)");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_wrap_around() {
        assert_eq!(Sum::combine(i8::MAX, 1), i8::MIN);
        assert_eq!(<Product as Combine<u16>>::combine(300, 300), 24_464);
        assert_eq!(Max::combine(-3_i64, 2), 2);
        assert_eq!(Min::combine(3_u8, 2), 2);
    }

    #[test]
    fn complex_numbers_are_added_and_multiplied() {
        let number = |real, imaginary| Complex::<f64> { real, imaginary };
        assert_eq!(Sum::combine(number(1.0, 2.0), number(3.0, -1.0)), number(4.0, 1.0));
        assert_eq!(Product::combine(number(1.0, 2.0), number(3.0, -1.0)), number(5.0, 5.0));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn long_doubles_are_those_of_the_processor() {
        fn of(value: f64) -> LongDouble {
            let mut long = LongDouble([0; 16]);
            // SAFETY: the variables have 8 and 16 bytes.
            unsafe {
                std::arch::asm!(
                    "fld qword ptr [{from}]", "fstp tbyte ptr [{to}]",
                    from = in(reg) &raw const value, to = in(reg) &raw mut long,
                    out("st(0)") _, options(nostack),
                );
            }
            long
        }
        fn back(long: LongDouble) -> f64 {
            let mut value = 0.0_f64;
            // SAFETY: the variables have 16 and 8 bytes.
            unsafe {
                std::arch::asm!(
                    "fld tbyte ptr [{from}]", "fstp qword ptr [{to}]",
                    from = in(reg) &raw const long, to = in(reg) &raw mut value,
                    out("st(0)") _, options(nostack),
                );
            }
            value
        }
        for (left, right) in [(1.5, 2.25), (2.25, 1.5), (-4.0, 3.0), (7.0, 7.0)] {
            assert_eq!(back(Sum::combine(of(left), of(right))), left + right);
            assert_eq!(back(Product::combine(of(left), of(right))), left * right);
            assert_eq!(back(Max::combine(of(left), of(right))), left.max(right));
            assert_eq!(back(Min::combine(of(left), of(right))), left.min(right));
        }
    }
}

//! Sums of INCRBYFLOAT as Redis makes them: in the 80-bit format of the x87 (64 bits of mantissa),
//! shown with 17 digits behind the point, without zeros at the end.

use std::cmp::Ordering;

/// The longest number.
const TEXT_MAX: usize = 512;
/// The largest power of ten of a number.
const EXPONENT_MAX: i64 = 4_932;
/// The largest power of two of a number.
const BINARY_MAX: i64 = 16_384;

/// Why there is no sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Error {
    /// One of both is no number.
    NoNumber,
    /// The sum is too large, or one of both is infinite.
    NotFinite,
}

/// The sum of two numbers in text.
pub(crate) fn add(one: &[u8], other: &[u8]) -> Result<String, Error> {
    // A text that is no number counts before one that is infinite.
    match (Number::read(one), Number::read(other)) {
        (Err(Error::NoNumber), _) | (_, Err(Error::NoNumber)) => Err(Error::NoNumber),
        (one, other) => Ok(one?.plus(&other?)?.show()),
    }
}

/// A number: the mantissa times two to the power of the exponent.
#[derive(Clone, Debug)]
struct Number {
    is_negative: bool,
    mantissa: u64,
    exponent: i64,
}

impl Number {
    fn read(text: &[u8]) -> Result<Self, Error> {
        let text = std::str::from_utf8(text).map_err(|_| Error::NoNumber)?;
        if text.len() > TEXT_MAX {
            return Err(Error::NoNumber);
        }
        let (is_negative, digits) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        if ["inf", "infinity"].iter().any(|it| digits.eq_ignore_ascii_case(it)) {
            return Err(Error::NotFinite);
        }
        if let Some(digits) = digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
            return Self::hexadecimal(is_negative, digits);
        }
        let (digits, power) = match digits.split_once(['e', 'E']) {
            Some((digits, power)) => (digits, power.parse().map_err(|_| Error::NoNumber)?),
            None => (digits, 0_i64),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let is_digits = whole.bytes().chain(fraction.bytes()).all(|it| it.is_ascii_digit());
        if !is_digits || whole.len() + fraction.len() == 0 {
            return Err(Error::NoNumber);
        }
        let mut big = Big::default();
        for digit in whole.bytes().chain(fraction.bytes()) {
            big.times_plus(10, u32::from(digit - b'0'));
        }
        let fraction = i64::try_from(fraction.len()).map_err(|_| Error::NoNumber)?;
        let power = power.checked_sub(fraction).ok_or(Error::NoNumber)?;
        if power.abs() > EXPONENT_MAX + 600 {
            return Err(Error::NoNumber);
        }
        let mut ten = Big::from(1);
        (0..power.abs()).for_each(|_| ten.times_plus(10, 0));
        if power >= 0 {
            let mut product = Big::default();
            for (place, part) in big.0.iter().enumerate() {
                let mut one = ten.clone();
                one.times_plus(*part, 0);
                one.shift_up(32 * place);
                product.add(&one);
            }
            return Self::rounded(is_negative, &product, 0, false);
        }
        Self::quotient(is_negative, big, ten)
    }

    /// Whole hexadecimal digits; the C library also reads fractions and powers of them.
    fn hexadecimal(is_negative: bool, digits: &str) -> Result<Self, Error> {
        let mut big = Big::default();
        for digit in digits.chars() {
            big.times_plus(16, digit.to_digit(16).ok_or(Error::NoNumber)?);
        }
        if digits.is_empty() {
            Err(Error::NoNumber)
        } else {
            Self::rounded(is_negative, &big, 0, false)
        }
    }

    /// The quotient of two numbers, with 64 bits.
    fn quotient(is_negative: bool, mut top: Big, mut bottom: Big) -> Result<Self, Error> {
        if top.bits() == 0 {
            return Ok(Self { is_negative, mantissa: 0, exponent: 0 });
        }
        // So that the quotient has 65 or 66 bits, of which the last ones only say how to round.
        let shift = 66_i64 - (bits(&top) - bits(&bottom));
        match usize::try_from(shift) {
            Ok(shift) => top.shift_up(shift),
            Err(_) => bottom.shift_up(usize::try_from(-shift).map_err(|_| Error::NotFinite)?),
        }
        let steps = usize::try_from(bits(&top) - bits(&bottom)).unwrap_or(0);
        let mut quotient = Big::default();
        let mut part = bottom.clone();
        part.shift_up(steps);
        for _ in 0..=steps {
            quotient.shift_up(1);
            if top.compare(&part) != Ordering::Less {
                top.subtract(&part);
                quotient.times_plus(1, 1);
            }
            top.shift_up(1);
        }
        Self::rounded(is_negative, &quotient, -shift, top.bits() > 0)
    }

    /// The nearest number with 64 bits, the even one of two. `has_more` says that bits follow.
    fn rounded(is_negative: bool, big: &Big, exponent: i64, has_more: bool) -> Result<Self, Error> {
        let excess = usize::try_from(bits(big) - 64).unwrap_or(0);
        let (kept, is_half, is_above) = big.shifted_down(excess);
        let mut mantissa = kept.low();
        let mut exponent = exponent + i64::try_from(excess).map_err(|_| Error::NotFinite)?;
        let is_above = is_above || has_more;
        if is_half && (is_above || mantissa & 1 == 1) {
            match mantissa.checked_add(1) {
                Some(sum) => mantissa = sum,
                None => {
                    mantissa = 1 << 63;
                    exponent += 1;
                }
            }
        }
        if mantissa != 0 && exponent + 64 - i64::from(mantissa.leading_zeros()) > BINARY_MAX {
            return Err(Error::NotFinite);
        }
        Ok(Self { is_negative, mantissa, exponent })
    }

    fn plus(&self, other: &Self) -> Result<Self, Error> {
        let exponent = match (self.mantissa, other.mantissa) {
            (0, _) => other.exponent,
            (_, 0) => self.exponent,
            _ => self.exponent.min(other.exponent),
        };
        let aligned = |it: &Self| {
            let mut big = Big::from(it.mantissa);
            let shift = if it.mantissa == 0 { 0 } else { it.exponent - exponent };
            big.shift_up(usize::try_from(shift).unwrap_or(0));
            big
        };
        let (mut one, mut two) = (aligned(self), aligned(other));
        if self.is_negative == other.is_negative {
            one.add(&two);
            return Self::rounded(self.is_negative, &one, exponent, false);
        }
        match one.compare(&two) {
            Ordering::Less => {
                two.subtract(&one);
                Self::rounded(other.is_negative, &two, exponent, false)
            }
            _ => {
                one.subtract(&two);
                Self::rounded(self.is_negative && one.bits() > 0, &one, exponent, false)
            }
        }
    }

    fn show(&self) -> String {
        let mut big = Big::from(self.mantissa);
        (0..17).for_each(|_| big.times_plus(10, 0));
        match usize::try_from(self.exponent) {
            Ok(shift) => big.shift_up(shift),
            Err(_) => {
                let shift = usize::try_from(-self.exponent).unwrap_or(usize::MAX);
                let (mut kept, is_half, is_above) = big.shifted_down(shift);
                if is_half && (is_above || kept.low() & 1 == 1) {
                    kept.times_plus(1, 1);
                }
                big = kept;
            }
        }
        let digits = format!("{:0>18}", big.decimal());
        let (whole, fraction) = digits.split_at(digits.len() - 17);
        let fraction = fraction.trim_end_matches('0');
        let point = if fraction.is_empty() { "" } else { "." };
        let is_zero = whole == "0" && fraction.is_empty();
        let sign = if self.is_negative && !is_zero { "-" } else { "" };
        format!("{sign}{whole}{point}{fraction}")
    }
}

fn bits(big: &Big) -> i64 {
    i64::try_from(big.bits()).unwrap_or(i64::MAX)
}

/// A large whole number: 32 bits in each place, the lowest first, no zeros at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Big(Vec<u32>);

impl From<u64> for Big {
    fn from(number: u64) -> Self {
        let mut big = Self(vec![low_half(number), low_half(number >> 32)]);
        big.trim();
        big
    }
}

fn low_half(number: u64) -> u32 {
    u32::try_from(number & u64::from(u32::MAX)).expect("it has 32 bits")
}

impl Big {
    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    fn bits(&self) -> usize {
        let last = self.0.last().map_or(0, |last| 32 - last.leading_zeros());
        self.0.len().saturating_sub(1) * 32 + usize::try_from(last).expect("at most 32")
    }

    fn low(&self) -> u64 {
        let part = |place: usize| u64::from(self.0.get(place).copied().unwrap_or(0));
        part(0) | part(1) << 32
    }

    fn times_plus(&mut self, factor: u32, summand: u32) {
        let mut carry = u64::from(summand);
        for part in &mut self.0 {
            let sum = u64::from(*part) * u64::from(factor) + carry;
            *part = low_half(sum);
            carry = sum >> 32;
        }
        if carry > 0 {
            self.0.push(low_half(carry));
        }
        self.trim();
    }

    fn add(&mut self, other: &Self) {
        self.0.resize(self.0.len().max(other.0.len()) + 1, 0);
        let mut carry = 0;
        for (place, part) in self.0.iter_mut().enumerate() {
            let sum =
                u64::from(*part) + u64::from(other.0.get(place).copied().unwrap_or(0)) + carry;
            *part = low_half(sum);
            carry = sum >> 32;
        }
        self.trim();
    }

    /// Takes away what is not more.
    fn subtract(&mut self, other: &Self) {
        let mut borrow = false;
        for (place, part) in self.0.iter_mut().enumerate() {
            let (one, first) = part.overflowing_sub(other.0.get(place).copied().unwrap_or(0));
            let (two, second) = one.overflowing_sub(u32::from(borrow));
            *part = two;
            borrow = first || second;
        }
        self.trim();
    }

    fn compare(&self, other: &Self) -> Ordering {
        let lengths = self.0.len().cmp(&other.0.len());
        lengths.then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }

    fn shift_up(&mut self, count: usize) {
        if self.0.is_empty() {
            return;
        }
        let rest = count % 32;
        if rest > 0 {
            let mut carry = 0;
            for part in &mut self.0 {
                let moved = u64::from(*part) << rest | carry;
                *part = low_half(moved);
                carry = moved >> 32;
            }
            self.0.push(low_half(carry));
        }
        self.0.splice(0..0, std::iter::repeat_n(0, count / 32));
        self.trim();
    }

    /// Without the lowest bits; whether the highest of them is set, and whether another one is.
    fn shifted_down(&self, count: usize) -> (Self, bool, bool) {
        let bit = |at: usize| self.0.get(at / 32).is_some_and(|part| part >> (at % 32) & 1 == 1);
        let is_half = count > 0 && bit(count - 1);
        let end = count.saturating_sub(1).min(self.bits());
        let is_above = (0..end).any(bit);
        let mut kept = Self(self.0.get(count / 32..).unwrap_or_default().to_vec());
        let rest = count % 32;
        if rest > 0 {
            let mut carry = 0;
            for part in kept.0.iter_mut().rev() {
                let low = *part << (32 - rest);
                *part = *part >> rest | carry;
                carry = low;
            }
        }
        kept.trim();
        (kept, is_half, is_above)
    }

    fn decimal(&self) -> String {
        let mut rest = self.clone();
        let mut groups = Vec::new();
        while !rest.0.is_empty() {
            let mut carry = 0_u64;
            for part in rest.0.iter_mut().rev() {
                let whole = carry << 32 | u64::from(*part);
                *part = low_half(whole / 1_000_000_000);
                carry = whole % 1_000_000_000;
            }
            rest.trim();
            groups.push(carry);
        }
        let Some(first) = groups.pop() else { return "0".to_owned() };
        let rest: String = groups.iter().rev().map(|group| format!("{group:09}")).collect();
        format!("{first}{rest}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_redis() {
        // The answers of redis-server 7.0.15.
        for (one, other, sum) in [
            ("10.5", "0.1", "10.6"),
            ("5.0e3", "2.0e2", "5200"),
            ("0.1", "0.2", "0.3"),
            ("0", "-0", "0"),
            ("1", "-1", "0"),
            ("3.0", "1.1", "4.1"),
            ("17179869184", "1.5", "17179869185.5"),
            ("0", "1e-17", "0.00000000000000001"),
            ("0", "1e-18", "0"),
            ("-1.25", "0.25", "-1"),
            (".5", "5.", "5.5"),
        ] {
            assert_eq!(add(one.as_bytes(), other.as_bytes()).as_deref(), Ok(sum), "{one} {other}");
        }
        for text in ["", "a", "1 ", "0x", ".", "e5", "1e", "--1"] {
            assert_eq!(add(b"0", text.as_bytes()), Err(Error::NoNumber), "{text}");
        }
        assert_eq!(add(b"0x10", b"-0X1f").as_deref(), Ok("-15"));
        assert_eq!(add(b"inf", b"("), Err(Error::NoNumber));
        assert_eq!(add(b"1e4932", b"1e4932"), Err(Error::NotFinite));
        assert_eq!(add(b"0", b"inf"), Err(Error::NotFinite));
    }
}

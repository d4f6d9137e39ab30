//! Numbers as the C library prints them with `%.17g`, which is what Redis 7.0 sends.

/// The number with 17 significant digits, without zeros at the end; `inf` and `-inf`.
#[must_use]
pub fn shortest_of_17(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    if number.is_nan() {
        return "nan".to_owned();
    }
    let text = format!("{number:.16e}");
    let (digits, exponent) = text.split_once('e').expect("a number in this form has an exponent");
    let exponent: i32 = exponent.parse().expect("the exponent of a double is small");
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits), |rest| ("-", rest));
    let digits: String = digits.chars().filter(|digit| *digit != '.').collect();
    let digits = digits.trim_end_matches('0');
    let digits = if digits.is_empty() { "0" } else { digits };
    if !(-4..17).contains(&exponent) {
        let (first, rest) = digits.split_at(1);
        let point = if rest.is_empty() { "" } else { "." };
        let mark = if exponent < 0 { '-' } else { '+' };
        return format!("{sign}{first}{point}{rest}e{mark}{:02}", exponent.abs());
    }
    if exponent < 0 {
        let zeros = usize::try_from(-exponent - 1).expect("it is at least 0");
        return format!("{sign}0.{}{digits}", "0".repeat(zeros));
    }
    let whole = usize::try_from(exponent).expect("it is at least 0") + 1;
    if digits.len() <= whole {
        return format!("{sign}{digits}{}", "0".repeat(whole - digits.len()));
    }
    let (before, after) = digits.split_at(whole);
    format!("{sign}{before}.{after}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_c_library() {
        for (number, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (3.1, "3.1000000000000001"),
            (-2.5, "-2.5"),
            (1e16, "10000000000000000"),
            (1e17, "1e+17"),
            (1.5e300, "1.5000000000000001e+300"),
            (0.0001, "0.0001"),
            (0.000_01, "1.0000000000000001e-05"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(shortest_of_17(number), text);
        }
    }
}

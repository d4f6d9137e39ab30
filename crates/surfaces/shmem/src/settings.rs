//! The variables of the specification: `SHMEM_…`, and their old names `SMA_…`.

use thiserror::Error;
use weft_options::Options;

/// The heap of a PE unless `SHMEM_SYMMETRIC_SIZE` says more or less. Pages that are not used take
/// no memory.
const HEAP_BYTES: usize = 512 << 20;

/// Variables that have been read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// `SHMEM_SYMMETRIC_SIZE`: bytes of the heap of a PE.
    pub heap_bytes: usize,
    /// `SHMEM_DEBUG`: collectives are compared.
    pub debug: bool,
    /// `SHMEM_INFO`: the settings are printed.
    pub info: bool,
    /// `SHMEM_VERSION`: the version is printed.
    pub version: bool,
}

/// A variable with a value that means nothing.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(
    "SHMEM_SYMMETRIC_SIZE={value} {problem}; give a number of bytes, or one with a suffix k, m, g \
     or t, such as 1.5g"
)]
pub struct BadSize {
    value: String,
    problem: &'static str,
}

/// The option `fabric.host`: the name of the host of this process, or nothing.
pub fn host_name() -> String {
    let pairs: Vec<(String, String)> = std::env::vars().collect();
    let (options, _) = Options::from_environment(pairs.iter().map(|(n, v)| (n, v)));
    options.fabric_host().unwrap_or_default().to_owned()
}

impl Settings {
    /// Reads the variables of this process.
    ///
    /// # Errors
    /// [`BadSize`].
    pub fn of_process() -> Result<Self, BadSize> {
        Self::read(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, BadSize> {
        let of = |name: &str| {
            variable(&format!("SHMEM_{name}")).or_else(|| variable(&format!("SMA_{name}")))
        };
        let heap_bytes = of("SYMMETRIC_SIZE").map_or(Ok(HEAP_BYTES), |value| size(&value))?;
        let is_set = |name| of(name).is_some();
        Ok(Self {
            heap_bytes,
            debug: is_set("DEBUG"),
            info: is_set("INFO"),
            version: is_set("VERSION"),
        })
    }
}

/// A decimal number with an optional fraction and suffix. The product is rounded up.
fn size(value: &str) -> Result<usize, BadSize> {
    let bad = |problem| BadSize { value: value.to_owned(), problem };
    let text = value.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(bad("has an unknown suffix")),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) || whole.len() + fraction.len() == 0 {
        return Err(bad("is no decimal number"));
    }
    // Exact: a product of a fraction is rounded up, and a binary fraction would not be that one.
    let too_large = || bad("is more than any memory has");
    let parse = |text: &str| format!("0{text}").parse::<u128>().map_err(|_| too_large());
    let (whole, part) = (parse(whole)?, parse(fraction)?);
    let places = u32::try_from(fraction.len()).map_err(|_| too_large())?;
    let divisor = 10_u128.checked_pow(places).ok_or_else(too_large)?;
    let unit = 1_u128 << shift;
    let whole = whole.checked_mul(unit).ok_or_else(too_large)?;
    let part = part.checked_mul(unit).ok_or_else(too_large)?.div_ceil(divisor);
    let bytes = whole.checked_add(part).and_then(|bytes| usize::try_from(bytes).ok());
    bytes.filter(|bytes| *bytes < 1 << 47).ok_or_else(too_large)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_the_specification_says() {
        for (text, bytes) in [
            ("3.1m", 3_250_586),
            ("20", 20),
            (" 1G ", 1 << 30),
            ("0.5k", 512),
            (".5k", 512),
            ("2.t", 2 << 40),
            ("1.1", 2),
            ("0", 0),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn other_sizes_are_refused_with_the_variable_and_the_value() {
        for text in ["", "1x", "1mb", "-1", "1e9", "k", ".", "1.2.3", "99999999t", "1 g", "é"] {
            let error = size(text).expect_err(text).to_string();
            assert!(error.contains(&format!("SHMEM_SYMMETRIC_SIZE={text} ")), "{error}");
        }
    }

    #[test]
    fn the_new_name_of_a_variable_counts() {
        let read = |pairs: &[(&str, &str)]| {
            Settings::read(|name| {
                pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
            })
        };
        let old = read(&[("SMA_SYMMETRIC_SIZE", "1m"), ("SMA_DEBUG", "")]).expect("a size");
        assert_eq!((old.heap_bytes, old.debug, old.info), (1 << 20, true, false));
        let both = read(&[("SMA_SYMMETRIC_SIZE", "1m"), ("SHMEM_SYMMETRIC_SIZE", "2m")]);
        assert_eq!(both.expect("a size").heap_bytes, 2 << 20);
    }
}

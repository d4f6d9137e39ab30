//! Times when keys end, as commands say them.

use super::{integer, is};
use crate::fault::{Fault, SYNTAX};

/// Seconds or milliseconds, from now or since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Seconds,
    Milliseconds,
    SecondsSince1970,
    MillisecondsSince1970,
}

/// The option EX, PX, EXAT or PXAT.
pub(crate) fn unit(word: &[u8]) -> Option<Unit> {
    [
        ("EX", Unit::Seconds),
        ("PX", Unit::Milliseconds),
        ("EXAT", Unit::SecondsSince1970),
        ("PXAT", Unit::MillisecondsSince1970),
    ]
    .into_iter()
    .find(|(name, _)| is(word, name))
    .map(|(_, unit)| unit)
}

fn invalid(command: &str) -> Fault {
    format!("ERR invalid expire time in '{command}' command").into()
}

/// Milliseconds since 1970; also times in the past.
pub(crate) fn any(word: &[u8], unit: Unit, now: u64, command: &str) -> Result<i64, Fault> {
    let number = integer(word)?;
    let is_seconds = matches!(unit, Unit::Seconds | Unit::SecondsSince1970);
    let scaled = if is_seconds { number.checked_mul(1000) } else { Some(number) };
    let base = match unit {
        Unit::Seconds | Unit::Milliseconds => i64::try_from(now).unwrap_or(i64::MAX),
        Unit::SecondsSince1970 | Unit::MillisecondsSince1970 => 0,
    };
    scaled.and_then(|number| number.checked_add(base)).ok_or_else(|| invalid(command))
}

/// Milliseconds since 1970 of a number above 0.
pub(crate) fn positive(word: &[u8], unit: Unit, now: u64, command: &str) -> Result<u64, Fault> {
    if integer(word)? <= 0 {
        return Err(invalid(command));
    }
    u64::try_from(any(word, unit, now, command)?).map_err(|_| invalid(command))
}

/// The wish of GETEX and SET about the expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish<'a> {
    /// Nothing.
    None,
    /// It stays as it is.
    Keep,
    /// It goes.
    Persist,
    /// This one.
    At(&'a [u8], Unit),
}

impl<'a> Wish<'a> {
    /// Takes an option with its number, if it is one of an expiry and the only one.
    pub(crate) fn take(&mut self, option: &[u8], number: Option<&&'a [u8]>) -> Result<(), Fault> {
        let (Some(unit), Some(number), Self::None) = (unit(option), number, *self) else {
            return Err(SYNTAX);
        };
        *self = Self::At(number, unit);
        Ok(())
    }
}

//! Finding an option by a name that somebody wrote: current, old, or nearly one.

use crate::entry::{Entry, OTHER_VARIABLES, flag, variable};
use crate::nearest::nearest;
use crate::table::TABLE;

/// The spelling of a name, by the place where it was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spelling {
    /// `socket.idle_ms`, as in `weft.toml`.
    File,
    /// `WEFT_SOCKET_IDLE_MS`.
    Environment,
    /// `socket-idle-ms`, after two dashes.
    Flag,
}

impl Spelling {
    /// The spelling of a name of the table.
    fn of(self, name: &str) -> String {
        match self {
            Self::File => name.to_owned(),
            Self::Environment => variable(name),
            Self::Flag => flag(name),
        }
    }

    /// True when `written` is `name` in this spelling. Allocates nothing.
    fn is(self, written: &str, name: &str) -> bool {
        let written = match self {
            Self::File | Self::Flag => Some(written),
            Self::Environment => written.strip_prefix("WEFT_"),
        };
        let letter = |own: u8| match (self, own) {
            (Self::File, own) => own,
            (Self::Environment, b'.') => b'_',
            (Self::Environment, own) => own.to_ascii_uppercase(),
            (Self::Flag, b'.' | b'_') => b'-',
            (Self::Flag, own) => own,
        };
        written.is_some_and(|written| {
            written.len() == name.len()
                && written.bytes().zip(name.bytes()).all(|(given, own)| given == letter(own))
        })
    }
}

/// An option that was found by a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// By its name.
    Current(&'static Entry),
    /// By a name that it had in an earlier release.
    Old(&'static Entry),
}

impl Found {
    /// The option.
    #[must_use]
    pub const fn entry(self) -> &'static Entry {
        match self {
            Self::Current(entry) | Self::Old(entry) => entry,
        }
    }
}

/// The option whose name is `written` in this spelling.
#[must_use]
pub fn find(spelling: Spelling, written: &str) -> Option<Found> {
    TABLE.iter().find_map(|entry| {
        if spelling.is(written, entry.name) {
            Some(Found::Current(entry))
        } else if entry.old_names.iter().any(|name| spelling.is(written, name)) {
            Some(Found::Old(entry))
        } else {
            None
        }
    })
}

/// The option whose name is `written` in any spelling.
#[must_use]
pub fn find_any(written: &str) -> Option<Found> {
    find(Spelling::File, written)
        .or_else(|| find(Spelling::Environment, written))
        .or_else(|| find(Spelling::Flag, written))
}

/// The name that was probably meant, in this spelling: `written` has a slip, is not complete, or
/// lacks the area. An old name leads to the current one.
#[must_use]
pub fn suggest(spelling: Spelling, written: &str) -> Option<String> {
    let all = || {
        TABLE.iter().flat_map(|entry| {
            std::iter::once(entry.name)
                .chain(entry.old_names.iter().copied())
                .map(move |name| (spelling.of(name), spelling.of(entry.name)))
        })
    };
    let mut known: Vec<(String, String)> = all().collect();
    if spelling == Spelling::Environment {
        known.extend(OTHER_VARIABLES.iter().map(|other| (other.name.into(), other.name.into())));
    }
    let of = |wanted: &str| known.iter().find(|(name, _)| name == wanted);
    let meant = nearest(written, known.iter().map(|(name, _)| name.as_str())).and_then(of);
    if let Some((_, current)) = meant {
        return Some(current.clone());
    }
    let mut begun = known.iter().filter(|(name, _)| name.starts_with(written));
    if let (Some((_, current)), None) = (begun.next(), begun.next()) {
        return Some(current.clone());
    }
    if spelling != Spelling::File {
        return None;
    }
    let key = nearest(written, TABLE.iter().map(|entry| entry.file_key().1))?;
    TABLE.iter().find(|entry| entry.file_key().1 == key).map(|entry| entry.name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_is_found_in_every_spelling_and_by_its_old_name() {
        for (spelling, current, old) in [
            (Spelling::File, "socket.idle_ms", "socket.rest_ms"),
            (Spelling::Environment, "WEFT_SOCKET_IDLE_MS", "WEFT_SOCKET_REST_MS"),
            (Spelling::Flag, "socket-idle-ms", "socket-rest-ms"),
        ] {
            let Some(Found::Current(entry)) = find(spelling, current) else { panic!("{current}") };
            assert_eq!(entry.name, "socket.idle_ms");
            assert_eq!(find(spelling, old), Some(Found::Old(entry)));
            assert_eq!(find_any(current), Some(Found::Current(entry)));
            assert_eq!(find_any(old), Some(Found::Old(entry)));
            assert_eq!(find(spelling, "x"), None);
        }
        assert!(find(Spelling::File, "socket-idle-ms").is_none());
        assert!(find(Spelling::Environment, "weft_socket_idle_ms").is_none());
        assert!(find(Spelling::Environment, "WEFT_SOCKET.IDLE_MS").is_none());
    }

    #[test]
    fn a_slip_an_old_name_and_a_name_without_its_area_lead_to_the_current_name() {
        for written in
            ["socket.idle_m", "socket.idle-ms", "socket.rest_mss", "idle_ms", "socket.idle"]
        {
            assert_eq!(suggest(Spelling::File, written).as_deref(), Some("socket.idle_ms"));
        }
        let variable = suggest(Spelling::Environment, "WEFT_SOCKET_REST_MSS");
        assert_eq!(variable.as_deref(), Some("WEFT_SOCKET_IDLE_MS"));
        assert_eq!(suggest(Spelling::Environment, "WEFT_LOGS").as_deref(), Some("WEFT_LOG"));
        assert_eq!(suggest(Spelling::File, "colour.of_the_sea"), None);
        assert_eq!(suggest(Spelling::File, "ether."), None, "several begin so");
    }
}

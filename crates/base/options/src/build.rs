//! Makes values from files, variables and flags: parsing, ranges, precedence and mistakes.
//!
//! A builder never stops at the first mistake: it collects all of them, keeps the former value of
//! an option whose new one is wrong, and leaves it to the caller whether to go on.

use std::net::SocketAddr;

use thiserror::Error;

use crate::entry::{Entry, Kind, OTHER_VARIABLES};
use crate::name::{Found, Spelling, find, suggest};
use crate::options::{Options, Origin, Setting};
use crate::people::People;
use crate::seed::seeds;
use crate::services::ServicePolicy;
use crate::table::TABLE;
use crate::value::{ports, urls};

/// Longest path of a file, bytes.
const FILE_PATH_BYTES_MAX: usize = 4095;
/// Longest name, bytes.
const NAME_BYTES_MAX: usize = 64;
/// Most addresses in a list.
const ADDRESSES_MAX: usize = 64;
/// Most URLs in a list.
const URLS_MAX: usize = 16;
/// Longest path of a Unix socket, bytes.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// A fault of a configuration.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum Problem {
    /// No option or variable has this name.
    #[error("{name} is not known{}", suggestion(.nearest))]
    Unknown {
        /// The name given, with its file where it came from one.
        name: String,
        /// The name that was probably meant.
        nearest: Option<String>,
    },
    /// The name is one that the option had in an earlier release. The value counts, unless the
    /// new name is there, too.
    #[error("{name} is an old name and will go; write {current} in its place")]
    OldName {
        /// The name given, with its file where it came from one.
        name: String,
        /// Its name now.
        current: String,
    },
    /// The value is malformed or out of range.
    #[error(
        "{name}={value:?} is not valid; allowed is {allowed} (`weft config explain {option}` says \
         more)"
    )]
    InvalidValue {
        /// The variable, flag or file entry.
        name: String,
        /// The value given.
        value: String,
        /// The allowed range.
        allowed: String,
        /// The option's name.
        option: &'static str,
    },
    /// The file is not TOML, or has something else than values in tables.
    #[error("{path} cannot be read: {reason}")]
    InvalidFile {
        /// The file.
        path: String,
        /// Where and why.
        reason: String,
    },
}

impl Problem {
    /// True for a problem that is reported and ignored, false for one that a careful caller
    /// refuses.
    #[must_use]
    pub const fn is_warning(&self) -> bool {
        matches!(self, Self::Unknown { .. } | Self::OldName { .. })
    }
}

fn suggestion(nearest: &Option<String>) -> String {
    match nearest {
        Some(name) => format!("; did you mean {name}?"),
        None => "; `weft config list` lists all options".to_owned(),
    }
}

/// Collects values from files, environment and flags, in any order.
#[derive(Clone, Debug)]
pub struct Builder {
    options: Options,
    /// For each option, the rank of its present value.
    ranks: [Rank; TABLE.len()],
    problems: Vec<Problem>,
}

/// The order of values: first by origin, then a current name beats an old one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Rank {
    origin: u8,
    is_current_name: bool,
}

/// A name as it was given.
struct Given {
    found: Found,
    /// Its form in messages: `WEFT_X`, `--x`, `weft.toml: x`.
    name: String,
    /// The form of its current name in messages.
    current: String,
}

impl Default for Builder {
    fn default() -> Self {
        let rank = Rank { origin: Origin::Default.rank(), is_current_name: false };
        Self { options: Options::default(), ranks: [rank; TABLE.len()], problems: Vec::new() }
    }
}

impl Builder {
    /// A builder that holds the defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the variables that begin with `WEFT_`; others are passed over.
    pub fn environment<N, V>(&mut self, pairs: impl IntoIterator<Item = (N, V)>) -> &mut Self
    where
        N: AsRef<str>,
        V: AsRef<str>,
    {
        for (name, value) in pairs {
            let name = name.as_ref();
            if !name.starts_with("WEFT_") {
                continue;
            }
            if let Some(found) = find(Spelling::Environment, name) {
                let current = found.entry().variable();
                let given = Given { found, name: name.to_owned(), current };
                self.set(given, value.as_ref(), Origin::Environment);
            } else if !OTHER_VARIABLES.iter().any(|other| other.name == name) {
                self.unknown(name.to_owned(), suggest(Spelling::Environment, name));
            }
        }
        self
    }

    /// Takes the text of a `weft.toml`; `path` is named in problems and origins.
    pub fn file(&mut self, path: &str, text: &str) -> &mut Self {
        let table = match text.parse::<toml::Table>() {
            Ok(table) => table,
            Err(error) => {
                let reason = error.to_string().trim_end().replace('\n', " ");
                self.problems.push(Problem::InvalidFile { path: path.to_owned(), reason });
                return self;
            }
        };
        for (area, values) in &table {
            let Some(values) = values.as_table() else {
                self.unknown(format!("{path}: {area}"), suggest(Spelling::File, area));
                continue;
            };
            for (name, value) in values {
                self.file_value(path, &format!("{area}.{name}"), value);
            }
        }
        self
    }

    /// Takes the flag of one option, named as in the table (`shm.spin_us`), by its old name where
    /// that was given.
    pub fn flag(&mut self, name: &str, value: &str) -> &mut Self {
        match find(Spelling::File, name) {
            Some(found) => {
                let name = format!("--{}", crate::entry::flag(name));
                let current = format!("--{}", found.entry().flag());
                self.set(Given { found, name, current }, value, Origin::Flag);
            }
            None => self.unknown(format!("--: {name}"), suggest(Spelling::File, name)),
        }
        self
    }

    /// The values, and everything that was wrong.
    #[must_use]
    pub fn finish(self) -> (Options, Vec<Problem>) {
        (self.options, self.problems)
    }

    fn file_value(&mut self, path: &str, name: &str, value: &toml::Value) {
        let Some(found) = find(Spelling::File, name) else {
            self.unknown(format!("{path}: {name}"), suggest(Spelling::File, name));
            return;
        };
        let text = match value {
            toml::Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let origin = Origin::File { path: path.to_owned() };
        let current = found.entry().name.to_owned();
        self.set(Given { found, name: format!("{path}: {name}"), current }, &text, origin);
    }

    fn set(&mut self, given: Given, value: &str, origin: Origin) {
        let entry: &Entry = given.found.entry();
        let is_current_name = matches!(given.found, Found::Current(_));
        if !is_current_name {
            let Given { name, current, .. } = &given;
            self.problems.push(Problem::OldName { name: name.clone(), current: current.clone() });
        }
        let Some((number, text)) = parse(&entry.kind, value) else {
            self.problems.push(Problem::InvalidValue {
                name: given.name,
                value: value.to_owned(),
                allowed: entry.kind.to_string(),
                option: entry.name,
            });
            return;
        };
        let rank = Rank { origin: origin.rank(), is_current_name };
        let place = entry.id as usize;
        if rank >= self.ranks[place] {
            self.ranks[place] = rank;
            self.options.settings[place] = Setting { number, text, origin };
        }
    }

    fn unknown(&mut self, name: String, nearest: Option<String>) {
        self.problems.push(Problem::Unknown { name, nearest });
    }
}

/// The number and the text of a value, or `None` when it is not allowed.
fn parse(kind: &Kind, value: &str) -> Option<(u64, String)> {
    let value = value.trim();
    let number = match *kind {
        Kind::Integer { minimum, maximum, power_of_two, .. } => {
            let number = value.parse::<u64>().ok()?;
            let fits = (minimum..=maximum).contains(&number)
                && (!power_of_two || number.is_power_of_two());
            fits.then_some(number)?
        }
        Kind::Boolean { .. } => match value.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => 1,
            "false" | "no" | "off" | "0" => 0,
            _ => return None,
        },
        Kind::Choice { choices } => {
            u64::try_from(choices.iter().position(|choice| *choice == value)?).ok()?
        }
        Kind::Path => {
            let fits = value.is_empty()
                || (value.starts_with('/') && value.len() <= SOCKET_PATH_BYTES_MAX);
            return fits.then(|| (0, value.to_owned()));
        }
        Kind::File => {
            let fits = value.len() <= FILE_PATH_BYTES_MAX && !value.contains('\0');
            return fits.then(|| (0, value.to_owned()));
        }
        Kind::Name => {
            let fits = value.len() <= NAME_BYTES_MAX && !value.chars().any(char::is_control);
            return fits.then(|| (0, value.to_owned()));
        }
        Kind::Address => {
            let fits = value.is_empty() || value.parse::<SocketAddr>().is_ok();
            return fits.then(|| (0, value.to_owned()));
        }
        Kind::Seeds => {
            let fits = seeds(value).is_some_and(|found| found.len() <= ADDRESSES_MAX);
            return fits.then(|| (0, value.to_owned()));
        }
        Kind::Urls => {
            let fits = urls(value).is_some_and(|found| found.len() <= URLS_MAX);
            return fits.then(|| (0, value.to_owned()));
        }
        Kind::Ports => {
            let fits = value.is_empty() || ports(value).is_some();
            return fits.then(|| (0, value.to_owned()));
        }
        Kind::Services => {
            let is_valid = ServicePolicy::parse(value).is_some();
            return is_valid.then(|| (0, value.to_owned()));
        }
        Kind::People => {
            let is_valid = People::parse(value).is_some();
            return is_valid.then(|| (0, value.to_owned()));
        }
    };
    Some((number, String::new()))
}

//! From files, variables and flags to values: parsing, ranges, precedence, and what was wrong.
//!
//! A builder never stops at the first mistake: it collects all of them, keeps the former value of
//! an option whose new one is wrong, and leaves it to the caller whether to go on.

use thiserror::Error;

use crate::nearest::nearest;
use crate::options::{Options, Origin, Setting};
use crate::table::{Entry, Kind, OTHER_VARIABLES, TABLE};

/// Longest path of a Unix socket, bytes.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// What is wrong with a configuration.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum Problem {
    /// No option or variable has this name.
    #[error("{name} is not known{}", suggestion(.nearest))]
    Unknown {
        /// The name given, with its file where it came from one.
        name: String,
        /// What was probably meant.
        nearest: Option<String>,
    },
    /// The value is malformed or out of range.
    #[error("{name}={value:?} is not valid; allowed is {allowed}")]
    InvalidValue {
        /// The variable, flag or file entry.
        name: String,
        /// The value given.
        value: String,
        /// The allowed range.
        allowed: String,
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
    /// True for what is told and passed over, false for what a careful caller refuses.
    #[must_use]
    pub const fn is_warning(&self) -> bool {
        matches!(self, Self::Unknown { .. })
    }
}

fn suggestion(nearest: &Option<String>) -> String {
    match nearest {
        Some(name) => format!("; did you mean {name}?"),
        None => "; `weft config dump` lists all options".to_owned(),
    }
}

/// Collects values from files, environment and flags, in any order.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    options: Options,
    problems: Vec<Problem>,
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
            if let Some(entry) = TABLE.iter().find(|entry| entry.is_variable(name)) {
                self.set(entry, name, value.as_ref(), Origin::Environment);
            } else if !OTHER_VARIABLES.iter().any(|other| other.name == name) {
                self.unknown_variable(name);
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
                self.unknown_name(path, area);
                continue;
            };
            for (name, value) in values {
                self.file_value(path, &format!("{area}.{name}"), value);
            }
        }
        self
    }

    /// Takes the flag of one option, named as in the table (`shm.spin_us`).
    pub fn flag(&mut self, name: &str, value: &str) -> &mut Self {
        match TABLE.iter().find(|entry| entry.name == name) {
            Some(entry) => self.set(entry, &format!("--{}", entry.flag()), value, Origin::Flag),
            None => self.unknown_name("--", name),
        }
        self
    }

    /// The values, and everything that was wrong.
    #[must_use]
    pub fn finish(self) -> (Options, Vec<Problem>) {
        (self.options, self.problems)
    }

    fn file_value(&mut self, path: &str, name: &str, value: &toml::Value) {
        let Some(entry) = TABLE.iter().find(|entry| entry.name == name) else {
            self.unknown_name(path, name);
            return;
        };
        let text = match value {
            toml::Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let origin = Origin::File { path: path.to_owned() };
        self.set(entry, &format!("{path}: {name}"), &text, origin);
    }

    fn set(&mut self, entry: &Entry, name: &str, value: &str, origin: Origin) {
        let Some((number, text)) = parse(&entry.kind, value) else {
            self.problems.push(Problem::InvalidValue {
                name: name.to_owned(),
                value: value.to_owned(),
                allowed: entry.kind.to_string(),
            });
            return;
        };
        let setting = &mut self.options.settings[entry.id as usize];
        if origin.rank() >= setting.origin.rank() {
            *setting = Setting { number, text, origin };
        }
    }

    fn unknown_variable(&mut self, name: &str) {
        let mut known: Vec<String> = TABLE.iter().map(Entry::variable).collect();
        known.extend(OTHER_VARIABLES.iter().map(|other| other.name.to_owned()));
        let nearest = nearest(name, known.iter().map(String::as_str)).map(str::to_owned);
        self.problems.push(Problem::Unknown { name: name.to_owned(), nearest });
    }

    fn unknown_name(&mut self, place: &str, name: &str) {
        let nearest = nearest(name, TABLE.iter().map(|entry| entry.name)).map(str::to_owned);
        self.problems.push(Problem::Unknown { name: format!("{place}: {name}"), nearest });
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
    };
    Some((number, String::new()))
}

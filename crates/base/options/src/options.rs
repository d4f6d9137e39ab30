//! The values in force, and where each came from.

use std::fmt;

use crate::build::{Builder, Problem};
use crate::entry::{Entry, Kind};
use crate::table::{Id, TABLE};
use crate::value::word;

/// Where a value came from; the later ones beat the earlier ones.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The table.
    Default,
    /// A file.
    File {
        /// Its path.
        path: String,
    },
    /// The environment variable of the option.
    Environment,
    /// The flag of the option.
    Flag,
}

impl Origin {
    /// Higher beats lower.
    pub(crate) const fn rank(&self) -> u8 {
        match self {
            Self::Default => 0,
            Self::File { .. } => 1,
            Self::Environment => 2,
            Self::Flag => 3,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path } => write!(f, "file {path}"),
            Self::Environment => f.write_str("environment"),
            Self::Flag => f.write_str("flag"),
        }
    }
}

/// One value: a number, where booleans are 0 and 1 and choices their place; or a text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Setting {
    pub(crate) number: u64,
    pub(crate) text: String,
    pub(crate) origin: Origin,
}

/// Every option's value. Cheap to build: one pass over the pairs, and no allocation for defaults
/// beyond the struct itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    pub(crate) settings: [Setting; TABLE.len()],
}

impl Default for Options {
    fn default() -> Self {
        Self { settings: std::array::from_fn(|place| default_of(&TABLE[place])) }
    }
}

fn default_of(entry: &Entry) -> Setting {
    let number = match entry.kind {
        Kind::Integer { default, .. } => default,
        Kind::Boolean { default } => u64::from(default),
        _ => 0,
    };
    Setting { number, text: String::new(), origin: Origin::Default }
}

impl Options {
    /// The defaults, changed by the `WEFT_*` variables among `pairs`. A fault of a
    /// variable is told, and its option keeps the default: for programs that must go on.
    pub fn from_environment<N, V>(pairs: impl IntoIterator<Item = (N, V)>) -> (Self, Vec<Problem>)
    where
        N: AsRef<str>,
        V: AsRef<str>,
    {
        let mut builder = Builder::new();
        builder.environment(pairs);
        builder.finish()
    }

    /// Where the value of an option came from.
    #[must_use]
    pub fn origin(&self, id: Id) -> &Origin {
        &self.setting(id).origin
    }

    /// The value of an option, as a person would write it.
    #[must_use]
    pub fn text(&self, id: Id) -> String {
        let setting = self.setting(id);
        match id.entry().kind {
            Kind::Integer { .. } => setting.number.to_string(),
            Kind::Boolean { .. } => (setting.number != 0).to_string(),
            Kind::Choice { .. } => word(setting, id.entry()).to_owned(),
            _ => setting.text.clone(),
        }
    }

    /// The value of an option, as `weft.toml` has it.
    #[must_use]
    pub fn file_value(&self, id: Id) -> String {
        let value = self.text(id);
        match id.entry().kind {
            Kind::Integer { .. } | Kind::Boolean { .. } => value,
            _ => toml::Value::String(value).to_string(),
        }
    }

    /// The values that are not defaults as pairs for the environment of a program, so that it
    /// sees what the caller's file and flags say.
    pub fn to_environment(&self) -> impl Iterator<Item = (String, String)> {
        TABLE
            .iter()
            .filter(|entry| *self.origin(entry.id) != Origin::Default)
            .map(|entry| (entry.variable(), self.text(entry.id)))
    }

    /// `socket.chunk_bytes`: length of the pieces of a long write; never more than the sink.
    #[must_use]
    pub fn socket_chunk_bytes(&self) -> usize {
        let wanted = self.setting(Id::SocketChunkBytes).number;
        usize::try_from(wanted).unwrap_or(usize::MAX).min(self.socket_sink_bytes())
    }

    pub(crate) fn setting(&self, id: Id) -> &Setting {
        &self.settings[id as usize]
    }
}

//! An entry of the table: all that is said about an option, and its spellings.

use std::fmt;

use crate::table::{Id, TABLE};

/// The part of weft that an option belongs to; list, file and manual are grouped by it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Category {
    /// The shared-memory transport.
    SharedMemory,
    /// Direct sockets, that is the preload library.
    Sockets,
    /// The provider of libfabric.
    Mpi,
    /// Ethernet devices.
    Ethernet,
    /// The node daemon.
    Daemon,
    /// Hosts that join.
    Fabric,
}

impl Category {
    /// Its heading.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::SharedMemory => "shared memory",
            Self::Sockets => "sockets",
            Self::Mpi => "MPI and libfabric",
            Self::Ethernet => "ethernet",
            Self::Daemon => "daemon",
            Self::Fabric => "fabric",
        }
    }
}

/// From when on a new value of an option is in force: nothing that runs reads its options again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Effect {
    /// Programs read it when they start.
    Programs,
    /// The node daemon reads it when it starts.
    Daemon,
    /// Both do.
    ProgramsAndDaemon,
}

/// The moment, in words.
impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Programs => "when a program starts",
            Self::Daemon => "when the node daemon starts",
            Self::ProgramsAndDaemon => "when a program starts, and when the node daemon does",
        })
    }
}

/// The type of an option, with its default and its range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A whole number.
    Integer {
        /// The value that is in force if nothing sets another.
        default: u64,
        /// Smallest value.
        minimum: u64,
        /// Largest value.
        maximum: u64,
        /// Only powers of two are valid.
        power_of_two: bool,
    },
    /// `true` or `false`; also 1 and 0, yes and no, on and off.
    Boolean {
        /// The value that is in force if nothing sets another.
        default: bool,
    },
    /// One of a few words; the first is the default.
    Choice {
        /// The words.
        choices: &'static [&'static str],
    },
    /// A path of a socket; empty by default.
    Path,
    /// A path of a file or a directory; empty by default.
    File,
    /// A name of at most 64 bytes; empty by default.
    Name,
    /// An IP address with a port; empty by default.
    Address,
    /// Several such addresses, or names of hosts with ports, with commas between; none by default.
    Seeds,
    /// Several URLs of servers, with commas between; none by default.
    Urls,
    /// Two numbers of ports with a dash between; empty by default.
    Ports,
    /// Rules for services; none by default.
    Services,
    /// Users and groups; none by default.
    People,
}

pub(crate) const fn integer(default: u64, minimum: u64, maximum: u64) -> Kind {
    Kind::Integer { default, minimum, maximum, power_of_two: false }
}

pub(crate) const fn power_of_two(default: u64, minimum: u64, maximum: u64) -> Kind {
    Kind::Integer { default, minimum, maximum, power_of_two: true }
}

pub(crate) const fn boolean(default: bool) -> Kind {
    Kind::Boolean { default }
}

pub(crate) const fn choice(choices: &'static [&'static str]) -> Kind {
    Kind::Choice { choices }
}

impl Kind {
    /// The default, as a person would write it.
    #[must_use]
    pub fn default_text(&self) -> String {
        match *self {
            Self::Integer { default, .. } => default.to_string(),
            Self::Boolean { default } => default.to_string(),
            Self::Choice { choices } => choices.first().copied().unwrap_or_default().to_owned(),
            Self::Path
            | Self::File
            | Self::Name
            | Self::Address
            | Self::Seeds
            | Self::Urls
            | Self::Ports
            | Self::Services
            | Self::People => String::new(),
        }
    }
}

/// The values that are allowed, in words.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer { minimum, maximum, power_of_two: true, .. } => {
                write!(f, "a power of two from {minimum} to {maximum}")
            }
            Self::Integer { minimum, maximum, .. } => {
                write!(f, "a whole number from {minimum} to {maximum}")
            }
            Self::Boolean { .. } => f.write_str("true or false"),
            Self::Choice { choices } => write!(f, "one of {}", choices.join(", ")),
            Self::Path => f.write_str("an absolute path of at most 107 bytes, or nothing"),
            Self::File => f.write_str("a path, or nothing"),
            Self::Name => f.write_str("a printable name of at most 64 bytes, or nothing"),
            Self::Address => f.write_str("an address with a port as 10.9.0.1:7700, or nothing"),
            Self::Seeds => f.write_str(
                "up to 64 addresses or names of hosts as 10.9.0.1:7700 or first:7700 with commas \
                     between, or nothing",
            ),
            Self::Urls => f.write_str(
                "up to 16 URLs as http://10.9.0.1:2379 or https://HOST:2379, without a path, with \
                 commas between, or nothing",
            ),
            Self::Ports => {
                f.write_str("two numbers of ports as 7710-7790, the lower one first, or nothing")
            }
            Self::Services => f.write_str("rules OWNER:NAME:USERS with blanks between, or nothing"),
            Self::People => f.write_str(
                "numbers of users, and of groups with an @ before them, with commas between, or \
                 `any`, or nothing",
            ),
        }
    }
}

/// One option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its place in the table.
    pub id: Id,
    /// Its name as in `weft.toml`: area, dot, name.
    pub name: &'static str,
    /// Type, default and range.
    pub kind: Kind,
    /// Unit of the value; empty where there is none.
    pub unit: &'static str,
    /// The part of weft it belongs to.
    pub category: Category,
    /// From when on a new value is in force.
    pub effect: Effect,
    /// Its effect, with the memory it can cost at worst.
    pub text: &'static str,
    /// Names that it had in earlier releases: they are accepted wherever the name is.
    pub old_names: &'static [&'static str],
}

impl Entry {
    /// Its environment variable: `shm.ring_slots` is `WEFT_SHM_RING_SLOTS`.
    #[must_use]
    pub fn variable(&self) -> String {
        variable(self.name)
    }

    /// Its flag without the dashes: `shm.ring_slots` is `shm-ring-slots`.
    #[must_use]
    pub fn flag(&self) -> String {
        flag(self.name)
    }

    /// Its place in `weft.toml`: the table and the key.
    #[must_use]
    pub fn file_key(&self) -> (&'static str, &'static str) {
        self.name.split_once('.').unwrap_or(("", self.name))
    }

    /// The word for its value in help: its unit, or VALUE.
    #[must_use]
    pub fn placeholder(&self) -> String {
        let unit = if self.unit.is_empty() { "value" } else { self.unit };
        unit.to_ascii_uppercase()
    }

    /// A value of it with its unit, as a person would write it; `nothing` for no text.
    #[must_use]
    pub fn with_unit(&self, value: &str) -> String {
        match (value, self.unit) {
            ("", _) => "nothing".to_owned(),
            (value, "") => value.to_owned(),
            // `1 slot`, but `1 us`.
            ("1", unit) if unit.len() > 2 => format!("1 {}", unit.trim_end_matches('s')),
            (value, unit) => format!("{value} {unit}"),
        }
    }
}

/// The environment variable of an option with this name, old or new.
#[must_use]
pub fn variable(name: &str) -> String {
    format!("WEFT_{}", name.replace('.', "_").to_ascii_uppercase())
}

/// The flag, without the dashes, of an option with this name, old or new.
#[must_use]
pub fn flag(name: &str) -> String {
    name.replace(['.', '_'], "-")
}

/// The environment variables of all old names. A command that passes options to a program removes
/// them.
pub fn old_variables() -> impl Iterator<Item = String> {
    TABLE.iter().flat_map(|entry| entry.old_names).map(|name| variable(name))
}

/// A variable of weft's that is no option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// Its meaning.
    pub text: &'static str,
}

/// The variables that begin with `WEFT_` and are no options.
pub const OTHER_VARIABLES: &[Variable] = &[
    Variable {
        name: "WEFT_LOG",
        text: "The messages to log, as `warn`, `debug` or `weftd=debug,info`; default `warn`.",
    },
    Variable {
        name: "WEFT_CONFIG",
        text: "The configuration file; default `$XDG_CONFIG_HOME/weft/weft.toml`, then \
               `~/.config/weft/weft.toml`, then `/etc/weft/weft.toml`.",
    },
    Variable { name: "WEFT_NODE", text: "The node's name; default `default`. `--node` beats it." },
    Variable {
        name: "WEFT_SOCKET",
        text: "The control socket of the node daemon, set by `weft run` for its program.",
    },
    Variable {
        name: "WEFT_PRELOAD",
        text: "The preload library, when it is not beside the program or in `../lib/weft`.",
    },
    Variable {
        name: "WEFT_STATS",
        text: "Where the program's counters go, set by `weft run --stats` for its program.",
    },
    Variable {
        name: "WEFT_HANDOVER",
        text: "The connections that a program hands to one that it starts, set by the preload \
               library.",
    },
    Variable {
        name: "WEFT_WARNED",
        text: "Unknown variables of which `weft run` has warned, set by it for its program.",
    },
];

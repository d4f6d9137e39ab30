//! The table of commands: arity, flags and places of keys as those of Redis 7.0, and what runs.

mod data;
mod server;

use crate::call::{DataRun, ServerRun};

/// The function that carries a command out.
#[derive(Clone, Copy)]
pub(crate) enum Run {
    /// It has subcommands; the second word says which.
    Container,
    /// It reads and changes data alone.
    Data(DataRun),
    /// It is about the connection or the server.
    Server(ServerRun),
}

/// A command or a subcommand.
pub(crate) struct Entry {
    /// In lower case; a subcommand is `client|id`.
    pub name: &'static str,
    /// How many words it has, with its name; at least so many if negative.
    pub arity: i32,
    /// Separated by spaces.
    pub flags: &'static str,
    /// The first key, the last one and the step; the last is counted from the end if negative.
    pub keys: (i32, i32, i32),
    /// Categories of access, separated by spaces.
    pub categories: &'static str,
    /// `FLAGS@FIRST:LAST:STEP` for each range of keys, separated by semicolons.
    pub specs: &'static str,
    /// The group of the documentation.
    pub group: &'static str,
    /// The version of Redis that it came with; of weft if Redis does not have it.
    pub since: &'static str,
    /// How its work grows.
    pub complexity: &'static str,
    /// A sentence about it.
    pub summary: &'static str,
    /// The function that carries it out.
    pub run: Run,
}

/// All commands. Subcommands follow their container.
pub(crate) fn all() -> impl Iterator<Item = &'static Entry> {
    server::TABLE.iter().chain(data::TABLE)
}

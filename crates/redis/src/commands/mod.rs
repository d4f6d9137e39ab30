//! The commands, by what they are about.

pub(crate) mod client;
pub(crate) mod cluster;
pub(crate) mod command;
pub(crate) mod config;
pub(crate) mod connection;
pub(crate) mod dump;
mod expiry;
pub(crate) mod hash;
pub(crate) mod info;
pub(crate) mod key;
pub(crate) mod multi;
pub(crate) mod scan;
pub(crate) mod server;
pub(crate) mod slowlog;
pub(crate) mod status;
pub(crate) mod string;
pub(crate) mod zset;

use crate::fault::{Done, Fault, NOT_INTEGER};
use crate::number;

/// A word that is a whole number.
pub(crate) fn integer(word: &[u8]) -> Result<i64, Fault> {
    number::integer(word).ok_or(NOT_INTEGER)
}

/// Whether a word is this option, in any case of letters.
pub(crate) fn is(word: &[u8], option: &str) -> bool {
    word.eq_ignore_ascii_case(option.as_bytes())
}

/// The text of a word in an error.
pub(crate) fn shown(word: &[u8]) -> String {
    let word = &word[..word.len().min(128)];
    String::from_utf8_lossy(word).into_owned()
}

/// The answer to HELP of a container.
pub(crate) fn help(reply: &mut weft_resp::Reply<'_>, name: &str, lines: &[&str]) -> Done {
    reply.array(lines.len() + 3);
    reply.simple(&format!("{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    lines.iter().for_each(|line| reply.simple(line));
    reply.simple("HELP");
    reply.simple("    Print this help.");
    Ok(())
}

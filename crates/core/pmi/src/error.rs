//! Why a call of the process management interface failed.

use std::time::Duration;

use rustix::io::Errno;
use thiserror::Error;

/// Bytes that are no message of the interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Malformed {
    /// A line or frame is longer than any message may be.
    #[error("it is longer than {max} bytes")]
    TooLong {
        /// The longest in bytes.
        max: usize,
    },
    /// The bytes are not UTF-8.
    #[error("it is not UTF-8 text")]
    NotText,
    /// The message names no command.
    #[error("it does not begin with cmd=NAME")]
    NoCommand,
    /// A part of a frame is no `key=value;`.
    #[error("a part of it is not key=value;")]
    NoPair,
    /// The length of a frame is no number.
    #[error("its length is no number")]
    NoLength,
    /// There are more pairs than in any message of the interface.
    #[error("it has more than {max} values")]
    TooManyPairs {
        /// The most of them.
        max: usize,
    },
}

/// Why a call failed.
#[derive(Debug, Error)]
pub enum Error {
    /// A variable of the launcher cannot be used.
    #[error("{variable}={value} {problem}; start the program with its launcher, or unset it")]
    Environment {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The fault.
        problem: &'static str,
    },
    /// A variable is there, and another one that belongs to it is not.
    #[error("the launcher set {present} but not {absent}; start the program with its launcher")]
    Incomplete {
        /// The variable that is there.
        present: &'static str,
        /// The variable that is not there.
        absent: &'static str,
    },
    /// The launcher cannot be reached, or the connection to it broke.
    #[error("the launcher cannot be reached ({request}): {errno}")]
    Connection {
        /// The request that was under way.
        request: &'static str,
        /// The error of the system.
        errno: Errno,
    },
    /// The host of `PMI_PORT` has no address.
    #[error("the launcher's host {host} is not known: {error}; check PMI_PORT")]
    Host {
        /// The host.
        host: String,
        /// The error of the system.
        error: String,
    },
    /// The launcher serves PMIx, and the library that speaks it cannot be loaded.
    #[error(
        "the launcher serves PMIx, and its library cannot be loaded: {reason}; install libpmix 2 \
         or newer, or start the program with oshrun or another launcher with PMI"
    )]
    NoLibrary {
        /// Why.
        reason: String,
    },
    /// The launcher's PMIx cannot be reached.
    #[error(
        "the launcher's PMIx cannot be reached: {reason} ({code}); start the program with its \
         launcher, or unset PMIX_NAMESPACE"
    )]
    NoPmix {
        /// The code of the library.
        code: i32,
        /// Its words for it.
        reason: String,
    },
    /// The launcher closed the connection.
    #[error("the launcher closed the connection ({request}): the job has ended")]
    Closed {
        /// The request that was under way.
        request: &'static str,
    },
    /// There was no answer within the time.
    #[error(
        "the launcher did not answer within {} s ({request}); look whether all processes of the \
         job run", within.as_secs()
    )]
    NoAnswer {
        /// The request.
        request: &'static str,
        /// The time that was waited.
        within: Duration,
    },
    /// The launcher sent bytes that are no message.
    #[error("the launcher sent what is no message of PMI ({request}): {problem}")]
    Malformed {
        /// The request that was under way.
        request: &'static str,
        /// The fault.
        problem: Malformed,
    },
    /// The launcher answered something else than was asked.
    #[error("the launcher answered {answer} to {request}; is it a launcher for PMI-1 or PMI-2?")]
    Unexpected {
        /// The request.
        request: &'static str,
        /// The command of the answer, or the value that is missing or wrong in it.
        answer: String,
    },
    /// The launcher refused a request.
    #[error("the launcher refused {request} {subject}: {message} ({code})")]
    Refused {
        /// The request.
        request: &'static str,
        /// The key, or the version.
        subject: String,
        /// The launcher's code.
        code: String,
        /// The launcher's message.
        message: String,
    },
    /// A key or value is too long for this launcher.
    #[error("{part} has {bytes} bytes, and the launcher takes {max}")]
    TooLong {
        /// `the key` or `the value`.
        part: &'static str,
        /// Its length in bytes.
        bytes: usize,
        /// The longest in bytes.
        max: usize,
    },
    /// A key or value holds a character that the wire cannot carry.
    #[error("{part} holds {character:?}, which PMI cannot carry; encode it as hexadecimal digits")]
    Character {
        /// `the key` or `the value`.
        part: &'static str,
        /// The character.
        character: char,
    },
}

//! Mistakes of a program, each with a message that names the PE, the function and the value.
//!
//! OpenSHMEM has no error codes for them: the job ends. The surface crate says how
//! ([`end_with`]), since it has the connection to the launcher.

use std::sync::OnceLock;

use thiserror::Error;

use crate::space;

/// A mistake of a program, or the end of a PE that another one waits for.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Fault {
    /// A call before the library was started, or after its end.
    #[error("the library is not started; call shmem_init before it, and shmem_finalize after it")]
    NotStarted,
    /// A call in a child of a PE.
    #[error(
        "this process is a child of a PE; only processes that the launcher started are PEs and \
         call the library"
    )]
    OfChild,
    /// A PE that is not there.
    #[error("PE {pe} is outside of 0..{pes}; pass the number of a PE of this job or team")]
    Pe {
        /// The number that was passed.
        pe: i32,
        /// The number of PEs.
        pes: usize,
    },
    /// An address that other PEs do not have.
    #[error(
        "{bytes} bytes at {address:#x} are not symmetric; pass memory of shmem_malloc or a global \
         or static variable of the program{hint}"
    )]
    NotSymmetric {
        /// The address.
        address: usize,
        /// Bytes from there on.
        bytes: usize,
        /// A further reason, which begins with a semicolon.
        hint: &'static str,
    },
    /// An atomic of a word that crosses words.
    #[error("the word at {address:#x} is not aligned to its {bytes} bytes; align the variable")]
    Misaligned {
        /// The address.
        address: usize,
        /// Bytes of the word.
        bytes: usize,
    },
    /// A handle that is no team of the caller.
    #[error("{handle:#x} is no team of this PE; pass a team that it is in and has not destroyed")]
    Team {
        /// The handle.
        handle: usize,
    },
    /// A handle that is no context.
    #[error("{handle:#x} is no context; pass one that was created and is not destroyed")]
    Context {
        /// The handle.
        handle: usize,
    },
    /// A comparison or an operation that is not one of the constants.
    #[error("{value} is no {what}; pass one of the constants of shmem.h")]
    Constant {
        /// The kind of constant.
        what: &'static str,
        /// The value.
        value: i32,
    },
    /// PEs call different collectives, or the same one with different arguments.
    #[error(
        "the PEs do not call the same: PE {pe} calls {theirs}, PE {me} calls {mine}; all PEs of a \
         team call the same collective with the same arguments"
    )]
    Mismatch {
        /// The other PE.
        pe: usize,
        /// Its call.
        theirs: String,
        /// This PE.
        me: usize,
        /// This PE's call.
        mine: String,
    },
    /// A PE ended that this one waits for.
    #[error("PE {pe} has ended and never comes; have all PEs call it before they end")]
    Deserted {
        /// The PE.
        pe: usize,
    },
    /// A PE of another host is not reached any more.
    #[error(
        "PE {pe} is not reached any more: {reason}; look whether it and its host still run, and \
         whether the network between the hosts works"
    )]
    Lost {
        /// The PE.
        pe: usize,
        /// The reason.
        reason: String,
    },
    /// A PE of another host broke the rules of the library.
    #[error(
        "PE {pe} broke the protocol: {breach}; have all PEs use the same release of the library"
    )]
    Broke {
        /// The PE.
        pe: usize,
        /// The rule.
        breach: String,
    },
    /// The calling PE is not in the active set.
    #[error(
        "the active set (start {start}, log stride {log_stride}, size {size}) {problem}; the \
         set's PEs alone call it, with the same values"
    )]
    ActiveSet {
        /// First PE.
        start: i32,
        /// Logarithm of the stride.
        log_stride: i32,
        /// Number of PEs.
        size: i32,
        /// The fault.
        problem: &'static str,
    },
    /// A lock that the PE holds already, or does not hold.
    #[error("the lock at {address:#x} {problem}")]
    Lock {
        /// Its address.
        address: usize,
        /// The fault, and what to do.
        problem: &'static str,
    },
    /// A pointer that was not allocated.
    #[error("{address:#x} was not allocated by shmem_malloc, or is free already; free memory once")]
    NotAllocated {
        /// The address.
        address: usize,
    },
}

/// How a job ends because of a fault: it gets the message and does not return.
pub type End = fn(&str) -> !;

static END: OnceLock<End> = OnceLock::new();

/// Says how a job ends. The first call counts.
pub fn end_with(end: End) {
    let _ = END.set(end);
}

/// Ends the job because of a fault in a call.
#[cold]
#[inline(never)]
pub fn raise(call: &str, fault: &Fault) -> ! {
    let message = match space::number() {
        Some(me) => format!("PE {me}: {call}: {fault}"),
        None => format!("{call}: {fault}"),
    };
    match END.get() {
        Some(end) => end(&message),
        // In tests of this crate.
        None => panic!("{message}"),
    }
}

//! Offences: acts of a peer that the protocol does not have.

use std::fmt;

use thiserror::Error;

/// The peer broke the protocol. The transfer is over, and what is at the target stays.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[error("the other end broke the protocol: {0}")]
pub struct Offence(pub &'static str);

impl fmt::Debug for Offence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

//! Errors of libfabric.

/// An error of a call into libfabric.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The library is not there.
    #[error("libfabric cannot be loaded: {0}; install it (Debian: libfabric1)")]
    Missing(String),
    /// The library is too old.
    #[error("libfabric {major}.{minor} is too old: 1.17 or later is needed")]
    TooOld {
        /// Its version.
        major: u32,
        /// The second part of its version.
        minor: u32,
    },
    /// No provider has what was wanted.
    #[error("libfabric has no {0} here; `weft info` lists what it has")]
    NoOffer(String),
    /// No port of the range is free.
    #[error(
        "all ports from {low} to {high} are in use at this address; give fabric.ports more of \
         them, or end programs that use some"
    )]
    PortsInUse {
        /// The lowest port.
        low: u16,
        /// The highest port.
        high: u16,
    },
    /// A call failed.
    #[error("{call}: {reason}")]
    Call {
        /// The call.
        call: &'static str,
        /// The error number, positive.
        number: i32,
        /// The words of libfabric for it.
        reason: String,
    },
    /// The port keeps as many addresses of memory that it served to peers as it may: see
    /// [`Port::deregister`](crate::Port::deregister).
    #[error("the port keeps too many addresses that peers may still write to; open another one")]
    WornOut,
    /// Memory could not be made, or moves at this moment.
    #[error("no memory for libfabric: {0}")]
    Memory(String),
}

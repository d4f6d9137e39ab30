//! Where other daemons may be: the values of `fabric.seeds`, and addresses as they are used.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Longest name of a host, in bytes (RFC 1035).
const HOST_BYTES_MAX: usize = 253;

/// An address, or the name of a host, with a port.
///
/// ```
/// use weft_options::Seed;
///
/// assert!(matches!("10.9.0.1:7700".parse(), Ok(Seed::Address(_))));
/// assert!(matches!("first.example:7700".parse(), Ok(Seed::Name { port: 7700, .. })));
/// assert!("first.example".parse::<Seed>().is_err());
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Seed {
    /// An address.
    Address(SocketAddr),
    /// A name, which is resolved when it is used.
    Name {
        /// The name of the host.
        host: String,
        /// The port.
        port: u16,
    },
}

/// A text is neither an address nor a name with a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidSeed;

impl fmt::Display for InvalidSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("neither an address nor a name of a host with a port, as first:7700")
    }
}

impl std::error::Error for InvalidSeed {}

impl FromStr for Seed {
    type Err = InvalidSeed;

    fn from_str(text: &str) -> Result<Self, InvalidSeed> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(canonical(address)));
        }
        let (host, port) = text.rsplit_once(':').ok_or(InvalidSeed)?;
        let is_label = |label: &str| {
            let is_sign = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
            !label.is_empty() && label.len() < 64 && label.bytes().all(is_sign)
        };
        // A text of numbers alone was meant as an address.
        let is_name = host.len() <= HOST_BYTES_MAX
            && host.strip_suffix('.').unwrap_or(host).split('.').all(is_label)
            && host.bytes().any(|byte| byte.is_ascii_alphabetic());
        match port.parse() {
            Ok(port @ 1..) if is_name => Ok(Self::Name { host: host.to_owned(), port }),
            _ => Err(InvalidSeed),
        }
    }
}

impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

/// An address, as IPv4 where it is an IPv4 address in the form of an IPv6 one
/// (`[::ffff:10.9.0.1]:7700`). Providers and other hosts take the two for different addresses.
#[must_use]
pub fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(six) if six.ip().to_ipv4_mapped().is_some() => {
            SocketAddr::new(IpAddr::V6(*six.ip()).to_canonical(), six.port())
        }
        other => other,
    }
}

/// The seeds of a list with commas between; `None` if one of them is none.
pub(crate) fn seeds(text: &str) -> Option<Vec<Seed>> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| part.parse().ok()).collect()
}

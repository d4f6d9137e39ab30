//! Places of a transfer, as people write them.

use std::fmt;

use weft_transfer::shown;

use crate::error::CopyError;

/// The port of a server that names none.
pub const PORT: u16 = 7_710;

/// A place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// `PATH`: on this host.
    Here(Vec<u8>),
    /// `[USER@]HOST:PATH`: on a host that a remote shell reaches.
    Shell {
        /// `[USER@]HOST`.
        host: String,
        /// The path there.
        path: Vec<u8>,
    },
    /// `weft://HOST[:PORT]/PATH`: at a server.
    Server {
        /// The host.
        host: String,
        /// The port.
        port: u16,
        /// The path below what it serves.
        path: Vec<u8>,
    },
}

impl Place {
    /// Reads a place. What has a colon before any slash is on another host; `./a:b` is not.
    ///
    /// # Errors
    /// [`CopyError::Place`].
    pub fn parse(text: &[u8]) -> Result<Self, CopyError> {
        let failed = |why: &str| CopyError::place(shown(text), why);
        if text.is_empty() {
            return Err(failed("an empty path names nothing"));
        }
        if let Some(rest) = text.strip_prefix(b"weft://") {
            let slash = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
            let host = std::str::from_utf8(&rest[..slash]).map_err(|_| failed("no host"))?;
            let path = rest.get(slash + 1..).unwrap_or(&[]).to_vec();
            let (host, port) = match host.rsplit_once(':') {
                Some((name, port)) if !port.contains(']') => {
                    (name, port.parse().map_err(|_| failed("the port is no number"))?)
                }
                _ => (host, PORT),
            };
            let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            if host.is_empty() {
                return Err(failed("it names no host"));
            }
            return Ok(Self::Server { host, port, path });
        }
        let colon = host_end(text);
        let Some(colon) = colon else { return Ok(Self::Here(text.to_vec())) };
        let host = std::str::from_utf8(&text[..colon]).map_err(|_| failed("no host"))?;
        // A shell would take it for an option.
        if host.starts_with('-') || host.is_empty() {
            return Err(failed("this is no host; a file of this name is ./NAME"));
        }
        let path = &text[colon + 1..];
        let path = if path.is_empty() { b".".to_vec() } else { path.to_vec() };
        Ok(Self::Shell { host: host.to_owned(), path })
    }

    /// The path there.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        match self {
            Self::Here(path) | Self::Shell { path, .. } | Self::Server { path, .. } => path,
        }
    }

    /// The same host with another path.
    #[must_use]
    pub fn is_at(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Here(_), Self::Here(_)) => true,
            (Self::Shell { host, .. }, Self::Shell { host: other, .. }) => host == other,
            (
                Self::Server { host, port, .. },
                Self::Server { host: other, port: other_port, .. },
            ) => host == other && port == other_port,
            _ => false,
        }
    }
}

/// Where the host ends: at the colon before any slash, behind an address in brackets.
fn host_end(text: &[u8]) -> Option<usize> {
    let bracket = text.iter().position(|byte| *byte == b'[');
    let slash = text.iter().position(|byte| *byte == b'/').unwrap_or(text.len());
    let from = match bracket {
        Some(open) if open < slash => open + text[open..].iter().position(|byte| *byte == b']')?,
        _ => 0,
    };
    let colon = from + text[from..].iter().position(|byte| *byte == b':')?;
    (colon < slash || from > 0).then_some(colon)
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here(path) => f.write_str(&shown(path)),
            Self::Shell { host, path } => write!(f, "{host}:{}", shown(path)),
            Self::Server { host, port, path } => write!(f, "weft://{host}:{port}/{}", shown(path)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_rsync_and_scp_read_them() {
        let parse = |text: &str| Place::parse(text.as_bytes()).expect("a place");
        let here = |path: &str| Place::Here(path.into());
        let shell = |host: &str, path: &str| Place::Shell { host: host.into(), path: path.into() };
        assert_eq!(parse("a/b:c"), here("a/b:c"));
        assert_eq!(parse("./a:b"), here("./a:b"));
        assert_eq!(parse("host:"), shell("host", "."));
        assert_eq!(parse("me@host:/a:b"), shell("me@host", "/a:b"));
        assert_eq!(parse("[fe80::1]:x"), shell("[fe80::1]", "x"));
        let server = |host: &str, port, path: &str| Place::Server {
            host: host.into(),
            port,
            path: path.into(),
        };
        assert_eq!(parse("weft://h/a/b"), server("h", PORT, "a/b"));
        assert_eq!(parse("weft://[::1]:99"), server("::1", 99, ""));
        assert_eq!(parse("weft://[::1]/x"), server("::1", PORT, "x"));
        for bad in ["", "-oProxyCommand=x:y", ":x", "weft://", "weft://h:x/y"] {
            assert!(Place::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}

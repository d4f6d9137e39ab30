//! Where clients come in.

use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors for what is not a client: files of the store, connections of the cluster.
const OTHER_DESCRIPTORS: u64 = 256;

/// Sockets that listen.
#[derive(Debug)]
pub struct Listener {
    pub(crate) sockets: Vec<TcpListener>,
    /// Given up to take and refuse a client when no descriptor is left.
    spare: Option<File>,
}

/// The next client.
pub(crate) enum Next {
    /// It came.
    Client(TcpStream, SocketAddr),
    /// No descriptor is left: it was refused.
    NoDescriptor,
    /// There is none.
    None,
}

impl Listener {
    pub(crate) fn bind(addresses: &[SocketAddr]) -> io::Result<Self> {
        let mut sockets = Vec::new();
        for address in addresses {
            let socket = TcpListener::bind(address)?;
            // Many clients may come at once.
            rustix::net::listen(&socket, 4096)?;
            socket.set_nonblocking(true)?;
            sockets.push(socket);
        }
        Ok(Self { sockets, spare: File::open("/dev/null").ok() })
    }

    /// The addresses.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.sockets.iter().filter_map(|it| it.local_addr().ok()).collect()
    }

    pub(crate) fn next(&mut self, socket: usize) -> Next {
        loop {
            match self.sockets[socket].accept() {
                Ok((stream, address)) => return Next::Client(stream, address),
                Err(error) => {
                    match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
                        Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => {
                            return self.refuse(socket);
                        }
                        // The client went away again.
                        Some(rustix::io::Errno::CONNABORTED | rustix::io::Errno::INTR) => {}
                        _ => return Next::None,
                    }
                }
            }
        }
    }

    /// Takes a client by the spare descriptor and ends it.
    fn refuse(&mut self, socket: usize) -> Next {
        drop(self.spare.take());
        let taken = self.sockets[socket].accept();
        if let Ok((stream, _)) = &taken {
            refuse(stream, "max number of clients reached, no descriptor is left");
        }
        let refused = taken.is_ok();
        drop(taken);
        self.spare = File::open("/dev/null").ok();
        if refused { Next::NoDescriptor } else { Next::None }
    }
}

/// Says to a client why it is not served.
pub(crate) fn refuse(stream: &TcpStream, why: &str) {
    let text = format!("-ERR {why}\r\n");
    let flags = rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT;
    let _ = rustix::net::send(stream, text.as_bytes(), flags);
    let _ = stream.shutdown(std::net::Shutdown::Write);
}

/// Raises the limit of descriptors for so many clients. Returns how many fit.
pub(crate) fn raise_descriptors(clients: usize) -> usize {
    let wanted = u64::try_from(clients).unwrap_or(u64::MAX).saturating_add(OTHER_DESCRIPTORS);
    let limit = getrlimit(Resource::Nofile);
    let maximum = limit.maximum.unwrap_or(u64::MAX);
    let current = limit.current.unwrap_or(u64::MAX);
    if current < wanted {
        let raised = Rlimit { current: Some(wanted.min(maximum)), maximum: limit.maximum };
        let _ = setrlimit(Resource::Nofile, raised);
    }
    let has = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let others = OTHER_DESCRIPTORS.min(has / 2);
    usize::try_from(has.saturating_sub(others)).unwrap_or(usize::MAX).min(clients)
}

/// Whether a client without a password is served: it is on this host or in a network that the
/// internet does not reach.
pub(crate) fn is_near(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(it) => it.is_loopback() || it.is_private() || it.is_link_local(),
        IpAddr::V6(it) => it.is_loopback() || it.is_unique_local() || it.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_of_the_internet_need_a_password() {
        for (address, expected) in [
            ("127.0.0.1", true),
            ("::1", true),
            ("10.1.2.3", true),
            ("192.168.0.1", true),
            ("::ffff:127.0.0.1", true),
            ("fd00::1", true),
            ("8.8.8.8", false),
            ("2001:4860::1", false),
            ("::ffff:8.8.8.8", false),
        ] {
            assert_eq!(is_near(address.parse().expect("an address")), expected, "{address}");
        }
    }
}

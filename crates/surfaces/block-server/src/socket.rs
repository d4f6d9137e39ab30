//! Sockets of TCP and of UNIX alike.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use rustls::{ServerConfig, ServerConnection};

/// A connected socket that never waits, maybe encrypted.
#[derive(Debug)]
pub struct Socket {
    plain: Plain,
    tls: Option<Box<ServerConnection>>,
}

#[derive(Debug)]
enum Plain {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Read for Plain {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.read(into),
            Self::Unix(socket) => socket.read(into),
        }
    }

    fn read_vectored(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.read_vectored(parts),
            Self::Unix(socket) => socket.read_vectored(parts),
        }
    }
}

impl Write for Plain {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.write_vectored(parts),
            Self::Unix(socket) => socket.write_vectored(parts),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Socket {
    fn new(plain: Plain) -> Self {
        Self { plain, tls: None }
    }

    /// Reads into two places, the second behind the first.
    pub fn read(&mut self, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            let mut parts = [IoSliceMut::new(first), IoSliceMut::new(second)];
            return self.plain.read_vectored(&mut parts);
        };
        let into = if first.is_empty() { second } else { first };
        loop {
            match tls.reader().read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
            if tls.read_tls(&mut self.plain)? == 0 {
                return Ok(0);
            }
            let done = tls.process_new_packets();
            // An alert, or an answer of the handshake.
            while tls.wants_write() && tls.write_tls(&mut self.plain).is_ok_and(|sent| sent > 0) {}
            done.map_err(io::Error::other)?;
        }
    }

    /// Writes parts in order.
    pub fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.plain.write_vectored(parts) };
        // No more is encrypted while the last of it waits.
        while tls.wants_write() {
            tls.write_tls(&mut self.plain)?;
        }
        let taken = tls.writer().write_vectored(parts)?;
        while tls.wants_write() {
            match tls.write_tls(&mut self.plain) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(taken)
    }

    /// Whether encrypted bytes wait to be sent.
    pub fn has_unsent(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Sends encrypted bytes that wait.
    pub fn flush(&mut self) -> io::Result<()> {
        if let Some(tls) = &mut self.tls {
            while tls.wants_write() {
                tls.write_tls(&mut self.plain)?;
            }
        }
        Ok(())
    }

    /// From now on with TLS.
    pub fn start_tls(&mut self, config: Arc<ServerConfig>) -> Result<(), rustls::Error> {
        self.tls = Some(Box::new(ServerConnection::new(config)?));
        Ok(())
    }

    /// The address that the peer connected to, as ADDRESS:PORT; empty for a UNIX socket.
    pub fn local(&self) -> String {
        match &self.plain {
            Plain::Tcp(socket) => {
                socket.local_addr().map_or_else(|_| String::new(), |it| it.to_string())
            }
            Plain::Unix(_) => String::new(),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.plain {
            Plain::Tcp(socket) => socket.as_fd(),
            Plain::Unix(socket) => socket.as_fd(),
        }
    }
}

/// A socket that takes connections.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A socket of this host.
    Unix(UnixListener),
}

impl Listener {
    /// The next connection, if one waits.
    pub fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => {
                let (socket, _) = listener.accept()?;
                socket.set_nonblocking(true)?;
                socket.set_nodelay(true)?;
                rustix::net::sockopt::set_socket_keepalive(&socket, true)?;
                Ok(Socket::new(Plain::Tcp(socket)))
            }
            Self::Unix(listener) => {
                let (socket, _) = listener.accept()?;
                socket.set_nonblocking(true)?;
                Ok(Socket::new(Plain::Unix(socket)))
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}

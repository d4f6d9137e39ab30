//! Sockets of TCP and of UNIX alike.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};

/// A connected socket that never waits.
#[derive(Debug)]
pub enum Socket {
    /// TCP.
    Tcp(TcpStream),
    /// A socket of this host.
    Unix(UnixStream),
}

impl Socket {
    /// Reads into two places, the second behind the first.
    pub fn read(&mut self, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
        let mut parts = [IoSliceMut::new(first), IoSliceMut::new(second)];
        match self {
            Self::Tcp(socket) => socket.read_vectored(&mut parts),
            Self::Unix(socket) => socket.read_vectored(&mut parts),
        }
    }

    /// Writes parts in order.
    pub fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.write_vectored(parts),
            Self::Unix(socket) => socket.write_vectored(parts),
        }
    }

    /// The address that the peer connected to, as ADDRESS:PORT; empty for a UNIX socket.
    pub fn local(&self) -> String {
        match self {
            Self::Tcp(socket) => {
                socket.local_addr().map_or_else(|_| String::new(), |it| it.to_string())
            }
            Self::Unix(_) => String::new(),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(socket) => socket.as_fd(),
            Self::Unix(socket) => socket.as_fd(),
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
                Ok(Socket::Tcp(socket))
            }
            Self::Unix(listener) => {
                let (socket, _) = listener.accept()?;
                socket.set_nonblocking(true)?;
                Ok(Socket::Unix(socket))
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

//! How one end of a TCP connection is named, so that it can be told which other end is its own.
//!
//! # Invariants
//! - The mirror of the mirror of a tuple is the tuple.
//! - Two ends are of one connection if the tuple of one is the mirror of that of the other.

use std::net::SocketAddr;

/// One end of a TCP connection as the kernel names it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tuple {
    /// The address of this end, as its own socket has it.
    pub local: SocketAddr,
    /// The address of the other end, as this end's socket has it.
    pub remote: SocketAddr,
    /// The evidence that tells this connection from others with the same addresses.
    pub route: Route,
}

/// The evidence that two ends with such addresses belong to one connection. Private addresses are
/// given out again in each network.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Route {
    /// The network namespaces of both ends are known.
    Namespaces {
        /// That of this end.
        here: u64,
        /// That of the other end. It differs where a network of weft joins the two.
        there: u64,
    },
    /// The namespace of the other end is not known. The kernel told how the connection began.
    Traced(Trace),
    /// The ends are on two hosts, whose addresses are theirs alone, and their programs belong to a
    /// user of the same number.
    Hosts {
        /// That user.
        user: u32,
    },
}

/// The beginning of a connection that may lead to another network namespace.
///
/// The two ends agree on the numbers with which their directions begin. The kernel chooses these
/// for each connection, and a translation of addresses leaves them. Two ends are of one connection
/// only if all of this mirrors each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Trace {
    /// The user namespace that owns the network namespace of this end, and has to own that of the
    /// other end. Whoever has the rights of its root there can make a socket with any addresses and
    /// numbers.
    pub owner: u64,
    /// The sequence number of the first byte that this end sends. Before
    /// [`Tuple::of_connecting_end`] it is one less at the end that connected.
    pub sent: u32,
    /// The sequence number of the first byte that this end receives.
    pub received: u32,
    /// The other end's own address, as its own socket has it.
    pub far_local: SocketAddr,
    /// The address of this end, as the other end's socket has it.
    pub far_remote: SocketAddr,
}

impl Tuple {
    /// The tuple of a connection within `namespace`, with both addresses as [`canonical`] returns
    /// them.
    #[must_use]
    pub fn new(namespace: u64, local: SocketAddr, remote: SocketAddr) -> Self {
        let route = Route::Namespaces { here: namespace, there: namespace };
        Self { local: canonical(local), remote: canonical(remote), route }
    }

    /// The tuple as the kernel described it, of an end that connected: there it counts the SYN
    /// among the bytes that the peer acknowledged, and at the end that accepted it does not.
    #[must_use]
    pub const fn of_connecting_end(mut self) -> Self {
        if let Route::Traced(trace) = &mut self.route {
            trace.sent = trace.sent.wrapping_add(1);
        }
        self
    }

    /// The tuple of the same connection at the other end.
    #[must_use]
    pub const fn mirrored(self) -> Self {
        let Self { local, remote, route } = self;
        match route {
            Route::Hosts { .. } => Self { local: remote, remote: local, route },
            Route::Namespaces { here, there } => {
                let route = Route::Namespaces { here: there, there: here };
                Self { local: remote, remote: local, route }
            }
            Route::Traced(Trace { owner, sent, received, far_local, far_remote }) => {
                let (far_own, far_other) = (local, remote);
                let trace = Trace {
                    owner,
                    sent: received,
                    received: sent,
                    far_local: far_own,
                    far_remote: far_other,
                };
                Self { local: far_local, remote: far_remote, route: Route::Traced(trace) }
            }
        }
    }
}

/// The IP address and port alone, without flow and scope; an IPv4-mapped address becomes IPv4.
#[must_use]
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

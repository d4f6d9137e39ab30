//! Asks the kernel for the socket at the other end of a connection of this host (sock_diag(7)).
//!
//! # Invariants
//! - The kernel finds the listener where it finds no connection, and names root for a socket that
//!   nobody holds. So an answer counts only if it names both addresses and an inode.
//! - The kernel answers for the network namespace in which the [`Table`] was opened. A connection
//!   of another one may have the addresses of one of this, so it is asked for in its own alone.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use weft_channel::network_namespace;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NO_COOKIE: [u8; 8] = [0xff; 8];
const HEADER_BYTES: usize = 16;
/// Size of struct inet_diag_req_v2.
const REQUEST_BYTES: usize = 56;
/// Where `id` lies in the answer: in struct inet_diag_msg, behind the header.
const ID_AT: usize = HEADER_BYTES + 4;
/// Where `idiag_uid` and `idiag_inode` lie in the answer.
const USER_AT: usize = HEADER_BYTES + 4 + 48 + 12;
const INODE_AT: usize = USER_AT + 4;

/// The addresses and the network namespace of a connection. None of them changes while the socket
/// is connected.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// The address of this end.
    pub own: SocketAddr,
    /// The address of the other end.
    pub other: SocketAddr,
    /// The cookie of the socket's network namespace.
    pub network: u64,
}

impl Ends {
    /// Those of `socket`; `None` when it is not connected, or the kernel does not name its network
    /// namespace.
    #[must_use]
    pub fn of(socket: BorrowedFd<'_>) -> Option<Self> {
        let own = SocketAddr::try_from(rustix::net::getsockname(socket).ok()?).ok()?;
        let other = SocketAddr::try_from(rustix::net::getpeername(socket).ok()??).ok()?;
        Some(Self { own, other, network: network_namespace(socket).ok()? })
    }
}

/// The sockets of a network namespace.
#[derive(Debug)]
pub struct Table {
    kernel: OwnedFd,
    /// The cookie of the network namespace.
    network: u64,
}

impl AsFd for Table {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.kernel.as_fd()
    }
}

impl Table {
    /// Those of the calling thread's namespace. `None` if the kernel opens no more sockets, or does
    /// not name the namespace.
    #[must_use]
    pub fn open() -> Option<Self> {
        let (family, flags) = (AddressFamily::NETLINK, SocketFlags::CLOEXEC);
        let protocol = Some(netlink::SOCK_DIAG);
        let kernel = rustix::net::socket_with(family, SocketType::DGRAM, flags, protocol).ok()?;
        Self::of(kernel)
    }

    /// As [`Table::open`], by a socket that was opened so.
    #[must_use]
    pub fn of(kernel: OwnedFd) -> Option<Self> {
        let network = network_namespace(kernel.as_fd()).ok()?;
        Some(Self { kernel, network })
    }

    /// The socket by which it asks.
    #[must_use]
    pub fn into_socket(self) -> OwnedFd {
        self.kernel
    }

    /// The cookie of the network namespace.
    #[must_use]
    pub const fn network(&self) -> u64 {
        self.network
    }

    /// The other end of the connection with these `ends`. `None` when it is not in this network
    /// namespace, or nobody holds it.
    #[must_use]
    pub fn holder(&self, ends: &Ends) -> Option<Found> {
        (ends.network == self.network).then(|| self.at(ends.other, ends.own)).flatten()
    }

    /// The socket at `own` of the connection to `other`, if somebody holds it.
    #[must_use]
    pub fn at(&self, own: SocketAddr, other: SocketAddr) -> Option<Found> {
        let request = request(own, other)?;
        rustix::net::send(&self.kernel, &request, SendFlags::empty()).ok()?;
        let mut answer = [0; 1024];
        // The kernel answered within the call of `send`.
        let (length, _) = rustix::net::recv(&self.kernel, &mut answer, RecvFlags::DONTWAIT).ok()?;
        let found = found_in(answer.get(..length)?)?;
        let asked = [own, other].map(canonical);
        (found.addresses == asked && found.inode != 0).then_some(found)
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The request for the socket from `source` to `target`.
fn request(source: SocketAddr, target: SocketAddr) -> Option<Vec<u8>> {
    let (family, source_ip, target_ip) =
        match (source.ip().to_canonical(), target.ip().to_canonical()) {
            (IpAddr::V4(one), IpAddr::V4(other)) => {
                let long = |ip: [u8; 4]| {
                    let mut bytes = [0; 16];
                    bytes[..4].copy_from_slice(&ip);
                    bytes
                };
                (libc::AF_INET, long(one.octets()), long(other.octets()))
            }
            (IpAddr::V6(one), IpAddr::V6(other)) => (libc::AF_INET6, one.octets(), other.octets()),
            _ => return None,
        };
    let mut bytes = Vec::with_capacity(HEADER_BYTES + REQUEST_BYTES);
    bytes.extend_from_slice(&u32::try_from(HEADER_BYTES + REQUEST_BYTES).ok()?.to_ne_bytes());
    bytes.extend_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    bytes.extend_from_slice(&[0; 8]);
    let protocol = u8::try_from(libc::IPPROTO_TCP).ok()?;
    bytes.extend_from_slice(&[u8::try_from(family).ok()?, protocol, 0, 0]);
    bytes.extend_from_slice(&u32::MAX.to_ne_bytes());
    bytes.extend_from_slice(&source.port().to_be_bytes());
    bytes.extend_from_slice(&target.port().to_be_bytes());
    bytes.extend_from_slice(&source_ip);
    bytes.extend_from_slice(&target_ip);
    bytes.extend_from_slice(&0_u32.to_ne_bytes());
    bytes.extend_from_slice(&NO_COOKIE);
    Some(bytes)
}

/// A socket, as the kernel describes it.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Its own address and the other one.
    addresses: [SocketAddr; 2],
    /// The user who made it.
    pub user: u32,
    /// Its inode, which is not 0: a process holds it.
    pub inode: u32,
}

fn found_in(answer: &[u8]) -> Option<Found> {
    let half = |at: usize| <[u8; 2]>::try_from(answer.get(at..at + 2)?).ok();
    let word = |at: usize| <[u8; 4]>::try_from(answer.get(at..at + 4)?).ok();
    if u16::from_ne_bytes(half(4)?) != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    let is_ipv4 = i32::from(*answer.get(HEADER_BYTES)?) == libc::AF_INET;
    let ip = |at: usize| {
        // An IPv6 socket may have addresses of IPv4.
        let long: [u8; 16] = answer.get(at..at + 16)?.try_into().ok()?;
        Some(if is_ipv4 { IpAddr::from(word(at)?) } else { IpAddr::from(long).to_canonical() })
    };
    let port = |at: usize| half(at).map(u16::from_be_bytes);
    let own = SocketAddr::new(ip(ID_AT + 4)?, port(ID_AT)?);
    let other = SocketAddr::new(ip(ID_AT + 20)?, port(ID_AT + 2)?);
    let [user, inode] = [word(USER_AT)?, word(INODE_AT)?].map(u32::from_ne_bytes);
    Some(Found { addresses: [own, other], user, inode })
}

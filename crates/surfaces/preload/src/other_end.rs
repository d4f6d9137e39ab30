//! Asks the kernel which user holds the other end of a connection within this host (sock_diag(7)).
//!
//! Two questions need the answer. A daemon that serves one user serves nobody else, so programs of
//! two such users get no lane, and `weft run --stats` tells the user so ([`user`]). A lane that was
//! kept with a process is used for a later connection only if the user of that process holds its
//! other end ([`is_of`]).
//!
//! # Invariants
//! - The kernel finds the listener where it finds no connection, and names root for a socket that
//!   nobody holds. So the answer counts only if it names both addresses and an inode.
//! - Users' numbers, and the connections that are found, are those of the namespaces in which the
//!   kernel's socket was made. [`is_of`] uses one socket, for connections of that socket's own
//!   network namespace. It takes a number from others only in the first user namespace. In another
//!   one it compares two answers to the same socket, of which neither is the number that all users
//!   have who are not known there.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

use crate::guard::{ForkLock, LocalLock};
use crate::sys;

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

/// The kernel's socket for [`is_of`], and its inode: a program may close all descriptors it does
/// not know.
struct Questions {
    socket: OwnedFd,
    inode: u64,
    /// The cookie of its network namespace.
    network: u64,
    /// Whether it was made in the first user namespace.
    names_users: bool,
}

static QUESTIONS: LocalLock<Option<Questions>> = LocalLock::new(None);

/// The lock of this module, for fork.
pub fn lock() -> &'static dyn ForkLock {
    &QUESTIONS
}

/// In a forked child: an answer would go to whoever reads first, the parent or the child.
pub fn forked() {
    if let Some(mut questions) = QUESTIONS.lock() {
        close(&mut questions);
    }
}

/// Whether the kernel names users to this process by the numbers of the first user namespace;
/// `None` when this process cannot learn the users of other ends.
pub fn names_users() -> Option<bool> {
    let mut questions = QUESTIONS.lock()?;
    let answer = opened(&mut questions).map(|found| found.names_users);
    close_if_wanted(&mut questions);
    answer
}

/// The addresses and the network namespace of a connection. None of them changes while the socket
/// is connected.
#[derive(Clone, Copy)]
pub struct Ends {
    /// The address of this end.
    pub own: SocketAddr,
    /// The address of the other end.
    pub other: SocketAddr,
    /// The cookie of the socket's network namespace.
    pub network: u64,
}

impl Ends {
    /// Asks for the connection behind `fd`; `None` when it is not connected, or the kernel does not
    /// name its network namespace.
    pub fn of(fd: RawFd) -> Option<Self> {
        let socket = sys::borrow(fd);
        let own = SocketAddr::try_from(rustix::net::getsockname(socket).ok()?).ok()?;
        let other = SocketAddr::try_from(rustix::net::getpeername(socket).ok()??).ok()?;
        Some(Self { own, other, network: sys::network_cookie(fd)? })
    }
}

/// True when `user` holds the other end of the connection, which is within this network namespace.
/// `None` stands for the user who holds this end.
pub fn is_of(ends: &Ends, user: Option<u32>) -> bool {
    let Some(mut questions) = QUESTIONS.lock() else { return false };
    let answer = opened(&mut questions).is_some_and(|found| answers(found, ends, user));
    close_if_wanted(&mut questions);
    answer
}

/// Closes the socket where its number is one that the program may want.
fn close_if_wanted(questions: &mut Option<Questions>) {
    if questions.as_ref().is_some_and(|found| sys::is_below_limit(found.socket.as_raw_fd())) {
        close(questions);
    }
}

fn answers(found: &Questions, ends: &Ends, user: Option<u32>) -> bool {
    let Ends { own: local, other: remote, network } = *ends;
    if network != found.network {
        return false;
    }
    let user_of = |local, remote| Some(holder(&found.socket, local, remote)?.user);
    let Some(other) = user_of(local, remote) else { return false };
    match user {
        Some(user) => found.names_users && other == user,
        None => {
            let is_known = || unknown_user().is_some_and(|unknown| unknown != other);
            (found.names_users || is_known()) && user_of(remote, local) == Some(other)
        }
    }
}

/// The number that the kernel names in place of a user whom the user namespace does not know.
fn unknown_user() -> Option<u32> {
    use rustix::fs::{Mode, OFlags};
    const PATH: &str = "/proc/sys/kernel/overflowuid";
    let file = rustix::fs::open(PATH, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0; 16];
    let length = rustix::io::read(&file, &mut text).ok()?;
    std::str::from_utf8(text.get(..length)?).ok()?.trim().parse().ok()
}

/// The user of the other end of the connection from `local` to `remote`; `None` when that socket is
/// on another host, or closed.
pub fn user(local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    Some(holder(&kernel()?, local, remote)?.user)
}

/// The inode of the socket at the other end; `None` as [`user`].
pub fn inode(ends: &Ends) -> Option<u64> {
    Some(holder(&kernel()?, ends.own, ends.other)?.inode.into())
}

fn kernel() -> Option<OwnedFd> {
    let (family, flags) = (AddressFamily::NETLINK, SocketFlags::CLOEXEC);
    let protocol = Some(netlink::SOCK_DIAG);
    rustix::net::socket_with(family, SocketType::DGRAM, flags, protocol).ok()
}

fn opened(questions: &mut Option<Questions>) -> Option<&Questions> {
    let is_ours = |found: &Questions| {
        rustix::fs::fstat(&found.socket).is_ok_and(|status| status.st_ino == found.inode)
    };
    if !questions.as_ref().is_some_and(is_ours) {
        close(questions);
        *questions = open();
    }
    questions.as_ref()
}

fn open() -> Option<Questions> {
    /// The inode of the first user namespace, `PROC_USER_INIT_INO` of linux/proc_ns.h.
    const FIRST: u64 = 0xefff_fffd;
    let socket = sys::high(kernel()?);
    // A process that has left this namespace does not come back. So it was in it when the socket
    // was made, too.
    let names_users =
        rustix::fs::stat("/proc/self/ns/user").is_ok_and(|status| status.st_ino == FIRST);
    let network = sys::network_cookie(socket.as_raw_fd())?;
    let inode = rustix::fs::fstat(&socket).ok()?.st_ino;
    Some(Questions { socket, inode, network, names_users })
}

fn close(questions: &mut Option<Questions>) {
    let Some(Questions { socket, inode, .. }) = questions.take() else { return };
    let is_ours = rustix::fs::fstat(&socket).is_ok_and(|status| status.st_ino == inode);
    if !is_ours {
        // The number leads to a descriptor of the program by now.
        let _ = socket.into_raw_fd();
    }
}

/// The socket at `remote` of the connection to `local`, and the user who holds it.
fn holder(kernel: &OwnedFd, local: SocketAddr, remote: SocketAddr) -> Option<Found> {
    let request = request(remote, local)?;
    rustix::net::send(kernel, &request, SendFlags::empty()).ok()?;
    let mut answer = [0; 1024];
    // The kernel answered within the call of `send`.
    let (length, _) = rustix::net::recv(kernel, &mut answer, RecvFlags::DONTWAIT).ok()?;
    let found = found_in(answer.get(..length)?)?;
    let asked = [remote, local].map(canonical);
    (found.addresses == asked && found.inode != 0).then_some(found)
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
struct Found {
    /// Its own address and the other one.
    addresses: [SocketAddr; 2],
    user: u32,
    /// 0 when no process holds it.
    inode: u32,
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

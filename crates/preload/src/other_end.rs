//! Asks the kernel which user holds the other end of a connection within this host (sock_diag(7)).
//!
//! A daemon that serves one user serves nobody else, so programs of two such users get no lane.
//! `weft run --stats` tells the user so; nothing else depends on the answer.

use std::net::{IpAddr, SocketAddr};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NO_COOKIE: [u8; 8] = [0xff; 8];
const HEADER_BYTES: usize = 16;
/// Size of struct inet_diag_req_v2.
const REQUEST_BYTES: usize = 56;
/// Where `idiag_uid` lies in the answer: in struct inet_diag_msg, behind the header.
const USER_AT: usize = HEADER_BYTES + 4 + 48 + 12;

/// The user of the other end of the connection from `local` to `remote`; `None` when that socket is
/// on another host, or closed.
pub fn user(local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    let flags = SocketFlags::CLOEXEC;
    let kernel = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        flags,
        Some(netlink::SOCK_DIAG),
    )
    .ok()?;
    let request = request(remote, local)?;
    rustix::net::send(&kernel, &request, SendFlags::empty()).ok()?;
    let mut answer = [0; 1024];
    // The kernel answered within the call of `send`.
    let (length, _) = rustix::net::recv(&kernel, &mut answer, RecvFlags::DONTWAIT).ok()?;
    user_of(answer.get(..length)?)
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

fn user_of(answer: &[u8]) -> Option<u32> {
    let kind = u16::from_ne_bytes([*answer.get(4)?, *answer.get(5)?]);
    if kind != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    let user = answer.get(USER_AT..USER_AT + 4)?;
    Some(u32::from_ne_bytes(user.try_into().ok()?))
}

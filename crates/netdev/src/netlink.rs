//! Requests to the kernel's routing socket (RFC 3549), each answered at once.

use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rustix::io::Errno;

/// Longer than the answer to any request.
const ANSWER_BYTES: usize = 4_096;

/// Asks the kernel for `message`, with `flags` beside those of every request, in the network
/// namespace of the calling thread.
///
/// # Errors
/// What the kernel says, or why it cannot be asked.
pub fn request(message: RouteNetlinkMessage, flags: u16) -> Result<(), Errno> {
    let mut message = NetlinkMessage::from(message);
    message.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);

    let socket = Socket::new(NETLINK_ROUTE).map_err(errno_of)?;
    socket.connect(&SocketAddr::new(0, 0)).map_err(errno_of)?;
    socket.send(&bytes, 0).map_err(errno_of)?;
    let mut answer = Vec::with_capacity(ANSWER_BYTES);
    socket.recv(&mut answer, 0).map_err(errno_of)?;
    match NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer) {
        Ok(answer) => match answer.payload {
            NetlinkPayload::Error(error) => match error.code {
                None => Ok(()),
                Some(code) => Err(Errno::from_raw_os_error(code.get().saturating_neg())),
            },
            _ => Err(Errno::BADMSG),
        },
        Err(_) => Err(Errno::BADMSG),
    }
}

fn errno_of(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

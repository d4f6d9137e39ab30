//! The kernel's routing socket (RFC 3549): requests with their replies, and notifications of
//! changes.

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rustix::io::Errno;

/// Longer than any datagram of a reply.
const PART_BYTES: usize = 64 << 10;

/// A routing socket of the network namespace in which it was opened.
pub struct Netlink(Socket);

impl Netlink {
    /// Opens a socket.
    pub fn open() -> Result<Self, Errno> {
        let mut socket = Socket::new(NETLINK_ROUTE).map_err(errno_of)?;
        socket.bind_auto().map_err(errno_of)?;
        socket.connect(&SocketAddr::new(0, 0)).map_err(errno_of)?;
        Ok(Self(socket))
    }

    /// Opens a non-blocking socket that receives the notifications of `groups`.
    pub fn watching(groups: &[u32]) -> Result<Self, Errno> {
        let netlink = Self::open()?;
        netlink.0.set_non_blocking(true).map_err(errno_of)?;
        for group in groups {
            netlink.0.add_membership(*group).map_err(errno_of)?;
        }
        Ok(netlink)
    }

    /// Drains the notifications. True if there were any, or if they cannot be read.
    pub fn has_changed(&self) -> bool {
        let mut has = false;
        let mut datagram = Vec::with_capacity(PART_BYTES);
        loop {
            match self.0.recv(&mut datagram, 0).map_err(errno_of) {
                Err(Errno::AGAIN) => return has,
                // `NOBUFS`: the socket's buffer was full and notifications were lost.
                Ok(_) | Err(Errno::NOBUFS) => has = true,
                Err(_) => return true,
            }
            datagram.clear();
        }
    }

    /// Sends a request with `flags` beside those of every request, and waits for its
    /// acknowledgement.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn request(&self, message: RouteNetlinkMessage, flags: u16) -> Result<(), Errno> {
        self.send(message, NLM_F_ACK | flags)?;
        for message in self.datagram()? {
            if let NetlinkPayload::Error(error) = message.payload {
                return match error.code {
                    None => Ok(()),
                    Some(code) => Err(Errno::from_raw_os_error(code.get().saturating_neg())),
                };
            }
        }
        Err(Errno::BADMSG)
    }

    /// Sends a dump request and returns all objects of the reply.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn list(&self, message: RouteNetlinkMessage) -> Result<Vec<RouteNetlinkMessage>, Errno> {
        self.send(message, NLM_F_DUMP)?;
        let mut list = Vec::new();
        loop {
            for message in self.datagram()? {
                match message.payload {
                    NetlinkPayload::InnerMessage(message) => list.push(message),
                    NetlinkPayload::Done(_) => return Ok(list),
                    NetlinkPayload::Error(error) => {
                        let code = error.code.map_or(0, |code| code.get().saturating_neg());
                        return Err(Errno::from_raw_os_error(code));
                    }
                    _ => {}
                }
            }
        }
    }

    fn send(&self, message: RouteNetlinkMessage, flags: u16) -> Result<(), Errno> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.0.send(&bytes, 0).map(|_| ()).map_err(errno_of)
    }

    /// Receives the messages of one datagram.
    fn datagram(&self) -> Result<Vec<NetlinkMessage<RouteNetlinkMessage>>, Errno> {
        let mut datagram = Vec::with_capacity(PART_BYTES);
        self.0.recv(&mut datagram, 0).map_err(errno_of)?;
        let (mut messages, mut rest) = (Vec::new(), datagram.as_slice());
        while !rest.is_empty() {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                .map_err(|_| Errno::BADMSG)?;
            let bytes = usize::try_from(message.header.length).unwrap_or(usize::MAX);
            // A message begins at a multiple of four bytes. `max` ensures progress after a length
            // of zero.
            let next = bytes.max(1).checked_next_multiple_of(4).unwrap_or(usize::MAX);
            rest = rest.get(next..).unwrap_or_default();
            messages.push(message);
        }
        Ok(messages)
    }
}

impl std::fmt::Debug for Netlink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Netlink")
    }
}

/// The error number of an I/O error.
pub fn errno_of(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

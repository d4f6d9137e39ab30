//! The connection to the node daemon: each endpoint has a control socket.
//!
//! # Invariants
//! - A request waits at most [`ANSWER_MS_MAX`] for its answer.
//! - The end of the socket means the end of the daemon, not of the endpoint: mapped memory keeps
//!   working. The next request or look connects again, and [`Client::reconnected`] reports it once.
//! - Messages that the daemon sent before it died are read before the new connection is used.

use std::collections::VecDeque;
use std::fmt::Display;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use weft_channel::{Channel, Packet};
use weft_wire::control::{Control, join, split};
use weft_wire::endpoint_control::{EndpointControl, KINDS};

use super::{BrokerError, Client, Connector, Received, ticket_of};

/// How long a request waits for its answer, milliseconds.
pub const ANSWER_MS_MAX: u32 = 5_000;
/// Unsolicited messages that are kept while a request waits for its answer.
const UNASKED_MAX: usize = 65_536;

/// Connects to the daemon at a control socket.
#[derive(Clone, Debug)]
pub struct RemoteBroker {
    socket: PathBuf,
    name: String,
}

impl RemoteBroker {
    /// The daemon that listens at `socket`. The daemon lists the client under `name`.
    #[must_use]
    pub fn new(socket: &Path, name: &str) -> Self {
        Self { socket: socket.to_path_buf(), name: name.to_owned() }
    }
}

impl Connector for RemoteBroker {
    fn client(&self) -> Result<Box<dyn Client>, BrokerError> {
        let channel = handshake(self)?;
        let unasked = VecDeque::new();
        Ok(Box::new(RemoteClient {
            broker: self.clone(),
            channel,
            unasked,
            lost: false,
            is_new: false,
        }))
    }
}

struct RemoteClient {
    broker: RemoteBroker,
    channel: Channel,
    unasked: VecDeque<Received>,
    /// The daemon closed the connection.
    lost: bool,
    /// A new connection was made, and [`Client::reconnected`] has not reported it yet.
    is_new: bool,
}

fn unreachable(socket: &Path, what: &str, why: impl Display) -> BrokerError {
    BrokerError::Unreachable { reason: format!("{what} at {}: {why}", socket.display()) }
}

/// Connects and exchanges hello and welcome.
fn handshake(broker: &RemoteBroker) -> Result<Channel, BrokerError> {
    let socket = &broker.socket;
    let channel = Channel::connect(socket).map_err(|e| unreachable(socket, "connect", e))?;
    let hello = Control::Hello { pid: std::process::id(), name: broker.name.clone() };
    channel.send(&hello.emit(), &[]).map_err(|e| unreachable(socket, "hello", e))?;
    let answer = channel
        .receive_within(ANSWER_MS_MAX)
        .map_err(|e| unreachable(socket, "welcome", e))?
        .ok_or_else(|| unreachable(socket, "welcome", Errno::CONNRESET))?;
    match Control::parse(&answer.bytes) {
        Ok(Control::Welcome { .. }) => Ok(channel),
        Ok(Control::Refused { reason, .. }) => Err(BrokerError::Unreachable { reason }),
        Ok(_) => Err(BrokerError::InvalidAnswer),
        Err(error) => Err(BrokerError::Unreachable { reason: error.to_string() }),
    }
}

/// Decodes a packet as an endpoint message; `None` for all other packets.
fn decode(packet: Packet) -> Option<Received> {
    let (kind, body) = split(&packet.bytes).ok()?;
    if packet.descriptors_lost || !KINDS.contains(&kind) {
        return None;
    }
    let message = EndpointControl::parse(kind, body).ok()?;
    Some(Received { message, files: packet.descriptors })
}

impl RemoteClient {
    /// Reads the packets that arrived. Sets `lost` at the end of the connection.
    fn pump(&mut self) {
        while !self.lost && self.unasked.len() < UNASKED_MAX {
            match self.channel.receive() {
                Ok(Some(packet)) => self.unasked.extend(decode(packet)),
                Err(Errno::AGAIN) => return,
                Err(Errno::MSGSIZE) => {}
                Ok(None) | Err(_) => self.lost = true,
            }
        }
    }

    /// Connects again when the connection is lost.
    fn reconnect(&mut self) -> Result<(), BrokerError> {
        if self.lost {
            self.channel = handshake(&self.broker)?;
            self.lost = false;
            self.is_new = true;
        }
        Ok(())
    }

    fn send(
        &mut self,
        message: EndpointControl,
        files: &[BorrowedFd<'_>],
    ) -> Result<(), BrokerError> {
        let packet = join(message.kind(), &message.emit());
        self.channel.send(&packet, files).map_err(|errno| {
            self.lost |= errno != Errno::AGAIN;
            unreachable(&self.broker.socket, "request", errno)
        })
    }
}

impl Client for RemoteClient {
    fn call(
        &mut self,
        request: EndpointControl,
        ticket: u32,
        files: &[BorrowedFd<'_>],
    ) -> Result<Received, BrokerError> {
        self.pump();
        self.reconnect()?;
        if self.is_new && !matches!(request, EndpointControl::Open(_)) {
            // The new daemon does not know this endpoint, which must announce itself first.
            let reason = "the node daemon was started anew".to_owned();
            return Err(BrokerError::Unreachable { reason });
        }
        self.send(request, files)?;
        let deadline = crate::sys::now() + std::time::Duration::from_millis(ANSWER_MS_MAX.into());
        loop {
            let left = deadline.saturating_sub(crate::sys::now()).as_millis();
            let left = u32::try_from(left).unwrap_or(ANSWER_MS_MAX);
            let packet = match self.channel.receive_within(left) {
                Ok(Some(packet)) => packet,
                Err(Errno::MSGSIZE) => continue,
                // A signal ended the wait early.
                Err(Errno::TIMEDOUT) if left > 0 => continue,
                Ok(None) => {
                    self.lost = true;
                    return Err(unreachable(&self.broker.socket, "answer", Errno::CONNRESET));
                }
                Err(errno) => {
                    self.lost |= errno != Errno::TIMEDOUT;
                    return Err(unreachable(&self.broker.socket, "answer", errno));
                }
            };
            let Some(received) = decode(packet) else { continue };
            match ticket_of(&received.message) {
                Some(found) if found == ticket => return Ok(received),
                // The answer to an earlier request that timed out.
                Some(_) => {}
                None if self.unasked.len() < UNASKED_MAX => self.unasked.push_back(received),
                None => return Err(BrokerError::InvalidAnswer),
            }
        }
    }

    fn tell(&mut self, message: EndpointControl) -> Result<(), BrokerError> {
        self.reconnect()?;
        self.send(message, &[])
    }

    fn next(&mut self) -> Option<Received> {
        if self.unasked.is_empty() {
            self.pump();
        }
        self.unasked.pop_front()
    }

    fn reconnected(&mut self) -> bool {
        if self.unasked.is_empty() {
            self.pump();
            // This fails while no new daemon runs; the next call tries again.
            let _ = self.reconnect();
        }
        std::mem::take(&mut self.is_new)
    }

    fn line(&self) -> Option<BorrowedFd<'_>> {
        Some(self.channel.as_fd())
    }

    fn is_lost(&self) -> bool {
        self.lost
    }
}

//! The connection to the node daemon: each endpoint has a control socket.
//!
//! # Invariants
//! - A call waits at most [`ANSWER_MS_MAX`] for its answer; a request that was started never waits.
//! - The end of the socket means the end of the daemon, not of the endpoint: mapped memory keeps
//!   working. The next request or look connects again, and [`Client::reconnected`] reports it once.
//! - Messages that the daemon sent before it died are read before the new connection is used.

use std::collections::VecDeque;
use std::fmt::Display;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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

/// Requests that may wait for room in the socket.
const UNSENT_MAX: usize = 65_536;

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
        let (unasked, unsent) = (VecDeque::new(), VecDeque::new());
        Ok(Box::new(RemoteClient {
            broker: self.clone(),
            channel,
            unasked,
            unsent,
            lost: false,
            is_new: false,
        }))
    }
}

struct RemoteClient {
    broker: RemoteBroker,
    channel: Channel,
    /// Messages for [`Client::next`].
    unasked: VecDeque<Received>,
    /// Requests for which the socket had no room.
    unsent: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
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

/// Decodes a packet as an endpoint message; `None` for all other packets. Where descriptors were
/// lost, because this process has too many, the message has none: its receiver finds out.
fn decode(packet: Packet) -> Option<Received> {
    let (kind, body) = split(&packet.bytes).ok()?;
    if !KINDS.contains(&kind) {
        return None;
    }
    let message = EndpointControl::parse(kind, body).ok()?;
    let files = if packet.descriptors_lost { Vec::new() } else { packet.descriptors };
    Some(Received { message, files })
}

impl RemoteClient {
    /// Sends what waits and reads the packets that arrived. Sets `lost` at the end of the
    /// connection.
    fn pump(&mut self) {
        self.flush();
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
            self.unsent.clear();
            self.lost = false;
            self.is_new = true;
        }
        Ok(())
    }

    /// Sends the requests that wait, as far as the socket has room.
    fn flush(&mut self) {
        while let Some((packet, files)) = self.unsent.front() {
            let files: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
            match self.channel.send(packet, &files) {
                Ok(()) => drop(self.unsent.pop_front()),
                // Answers to earlier requests are on their way, and with them room.
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    self.lost = true;
                    return;
                }
            }
        }
    }

    /// Connects again when the connection is lost. The new daemon must know the endpoint before it
    /// gets any other request.
    fn ready(&mut self, request: &EndpointControl) -> Result<(), BrokerError> {
        self.pump();
        self.reconnect()?;
        if self.is_new && !matches!(request, EndpointControl::Open(_)) {
            let reason = "the node daemon was started anew".to_owned();
            return Err(BrokerError::Unreachable { reason });
        }
        Ok(())
    }
}

impl Client for RemoteClient {
    fn call(
        &mut self,
        request: EndpointControl,
        ticket: u32,
        files: &[BorrowedFd<'_>],
    ) -> Result<Received, BrokerError> {
        self.ready(&request)?;
        let packet = join(request.kind(), &request.emit());
        self.channel.send(&packet, files).map_err(|errno| {
            self.lost |= errno != Errno::AGAIN;
            unreachable(&self.broker.socket, "request", errno)
        })?;
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
                _ if self.unasked.len() < UNASKED_MAX => self.unasked.push_back(received),
                _ => return Err(BrokerError::InvalidAnswer),
            }
        }
    }

    fn start(
        &mut self,
        request: EndpointControl,
        files: &[BorrowedFd<'_>],
    ) -> Result<(), BrokerError> {
        self.ready(&request)?;
        let packet = join(request.kind(), &request.emit());
        let refused = |errno| unreachable(&self.broker.socket, "request", errno);
        if self.unsent.is_empty() {
            match self.channel.send(&packet, files) {
                Err(Errno::AGAIN) => {}
                Err(errno) => {
                    self.lost = true;
                    return Err(refused(errno));
                }
                Ok(()) => return Ok(()),
            }
        }
        if self.unsent.len() >= UNSENT_MAX {
            return Err(refused(Errno::AGAIN));
        }
        let copies: Result<Vec<_>, _> =
            files.iter().map(|file| file.try_clone_to_owned()).collect();
        let copies =
            copies.map_err(|error| unreachable(&self.broker.socket, "pass a descriptor", error))?;
        self.unsent.push_back((packet, copies));
        Ok(())
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

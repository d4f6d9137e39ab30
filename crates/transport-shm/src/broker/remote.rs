//! The line to the node daemon: a control socket of the endpoint's own.
//!
//! # Invariants
//! - A request waits for its answer at most [`ANSWER_MS_MAX`].
//! - The socket's end is the daemon's end, not the endpoint's: everything mapped goes on working,
//!   and the next request or look makes a new line and says so once ([`Client::reconnected`]).
//! - What the daemon said before it died is read before the new line is used.

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
/// Unasked messages that are kept while an answer is awaited.
const KEPT_MAX: usize = 65_536;

/// Reaches the daemon at a control socket.
#[derive(Clone, Debug)]
pub struct RemoteBroker {
    socket: PathBuf,
    name: String,
}

impl RemoteBroker {
    /// The daemon that listens at `socket`; `name` is what the daemon shows people.
    #[must_use]
    pub fn new(socket: &Path, name: &str) -> Self {
        Self { socket: socket.to_path_buf(), name: name.to_owned() }
    }
}

impl Connector for RemoteBroker {
    fn client(&self) -> Result<Box<dyn Client>, BrokerError> {
        let channel = greet(self)?;
        let kept = VecDeque::new();
        Ok(Box::new(RemoteClient { broker: self.clone(), channel, kept, lost: false, anew: false }))
    }
}

struct RemoteClient {
    broker: RemoteBroker,
    channel: Channel,
    kept: VecDeque<Received>,
    /// The daemon hung up.
    lost: bool,
    /// A new line was made and nobody asked yet.
    anew: bool,
}

fn unreachable(socket: &Path, what: &str, why: impl Display) -> BrokerError {
    BrokerError::Unreachable { reason: format!("{what} at {}: {why}", socket.display()) }
}

/// Connects and says hello.
fn greet(broker: &RemoteBroker) -> Result<Channel, BrokerError> {
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

/// A packet as a message of endpoints; others are none of ours.
fn decode(packet: Packet) -> Option<Received> {
    let (kind, body) = split(&packet.bytes).ok()?;
    if packet.descriptors_lost || !KINDS.contains(&kind) {
        return None;
    }
    let message = EndpointControl::parse(kind, body).ok()?;
    Some(Received { message, files: packet.descriptors })
}

impl RemoteClient {
    /// Takes what has come; `lost` is set at the end of the line.
    fn pump(&mut self) {
        while !self.lost && self.kept.len() < KEPT_MAX {
            match self.channel.receive() {
                Ok(Some(packet)) => self.kept.extend(decode(packet)),
                Err(Errno::AGAIN) => return,
                Err(Errno::MSGSIZE) => {}
                Ok(None) | Err(_) => self.lost = true,
            }
        }
    }

    /// Makes a new line when the old one is gone.
    fn mend(&mut self) -> Result<(), BrokerError> {
        if self.lost {
            self.channel = greet(&self.broker)?;
            self.lost = false;
            self.anew = true;
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
        self.mend()?;
        if self.anew && !matches!(request, EndpointControl::Open(_)) {
            // The new daemon does not know the endpoint; let it announce itself first.
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
                // An answer that came too late for its question.
                Some(_) => {}
                None if self.kept.len() < KEPT_MAX => self.kept.push_back(received),
                None => return Err(BrokerError::InvalidAnswer),
            }
        }
    }

    fn tell(&mut self, message: EndpointControl) -> Result<(), BrokerError> {
        self.mend()?;
        self.send(message, &[])
    }

    fn next(&mut self) -> Option<Received> {
        if self.kept.is_empty() {
            self.pump();
        }
        self.kept.pop_front()
    }

    fn reconnected(&mut self) -> bool {
        if self.kept.is_empty() {
            self.pump();
            // Failing is normal while no new daemon is there: the next look tries again.
            let _ = self.mend();
        }
        std::mem::take(&mut self.anew)
    }

    fn line(&self) -> Option<BorrowedFd<'_>> {
        Some(self.channel.as_fd())
    }

    fn is_lost(&self) -> bool {
        self.lost
    }
}

//! The connection to the node daemon: each endpoint has a control socket.
//!
//! # Invariants
//! - A call waits at most [`ANSWER_MS_MAX`] for its answer; a request that was started never waits,
//!   nor does a new connection, whose welcome may take as long.
//! - The end of the socket means the end of the daemon, not of the endpoint: mapped memory keeps
//!   working. The next request or look connects again, and [`Client::reconnected`] reports it once.
//! - Messages that the daemon sent before it died are read before the new connection is used.

use std::collections::VecDeque;
use std::fmt::Display;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use weft_channel::{Channel, ConnectError, Packet};
use weft_wire::control::{Control, join, split};
use weft_wire::endpoint_control::{EndpointControl, KINDS};

use crate::{ANSWER_WITHIN, BrokerError, Client, Connection, Connector, Received, ticket_of};

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
            line: Line::Open,
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
    line: Line,
}

/// The state of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Line {
    Open,
    /// The daemon closed it.
    Lost,
    /// It is new, and the daemon has to welcome this client until then.
    Greeting {
        until: Duration,
    },
    /// It is new, and [`Client::reconnected`] has not reported it yet.
    New,
}

fn unreachable(socket: &Path, what: &str, why: impl Display) -> BrokerError {
    BrokerError::Unreachable { reason: format!("{what} at {}: {why}", socket.display()) }
}

/// Says hello on a connection that was made.
fn hello(
    broker: &RemoteBroker,
    channel: Result<Channel, ConnectError>,
) -> Result<Channel, BrokerError> {
    let socket = &broker.socket;
    let channel = channel.map_err(|e| unreachable(socket, "connect", e))?;
    let hello = Control::Hello { pid: std::process::id(), name: broker.name.clone() };
    channel.ask(&hello.emit()).map_err(|e| unreachable(socket, "hello", e))?;
    Ok(channel)
}

/// Whether the answer to a hello is a welcome.
fn welcomed(answer: &Packet) -> Result<(), BrokerError> {
    match Control::parse(&answer.bytes) {
        Ok(Control::Welcome { .. }) => Ok(()),
        Ok(Control::Refused { reason, .. }) => Err(BrokerError::Unreachable { reason }),
        Ok(_) => Err(BrokerError::InvalidAnswer),
        Err(error) => Err(BrokerError::Unreachable { reason: error.to_string() }),
    }
}

/// Connects and exchanges hello and welcome.
fn handshake(broker: &RemoteBroker) -> Result<Channel, BrokerError> {
    let socket = &broker.socket;
    let channel = hello(broker, Channel::connect(socket))?;
    let answer = channel
        .receive_within(ANSWER_MS_MAX)
        .map_err(|e| unreachable(socket, "welcome", e))?
        .ok_or_else(|| unreachable(socket, "welcome", Errno::CONNRESET))?;
    welcomed(&answer)?;
    Ok(channel)
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
    /// Sends what waits and reads the packets that arrived. Finds the end of the connection, and
    /// the welcome of a new one.
    fn pump(&mut self) {
        match self.line {
            Line::Lost => return,
            Line::Greeting { until } => return self.await_welcome(until),
            Line::Open | Line::New => {}
        }
        self.flush();
        while self.line != Line::Lost && self.unasked.len() < UNASKED_MAX {
            match self.channel.receive() {
                Ok(Some(packet)) => self.unasked.extend(decode(packet)),
                Err(Errno::AGAIN) => return,
                Err(Errno::MSGSIZE) => {}
                Ok(None) | Err(_) => self.line = Line::Lost,
            }
        }
    }

    fn await_welcome(&mut self, until: Duration) {
        let welcomed = match self.channel.receive() {
            Ok(Some(packet)) => welcomed(&packet).is_ok(),
            Err(Errno::AGAIN) if crate::clock::now() < until => return,
            Ok(None) | Err(_) => false,
        };
        self.line = if welcomed { Line::New } else { Line::Lost };
    }

    /// Begins a new connection when there is none.
    fn reconnect(&mut self) -> Result<(), BrokerError> {
        if self.line == Line::Lost {
            self.channel = hello(&self.broker, Channel::connect_now(&self.broker.socket))?;
            self.unsent.clear();
            self.line = Line::Greeting { until: crate::clock::now() + ANSWER_WITHIN };
        }
        Ok(())
    }

    /// The connection failed, unless the error is a harmless one.
    fn lose_unless(&mut self, errno: Errno, harmless: Errno) {
        if errno != harmless {
            self.line = Line::Lost;
        }
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
                    self.line = Line::Lost;
                    return;
                }
            }
        }
    }

    /// Checks that requests reach the daemon. A new one must know the endpoint before it gets any
    /// other request.
    fn ready(&mut self, request: &EndpointControl) -> Result<(), BrokerError> {
        self.pump();
        self.reconnect()?;
        match self.line {
            Line::Open => return Ok(()),
            Line::New
                if matches!(request, EndpointControl::Open(_) | EndpointControl::Attach(_)) =>
            {
                return Ok(());
            }
            Line::New | Line::Lost | Line::Greeting { .. } => {}
        }
        let reason = "the node daemon was started anew; try again".to_owned();
        Err(BrokerError::Unreachable { reason })
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
            self.lose_unless(errno, Errno::AGAIN);
            unreachable(&self.broker.socket, "request", errno)
        })?;
        let deadline = crate::clock::now() + std::time::Duration::from_millis(ANSWER_MS_MAX.into());
        loop {
            let left = deadline.saturating_sub(crate::clock::now()).as_millis();
            let left = u32::try_from(left).unwrap_or(ANSWER_MS_MAX);
            let packet = match self.channel.receive_within(left) {
                Ok(Some(packet)) => packet,
                Err(Errno::MSGSIZE) => continue,
                // A signal ended the wait early.
                Err(Errno::TIMEDOUT) if left > 0 => continue,
                Ok(None) => {
                    self.line = Line::Lost;
                    return Err(unreachable(&self.broker.socket, "answer", Errno::CONNRESET));
                }
                Err(errno) => {
                    self.lose_unless(errno, Errno::TIMEDOUT);
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
                    self.line = Line::Lost;
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
            // A daemon that is quick has answered.
            self.pump();
        }
        let is_new = self.line == Line::New;
        if is_new {
            self.line = Line::Open;
        }
        is_new
    }

    fn line(&self) -> Option<BorrowedFd<'_>> {
        Some(self.channel.as_fd())
    }

    fn connection(&self) -> Connection {
        match self.line {
            Line::Open | Line::New => Connection::Open,
            Line::Greeting { .. } => Connection::Greeting,
            Line::Lost => Connection::Lost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_channel::Listener;
    use weft_wire::endpoint_control::Leave;

    /// A daemon that does what a test says, on the thread of the client: a client that waited for
    /// it would wait in vain.
    struct Daemon {
        folder: tempfile::TempDir,
        listener: Option<Listener>,
    }

    impl Daemon {
        fn new() -> Self {
            let folder = tempfile::tempdir().expect("a folder");
            Self { folder, listener: None }
        }

        fn socket(&self) -> PathBuf {
            self.folder.path().join("d.sock")
        }

        fn listen(&mut self) {
            self.listener = None;
            let _ = std::fs::remove_file(self.socket());
            self.listener = Some(Listener::bind(&self.socket()).expect("a free name"));
        }

        fn accept(&self) -> Channel {
            let listener = self.listener.as_ref().expect("it listens");
            let channel = listener.accept().expect("a client has connected");
            let hello = channel.receive().expect("it said hello").expect("it is there");
            assert!(matches!(Control::parse(&hello.bytes), Ok(Control::Hello { .. })));
            channel
        }

        /// A client whose daemon has ended.
        fn client(&self) -> RemoteClient {
            let (channel, _) = Channel::pair().expect("sockets");
            RemoteClient {
                broker: RemoteBroker::new(&self.socket(), "test"),
                channel,
                unasked: VecDeque::new(),
                unsent: VecDeque::new(),
                line: Line::Open,
            }
        }
    }

    fn welcome(channel: &Channel) {
        let advice = weft_wire::control::Advice::default();
        let welcome = Control::Welcome { pid: 1, advice };
        channel.send(&welcome.emit(), &[]).expect("room");
    }

    fn leave() -> EndpointControl {
        Leave { ticket: 1, vpid: 2, group: 3 }.into()
    }

    #[test]
    fn a_new_daemon_is_greeted_without_waiting_for_it() {
        let mut daemon = Daemon::new();
        let mut client = daemon.client();
        assert!(!client.reconnected());
        assert_eq!(client.connection(), Connection::Lost, "nobody listens");
        assert!(client.start(leave(), &[]).is_err());
        daemon.listen();
        assert!(!client.reconnected());
        assert_eq!(client.connection(), Connection::Greeting);
        assert!(client.start(leave(), &[]).is_err(), "it is not there yet");
        let channel = daemon.accept();
        assert!(!client.reconnected() && client.next().is_none());
        welcome(&channel);
        assert!(client.start(leave(), &[]).is_err(), "it does not know the endpoint");
        assert!(client.reconnected());
        assert_eq!(client.connection(), Connection::Open);
        assert!(!client.reconnected(), "that is told once");
        client.start(leave(), &[]).expect("the daemon is there");
        let packet = channel.receive().expect("a packet").expect("the client is there");
        assert!(decode(packet).is_some_and(|received| received.message == leave()));
    }

    #[test]
    fn a_new_daemon_that_ends_or_says_nothing_or_nonsense_is_given_up() {
        for fault in 0..4 {
            let mut daemon = Daemon::new();
            let mut client = daemon.client();
            daemon.listen();
            assert!(!client.reconnected());
            let channel = daemon.accept();
            match fault {
                0 => drop(channel),
                1 => channel.send(b"nonsense", &[]).expect("room"),
                2 => {
                    let hello = Control::Hello { pid: 1, name: "x".to_owned() };
                    channel.send(&hello.emit(), &[]).expect("room");
                }
                _ => client.line = Line::Greeting { until: Duration::ZERO },
            }
            client.pump();
            assert_eq!(client.connection(), Connection::Lost, "fault {fault}");
            // The next look begins anew.
            assert!(!client.reconnected());
            assert_eq!(client.connection(), Connection::Greeting, "fault {fault}");
            let channel = daemon.accept();
            welcome(&channel);
            assert!(client.reconnected(), "fault {fault}");
        }
    }

    #[test]
    fn a_daemon_that_accepts_nobody_holds_nobody_up() {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
        let daemon = Daemon::new();
        let flags = SocketFlags::CLOEXEC;
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let listener = rustix::net::socket_with(family, kind, flags, None).expect("a socket");
        let address = SocketAddrUnix::new(daemon.socket()).expect("short");
        rustix::net::bind(&listener, &address).expect("free");
        rustix::net::listen(&listener, 1).expect("bound");
        // Each is kept, so that its queue stays full.
        let mut waiting = Vec::new();
        while let Ok(channel) = Channel::connect_now(&daemon.socket()) {
            waiting.push(channel);
            assert!(waiting.len() < 100, "the queue has no end");
        }
        let mut client = daemon.client();
        assert!(!client.reconnected());
        assert_eq!(client.connection(), Connection::Lost);
        drop(rustix::net::accept(&listener).expect("one waits"));
        assert!(!client.reconnected());
        assert_eq!(client.connection(), Connection::Greeting, "there is room");
    }
}

//! Endpoints with memory and a port at a real daemon, which is restarted, and which says how long a
//! peer may be silent. The cards are those of a network in memory, so that both ends are in this
//! process.

#![allow(clippy::disallowed_methods, reason = "tests own their clocks")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_broker::remote::RemoteBroker;
use weft_fabric::{
    Blocking, ConnectError, Endpoint, EndpointOptions, Event, Issued, MessageHeader,
    OperationError, PATIENCE, Peer, Transport,
};
use weft_layers::{LayeredEndpoint, LayeredTransport};
use weft_transport_ofi::seeded::{SeededNet, SeededNic, Settings};
use weft_transport_ofi::{OfiEndpoint, OfiTransport};
use weft_transport_shm::ShmTransport;

use common::{Daemon, WATCHDOG, open_with};

/// The option `fabric.silence_ms` of the daemon of these tests.
const SILENCE: &str = "12345";

/// Not a test: the role of the daemon.
#[test]
fn role() {
    if let Some((_, socket)) = common::role() {
        common::serve_with(socket, &[("WEFT_FABRIC_SILENCE_MS", SILENCE)]);
    }
}

struct Host {
    daemon: Daemon,
    net: SeededNet,
}

type Layered = LayeredEndpoint<SeededNet>;
type Ported = OfiEndpoint<SeededNic>;

impl Host {
    fn new() -> Self {
        let daemon = Daemon::start();
        // It answers from here on.
        drop(open_with(&daemon.socket(), Default::default()));
        Self { daemon, net: SeededNet::new(Settings::default()) }
    }

    fn broker(&self) -> Arc<RemoteBroker> {
        Arc::new(RemoteBroker::new(&self.daemon.socket(), "test"))
    }

    fn ofi(&self) -> OfiTransport<SeededNet> {
        OfiTransport::new(self.net.clone(), self.broker(), Default::default())
    }

    fn ported(&self) -> Ported {
        self.ofi().open(&EndpointOptions::default()).expect("a daemon")
    }

    fn layered(&self) -> Layered {
        let near = ShmTransport::new(self.broker(), Default::default());
        let transport = LayeredTransport::new(near, self.ofi(), |work| work());
        transport.open(&EndpointOptions::default()).expect("a daemon")
    }

    /// Has the ends proceed until `over` has something.
    fn until<R>(
        &self,
        layered: &mut Layered,
        ported: &mut Ported,
        what: &str,
        mut over: impl FnMut(bool, &Event<'_>) -> Option<R>,
    ) -> R {
        let start = Instant::now();
        loop {
            let mut found = None;
            layered.poll(16, &mut |event| found = found.take().or_else(|| over(true, &event)));
            ported.poll(16, &mut |event| found = found.take().or_else(|| over(false, &event)));
            if let Some(found) = found {
                return found;
            }
            assert!(start.elapsed() < WATCHDOG, "waited in vain for {what}");
            if !self.net.step() {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }

    /// Has the end with a port meet the other one.
    fn meet(&self, layered: &mut Layered, ported: &mut Ported) -> Result<Peer, ConnectError> {
        let value = match ported.connect(layered.address(), 5)? {
            Issued::Done(value) => Ok(value),
            Issued::Pending => {
                self.until(layered, ported, "a meeting", |is_layered, event| match event {
                    Event::Completion(end) if !is_layered && end.context == 5 => {
                        Some(end.result.clone())
                    }
                    _ => None,
                })
            }
        };
        value.map(|value| value.peer().expect("a peer")).map_err(|error| match error {
            OperationError::Connect(error) => error,
            other => panic!("{other}"),
        })
    }

    /// A message from the end with a port, and the answer to its sender.
    fn exchange(&self, layered: &mut Layered, ported: &mut Ported, to: Peer, bytes: &[u8]) {
        ported.send_short(to, MessageHeader::tag(1), &[bytes]).expect("room");
        let from = self.until(layered, ported, "a message", |_, event| match event {
            Event::Message(message) => {
                assert_eq!(message.payload, bytes);
                Some(message.peer)
            }
            Event::PeerDown { reason, .. } => panic!("{reason:?}"),
            _ => None,
        });
        layered.send_short(from, MessageHeader::tag(2), &[bytes]).expect("room");
        self.until(layered, ported, "the answer", |is_layered, event| match event {
            Event::Message(_) if !is_layered => Some(()),
            Event::PeerDown { reason, .. } => panic!("{reason:?}"),
            _ => None,
        });
    }
}

#[test]
fn a_daemon_says_how_long_peers_may_be_silent() {
    let host = Host::new();
    let mut ported = host.ported();
    assert_eq!(ported.silence(), Duration::from_millis(SILENCE.parse().expect("a number")));
    let mut layered = host.layered();
    assert_eq!(layered.silence(), None, "it has no port");
    host.meet(&mut layered, &mut ported).expect("it is there");
    assert_eq!(layered.silence(), Some(ported.silence()));
}

#[test]
fn both_ways_go_on_over_a_restart_of_the_daemon() {
    let mut host = Host::new();
    let (mut layered, mut near) = (host.layered(), host.layered());
    let mut ported = host.ported();
    let to_near = layered.connect_within(near.address(), PATIENCE).expect("it is there");
    let to_layered = host.meet(&mut layered, &mut ported).expect("it is there");
    host.exchange(&mut layered, &mut ported, to_layered, b"before");
    host.daemon.kill();
    host.exchange(&mut layered, &mut ported, to_layered, b"meanwhile");
    layered.send_short(to_near, MessageHeader::tag(1), &[b"meanwhile"]).expect("room");
    host.daemon.start_again();
    // Another endpoint meets it, at the address and the port that it had: the new daemon knows.
    let mut late = {
        drop(open_with(&host.daemon.socket(), Default::default()));
        host.ported()
    };
    let start = Instant::now();
    let to_late = loop {
        match host.meet(&mut layered, &mut late) {
            Ok(peer) => break peer,
            Err(error) => assert!(start.elapsed() < WATCHDOG, "{error}"),
        }
    };
    host.exchange(&mut layered, &mut late, to_late, b"to a new peer");
    // For longer than a new daemon waits for endpoints from before.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(1500) {
        host.exchange(&mut layered, &mut ported, to_layered, b"behind");
        near.poll(16, &mut |event| assert!(!matches!(event, Event::PeerDown { .. })));
        std::thread::sleep(Duration::from_millis(10));
    }
    // The end of the old peer is told by the new daemon.
    drop(ported);
    let down =
        host.until(&mut layered, &mut late, "the end of a peer", |is_layered, event| match event {
            Event::PeerDown { address, .. } if is_layered => Some(*address),
            _ => None,
        });
    assert_ne!(down, late.address());
}

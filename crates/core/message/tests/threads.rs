//! Both ends in one process over shared memory, on a thread each.
#![allow(clippy::disallowed_methods, reason = "tests own their threads")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use weft_fabric::{
    Blocking, Endpoint, EndpointAddress, EndpointOptions, Event as FabricEvent, Issued, NodeId,
    PATIENCE, Peer, Region, Transport, Waited,
};
use weft_message::{Body, Event, Messages, Options, SendError};
use weft_transport_shm::broker::Limits;
use weft_transport_shm::local_broker;
use weft_transport_shm::{Parameters, ShmEndpoint, ShmTransport};

const MESSAGES: u64 = 3_000;
/// Longer than any wait should take. A lost wake-up fails the test instead of hanging it.
const LOST: Duration = Duration::from_secs(20);

fn transport() -> ShmTransport {
    let broker = local_broker(NodeId::LOCAL, Limits::default());
    let parameters = Parameters { ring_slots: 16, spin_us: 0, yields: 0, ..Parameters::default() };
    ShmTransport::new(Arc::new(broker), parameters)
}

fn open(transport: &ShmTransport) -> Messages<ShmEndpoint> {
    let endpoint = transport.open(&EndpointOptions::default()).expect("room");
    Messages::new(endpoint, Options { window: 40, ..Options::default() })
}

fn length_of(number: u64) -> usize {
    let lengths = [0, 1, 64, 104, 105, 300, 480, 1_000, 5_000, 70_000];
    lengths[usize::try_from(number * 7 % 10).expect("small")]
}

fn body_of(number: u64) -> Vec<u8> {
    vec![number.to_le_bytes()[0]; length_of(number)]
}

/// One end: sends all messages, and checks those that come.
struct End {
    messages: Messages<ShmEndpoint>,
    peer: Peer,
    sent: u64,
    received: u64,
    pending: u64,
    /// Ends that have all messages.
    finished: Arc<AtomicUsize>,
}

impl End {
    fn new(
        mut messages: Messages<ShmEndpoint>,
        to: EndpointAddress,
        finished: &Arc<AtomicUsize>,
    ) -> Self {
        let peer = messages.endpoint().connect_within(to, PATIENCE).expect("there");
        let finished = Arc::clone(finished);
        Self { messages, peer, sent: 0, received: 0, pending: 0, finished }
    }

    fn has_all(&self) -> bool {
        self.received == MESSAGES && self.sent == MESSAGES && self.pending == 0
    }

    fn run(mut self) {
        let mut is_refused = false;
        loop {
            while self.sent < MESSAGES && !is_refused {
                let (number, body) = (self.sent, body_of(self.sent));
                match self.messages.send(self.peer, &number.to_le_bytes(), &[&body], number) {
                    Ok(issued) => {
                        self.pending += u64::from(issued == Issued::Pending);
                        self.sent += 1;
                    }
                    Err(SendError::WouldBlock) => is_refused = true,
                    Err(other) => panic!("{other}"),
                }
            }
            // The last message may have gone at once: then nothing is left to wait for.
            if self.has_all() {
                break;
            }
            assert_eq!(self.messages.wait(Some(LOST)), Waited::Ready, "a wakeup was lost");
            let Self { messages, received, pending, .. } = &mut self;
            messages.poll(64, |event| match event {
                Event::Message(message) => {
                    assert_eq!(message.head, received.to_le_bytes(), "out of order");
                    let mut bytes = Vec::new();
                    match message.body {
                        Body::Bytes(short) => bytes.extend_from_slice(short),
                        Body::Range { region, offset, length, .. } => {
                            bytes.resize(usize::try_from(length).expect("short"), 0);
                            region.read(offset, &mut bytes).expect("inside");
                        }
                    }
                    assert!(bytes == body_of(*received), "message {received} changed");
                    *received += 1;
                }
                Event::Completion { result, .. } => {
                    result.expect("it arrives");
                    *pending -= 1;
                }
                Event::Room { .. } => is_refused = false,
                Event::Endpoint(FabricEvent::Room { .. }) => {}
                other => panic!("{other:?}"),
            });
        }
        // Grants and memory are bounded, and nothing is under way.
        let census = self.messages.census();
        assert_eq!((census.messages, census.receive_bytes), (0, census.idle_receive_bytes));
        // The other end may need packets of this one before it ends.
        self.finished.fetch_add(1, Ordering::SeqCst);
        let mut is_alone = false;
        while self.finished.load(Ordering::SeqCst) < 2 && !is_alone {
            self.messages.wait(Some(Duration::from_millis(1)));
            self.messages.poll(64, |event| {
                is_alone |= matches!(event, Event::Endpoint(FabricEvent::PeerDown { .. }));
            });
        }
    }
}

#[test]
fn messages_of_all_lengths_go_both_ways_at_once() {
    let transport = transport();
    let (mut left, mut right) = (open(&transport), open(&transport));
    let (at_left, at_right) = (left.endpoint().address(), right.endpoint().address());
    let finished = Arc::new(AtomicUsize::new(0));
    let left = End::new(left, at_right, &finished);
    let right = End::new(right, at_left, &finished);
    std::thread::scope(|scope| {
        let other = scope.spawn(move || right.run());
        left.run();
        other.join().expect("no panic");
    });
}

#[test]
fn the_end_of_a_peer_ends_its_messages() {
    let transport = transport();
    let (mut sender, receiver) = (open(&transport), transport.open(&EndpointOptions::default()));
    let receiver = receiver.expect("room");
    let to = sender.endpoint().connect_within(receiver.address(), PATIENCE).expect("there");
    for context in 0..3 {
        let pending = sender.send(to, &[], &[&[1; 5_000]], context);
        assert_eq!(pending, Ok(Issued::Pending));
    }
    receiver.vanish();
    let mut ends = Vec::new();
    while ends.last() != Some(&None) {
        assert_eq!(sender.wait(Some(LOST)), Waited::Ready, "nobody tells that the peer is down");
        sender.poll(64, |event| match event {
            Event::Completion { context, result } => ends.push(Some((context, result.is_ok()))),
            Event::Endpoint(FabricEvent::PeerDown { .. }) => ends.push(None),
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(ends, [Some((0, false)), Some((1, false)), Some((2, false)), None]);
    let census = sender.census();
    assert_eq!((census.peers, census.keys, census.copy_bytes), (0, 0, 0));
}

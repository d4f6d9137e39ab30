//! The simulator's lanes pass the suite for all lanes, and model latency and death.

use weft_conformance::{Hostile, LaneBench};
use weft_fabric::{Attention, Lane, LaneClosed, LaneFull, ReceiveCursor, SendCursor, WaitFor};
use weft_transport_sim::{LaneSettings, Settings, SimLane, SimWorld};

struct Pair {
    world: SimWorld,
    ends: (SimLane, SimLane),
}

impl LaneBench for Pair {
    type Lane = SimLane;

    fn new(mailbox_depth: u64, sink_bytes: u64) -> Self {
        let world = SimWorld::new(Settings::seeded(3));
        let ends =
            world.lane(LaneSettings { mailbox_depth, sink_bytes, ..LaneSettings::default() });
        Self { world, ends }
    }

    fn end(&self, which: usize) -> &SimLane {
        if which == 0 { &self.ends.0 } else { &self.ends.1 }
    }

    fn settle(&mut self) {
        assert!(self.world.run(10_000));
    }

    fn corrupt(&mut self, which: usize, what: Hostile) -> bool {
        let end = self.end(which);
        match what {
            Hostile::MessageLength(length) => end.forge_message_length(length),
            Hostile::MessagesTaken(count) => end.forge_messages_taken(count),
            Hostile::BytesTaken(count) => end.forge_bytes_taken(count),
        }
        true
    }
}

weft_conformance::lane_tests!(Pair);

fn pair(latency_ns: u64) -> (SimWorld, SimLane, SimLane) {
    let world = SimWorld::new(Settings { detection_ns: 500, ..Settings::seeded(3) });
    let settings = LaneSettings { latency_ns, jitter_ns: 0, ..LaneSettings::default() };
    let (left, right) = world.lane(settings);
    (world, left, right)
}

#[test]
fn nothing_is_visible_before_the_latency_has_passed() {
    let (world, left, right) = pair(1_000);
    let (mut out, mut taken) = (SendCursor::default(), ReceiveCursor::default());
    left.put(&mut out, b"bytes");
    left.send(&mut out, 1, &[b"message"]).unwrap();
    left.post(2, 77);
    world.advance(999);
    let mut view = [0; 5];
    right.view(&taken, 0, &mut view);
    assert_eq!((right.peek(&taken), right.posted(2), view), (Ok(None), 0, [0; 5]));
    world.advance(1);
    right.view(&taken, 0, &mut view);
    assert!(right.peek(&taken).unwrap().is_some());
    assert_eq!((right.posted(2), &view), (77, b"bytes"));
    right.advance(&mut taken, true);
    right.release(&mut taken, 5);
    let (depth, sink) = (left.mailbox_depth(), left.sink_bytes());
    world.advance(999);
    assert_eq!(left.slots_free(&mut out, depth), depth - 1);
    assert_eq!(left.sink_free(&mut out, sink), sink - 5);
    world.advance(1);
    assert_eq!(left.slots_free(&mut out, depth), depth);
    assert_eq!(left.sink_free(&mut out, sink), sink);
}

#[test]
fn a_message_sent_before_arming_rings_on_arrival() {
    let (world, left, right) = pair(1_000);
    let mut out = SendCursor::default();
    left.send(&mut out, 1, &[]).unwrap();
    assert!(!left.must_ring(WaitFor::Data));
    right.arm(WaitFor::Data);
    world.advance(999);
    assert_eq!(right.attention(WaitFor::Data), Attention::Armed);
    world.advance(1);
    assert_eq!(right.attention(WaitFor::Data), Attention::Rung);
    assert!(right.disarm(WaitFor::Data));
}

#[test]
fn a_sender_that_forgets_to_ring_leaves_the_word_armed() {
    let (world, left, right) = pair(1_000);
    right.arm(WaitFor::Data);
    left.send(&mut SendCursor::default(), 1, &[]).unwrap();
    world.advance(10_000);
    assert_eq!(right.attention(WaitFor::Data), Attention::Armed);
}

#[test]
fn a_count_beyond_what_was_sent_is_ignored() {
    let (world, left, _right) = pair(1_000);
    let mut out = SendCursor::default();
    left.put(&mut out, b"bytes");
    left.send(&mut out, 1, &[]).unwrap();
    world.advance(10_000);
    left.forge_messages_taken(2);
    left.forge_bytes_taken(6);
    let (depth, sink) = (left.mailbox_depth(), left.sink_bytes());
    assert_eq!(left.slots_free(&mut out, depth), depth - 1);
    assert_eq!(left.sink_free(&mut out, sink), sink - 5);
}

#[test]
fn a_killed_end_sends_nothing_more_and_is_reported_down() {
    let (world, left, right) = pair(1_000);
    let (mut out, mut taken) = (SendCursor::default(), ReceiveCursor::default());
    left.send(&mut out, 1, &[b"last words"]).unwrap();
    left.kill();
    assert_eq!(left.send(&mut out, 1, &[b"from the grave"]), Err(LaneFull));
    left.post(0, 1);
    assert_eq!(left.peek(&ReceiveCursor::default()), Err(LaneClosed));
    world.advance(1_000);
    assert_eq!(right.peek(&taken).unwrap().unwrap().length, 10);
    right.advance(&mut taken, true);
    assert!(!right.peer_is_down());
    world.advance(500);
    assert!(right.peer_is_down() && !left.peer_is_down());
    assert_eq!((right.peek(&taken), right.posted(0)), (Ok(None), 0));
}

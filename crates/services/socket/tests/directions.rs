//! The locked directions over a kernel's connection that takes what a test lets it take.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use weft_fabric::{Attention, Carry, WaitFor, Wake};
use weft_lane::Carrier;
use weft_socket::{
    Common, Drained, Empty, Leave, Limits, Origin, Peer, ReceiveSide, Receiving, SendSide, Sending,
    Shadow, Side, Unread,
};
use weft_transport_shm::lane::ShmLane;

mod ends;

/// A kernel's connection by script.
#[derive(Default)]
struct Script {
    /// How much each send takes; `None` when the peer is gone. Behind the last one all is taken.
    takes: RefCell<VecDeque<Option<usize>>>,
    has_room: bool,
    unread: Vec<u8>,
    sent: RefCell<Vec<u8>>,
    aborted: Cell<bool>,
    strays: Cell<bool>,
}

impl Shadow for &Script {
    fn ring(&self) -> bool {
        true
    }

    fn look(&self) -> Unread {
        Unread::of(&self.unread)
    }

    fn peek(&self, target: &mut [u8]) -> usize {
        let there = target.len().min(self.unread.len());
        target[..there].copy_from_slice(&self.unread[..there]);
        there
    }

    fn is_acknowledged(&self) -> bool {
        self.has_room
    }

    fn wait_until_acknowledged(&self) -> bool {
        self.has_room
    }

    fn take_wakeups(&self, count: usize) -> usize {
        count.min(self.unread.len())
    }

    fn send(&self, bytes: &[u8]) -> Option<usize> {
        let takes = self.takes.borrow_mut().pop_front().unwrap_or(Some(bytes.len()))?;
        self.sent.borrow_mut().extend_from_slice(&bytes[..takes]);
        Some(takes)
    }

    fn wait_for_room(&self) -> bool {
        self.has_room
    }

    fn end(&self) {}

    fn abort(&self) {
        self.aborted.set(true);
    }

    fn crossed(&self) {}

    fn report_strays(&self) {
        self.strays.set(true);
    }
}

/// A reader requests a resend of 300 bytes, and the writer's kernel does as `script` says.
fn sends_again(script: &Script) -> Common {
    let (server, client) = ends::memory();
    let (mut send, mut receive) = (SendSide::default(), ReceiveSide::default());
    assert!(send.switch(&client, Side::Connected));
    assert!(send.write(&client, &[&[7; 300]], Limits::default()).is_ok());
    assert_eq!(receive.origin(&server), Origin::Lane);
    receive.request_resend(&server);
    assert!(SendSide::default().leave(&server, Side::Accepted, Leave::ForGood).is_some());
    let common = Common::default();
    let mut sending = Sending {
        state: &mut send,
        lane: &client,
        shadow: script,
        common: &common,
        side: Side::Connected,
    };
    assert!(sending.leave(Leave::ForGood));
    common
}

#[test]
fn requested_bytes_are_resent_in_the_pieces_that_the_kernel_takes() {
    let script = Script {
        takes: RefCell::new([Some(100), Some(0), Some(1), Some(0), Some(0)].into()),
        has_room: true,
        ..Script::default()
    };
    let common = sends_again(&script);
    assert!(*script.sent.borrow() == [7; 300]);
    assert!(!script.aborted.get());
    assert_eq!(common.peer(), Peer::Alive);
}

#[test]
fn a_connection_whose_requested_bytes_cannot_be_resent_is_reset() {
    for takes in [Some(0), None] {
        let takes = RefCell::new([Some(100), takes].into());
        let script = Script { takes, ..Script::default() };
        let common = sends_again(&script);
        assert!(script.aborted.get());
        assert_eq!(common.peer(), Peer::Reset);
    }
}

/// A direction on the lane, armed for data, with `unread` in the kernel's socket.
fn on_lane<T>(script: &Script, act: impl FnOnce(Receiving<'_, ShmLane, &Script>) -> T) -> T {
    let (server, client) = ends::memory();
    assert!(SendSide::default().switch(&client, Side::Connected));
    let (mut state, common) = (ReceiveSide::default(), Common::default());
    let mut receiving =
        Receiving { state: &mut state, lane: &server, shadow: script, common: &common };
    assert_eq!(receiving.origin(), Origin::Lane);
    receiving.arm(WaitFor::Data);
    act(receiving)
}

#[test]
fn a_new_lane_stays_armed_for_an_epoll_set() {
    let script = Script::default();
    for (watched, after) in [(true, Attention::Armed), (false, Attention::Watching)] {
        on_lane(&script, |mut receiving| {
            receiving.disarm_if_no_sleeper(watched);
            assert_eq!(receiving.lane.attention(WaitFor::Data), after);
        });
    }
}

#[test]
fn a_new_lane_stays_armed_for_a_thread_that_sleeps() {
    on_lane(&Script::default(), |mut receiving| {
        receiving.common.begin_sleep(WaitFor::Data);
        receiving.disarm_if_no_sleeper(false);
        assert!(receiving.is_armed());
    });
}

#[test]
fn bytes_that_nobody_of_ours_sent_break_the_direction() {
    // Something else than a wakeup, and a wakeup for which no word was rung.
    for unread in [vec![1], vec![0]] {
        let script = Script { unread, ..Script::default() };
        on_lane(&script, |mut receiving| {
            assert!(receiving.has_strays());
            assert_eq!(receiving.common.peer(), Peer::Reset);
            let drained = receiving.drain(receiving.common.stale(), true, true);
            assert_eq!(drained, Drained::Broken);
        });
        assert!(script.strays.get());
    }
}

/// Lets all that is under way arrive.
fn settle(pair: &ends::Network) {
    while pair.world.step() {
        pair.carriers.iter().for_each(Carrier::poll);
    }
}

/// The acts of a peer across a network before its node died without a record.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    /// It did not come to have the lane.
    Nothing,
    /// It said that it has the lane, and heard nothing of this end.
    Attach,
    /// It and this end know that both know each other.
    Meet,
}

/// The next step of a reader that finds the end of TCP.
fn behind_a_dead_node(last: Last) -> (Empty, Peer) {
    let pair = ends::Network::new(1);
    let (commons, scripts) =
        ([Common::default(), Common::default()], [Script::default(), Script::default()]);
    let mut states = [ReceiveSide::default(), ReceiveSide::default()];
    if last != Last::Nothing {
        SendSide::attach(&pair.lanes[0][1]);
    }
    if last == Last::Meet {
        SendSide::attach(&pair.lanes[0][0]);
    }
    for _ in 0..3 {
        settle(&pair);
        let looking = if last == Last::Meet { 2 } else { 1 };
        for (number, state) in states.iter_mut().enumerate().take(looking) {
            let (common, shadow) = (&commons[number], &scripts[number]);
            Receiving { state, lane: &pair.lanes[0][number], shadow, common }.origin();
        }
    }
    pair.kill(1);
    settle(&pair);
    let [server, _] = &pair.lanes[0];
    assert!(server.is_over(), "the death is known");
    let mut receiving =
        Receiving { state: &mut states[0], lane: server, shadow: &scripts[0], common: &commons[0] };
    assert_eq!(receiving.found_empty(), Empty::Wait, "TCP is asked");
    (receiving.after_end_of_tcp(), commons[0].peer())
}

#[test]
fn the_end_of_tcp_is_an_end_unless_a_record_is_missing() {
    assert_eq!(behind_a_dead_node(Last::Nothing), (Empty::PeerDied, Peer::Alive));
    assert_eq!(behind_a_dead_node(Last::Attach), (Empty::PeerDied, Peer::Alive));
    assert_eq!(behind_a_dead_node(Last::Meet), (Empty::Broken, Peer::Reset));
}

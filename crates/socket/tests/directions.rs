//! The locked directions over a kernel's connection that takes what a test lets it take.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use weft_fabric::{Attention, Carry, WaitFor, Wake};
use weft_lane::Carrier;
use weft_socket::{
    Common, Empty, Leave, Limits, Origin, Peer, ReceiveSide, Receiving, SendSide, Sending, Shadow,
    Side, Unread, WriteError,
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
            assert!(!receiving.drain(receiving.common.stale(), true));
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

/// The last act of a peer across a network before its node dies without a goodbye.
#[derive(PartialEq, Eq)]
enum Last {
    /// It did not come to have the lane.
    Nothing,
    /// It said that it has the lane.
    Attach,
    /// It left the lane for good.
    Leave,
    /// It said that its process ends.
    EndOfProcess,
    /// It said so, and went on.
    NoEndOfProcess,
}

/// The next step of a reader that finds the end of TCP, and of one that finds the lane empty.
fn behind_a_dead_node(last: &Last) -> [(Empty, Peer); 2] {
    let pair = ends::Network::new(1);
    let [server, client] = &pair.lanes[0];
    match last {
        Last::Nothing => {}
        Last::Attach => SendSide::attach(client),
        Last::Leave => {
            SendSide::attach(client);
            assert!(SendSide::default().leave(client, Side::Connected, Leave::ForGood).is_some());
        }
        Last::EndOfProcess => ReceiveSide::default().end_with_process(client, Side::Connected),
        Last::NoEndOfProcess => {
            ReceiveSide::default().end_with_process(client, Side::Connected);
            ReceiveSide::default().go_on_with_process(client, Side::Connected);
        }
    }
    settle(&pair);
    pair.kill(1);
    settle(&pair);
    assert!(server.is_over(), "the death is known");
    [true, false].map(|is_end_of_tcp| {
        let (mut state, common, script) =
            (ReceiveSide::default(), Common::default(), Script::default());
        let mut receiving =
            Receiving { state: &mut state, lane: server, shadow: &script, common: &common };
        let next =
            if is_end_of_tcp { receiving.after_end_of_tcp() } else { receiving.found_empty() };
        (next, common.peer())
    })
}

#[test]
fn the_end_of_tcp_is_an_end_for_a_peer_that_left_the_lane_for_good() {
    assert_eq!(behind_a_dead_node(&Last::Leave)[0], (Empty::PeerDied, Peer::Alive));
    assert_eq!(behind_a_dead_node(&Last::Attach), [(Empty::Broken, Peer::Reset); 2]);
}

#[test]
fn the_end_of_tcp_is_an_end_for_a_peer_that_never_had_the_lane() {
    assert_eq!(behind_a_dead_node(&Last::Nothing)[0], (Empty::PeerDied, Peer::Alive));
}

#[test]
fn a_process_that_said_that_it_ends_is_an_end_and_no_reset() {
    assert_eq!(behind_a_dead_node(&Last::EndOfProcess), [(Empty::PeerDied, Peer::Alive); 2]);
    assert_eq!(behind_a_dead_node(&Last::NoEndOfProcess), [(Empty::Broken, Peer::Reset); 2]);
    let pair = ends::Network::new(1);
    let [server, client] = &pair.lanes[0];
    let mut send = SendSide::default();
    ReceiveSide::default().end_with_process(client, Side::Connected);
    settle(&pair);
    assert!(send.switch(server, Side::Accepted));
    pair.kill(1);
    settle(&pair);
    let written = send.write(server, &[b"later"], Limits::default());
    assert_eq!(written, Err(WriteError::Closed), "all that was sent was read");
}

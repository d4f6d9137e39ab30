//! A reader that left for good puts what is unread on TCP in place of a peer that does not look.

use std::cell::{Cell, RefCell};

use weft_fabric::{WaitFor, Wake};
use weft_socket::{
    Common, Leave, Limits, Origin, Peer, ReceiveSide, Receiving, SendSide, Sending, Shadow, Side,
    Unread, closed,
};
use weft_transport_shm::lane::ShmLane;

mod ends;

/// A kernel's connection with some bytes unread.
#[derive(Default)]
struct Kernel {
    unread: RefCell<Vec<u8>>,
    sent: RefCell<Vec<u8>>,
    aborted: Cell<bool>,
}

impl Shadow for &Kernel {
    fn ring(&self) -> bool {
        true
    }

    fn look(&self) -> Unread {
        Unread::of(&self.unread.borrow())
    }

    fn peek(&self, target: &mut [u8]) -> usize {
        let unread = self.unread.borrow();
        let seen = target.len().min(unread.len());
        target[..seen].copy_from_slice(&unread[..seen]);
        seen
    }

    fn is_acknowledged(&self) -> bool {
        true
    }

    fn wait_until_acknowledged(&self) -> bool {
        true
    }

    fn take_wakeups(&self, count: usize) -> usize {
        let mut unread = self.unread.borrow_mut();
        let taken = count.min(unread.len());
        unread.drain(..taken);
        taken
    }

    fn send(&self, bytes: &[u8]) -> Option<usize> {
        self.sent.borrow_mut().extend_from_slice(bytes);
        Some(bytes.len())
    }

    fn wait_for_room(&self) -> bool {
        false
    }

    fn end(&self) {}

    fn abort(&self) {
        self.aborted.set(true);
    }

    fn crossed(&self) {}
}

/// A reader at the accepting end, and a writer that went to the lane behind 50 bytes of TCP.
struct Ends {
    server: ShmLane,
    client: ShmLane,
    send: SendSide,
    receive: ReceiveSide,
    common: Common,
}

impl Ends {
    fn new() -> Self {
        let (server, client) = ends::memory();
        let mut send = SendSide::default();
        send.begin_tcp();
        send.wrote_tcp(50);
        assert!(send.switch(&client, Side::Connected));
        Self { server, client, send, receive: ReceiveSide::default(), common: Common::default() }
    }

    fn write(&mut self, bytes: &[u8]) {
        let written = self.send.write(&self.client, &[bytes], Limits::default());
        assert_eq!(written.expect("room").bytes, bytes.len());
    }

    fn take_tcp(&mut self) {
        self.receive.begin_tcp();
        self.receive.took_tcp(50);
        assert_eq!(self.receive.origin(&self.server), Origin::Lane);
    }

    /// The reader asks for all over TCP, and leaves for good.
    fn reader_leaves(&mut self) {
        self.receive.request_resend(&self.server);
        let mut back = SendSide::default();
        assert!(back.leave(&self.server, Side::Accepted, Leave::ForGood).is_some());
    }

    fn receiving<'a>(&'a mut self, kernel: &'a Kernel) -> Receiving<'a, ShmLane, &'a Kernel> {
        Receiving {
            state: &mut self.receive,
            lane: &self.server,
            shadow: kernel,
            common: &self.common,
        }
    }

    /// The writer follows. Returns what it sends over TCP, and whether it resets the connection.
    fn writer_follows(&mut self) -> (Vec<u8>, bool) {
        let kernel = Kernel::default();
        let common = Common::default();
        let mut sending = Sending {
            state: &mut self.send,
            lane: &self.client,
            shadow: &kernel,
            common: &common,
            side: Side::Connected,
        };
        let how = sending.leave_to_follow().expect("the reader left");
        assert!(sending.leave(how));
        (kernel.sent.take(), kernel.aborted.get())
    }
}

#[test]
fn a_writer_that_looks_later_sends_only_what_it_wrote_since() {
    let bytes: Vec<u8> = (0..20_000_u32).map(|number| (number % 251) as u8).collect();
    for read in [0, 1, 99, 300, 5_000, 19_999] {
        let mut ends = Ends::new();
        ends.take_tcp();
        for piece in [&bytes[..100], &bytes[100..300], &bytes[300..]] {
            ends.write(piece);
        }
        let mut target = vec![0; read];
        if read > 0 {
            assert_eq!(
                ends.receive.read(&ends.server, &mut target, false).map(|r| r.bytes),
                Ok(read)
            );
        }
        ends.reader_leaves();
        let kernel = Kernel::default();
        let found = ends.receiving(&kernel).begin_stand_in().expect("bytes are unread");
        assert!(found.bytes == bytes[read..] && !found.is_end, "{read}");
        ends.receiving(&kernel).end_stand_in(Some(&found));
        assert!(ends.receiving(&kernel).has_no_use_for_lane());
        ends.write(b"later");
        assert_eq!(ends.writer_follows(), (b"later".to_vec(), false));
        assert!(!ends.send.unread_by_peer(&ends.client));
    }
}

#[test]
fn what_could_not_be_sent_stays_for_the_writer() {
    let mut ends = Ends::new();
    ends.take_tcp();
    ends.write(&[7; 300]);
    ends.reader_leaves();
    let kernel = Kernel::default();
    assert!(ends.receiving(&kernel).begin_stand_in().is_some());
    ends.receiving(&kernel).end_stand_in(None);
    assert!(!ends.receiving(&kernel).has_no_use_for_lane());
    assert_eq!(ends.writer_follows(), (vec![7; 300], false));
}

#[test]
fn a_writer_that_leaves_by_itself_is_left_alone() {
    let mut ends = Ends::new();
    ends.take_tcp();
    ends.write(&[7; 300]);
    ends.reader_leaves();
    assert!(ends.send.leave(&ends.client, Side::Connected, Leave::ForGood).is_some());
    let kernel = Kernel::default();
    assert_eq!(ends.receiving(&kernel).begin_stand_in(), None);
    assert_eq!(ends::back(&mut ends.send, &ends.client, usize::MAX), [7; 300]);
}

#[test]
fn a_writer_does_not_follow_a_reader_that_is_stopped_amid_its_work() {
    let mut ends = Ends::new();
    ends.take_tcp();
    ends.write(&[7; 300]);
    ends.reader_leaves();
    let kernel = Kernel::default();
    assert!(ends.receiving(&kernel).begin_stand_in().is_some());
    assert!(ends.writer_follows().1, "nobody knows what lies on TCP");
}

#[test]
fn what_lies_on_tcp_before_the_lane_stays_there() {
    for (unread, is_there) in [(50, true), (49, true), (51, false)] {
        let mut ends = Ends::new();
        ends.write(&[7; 300]);
        ends.reader_leaves();
        let kernel = Kernel { unread: vec![0; unread].into(), ..Kernel::default() };
        let found = ends.receiving(&kernel).begin_stand_in();
        assert_eq!(found.is_some(), is_there, "{unread}: a wakeup may lie behind them");
        if let Some(found) = found {
            assert_eq!(found.bytes, [7; 300]);
            ends.receiving(&kernel).end_stand_in(Some(&found));
            assert_eq!(ends.writer_follows(), (Vec::new(), false));
        }
    }
}

#[test]
fn data_before_a_wakeup_are_sent_again_with_the_bytes_of_the_lane() {
    let mut ends = Ends::new();
    ends.server.arm(WaitFor::Data);
    ends.write(&[7; 300]);
    ends.reader_leaves();
    // The wakeup is on its way.
    let kernel = Kernel { unread: vec![5; 50].into(), ..Kernel::default() };
    assert_eq!(ends.receiving(&kernel).begin_stand_in(), None);
    kernel.unread.borrow_mut().push(0);
    let found = ends.receiving(&kernel).begin_stand_in().expect("all is there");
    assert_eq!(found.bytes, [vec![5; 50], vec![7; 300]].concat());
    kernel.unread.borrow_mut().extend(&found.bytes);
    ends.receiving(&kernel).end_stand_in(Some(&found));
    assert_eq!(*kernel.unread.borrow(), found.bytes, "once, and without the wakeup");
    assert!(!ends.receive.is_broken());
    // The writer goes on behind them.
    ends.write(&[8; 20]);
    assert_eq!(ends.writer_follows(), (vec![8; 20], false));
}

#[test]
fn a_wakeup_on_its_way_comes_first() {
    let mut ends = Ends::new();
    ends.take_tcp();
    ends.server.arm(WaitFor::Data);
    ends.write(&[7; 300]);
    ends.reader_leaves();
    let kernel = Kernel::default();
    assert_eq!(ends.receiving(&kernel).begin_stand_in(), None);
}

#[test]
fn an_end_that_was_told_on_the_lane_alone_is_told_on_tcp() {
    for unread in [0, 300] {
        let mut ends = Ends::new();
        ends.take_tcp();
        if unread > 0 {
            ends.write(&[7; 300]);
        }
        ends.send.close(&ends.client, closed::WRITING);
        ends.reader_leaves();
        let kernel = Kernel::default();
        let found = ends.receiving(&kernel).begin_stand_in().expect("an end is there");
        assert!(found.bytes == vec![7; unread] && found.is_end, "{unread}");
    }
}

#[test]
fn what_was_requested_and_did_not_come_is_unread_at_the_close() {
    let mut ends = Ends::new();
    ends.take_tcp();
    let kernel = Kernel::default();
    assert!(!ends.receiving(&kernel).has_unread());
    ends.write(&[7; 300]);
    ends.reader_leaves();
    assert!(ends.receiving(&kernel).has_unread(), "the peer is to learn that it was not read");
}

#[test]
fn what_lies_on_tcp_before_the_lane_is_unread_at_the_close_and_a_wakeup_is_not() {
    let mut ends = Ends::new();
    let kernel = Kernel { unread: vec![5; 50].into(), ..Kernel::default() };
    assert!(ends.receiving(&kernel).has_unread());
    ends.take_tcp();
    let kernel = Kernel { unread: vec![0].into(), ..Kernel::default() };
    assert!(!ends.receiving(&kernel).has_unread());
}

#[test]
fn the_rest_of_a_peer_that_is_gone_is_all_that_nobody_read() {
    let gone = |ends: &mut Ends, how: Option<u64>| match how {
        Some(how) => {
            ends.send.close(&ends.client, how);
        }
        None => ends.common.set_peer(Peer::Ended),
    };
    for how in [Some(closed::ORDERLY), Some(closed::RESET), None] {
        for (takes_tcp, asks) in [(true, true), (true, false), (false, false), (false, true)] {
            let mut ends = Ends::new();
            if takes_tcp {
                ends.take_tcp();
            }
            ends.write(&[7; 300]);
            if asks {
                ends.reader_leaves();
            }
            let unread = if takes_tcp { 0 } else { 50 };
            let kernel = Kernel { unread: vec![5; unread].into(), ..Kernel::default() };
            assert_eq!(ends.receiving(&kernel).rest_of_gone_peer(), None, "it is there");
            gone(&mut ends, how);
            let expected = [vec![5; unread], vec![7; 300]].concat();
            assert_eq!(ends.receiving(&kernel).rest_of_gone_peer(), Some(expected), "{how:?}");
            // Another holder of the connection, who waited for the lock, finds nothing twice.
            ends.receiving(&kernel).rest_is_on_tcp();
            assert!(!ends.receive.has_unread(&ends.server) && !ends.receive.is_broken());
            assert!(ends.receive.read(&ends.server, &mut [0; 1], false).is_err());
        }
    }
}

#[test]
fn a_peer_that_only_ended_its_direction_is_not_gone() {
    let mut ends = Ends::new();
    ends.take_tcp();
    ends.write(&[7; 300]);
    ends.send.close(&ends.client, closed::WRITING);
    assert_eq!(ends.receiving(&Kernel::default()).rest_of_gone_peer(), None);
}

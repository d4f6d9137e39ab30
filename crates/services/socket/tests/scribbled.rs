//! Ends with memory into which other processes wrote: relatives by fork or exec that misbehave.
//!
//! Invariants: any bytes are a valid end, at any moment. No call panics, in any order of calls. An
//! end in a state that no weft writes gives a reset.
//!
//! The lane is the one in shared memory. The simulated one counts messages and bytes strictly, to
//! find mistakes of a stream, so it panics for positions that are too high.

use std::os::fd::AsFd;

use proptest::prelude::*;
use weft_fabric::{Carry, WaitFor, Wake};
use weft_memory::CopyMode;
use weft_socket::{
    Leave, Limits, Origin, ReadError, ReceiveSide, SendSide, Side, WriteError, closed,
};
use weft_transport_shm::lane::{LaneLayout, ShmLane};
use zerocopy::{FromBytes, IntoBytes};

const LAYOUT: LaneLayout = LaneLayout { slots: 16, sink_bytes: 4096 };
const SENDER_WORDS: usize = size_of::<SendSide>() / 8;
const WORDS: usize = SENDER_WORDS + size_of::<ReceiveSide>() / 8;
/// Indices of the sender's and of the receiver's state among the words of an end.
const STATES: [usize; 2] = [SENDER_WORDS - 11, WORDS - 2];

/// One end, with the lane as its process has it.
struct End {
    lane: ShmLane,
    side: Side,
    send: SendSide,
    receive: ReceiveSide,
}

impl End {
    fn pair() -> [Self; 2] {
        let (one, file) = ShmLane::create(LAYOUT, CopyMode::Plain).expect("memory");
        let two = ShmLane::open(file.as_fd(), 1, CopyMode::Plain).expect("a lane");
        [(one, Side::Accepted), (two, Side::Connected)].map(|(lane, side)| Self {
            lane,
            side,
            send: SendSide::default(),
            receive: ReceiveSide::default(),
        })
    }

    /// Writes `value` into a word of the end's memory.
    fn scribble(&mut self, word: usize, value: u64) {
        let (bytes, word) = match word.checked_sub(SENDER_WORDS) {
            None => (self.send.as_mut_bytes(), word),
            Some(word) => (self.receive.as_mut_bytes(), word),
        };
        bytes[8 * word..8 * word + 8].copy_from_slice(&value.to_ne_bytes());
    }

    /// Makes one call, even if a driver would not make it now.
    fn act(&mut self, choice: u32, size: usize) {
        match choice {
            0..12 => self.act_sending(choice, size),
            _ => self.act_receiving(choice, size),
        }
    }

    fn act_sending(&mut self, choice: u32, size: usize) {
        let (lane, send) = (&self.lane, &mut self.send);
        let limits = Limits { eager_bytes: 480, chunk_bytes: 1000 };
        match choice {
            0 => drop(send.switch(lane, self.side)),
            1..=3 => {
                if let Ok(written) = send.write(lane, &[&vec![7; size]], limits) {
                    assert!(written.bytes <= size && (written.bytes > 0 || size == 0));
                }
            }
            4 => {
                send.begin_tcp();
                send.wrote_tcp(size);
            }
            5 => send.wrote_wakeups(size as u64 % 2),
            6 => send.set_tcp_written(size as u64),
            7 => drop(send.leave(lane, self.side, way(size))),
            8 => {
                let again = send.to_send_again(lane);
                assert!(again.bytes.len() <= 4096 + 16 * 120, "more than a lane holds");
                send.return_to_tcp(lane, &again, size.min(again.bytes.len()));
            }
            9 if size.is_multiple_of(3) => send.forget_lane(),
            9 if size % 3 == 1 => drop(send.close(lane, size as u64 / 3 % 3)),
            9 => drop(send.shut(lane, self.side)),
            10 => {
                send.fix_buffers(lane, size as u64, size as u64 / 2);
                let _ =
                    (send.writable(lane), send.has_small_buffers(lane), send.leave_to_follow(lane));
                let _ = (send.rings_for_room(lane, self.side), send.only_wakeups_unread(lane));
            }
            _ => {
                let _ = (send.unread_by_peer(lane), send.taken_by_peer(lane), send.totals());
                let _ = (send.is_back_for_good(), send.has_given_back(), send.is_shut());
                let _ = (send.messages(), SendSide::peer_can_ring(lane), format!("{send:?}"));
            }
        }
    }

    fn act_receiving(&mut self, choice: u32, size: usize) {
        let (lane, receive) = (&self.lane, &mut self.receive);
        match choice {
            12 => drop(receive.origin(lane)),
            13..=15 => {
                if let Ok(reading) = receive.read(lane, &mut vec![0; size], choice == 13) {
                    assert!(reading.bytes <= size && (reading.bytes > 0 || size == 0));
                }
            }
            16 => {
                receive.begin_tcp();
                receive.took_tcp(size);
            }
            17 => receive.took_wakeups(size % 2),
            18 => receive.set_tcp_taken(size as u64),
            19 => receive.return_to_tcp(lane),
            20 if size.is_multiple_of(3) => receive.forget_lane(),
            20 if size % 3 == 1 => receive.request_resend(lane),
            20 => receive.end_resend_request(lane),
            21 => {
                let most = lane.sink_bytes() + 16 * 120;
                assert!(receive.available(lane) <= most, "more than a lane holds");
                assert!(receive.data_of(lane, size) <= size);
                assert!(receive.wakeups_of(lane, size) <= size);
                receive.arrived(lane, size as u64);
            }
            22 => {
                receive.end_with_process(lane, self.side);
                let _ = (receive.is_all_on_tcp(lane), receive.is_given_back(lane));
            }
            _ => {
                let _ = (receive.readable(lane), receive.has_data(lane), receive.ended(lane));
                let _ = (receive.is_broken(), receive.messages(), receive.totals());
                let _ = format!("{receive:?}");
            }
        }
    }
}

fn way(size: usize) -> Leave {
    [Leave::ForNow, Leave::GivingBack, Leave::ForGood][size % 3]
}

/// Values that the code is more likely to believe than random ones, and the highest values of a
/// word.
fn value() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..6_u64,
        1 => 0..10_000_u64,
        1 => (0..6_u64).prop_map(|below| u64::MAX - below),
        1 => (0..64_u32).prop_map(|bit| 1 << bit),
        1 => any::<u64>(),
    ]
}

/// A call of one of the two ends. Before it, `change` writes a value into a word of the end's
/// memory.
#[derive(Clone, Copy, Debug)]
struct Call {
    end: usize,
    choice: u32,
    size: usize,
    change: Option<(usize, u64)>,
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let size = prop_oneof![0..10_usize, 0..600_usize, 0..6_000_usize];
    let change = prop::option::weighted(0.3, (0..WORDS, value()));
    let call = (0..2_usize, 0..24_u32, size, change).prop_map(|(end, choice, size, change)| Call {
        end,
        choice,
        size,
        change,
    });
    prop::collection::vec(call, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6_000, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_an_end(
        bytes in prop::collection::vec(any::<u8>(), 8 * WORDS),
        calls in calls(),
    ) {
        let mut ends = End::pair();
        let (sender, receiver) = bytes.split_at(8 * SENDER_WORDS);
        ends[0].send = SendSide::read_from_bytes(sender).expect("its size");
        ends[0].receive = ReceiveSide::read_from_bytes(receiver).expect("its size");
        for call in calls {
            ends[call.end].act(call.choice, call.size);
        }
    }

    #[test]
    fn ends_that_change_at_any_moment_panic_nobody(
        words in prop::collection::vec(value(), WORDS),
        calls in calls(),
        begins in any::<bool>(),
    ) {
        let mut ends = End::pair();
        if !begins {
            for (word, value) in words.into_iter().enumerate() {
                ends[0].scribble(word, value);
            }
        }
        for Call { end, choice, size, change } in calls {
            if let Some((word, value)) = change {
                ends[end].scribble(word, value);
            }
            ends[end].act(choice, size);
        }
    }
}

#[test]
fn zeroed_memory_is_the_beginning() {
    let [mut end, _] = End::pair();
    assert!(end.send.as_mut_bytes().iter().all(|byte| *byte == 0));
    assert!(end.receive.as_mut_bytes().iter().all(|byte| *byte == 0));
}

#[test]
fn a_state_that_nobody_wrote_gives_a_reset_to_both_ends() {
    for on_lane in [true, false] {
        let [mut end, mut peer] = End::pair();
        SendSide::attach(&peer.lane);
        assert!(peer.send.switch(&peer.lane, peer.side));
        peer.lane.arm(WaitFor::Data);
        assert!(!on_lane || end.send.switch(&end.lane, end.side));
        STATES.into_iter().for_each(|word| end.scribble(word, 77));

        assert!(end.send.switch(&end.lane, end.side), "so that the write tells it");
        let limits = Limits::default();
        assert_eq!(end.send.write(&end.lane, &[b"x"], limits), Err(WriteError::Reset));
        assert!(end.send.writable(&end.lane), "whoever waits is told");
        assert_eq!(end.send.leave(&end.lane, end.side, Leave::ForNow), None);
        assert_eq!(end.receive.origin(&end.lane), Origin::Lane);
        assert_eq!(end.receive.read(&end.lane, &mut [0], false), Err(ReadError::Reset));
        assert!(end.receive.readable(&end.lane));

        assert_eq!(end.send.close(&end.lane, closed::ORDERLY), on_lane, "rung from the lane alone");
        assert_eq!(peer.send.write(&peer.lane, &[b"x"], limits), Err(WriteError::Reset));
        assert_eq!(ReceiveSide::peer_closed(&peer.lane), Some(closed::RESET));
    }
}

#[test]
fn an_end_that_is_in_two_places_gives_a_reset() {
    let [_, mut end] = End::pair();
    assert!(end.send.switch(&end.lane, end.side));
    end.send.begin_tcp();
    end.send.wrote_tcp(0);
    assert!(end.send.write(&end.lane, &[b"x"], Limits::default()).is_ok());
    end.send.begin_tcp();
    end.send.wrote_tcp(1);
    let written = end.send.write(&end.lane, &[b"x"], Limits::default());
    assert_eq!(written, Err(WriteError::Reset), "data went to TCP beside the lane");

    let [mut end, mut peer] = End::pair();
    assert!(peer.send.switch(&peer.lane, peer.side));
    assert_eq!(end.receive.origin(&end.lane), Origin::Lane);
    end.receive.begin_tcp();
    end.receive.took_tcp(1);
    assert_eq!(end.receive.read(&end.lane, &mut [0], false), Err(ReadError::Reset));
}

#[test]
fn a_writer_that_never_came_to_the_lane_writes_nothing_there() {
    let [_, mut end] = End::pair();
    let written = end.send.write(&end.lane, &[b"x"], Limits::default());
    assert_eq!(written, Err(WriteError::Reset));
}

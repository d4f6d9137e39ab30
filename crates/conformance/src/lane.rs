//! Cases: lanes.

use weft_fabric::{Attention, Lane, LaneFull, ReceiveCursor, SendCursor, WaitFor};

use crate::{Hostile, LaneBench, pattern};

const DEPTH: u64 = 16;
const SINK: u64 = 4096;

/// One direction of a lane: the sending end, the receiving end, and their cursors.
struct Direction<B: LaneBench> {
    bench: B,
    sender: usize,
    out: SendCursor,
    taken: ReceiveCursor,
}

impl<B: LaneBench> Direction<B> {
    fn new(sender: usize) -> Self {
        let bench = B::new(DEPTH, SINK);
        Self { bench, sender, out: SendCursor::default(), taken: ReceiveCursor::default() }
    }

    fn sender(&self) -> &B::Lane {
        self.bench.end(self.sender)
    }

    fn receiver(&self) -> &B::Lane {
        self.bench.end(1 - self.sender)
    }

    fn send(&mut self, tag: u8, parts: &[&[u8]]) -> Result<(), LaneFull> {
        self.bench.end(self.sender).send(&mut self.out, tag, parts)
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bench.end(self.sender).put(&mut self.out, bytes);
    }

    fn slots_free(&mut self, wanted: u64) -> u64 {
        self.bench.end(self.sender).slots_free(&mut self.out, wanted)
    }

    fn sink_free(&mut self, wanted: u64) -> u64 {
        self.bench.end(self.sender).sink_free(&mut self.out, wanted)
    }

    /// Takes the message at the head, if there is one.
    fn take(&mut self, flush: bool) -> Option<(u8, Vec<u8>)> {
        let lane = self.bench.end(1 - self.sender);
        let slot = lane.peek(&self.taken).expect("no end is hostile here")?;
        let mut payload = vec![0; usize::from(slot.length)];
        lane.read(&self.taken, 0, &mut payload);
        lane.advance(&mut self.taken, flush);
        Some((slot.tag, payload))
    }

    fn view(&self, skip: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.receiver().view(&self.taken, skip, &mut bytes);
        bytes
    }

    fn release(&mut self, length: u64) {
        self.bench.end(1 - self.sender).release(&mut self.taken, length);
    }
}

/// Messages of every size arrive in both directions, gathered from parts.
pub fn a_lane_carries_messages_of_every_size<B: LaneBench>() {
    for sender in [0, 1] {
        let mut direction = Direction::<B>::new(sender);
        for size in 0..=120u8 {
            let payload = pattern(u64::from(size), usize::from(size));
            let cut = usize::from(size) / 3;
            let parts: [&[u8]; 3] = [&payload[..cut], &[], &payload[cut..]];
            assert_eq!(direction.send(size, &parts), Ok(()));
            direction.bench.settle();
            assert_eq!(direction.take(true), Some((size, payload)));
            assert_eq!(direction.take(true), None);
            direction.bench.settle();
        }
    }
}

/// Thousands of messages arrive in order while the mailbox wraps around many times.
pub fn a_lane_keeps_its_messages_in_order<B: LaneBench>() {
    let mut direction = Direction::<B>::new(0);
    let (mut sent, mut taken) = (0u64, 0u64);
    for round in 0..10_000u64 {
        let sizes = pattern(round, 2);
        for _ in 0..sizes[0] % 32 {
            if sent < 5_000 && direction.send(7, &[&sent.to_le_bytes()]) == Ok(()) {
                sent += 1;
            }
        }
        direction.bench.settle();
        for _ in 0..sizes[1] % 32 {
            if let Some((tag, payload)) = direction.take(taken.is_multiple_of(5)) {
                assert_eq!((tag, payload), (7, taken.to_le_bytes().to_vec()));
                taken += 1;
            }
        }
        direction.bench.settle();
        if taken == 5_000 {
            return;
        }
    }
    panic!("{sent} of 5000 messages were sent, {taken} taken");
}

/// A full mailbox refuses messages until some were taken and flushed.
pub fn a_full_lane_mailbox_refuses_until_slots_come_back<B: LaneBench>() {
    let mut direction = Direction::<B>::new(1);
    let depth = direction.sender().mailbox_depth();
    assert!(depth >= DEPTH);
    assert_eq!(direction.slots_free(depth), depth);
    for number in 0..depth {
        assert_eq!(direction.slots_free(1) >= 1, number < depth);
        assert_eq!(direction.send(1, &[&number.to_le_bytes()]), Ok(()));
    }
    assert_eq!(direction.send(1, &[b"too much"]), Err(LaneFull));
    assert_eq!(direction.slots_free(1), 0);
    direction.bench.settle();
    assert_eq!(direction.send(1, &[b"too much"]), Err(LaneFull));
    for number in 0..depth {
        assert_eq!(direction.take(true), Some((1, number.to_le_bytes().to_vec())));
        direction.bench.settle();
        assert_eq!(direction.slots_free(depth), number + 1);
    }
    assert_eq!(direction.send(1, &[b"room"]), Ok(()));
    direction.bench.settle();
    assert_eq!(direction.take(true), Some((1, b"room".to_vec())));
}

/// Without a flush slots may return late, but never more than were taken.
pub fn slots_come_back_in_batches_and_never_too_many<B: LaneBench>() {
    let mut direction = Direction::<B>::new(0);
    let depth = direction.sender().mailbox_depth();
    for number in 0..depth {
        assert_eq!(direction.send(1, &[&number.to_le_bytes()]), Ok(()));
    }
    direction.bench.settle();
    for number in 0..depth - 1 {
        assert!(direction.take(false).is_some());
        direction.bench.settle();
        assert!(direction.slots_free(depth) <= number + 1);
    }
    assert!(direction.take(true).is_some());
    direction.bench.settle();
    assert_eq!(direction.slots_free(depth), depth);
}

/// A slot can be read in pieces, from any offset.
pub fn a_slot_can_be_read_in_pieces<B: LaneBench>() {
    let mut direction = Direction::<B>::new(0);
    let payload = pattern(41, 120);
    direction.send(1, &[&payload]).expect("room");
    direction.bench.settle();
    for offset in 0..120 {
        for length in [0, 1, 8, 120 - offset] {
            let length = length.min(120 - offset);
            let mut piece = vec![0; length];
            direction.receiver().read(&direction.taken, offset, &mut piece);
            assert_eq!(piece, payload[offset..offset + length]);
        }
    }
}

/// At every position of the sink, bytes that were put are visible together with the message after
/// them.
pub fn a_sink_wraps_around_at_every_place<B: LaneBench>() {
    let mut direction = Direction::<B>::new(0);
    let sink = direction.sender().sink_bytes();
    assert!(sink >= SINK);
    // 61 has no factor in common with a power of two, so every position in a cache line occurs.
    for round in 0..sink / 8 {
        let size = 61 + usize::try_from(round % 3).expect("small");
        let bytes = pattern(round, size);
        let length = u64::try_from(size).expect("small");
        assert!(direction.sink_free(length) >= length);
        direction.put(&bytes);
        direction.send(2, &[&length.to_le_bytes()]).expect("room");
        direction.bench.settle();
        assert_eq!(direction.take(true), Some((2, length.to_le_bytes().to_vec())));
        assert_eq!(direction.view(0, size), bytes);
        assert_eq!(direction.view(9, size - 9), bytes[9..], "a view may skip");
        direction.release(length);
        direction.bench.settle();
    }
}

/// A sink can be filled to its last byte from any position, and emptied in parts.
pub fn a_sink_fills_to_its_last_byte<B: LaneBench>() {
    for shift in [0, 1, 7, 63, 64, 1000] {
        let mut direction = Direction::<B>::new(1);
        let sink = direction.sender().sink_bytes();
        if shift > 0 {
            direction.put(&vec![1; shift]);
            direction.send(1, &[]).expect("room");
            direction.bench.settle();
            direction.take(true).expect("the message was sent");
            direction.release(u64::try_from(shift).expect("small"));
            direction.bench.settle();
        }
        assert_eq!(direction.sink_free(sink), sink);
        let size = usize::try_from(sink).expect("the sink is in memory");
        let bytes = pattern(42, size);
        let (first, second) = bytes.split_at(size / 3);
        direction.put(first);
        direction.put(second);
        assert_eq!(direction.sink_free(1), 0);
        direction.send(1, &[]).expect("room");
        direction.bench.settle();
        direction.take(true).expect("the message was sent");
        assert!(direction.view(0, size) == bytes);
        direction.release(100);
        direction.bench.settle();
        assert_eq!(direction.sink_free(sink), 100);
        assert!(direction.view(0, size - 100) == bytes[100..]);
        direction.release(sink - 100);
        direction.bench.settle();
        assert_eq!(direction.sink_free(sink), sink);
    }
}

/// The control words of both ends are independent. An end that sees a value also sees everything
/// sent before.
pub fn a_control_word_comes_after_what_was_sent_before<B: LaneBench>() {
    let mut direction = Direction::<B>::new(0);
    let words = <B::Lane as Lane>::WORDS;
    for word in 0..words {
        assert_eq!((direction.sender().posted(word), direction.receiver().posted(word)), (0, 0));
    }
    for round in 1..50u64 {
        for word in 0..words {
            let value = round << 8 | u64::try_from(word).expect("small");
            direction.sender().post(word, value);
            direction.receiver().post(word, !value);
        }
        direction.bench.settle();
        for word in 0..words {
            let value = round << 8 | u64::try_from(word).expect("small");
            assert_eq!(direction.receiver().posted(word), value);
            assert_eq!(direction.sender().posted(word), !value);
        }
        direction.put(&round.to_le_bytes());
        direction.send(3, &[&round.to_le_bytes()]).expect("room");
        direction.sender().post(0, u64::MAX - round);
        direction.bench.settle();
        assert_eq!(direction.receiver().posted(0), u64::MAX - round);
        assert_eq!(direction.take(true), Some((3, round.to_le_bytes().to_vec())));
        assert_eq!(direction.view(0, 8), round.to_le_bytes());
        direction.release(8);
        direction.bench.settle();
    }
}

/// A watching end is not rung. An armed end is rung once, and disarming reports it.
pub fn attention_is_claimed_once<B: LaneBench>() {
    for what in [WaitFor::Data, WaitFor::Room] {
        let direction = Direction::<B>::new(0);
        let (awake, sleeper) = (direction.sender(), direction.receiver());
        assert_eq!(sleeper.attention(what), Attention::Watching);
        assert!(!awake.must_ring(what), "the other end watches");
        sleeper.arm(what);
        sleeper.settle();
        assert_eq!(sleeper.attention(what), Attention::Armed);
        assert!(awake.must_ring(what), "the first call claims the word");
        assert!(!awake.must_ring(what), "the doorbell is on its way");
        assert_eq!(sleeper.attention(what), Attention::Rung);
        sleeper.arm(what);
        assert_eq!(sleeper.attention(what), Attention::Rung, "a rung word stays rung");
        assert!(sleeper.disarm(what), "it was rung");
        assert_eq!(sleeper.attention(what), Attention::Watching);
        sleeper.arm(what);
        assert!(!sleeper.disarm(what), "it was not rung");
        assert!(!awake.must_ring(what), "the other end watches again");
    }
}

/// Rearming changes rung to armed in one step, and leaves other states unchanged.
pub fn a_rung_word_can_be_armed_again<B: LaneBench>() {
    for what in [WaitFor::Data, WaitFor::Room] {
        let direction = Direction::<B>::new(1);
        let (awake, sleeper) = (direction.sender(), direction.receiver());
        assert!(!sleeper.rearm(what));
        assert_eq!(sleeper.attention(what), Attention::Watching);
        sleeper.arm(what);
        sleeper.settle();
        assert!(!sleeper.rearm(what));
        assert_eq!(sleeper.attention(what), Attention::Armed);
        assert!(awake.must_ring(what));
        assert!(sleeper.rearm(what), "it was rung");
        sleeper.settle();
        assert_eq!(sleeper.attention(what), Attention::Armed);
        assert!(awake.must_ring(what), "the word is rung again");
    }
}

/// Waiting for data and for room at both ends uses four independent words.
pub fn the_four_attention_words_are_independent<B: LaneBench>() {
    let direction = Direction::<B>::new(0);
    let (left, right) = (direction.sender(), direction.receiver());
    left.arm(WaitFor::Data);
    right.arm(WaitFor::Room);
    assert_eq!(left.attention(WaitFor::Room), Attention::Watching);
    assert_eq!(right.attention(WaitFor::Data), Attention::Watching);
    assert!(!left.must_ring(WaitFor::Data) && !right.must_ring(WaitFor::Room));
    assert!(right.must_ring(WaitFor::Data) && left.must_ring(WaitFor::Room));
}

/// An end that checks once more after arming sees what was published before, or is rung: data.
pub fn a_sleeper_never_misses_data<B: LaneBench>() {
    for published_first in [true, false] {
        let mut direction = Direction::<B>::new(0);
        let mut rung = false;
        if published_first {
            direction.send(1, &[b"x"]).expect("room");
            rung |= direction.sender().must_ring(WaitFor::Data);
            direction.receiver().arm(WaitFor::Data);
            direction.receiver().settle();
        } else {
            direction.receiver().arm(WaitFor::Data);
            direction.receiver().settle();
            direction.send(1, &[b"x"]).expect("room");
            rung |= direction.sender().must_ring(WaitFor::Data);
        }
        let seen_at_once = direction.receiver().peek(&direction.taken) != Ok(None);
        direction.bench.settle();
        let rung_later = rung || direction.receiver().attention(WaitFor::Data) == Attention::Rung;
        assert!(seen_at_once || rung_later, "the sleeper sleeps on");
        direction.receiver().disarm(WaitFor::Data);
        assert_eq!(direction.take(true), Some((1, b"x".to_vec())));
    }
}

/// The same for room: returned slots are seen, or the end is rung.
pub fn a_sleeper_never_misses_room<B: LaneBench>() {
    for taken_first in [true, false] {
        let mut direction = Direction::<B>::new(0);
        while direction.send(1, &[]) == Ok(()) {}
        direction.bench.settle();
        let mut rung = false;
        if !taken_first {
            direction.sender().arm(WaitFor::Room);
            direction.sender().settle();
        }
        direction.take(true).expect("the mailbox is full");
        rung |= direction.receiver().must_ring(WaitFor::Room);
        if taken_first {
            direction.sender().arm(WaitFor::Room);
            direction.sender().settle();
        }
        let seen_at_once = direction.slots_free(1) > 0;
        direction.bench.settle();
        let rung_later = rung || direction.sender().attention(WaitFor::Room) == Attention::Rung;
        assert!(seen_at_once || rung_later, "the sleeper sleeps on");
        assert!(direction.slots_free(1) > 0);
    }
}

/// An invalid length closes the lane and never gives access beyond the slot.
pub fn a_hostile_length_closes_the_lane<B: LaneBench>() {
    for length in [121, 128, 255] {
        let mut direction = Direction::<B>::new(0);
        direction.send(1, &[b"x"]).expect("room");
        direction.bench.settle();
        if !direction.bench.corrupt(1, Hostile::MessageLength(length)) {
            return;
        }
        assert!(direction.receiver().peek(&direction.taken).is_err(), "length {length}");
    }
}

/// Invalid counts never give more room than there is.
pub fn hostile_counts_never_give_more_room_than_there_is<B: LaneBench>() {
    for count in [1 << 20, 1 << 63, u64::MAX - 1, u64::MAX] {
        let mut direction = Direction::<B>::new(0);
        let (depth, sink) = (direction.sender().mailbox_depth(), direction.sender().sink_bytes());
        direction.put(&[1; 100]);
        direction.send(1, &[b"x"]).expect("room");
        direction.bench.settle();
        let offered = direction.bench.corrupt(0, Hostile::MessagesTaken(count))
            && direction.bench.corrupt(0, Hostile::BytesTaken(count));
        if !offered {
            return;
        }
        assert!(direction.slots_free(u64::MAX) <= depth, "messages taken: {count:#x}");
        assert!(direction.sink_free(u64::MAX) <= sink, "bytes taken: {count:#x}");
    }
}

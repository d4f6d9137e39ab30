//! Cases: lanes.

use weft_fabric::{Attention, Lane, LaneFull, ReceiveCursor, SendCursor, WaitFor};

use crate::{Hostile, LaneBench, pattern};

const DEPTH: u64 = 16;
const SINK: u64 = 4096;

/// One side that sends and one that receives.
struct Way<B: LaneBench> {
    bench: B,
    sender: usize,
    out: SendCursor,
    taken: ReceiveCursor,
}

impl<B: LaneBench> Way<B> {
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

    /// Takes the message at the head, when there is one.
    fn take(&mut self, flush: bool) -> Option<(u8, Vec<u8>)> {
        let lane = self.bench.end(1 - self.sender);
        let slot = lane.peek(&self.taken).expect("nobody is hostile here")?;
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

/// Every size arrives, in both directions, gathered from parts.
pub fn a_lane_carries_messages_of_every_size<B: LaneBench>() {
    for sender in [0, 1] {
        let mut way = Way::<B>::new(sender);
        for size in 0..=120u8 {
            let payload = pattern(u64::from(size), usize::from(size));
            let cut = usize::from(size) / 3;
            let parts: [&[u8]; 3] = [&payload[..cut], &[], &payload[cut..]];
            assert_eq!(way.send(size, &parts), Ok(()));
            way.bench.settle();
            assert_eq!(way.take(true), Some((size, payload)));
            assert_eq!(way.take(true), None);
            way.bench.settle();
        }
    }
}

/// Thousands of messages arrive in order; the mailbox goes round many times.
pub fn a_lane_keeps_its_messages_in_order<B: LaneBench>() {
    let mut way = Way::<B>::new(0);
    let (mut sent, mut taken) = (0u64, 0u64);
    for round in 0..10_000u64 {
        let sizes = pattern(round, 2);
        for _ in 0..sizes[0] % 32 {
            if sent < 5_000 && way.send(7, &[&sent.to_le_bytes()]) == Ok(()) {
                sent += 1;
            }
        }
        way.bench.settle();
        for _ in 0..sizes[1] % 32 {
            if let Some((tag, payload)) = way.take(taken.is_multiple_of(5)) {
                assert_eq!((tag, payload), (7, taken.to_le_bytes().to_vec()));
                taken += 1;
            }
        }
        way.bench.settle();
        if taken == 5_000 {
            return;
        }
    }
    panic!("{sent} of 5000 messages were sent, {taken} taken");
}

/// A full mailbox refuses; room comes back when messages were taken and flushed.
pub fn a_full_lane_mailbox_refuses_until_slots_come_back<B: LaneBench>() {
    let mut way = Way::<B>::new(1);
    let depth = way.sender().mailbox_depth();
    assert!(depth >= DEPTH);
    assert_eq!(way.slots_free(depth), depth);
    for number in 0..depth {
        assert_eq!(way.slots_free(1) >= 1, number < depth);
        assert_eq!(way.send(1, &[&number.to_le_bytes()]), Ok(()));
    }
    assert_eq!(way.send(1, &[b"too much"]), Err(LaneFull));
    assert_eq!(way.slots_free(1), 0);
    way.bench.settle();
    assert_eq!(way.send(1, &[b"too much"]), Err(LaneFull));
    for number in 0..depth {
        assert_eq!(way.take(true), Some((1, number.to_le_bytes().to_vec())));
        way.bench.settle();
        assert_eq!(way.slots_free(depth), number + 1);
    }
    assert_eq!(way.send(1, &[b"room"]), Ok(()));
    way.bench.settle();
    assert_eq!(way.take(true), Some((1, b"room".to_vec())));
}

/// Without a flush slots may come back late, but never more than were taken.
pub fn slots_come_back_in_batches_and_never_too_many<B: LaneBench>() {
    let mut way = Way::<B>::new(0);
    let depth = way.sender().mailbox_depth();
    for number in 0..depth {
        assert_eq!(way.send(1, &[&number.to_le_bytes()]), Ok(()));
    }
    way.bench.settle();
    for number in 0..depth - 1 {
        assert!(way.take(false).is_some());
        way.bench.settle();
        assert!(way.slots_free(depth) <= number + 1);
    }
    assert!(way.take(true).is_some());
    way.bench.settle();
    assert_eq!(way.slots_free(depth), depth);
}

/// A slot may be read in pieces, from any offset.
pub fn a_slot_can_be_read_in_pieces<B: LaneBench>() {
    let mut way = Way::<B>::new(0);
    let payload = pattern(41, 120);
    way.send(1, &[&payload]).expect("room");
    way.bench.settle();
    for offset in 0..120 {
        for length in [0, 1, 8, 120 - offset] {
            let length = length.min(120 - offset);
            let mut piece = vec![0; length];
            way.receiver().read(&way.taken, offset, &mut piece);
            assert_eq!(piece, payload[offset..offset + length]);
        }
    }
}

/// Bytes put are there when the message behind them is, at every place of the sink.
pub fn a_sink_wraps_around_at_every_place<B: LaneBench>() {
    let mut way = Way::<B>::new(0);
    let sink = way.sender().sink_bytes();
    assert!(sink >= SINK);
    // 61 has no factor in common with a power of two: all residues of a cache line come by.
    for round in 0..sink / 8 {
        let size = 61 + usize::try_from(round % 3).expect("small");
        let bytes = pattern(round, size);
        let length = u64::try_from(size).expect("small");
        assert!(way.sink_free(length) >= length);
        way.put(&bytes);
        way.send(2, &[&length.to_le_bytes()]).expect("room");
        way.bench.settle();
        assert_eq!(way.take(true), Some((2, length.to_le_bytes().to_vec())));
        assert_eq!(way.view(0, size), bytes);
        assert_eq!(way.view(9, size - 9), bytes[9..], "a view may skip");
        way.release(length);
        way.bench.settle();
    }
}

/// A sink can be filled to its last byte, from any position, and emptied in parts.
pub fn a_sink_fills_to_its_last_byte<B: LaneBench>() {
    for shift in [0, 1, 7, 63, 64, 1000] {
        let mut way = Way::<B>::new(1);
        let sink = way.sender().sink_bytes();
        if shift > 0 {
            way.put(&vec![1; shift]);
            way.send(1, &[]).expect("room");
            way.bench.settle();
            way.take(true).expect("it was sent");
            way.release(u64::try_from(shift).expect("small"));
            way.bench.settle();
        }
        assert_eq!(way.sink_free(sink), sink);
        let size = usize::try_from(sink).expect("it is in memory");
        let bytes = pattern(42, size);
        let (first, second) = bytes.split_at(size / 3);
        way.put(first);
        way.put(second);
        assert_eq!(way.sink_free(1), 0);
        way.send(1, &[]).expect("room");
        way.bench.settle();
        way.take(true).expect("it was sent");
        assert!(way.view(0, size) == bytes);
        way.release(100);
        way.bench.settle();
        assert_eq!(way.sink_free(sink), 100);
        assert!(way.view(0, size - 100) == bytes[100..]);
        way.release(sink - 100);
        way.bench.settle();
        assert_eq!(way.sink_free(sink), sink);
    }
}

/// Control words of both ends are apart, and whoever sees one sees what was sent before.
pub fn a_control_word_comes_after_what_was_sent_before<B: LaneBench>() {
    let mut way = Way::<B>::new(0);
    let words = <B::Lane as Lane>::WORDS;
    for word in 0..words {
        assert_eq!((way.sender().posted(word), way.receiver().posted(word)), (0, 0));
    }
    for round in 1..50u64 {
        for word in 0..words {
            let value = round << 8 | u64::try_from(word).expect("small");
            way.sender().post(word, value);
            way.receiver().post(word, !value);
        }
        way.bench.settle();
        for word in 0..words {
            let value = round << 8 | u64::try_from(word).expect("small");
            assert_eq!(way.receiver().posted(word), value);
            assert_eq!(way.sender().posted(word), !value);
        }
        way.put(&round.to_le_bytes());
        way.send(3, &[&round.to_le_bytes()]).expect("room");
        way.sender().post(0, u64::MAX - round);
        way.bench.settle();
        assert_eq!(way.receiver().posted(0), u64::MAX - round);
        assert_eq!(way.take(true), Some((3, round.to_le_bytes().to_vec())));
        assert_eq!(way.view(0, 8), round.to_le_bytes());
        way.release(8);
        way.bench.settle();
    }
}

/// Nobody rings for who watches; who armed is rung once; disarming tells whether it was.
pub fn attention_is_claimed_once<B: LaneBench>() {
    for what in [WaitFor::Data, WaitFor::Room] {
        let way = Way::<B>::new(0);
        let (awake, sleeper) = (way.sender(), way.receiver());
        assert_eq!(sleeper.attention(what), Attention::Watching);
        assert!(!awake.must_ring(what), "nobody sleeps");
        sleeper.arm(what);
        sleeper.settle();
        assert_eq!(sleeper.attention(what), Attention::Armed);
        assert!(awake.must_ring(what), "the first who looks rings");
        assert!(!awake.must_ring(what), "the bell is on its way");
        assert_eq!(sleeper.attention(what), Attention::Rung);
        sleeper.arm(what);
        assert_eq!(sleeper.attention(what), Attention::Rung, "what was rung stays rung");
        assert!(sleeper.disarm(what), "it was rung");
        assert_eq!(sleeper.attention(what), Attention::Watching);
        sleeper.arm(what);
        assert!(!sleeper.disarm(what), "it was not rung");
        assert!(!awake.must_ring(what), "it watches again");
    }
}

/// From rung to armed without a gap; other states stay as they are.
pub fn a_rung_word_can_be_armed_again<B: LaneBench>() {
    for what in [WaitFor::Data, WaitFor::Room] {
        let way = Way::<B>::new(1);
        let (awake, sleeper) = (way.sender(), way.receiver());
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
        assert!(awake.must_ring(what), "and is rung again");
    }
}

/// Waiting for data and for room, at both ends, are four words.
pub fn the_four_attention_words_are_apart<B: LaneBench>() {
    let way = Way::<B>::new(0);
    let (left, right) = (way.sender(), way.receiver());
    left.arm(WaitFor::Data);
    right.arm(WaitFor::Room);
    assert_eq!(left.attention(WaitFor::Room), Attention::Watching);
    assert_eq!(right.attention(WaitFor::Data), Attention::Watching);
    assert!(!left.must_ring(WaitFor::Data) && !right.must_ring(WaitFor::Room));
    assert!(right.must_ring(WaitFor::Data) && left.must_ring(WaitFor::Room));
}

/// Whoever looks again after arming sees what was published before, or is rung for it: data.
pub fn a_sleeper_never_misses_data<B: LaneBench>() {
    for published_first in [true, false] {
        let mut way = Way::<B>::new(0);
        let mut rung = false;
        if published_first {
            way.send(1, &[b"x"]).expect("room");
            rung |= way.sender().must_ring(WaitFor::Data);
            way.receiver().arm(WaitFor::Data);
            way.receiver().settle();
        } else {
            way.receiver().arm(WaitFor::Data);
            way.receiver().settle();
            way.send(1, &[b"x"]).expect("room");
            rung |= way.sender().must_ring(WaitFor::Data);
        }
        let seen_at_once = way.receiver().peek(&way.taken) != Ok(None);
        way.bench.settle();
        let told = rung || way.receiver().attention(WaitFor::Data) == Attention::Rung;
        assert!(seen_at_once || told, "the sleeper sleeps on");
        way.receiver().disarm(WaitFor::Data);
        assert_eq!(way.take(true), Some((1, b"x".to_vec())));
    }
}

/// The same for room: slots given back are seen, or rung for.
pub fn a_sleeper_never_misses_room<B: LaneBench>() {
    for taken_first in [true, false] {
        let mut way = Way::<B>::new(0);
        while way.send(1, &[]) == Ok(()) {}
        way.bench.settle();
        let mut rung = false;
        if !taken_first {
            way.sender().arm(WaitFor::Room);
            way.sender().settle();
        }
        way.take(true).expect("the mailbox is full");
        rung |= way.receiver().must_ring(WaitFor::Room);
        if taken_first {
            way.sender().arm(WaitFor::Room);
            way.sender().settle();
        }
        let seen_at_once = way.slots_free(1) > 0;
        way.bench.settle();
        let told = rung || way.sender().attention(WaitFor::Room) == Attention::Rung;
        assert!(seen_at_once || told, "the sleeper sleeps on");
        assert!(way.slots_free(1) > 0);
    }
}

/// A length no peer of ours writes closes the lane; it never leads out of the slot.
pub fn a_hostile_length_closes_the_lane<B: LaneBench>() {
    for length in [121, 128, 255] {
        let mut way = Way::<B>::new(0);
        way.send(1, &[b"x"]).expect("room");
        way.bench.settle();
        if !way.bench.corrupt(1, Hostile::MessageLength(length)) {
            return;
        }
        assert!(way.receiver().peek(&way.taken).is_err(), "length {length}");
    }
}

/// Counts no peer of ours writes never give more room than there is.
pub fn hostile_counts_never_give_more_room_than_there_is<B: LaneBench>() {
    for count in [1 << 20, 1 << 63, u64::MAX - 1, u64::MAX] {
        let mut way = Way::<B>::new(0);
        let (depth, sink) = (way.sender().mailbox_depth(), way.sender().sink_bytes());
        way.put(&[1; 100]);
        way.send(1, &[b"x"]).expect("room");
        way.bench.settle();
        let offered = way.bench.corrupt(0, Hostile::MessagesTaken(count))
            && way.bench.corrupt(0, Hostile::BytesTaken(count));
        if !offered {
            return;
        }
        assert!(way.slots_free(u64::MAX) <= depth, "messages taken: {count:#x}");
        assert!(way.sink_free(u64::MAX) <= sink, "bytes taken: {count:#x}");
    }
}

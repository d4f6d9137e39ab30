//! Cases: lanes.

use weft_fabric::{Attention, Carry, LaneFull, Medium, ReceiveCursor, SendCursor, WaitFor, Wake};

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
    let words = <B::Lane as Carry>::WORDS;
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

/// At each moment, a message that is visible has all its bytes, and so have the bytes of the sink
/// that it tells of. A control word that is visible has all before it.
pub fn nothing_is_visible_before_what_it_tells_of<B: LaneBench>() {
    let mut direction = Direction::<B>::new(0);
    for round in 1..200u64 {
        let size = 1 + usize::from(pattern(round, 1)[0]) * 11;
        let bytes = pattern(round, size);
        direction.put(&bytes);
        direction.send(2, &[&bytes[..size.min(120)]]).expect("room");
        direction.sender().post(4, round);
        direction.sender().post(5, round);
        direction.put(&bytes[..1]);
        direction.sender().post(6, round);
        loop {
            let words = [4, 5].map(|word| direction.receiver().posted(word));
            if direction.receiver().posted(6) == round {
                assert_eq!(direction.view(size as u64, 1), bytes[..1], "a word before a byte");
            }
            let slot = direction.receiver().peek(&direction.taken).expect("no end is hostile");
            assert!(words[1] <= words[0], "a word before an earlier one");
            assert!(words[0] < round || slot.is_some(), "a word before a message");
            if slot.is_some() {
                let mut payload = vec![0; size.min(120)];
                direction.receiver().read(&direction.taken, 0, &mut payload);
                assert!(payload == bytes[..payload.len()], "a message before its bytes");
                assert!(direction.view(0, size) == bytes, "a message before the sink's bytes");
            }
            if !direction.bench.step() {
                break;
            }
        }
        direction.bench.settle();
        assert_eq!(direction.receiver().posted(5), round);
        direction.take(true).expect("the message was sent");
        direction.release(size as u64 + 1);
        direction.bench.settle();
        assert_eq!(direction.sink_free(SINK), direction.sender().sink_bytes());
    }
}

/// Has `awake` do something that `sleeper` can wait for, and rings as the medium wants it. True if
/// the peer claimed the word.
fn stir<B: LaneBench>(direction: &mut Direction<B>, what: WaitFor) -> bool {
    match what {
        // The sender sends.
        WaitFor::Data => direction.send(1, &[b"x"]).expect("room"),
        // The receiver takes what fills the mailbox.
        WaitFor::Room => {
            direction.take(true).expect("the mailbox is full");
        }
    }
    let awake = match what {
        WaitFor::Data => direction.sender(),
        WaitFor::Room => direction.receiver(),
    };
    let claimed = awake.must_ring(what);
    assert!(!awake.must_ring(what), "a word is claimed once");
    direction.bench.settle();
    claimed
}

/// A direction in which `what` can be stirred a few times, and the end that waits for it.
fn direction_for<B: LaneBench>(what: WaitFor) -> (Direction<B>, usize) {
    let mut direction = Direction::<B>::new(0);
    if what == WaitFor::Data {
        return (direction, 1);
    }
    while direction.send(1, &[]) == Ok(()) {}
    direction.bench.settle();
    (direction, 0)
}

/// A watching end is not rung. An armed end is rung once, and disarming reports it. In memory the
/// peer claims the word, and across a network the arrival rings it.
pub fn attention_is_claimed_once<B: LaneBench>() {
    for what in [WaitFor::Data, WaitFor::Room] {
        let (mut direction, end) = direction_for::<B>(what);
        let by_peer = direction.bench.end(end).medium() == Medium::Memory;
        assert_eq!(direction.bench.end(end).attention(what), Attention::Watching);
        assert!(!stir(&mut direction, what), "the other end watches");
        let sleeper = direction.bench.end(end);
        assert_eq!(sleeper.attention(what), Attention::Watching);
        sleeper.arm(what);
        sleeper.settle();
        assert_eq!(sleeper.attention(what), Attention::Armed);
        assert_eq!(stir(&mut direction, what), by_peer, "the peer claims the word");
        let sleeper = direction.bench.end(end);
        assert_eq!(sleeper.attention(what), Attention::Rung);
        sleeper.arm(what);
        assert_eq!(sleeper.attention(what), Attention::Rung, "a rung word stays rung");
        assert!(sleeper.disarm(what), "it was rung");
        assert_eq!(sleeper.attention(what), Attention::Watching);
        sleeper.arm(what);
        assert!(!sleeper.disarm(what), "it was not rung");
        assert!(!stir(&mut direction, what), "the other end watches again");
    }
}

/// Rearming changes rung to armed in one step, and leaves other states unchanged.
pub fn a_rung_word_can_be_armed_again<B: LaneBench>() {
    for what in [WaitFor::Data, WaitFor::Room] {
        let (mut direction, end) = direction_for::<B>(what);
        let sleeper = direction.bench.end(end);
        let by_peer = sleeper.medium() == Medium::Memory;
        assert!(!sleeper.rearm(what));
        assert_eq!(sleeper.attention(what), Attention::Watching);
        sleeper.arm(what);
        sleeper.settle();
        assert!(!sleeper.rearm(what));
        assert_eq!(sleeper.attention(what), Attention::Armed);
        assert_eq!(stir(&mut direction, what), by_peer);
        let sleeper = direction.bench.end(end);
        assert!(sleeper.rearm(what), "it was rung");
        sleeper.settle();
        assert_eq!(sleeper.attention(what), Attention::Armed);
        assert_eq!(stir(&mut direction, what), by_peer);
        assert_eq!(direction.bench.end(end).attention(what), Attention::Rung, "again");
    }
}

/// Waiting for data and for room at both ends uses four independent words.
pub fn the_four_attention_words_are_independent<B: LaneBench>() {
    for what in [WaitFor::Data, WaitFor::Room] {
        let (mut direction, end) = direction_for::<B>(what);
        let other = if what == WaitFor::Data { WaitFor::Room } else { WaitFor::Data };
        direction.bench.end(end).arm(what);
        direction.bench.end(1 - end).arm(other);
        direction.bench.end(end).settle();
        assert_eq!(direction.bench.end(end).attention(other), Attention::Watching);
        assert_eq!(direction.bench.end(1 - end).attention(what), Attention::Watching);
        stir(&mut direction, what);
        assert_eq!(direction.bench.end(end).attention(what), Attention::Rung);
        assert_eq!(direction.bench.end(1 - end).attention(other), Attention::Armed);
    }
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

/// The same for room: returned slots, and returned bytes, are seen, or the end is rung.
pub fn a_sleeper_never_misses_room<B: LaneBench>() {
    for (taken_first, in_sink) in [(true, false), (false, false), (true, true), (false, true)] {
        let mut direction = Direction::<B>::new(0);
        let sink = direction.sender().sink_bytes();
        if in_sink {
            assert_eq!(direction.sink_free(sink), sink);
            direction.put(&vec![1; usize::try_from(sink).expect("the sink is in memory")]);
            direction.send(1, &[]).expect("room");
        } else {
            while direction.send(1, &[]) == Ok(()) {}
        }
        direction.bench.settle();
        if in_sink {
            // The slot comes back first, so that it does not ring for the bytes.
            direction.take(true).expect("a message is there");
            direction.bench.settle();
        }
        let mut rung = false;
        if !taken_first {
            direction.sender().arm(WaitFor::Room);
            direction.sender().settle();
        }
        if in_sink {
            direction.release(sink);
        } else {
            direction.take(true).expect("a message is there");
        }
        rung |= direction.receiver().must_ring(WaitFor::Room);
        if taken_first {
            direction.sender().arm(WaitFor::Room);
            direction.sender().settle();
        }
        let has_room = |direction: &mut Direction<B>| match in_sink {
            true => direction.sink_free(sink) == sink,
            false => direction.slots_free(1) > 0,
        };
        let seen_at_once = has_room(&mut direction);
        direction.bench.settle();
        let rung_later = rung || direction.sender().attention(WaitFor::Room) == Attention::Rung;
        assert!(seen_at_once || rung_later, "the sleeper sleeps on");
        assert!(has_room(&mut direction));
    }
}

/// A sender that found its peer's mailbox full is rung, although the peer takes the messages one by
/// one as they arrive, and finds nothing behind each of them.
pub fn a_sleeper_never_misses_room_that_comes_in_pieces<B: LaneBench>() {
    let mut direction = Direction::<B>::new(0);
    while direction.send(1, &[]) == Ok(()) {}
    direction.sender().arm(WaitFor::Room);
    direction.sender().settle();
    assert_eq!(direction.slots_free(1), 0, "nothing was taken");
    let mut rung = false;
    loop {
        while direction.take(false).is_some() {
            rung |= direction.receiver().must_ring(WaitFor::Room);
        }
        if !direction.bench.step() {
            break;
        }
    }
    direction.bench.settle();
    rung |= direction.sender().attention(WaitFor::Room) == Attention::Rung;
    assert!(rung, "the sleeper sleeps on");
    assert!(direction.slots_free(4) >= 4);
}

/// A control word rings an end that waits for anything: it may be the end of the lane's use.
pub fn a_sleeper_never_misses_a_control_word<B: LaneBench>() {
    for what in [WaitFor::Data, WaitFor::Room] {
        let mut direction = Direction::<B>::new(0);
        direction.receiver().arm(what);
        direction.receiver().settle();
        direction.sender().post(3, 7);
        let rung = direction.sender().must_ring(what);
        let seen_at_once = direction.receiver().posted(3) == 7;
        direction.bench.settle();
        let rung_later = rung || direction.receiver().attention(what) == Attention::Rung;
        assert!(seen_at_once || rung_later, "the sleeper sleeps on");
        assert_eq!(direction.receiver().posted(3), 7);
    }
}

/// Sent messages land without a look of the receiver, and the sender learns of it. It is visible
/// then.
pub fn what_has_landed_is_visible<B: LaneBench>() {
    let mut direction = Direction::<B>::new(0);
    assert!(direction.sender().has_landed(), "nothing was sent");
    for round in 0..20u64 {
        direction.put(&round.to_le_bytes());
        direction.send(1, &[b"x"]).expect("room");
        direction.sender().post(5, round + 1);
        direction.sender().arm(WaitFor::Room);
        let has_landed = direction.sender().has_landed();
        if has_landed {
            assert_eq!(direction.receiver().posted(5), round + 1, "before it was visible");
        }
        direction.bench.settle();
        let rung = direction.sender().attention(WaitFor::Room) == Attention::Rung;
        assert!(has_landed || rung, "who waits for it is rung");
        assert!(direction.sender().has_landed(), "all of it has arrived");
        direction.sender().disarm(WaitFor::Room);
        assert_eq!(direction.take(true), Some((1, b"x".to_vec())));
        assert_eq!(direction.view(0, 8), round.to_le_bytes());
        direction.release(8);
        direction.bench.settle();
    }
}

/// A sender looks back at what the peer has not taken, whether or not it has arrived, and when the
/// peer is dead.
pub fn a_sender_looks_back_at_what_was_not_taken<B: LaneBench>() {
    for dies in [false, true] {
        let mut direction = Direction::<B>::new(0);
        let depth = direction.sender().mailbox_depth();
        let bytes = pattern(5, 3000);
        direction.put(&bytes);
        for number in 0..depth {
            direction.send(2, &[&number.to_le_bytes()]).expect("room");
        }
        if dies && !direction.bench.kill(1) {
            return;
        }
        for settled in [false, true] {
            for number in 0..depth {
                let mut payload = [0; 120];
                let slot = direction.sender().look_back(number, &mut payload);
                let slot = slot.expect("the peer took nothing");
                assert_eq!((slot.tag, slot.length), (2, 8), "settled: {settled}");
                assert_eq!(payload[..8], number.to_le_bytes());
            }
            let mut back = vec![0; bytes.len()];
            assert!(direction.sender().view_back(0, &mut back));
            assert!(back == bytes);
            direction.bench.settle();
        }
        let mut payload = [0; 120];
        assert_eq!(direction.sender().look_back(depth, &mut payload), None, "never sent");
    }
}

/// The death of an end ends the lane at the other. All that had arrived is still readable, and
/// sleepers are woken.
pub fn the_death_of_an_end_ends_the_lane<B: LaneBench>() {
    let mut direction = Direction::<B>::new(0);
    for number in 0..8u64 {
        direction.put(&number.to_le_bytes());
        direction.send(4, &[&number.to_le_bytes()]).expect("room");
        direction.sender().post(1, number + 1);
    }
    direction.bench.settle();
    direction.receiver().arm(WaitFor::Data);
    direction.receiver().arm(WaitFor::Room);
    assert!(!direction.receiver().is_over(), "the peer lives");
    if !direction.bench.kill(0) {
        return;
    }
    direction.bench.settle();
    if direction.receiver().medium() == Medium::Network {
        assert!(direction.receiver().is_over(), "the peer is dead");
        for what in [WaitFor::Data, WaitFor::Room] {
            assert_eq!(direction.receiver().attention(what), Attention::Rung, "{what:?}");
        }
    }
    for number in 0..8u64 {
        assert_eq!(direction.take(true), Some((4, number.to_le_bytes().to_vec())));
        assert_eq!(direction.view(0, 8), number.to_le_bytes());
        direction.release(8);
    }
    assert_eq!(direction.take(true), None);
    assert_eq!(direction.receiver().posted(1), 8);
    // Nothing waits, and nothing panics.
    let lane = direction.receiver();
    lane.post(0, 1);
    let mut cursor = SendCursor::default();
    if lane.medium() == Medium::Network {
        assert_eq!(lane.send(&mut cursor, 1, &[b"to nobody"]), Err(LaneFull));
        assert!(!lane.has_landed());
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

/// Counts beyond what was sent are ignored: they give no room, and take none.
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
        assert_eq!(direction.slots_free(u64::MAX), depth - 1, "messages taken: {count:#x}");
        assert_eq!(direction.sink_free(u64::MAX), sink - 100, "bytes taken: {count:#x}");
    }
}

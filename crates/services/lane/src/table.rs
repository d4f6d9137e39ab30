//! The lanes of a carrier from their making to their end, without I/O.
//!
//! ```text
//! opener:    open → Granting → (Open) → Offered ── Accept ──▶ Joined → Over → Revoking → free
//! acceptor:  (Offer) accept → Granting → (Accept) ─────────▶ Joined → Over → Revoking → free
//! ```
//!
//! Messages of peers, ends of grants and revocations, and deaths go in. [`Action`]s come out, which
//! the carrier does in their order.
//!
//! # Invariants
//! - A lane number has a generation, so that a late message or notification never means a lane that
//!   came to the same place later.
//! - A message counts only for a lane of the peer that sent it.
//! - Each grant that ended well is revoked once, and a place is free only then.

use std::collections::VecDeque;

use thiserror::Error;
use weft_fabric::{Peer, RemoteKey};

use crate::layout::Layout;
use crate::message::{Message, Refusal, Violation};

/// The number of a lane at one of its carriers: the place in its table, and above it how often the
/// place was used.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LaneNumber(pub(crate) u32);

impl LaneNumber {
    const PLACE_BITS: u32 = 16;
    /// Places of a table.
    pub(crate) const PLACES: u32 = 1 << Self::PLACE_BITS;

    pub(crate) const fn place(self) -> usize {
        (self.0 & (Self::PLACES - 1)) as usize
    }

    fn new(place: usize, generation: u16) -> Self {
        let place = u32::try_from(place).expect("a table has at most 65,536 places");
        Self(u32::from(generation) << Self::PLACE_BITS | place)
    }
}

/// The carrier has its maximum of lanes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("this endpoint already carries {maximum} lanes, the maximum")]
pub struct Exhausted {
    /// The maximum.
    pub maximum: u32,
}

/// A peer wants a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    /// The peer.
    pub peer: Peer,
    /// The use of the lane, as the peer's program said.
    pub token: u64,
    /// The sizes of the lane.
    pub layout: Layout,
    pub(crate) number: LaneNumber,
    pub(crate) key: RemoteKey,
}

/// The peer's end of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Remote {
    pub peer: Peer,
    pub number: LaneNumber,
    pub key: RemoteKey,
    pub layout: Layout,
}

/// A task of the carrier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Grant `peer` the memory of the lane. [`Table::granted`] must follow.
    Grant { number: LaneNumber, peer: Peer },
    /// Revoke the key. [`Table::revoked`] must follow.
    Revoke { number: LaneNumber, key: RemoteKey },
    /// Give the memory back: there is no key to it.
    Free { number: LaneNumber },
    /// Send a message, ordered behind all before.
    Send { to: Peer, message: Message },
    /// Both ends are there.
    Join { number: LaneNumber, token: u64, remote: Remote },
    /// Nothing more arrives on the lane. `is_complete` if all that the peer sent has.
    End { number: LaneNumber, is_complete: bool },
    /// Tell the program of an offer.
    Offered(Offer),
    /// Tell the program that there will be no lane.
    Refused { token: u64, why: Refusal },
    /// End the connection to a peer that broke the protocol.
    Disconnect { peer: Peer, violation: Violation },
}

/// Why an end asks for a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    Offer {
        token: u64,
    },
    Answer(Offer),
    /// The peer died meanwhile, or the end was closed: the key is revoked at once.
    Nothing,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LaneState {
    Free,
    Granting {
        peer: Peer,
        purpose: Purpose,
    },
    Offered {
        peer: Peer,
        key: RemoteKey,
        token: u64,
    },
    Joined {
        remote: Remote,
        key: RemoteKey,
    },
    /// The peer is gone, and the program still has its end.
    Over {
        key: RemoteKey,
    },
    Revoking,
}

#[derive(Debug)]
struct Slot {
    generation: u16,
    state: LaneState,
}

/// The lanes of one carrier.
#[derive(Debug)]
pub(crate) struct Table {
    places: Vec<Slot>,
    free: Vec<usize>,
    lanes_max: u32,
    layout: Layout,
    actions: VecDeque<Action>,
}

impl Table {
    /// A table without lanes. An offer with a larger layout is refused.
    pub fn new(lanes_max: u32, layout: Layout) -> Self {
        assert!(lanes_max <= LaneNumber::PLACES, "a table has at most 65,536 places");
        Self { places: Vec::new(), free: Vec::new(), lanes_max, layout, actions: VecDeque::new() }
    }

    /// The next thing to do.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Begins to make a lane.
    pub fn open(&mut self, peer: Peer, token: u64) -> Result<LaneNumber, Exhausted> {
        self.begin(peer, Purpose::Offer { token })
    }

    /// Begins to make the other end of an offered lane.
    pub fn accept(&mut self, offer: Offer) -> Result<LaneNumber, Exhausted> {
        let begun = self.begin(offer.peer, Purpose::Answer(offer));
        if begun.is_err() {
            self.refuse(offer, Refusal::NoRoom);
        }
        begun
    }

    /// Makes no other end.
    pub fn refuse(&mut self, offer: Offer, why: Refusal) {
        let message = Message::Refuse { to: offer.number, why };
        self.actions.push_back(Action::Send { to: offer.peer, message });
    }

    /// The grant for a lane has ended.
    pub fn granted(&mut self, number: LaneNumber, result: Option<RemoteKey>) {
        let Some(place) = self.place(number) else { return };
        let LaneState::Granting { peer, purpose } = place.state else { return };
        let Some(key) = result else {
            self.free(number);
            match purpose {
                Purpose::Offer { token } => self.tell_refused(token, Refusal::Exhausted),
                Purpose::Answer(offer) => {
                    self.refuse(offer, Refusal::NoRoom);
                    self.tell_refused(offer.token, Refusal::Exhausted);
                }
                Purpose::Nothing => {}
            }
            return;
        };
        match purpose {
            Purpose::Offer { token } => {
                self.set(number, LaneState::Offered { peer, key, token });
                let layout = self.layout;
                let message = Message::Open { number, key: key.0, token, layout };
                self.actions.push_back(Action::Send { to: peer, message });
            }
            Purpose::Answer(offer) => {
                let Offer { token, layout, .. } = offer;
                let remote = Remote { peer, number: offer.number, key: offer.key, layout };
                let message = Message::Accept { to: offer.number, number, key: key.0 };
                self.actions.push_back(Action::Send { to: peer, message });
                self.join(number, token, remote, key);
            }
            Purpose::Nothing => self.revoke(number, key),
        }
    }

    /// The revocation of the key of a lane has ended: its memory is free.
    pub fn revoked(&mut self, number: LaneNumber) {
        if self.place(number).is_some_and(|place| place.state == LaneState::Revoking) {
            self.free(number);
        }
    }

    /// A peer sent a message of a carrier.
    pub fn message(&mut self, from: Peer, bytes: &[u8]) {
        let handled = Message::decode(bytes).and_then(|message| self.handle(from, message));
        if let Err(violation) = handled {
            self.actions.push_back(Action::Disconnect { peer: from, violation });
        }
    }

    fn handle(&mut self, from: Peer, message: Message) -> Result<(), Violation> {
        match message {
            Message::Open { number, key, token, layout } => {
                let key = RemoteKey(key);
                let offer = Offer { peer: from, token, layout, number, key };
                if layout.fits(self.layout) {
                    self.actions.push_back(Action::Offered(offer));
                } else {
                    self.refuse(offer, Refusal::TooLarge);
                }
            }
            Message::Accept { to, number, key } => match self.of_peer(to, from) {
                Some(LaneState::Offered { peer, key: own, token }) => {
                    let (key, layout) = (RemoteKey(key), self.layout);
                    self.join(to, token, Remote { peer, number, key, layout }, own);
                }
                // This end was closed before the answer came.
                None => self.actions.push_back(Action::Send {
                    to: from,
                    message: Message::Close { to: number, is_complete: true },
                }),
                Some(_) => return Err(Violation::NotOffered(to.0)),
            },
            Message::Refuse { to, why } => {
                if let Some(LaneState::Offered { key, token, .. }) = self.of_peer(to, from) {
                    self.revoke(to, key);
                    self.tell_refused(token, why);
                }
            }
            Message::Close { to, is_complete } => {
                if let Some(LaneState::Joined { key, .. }) = self.of_peer(to, from) {
                    self.over(to, key, is_complete);
                }
            }
        }
        Ok(())
    }

    /// The program sends no more. `is_complete` if nothing that it sent is kept back.
    pub fn finish(&mut self, number: LaneNumber, is_complete: bool) {
        if let Some(Slot { state: LaneState::Joined { remote, .. }, .. }) = self.place(number) {
            // A peer that was told before ignores the second time.
            let (to, message) = (remote.peer, Message::Close { to: remote.number, is_complete });
            self.actions.push_back(Action::Send { to, message });
        }
    }

    /// The program gave its end up, after [`Table::finish`].
    pub fn close(&mut self, number: LaneNumber) {
        let Some(place) = self.place(number) else { return };
        match place.state {
            LaneState::Granting { peer, .. } => {
                self.set(number, LaneState::Granting { peer, purpose: Purpose::Nothing });
            }
            LaneState::Offered { key, .. }
            | LaneState::Over { key }
            | LaneState::Joined { key, .. } => {
                self.revoke(number, key);
            }
            LaneState::Free | LaneState::Revoking => {}
        }
    }

    /// A peer is dead, out of reach or disconnected.
    pub fn down(&mut self, peer: Peer) {
        for place in 0..self.places.len() {
            let number = LaneNumber::new(place, self.places[place].generation);
            match self.of_peer(number, peer) {
                Some(LaneState::Granting { purpose, .. }) => {
                    self.set(number, LaneState::Granting { peer, purpose: Purpose::Nothing });
                    match purpose {
                        Purpose::Offer { token } | Purpose::Answer(Offer { token, .. }) => {
                            self.tell_refused(token, Refusal::PeerDown);
                        }
                        Purpose::Nothing => {}
                    }
                }
                Some(LaneState::Offered { key, token, .. }) => {
                    self.revoke(number, key);
                    self.tell_refused(token, Refusal::PeerDown);
                }
                Some(LaneState::Joined { key, .. }) => self.over(number, key, false),
                _ => {}
            }
        }
    }

    /// The peer of a lane that both ends have.
    pub fn joined_with(&self, number: LaneNumber) -> Option<Peer> {
        match self.place(number)?.state {
            LaneState::Joined { remote, .. } => Some(remote.peer),
            _ => None,
        }
    }

    /// Lanes that have a place, whatever their state.
    pub fn count(&self) -> usize {
        self.places.len() - self.free.len()
    }

    fn begin(&mut self, peer: Peer, purpose: Purpose) -> Result<LaneNumber, Exhausted> {
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.places.len() < self.lanes_max as usize => {
                self.places.push(Slot { generation: 0, state: LaneState::Free });
                self.places.len() - 1
            }
            None => return Err(Exhausted { maximum: self.lanes_max }),
        };
        let number = LaneNumber::new(place, self.places[place].generation);
        self.set(number, LaneState::Granting { peer, purpose });
        self.actions.push_back(Action::Grant { number, peer });
        Ok(number)
    }

    fn join(&mut self, number: LaneNumber, token: u64, remote: Remote, key: RemoteKey) {
        self.set(number, LaneState::Joined { remote, key });
        self.actions.push_back(Action::Join { number, token, remote });
    }

    fn over(&mut self, number: LaneNumber, key: RemoteKey, is_complete: bool) {
        self.set(number, LaneState::Over { key });
        self.actions.push_back(Action::End { number, is_complete });
    }

    fn revoke(&mut self, number: LaneNumber, key: RemoteKey) {
        self.set(number, LaneState::Revoking);
        self.actions.push_back(Action::Revoke { number, key });
    }

    fn free(&mut self, number: LaneNumber) {
        let place = &mut self.places[number.place()];
        place.state = LaneState::Free;
        place.generation = place.generation.wrapping_add(1);
        self.free.push(number.place());
        self.actions.push_back(Action::Free { number });
    }

    fn tell_refused(&mut self, token: u64, why: Refusal) {
        self.actions.push_back(Action::Refused { token, why });
    }

    fn set(&mut self, number: LaneNumber, state: LaneState) {
        self.places[number.place()].state = state;
    }

    fn place(&self, number: LaneNumber) -> Option<&Slot> {
        let place = self.places.get(number.place())?;
        (LaneNumber::new(number.place(), place.generation) == number).then_some(place)
    }

    /// The state of a lane, if it is with this peer.
    fn of_peer(&self, number: LaneNumber, peer: Peer) -> Option<LaneState> {
        let state = self.place(number)?.state;
        let with = match state {
            LaneState::Granting { peer, .. } | LaneState::Offered { peer, .. } => peer,
            LaneState::Joined { remote, .. } => remote.peer,
            LaneState::Free | LaneState::Over { .. } | LaneState::Revoking => return None,
        };
        (with == peer).then_some(state)
    }
}

/// Drives a table with what `input` says: messages of two peers, calls, and ends of grants. Places
/// and actions stay within their bounds.
///
/// # Panics
/// When the table breaks an invariant.
pub fn fuzz_table(input: &[u8]) {
    const LANES_MAX: u32 = 4;
    let mut table = Table::new(LANES_MAX, Layout { slots: 32, sink_bytes: 8192 });
    let mut offers = Vec::new();
    let (mut granting, mut revoking) = (Vec::new(), Vec::new());
    let mut rest = input;
    while let Some((choice, tail)) = rest.split_first() {
        let (peer, length) = (Peer(u32::from(choice & 1)), usize::from(choice >> 3));
        let (bytes, behind) = tail.split_at(length.min(tail.len()));
        rest = behind;
        match choice >> 1 & 3 {
            0 => table.message(peer, bytes),
            1 => drop(table.open(peer, 7)),
            2 if length == 0 => table.down(peer),
            2 => {
                let number = LaneNumber(u32::from(bytes.first().copied().unwrap_or(0) & 7));
                table.close(number);
            }
            _ => {
                if let Some(offer) = offers.pop() {
                    let _ = table.accept(offer);
                }
                if let Some(number) = granting.pop() {
                    table.granted(number, (length != 1).then_some(RemoteKey(5)));
                }
                if let Some(number) = revoking.pop() {
                    table.revoked(number);
                }
            }
        }
        while let Some(action) = table.next_action() {
            match action {
                Action::Grant { number, .. } => granting.push(number),
                Action::Revoke { number, .. } => revoking.push(number),
                Action::Offered(offer) => offers = vec![offer],
                Action::Join { number, remote, .. } => {
                    assert_eq!(table.joined_with(number), Some(remote.peer), "it is joined");
                }
                _ => {}
            }
        }
        assert!(table.count() <= LANES_MAX as usize, "more lanes than allowed");
        assert!(granting.len() + revoking.len() <= table.count(), "a place is used twice");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LAYOUT: Layout = Layout { slots: 16, sink_bytes: 4096 };
    const PEER: Peer = Peer(3);
    const OTHER: Peer = Peer(4);

    fn actions(table: &mut Table) -> Vec<Action> {
        std::iter::from_fn(|| table.next_action()).collect()
    }

    fn sent(table: &mut Table) -> Vec<Message> {
        let all = actions(table).into_iter();
        all.filter_map(|action| match action {
            Action::Send { message, .. } => Some(message),
            _ => None,
        })
        .collect()
    }

    /// A table with one lane that was offered to [`PEER`].
    fn offering() -> (Table, LaneNumber) {
        let mut table = Table::new(2, LAYOUT);
        let number = table.open(PEER, 9).expect("room");
        table.granted(number, Some(RemoteKey(1)));
        actions(&mut table);
        (table, number)
    }

    fn accept(to: LaneNumber) -> Vec<u8> {
        Message::Accept { to, number: LaneNumber(77), key: 2 }.encode()
    }

    #[test]
    fn two_tables_make_a_lane_and_close_it() {
        let (mut left, mut right) = (Table::new(1, LAYOUT), Table::new(1, LAYOUT));
        let number = left.open(PEER, 9).expect("room");
        assert_eq!(actions(&mut left), [Action::Grant { number, peer: PEER }]);
        left.granted(number, Some(RemoteKey(1)));
        let open = sent(&mut left)[0];
        right.message(OTHER, &open.encode());
        let [Action::Offered(offer)] = actions(&mut right)[..] else { panic!("no offer") };
        assert_eq!((offer.peer, offer.token, offer.layout), (OTHER, 9, LAYOUT));
        let answer = right.accept(offer).expect("room");
        right.granted(answer, Some(RemoteKey(2)));
        assert_eq!(right.joined_with(answer), Some(OTHER));
        let message = sent(&mut right)[0];
        left.message(PEER, &message.encode());
        let remote = Remote { peer: PEER, number: answer, key: RemoteKey(2), layout: LAYOUT };
        assert_eq!(actions(&mut left), [Action::Join { number, token: 9, remote }]);
        left.finish(number, true);
        left.close(number);
        let close = Message::Close { to: answer, is_complete: true };
        let revoke = Action::Revoke { number, key: RemoteKey(1) };
        assert_eq!(actions(&mut left), [Action::Send { to: PEER, message: close }, revoke]);
        right.message(OTHER, &close.encode());
        assert_eq!(actions(&mut right), [Action::End { number: answer, is_complete: true }]);
        right.close(answer);
        assert_eq!(actions(&mut right), [Action::Revoke { number: answer, key: RemoteKey(2) }]);
        for (table, number) in [(&mut left, number), (&mut right, answer)] {
            assert_eq!(table.count(), 1, "the key may still be in use");
            table.revoked(number);
            assert_eq!(table.count(), 0);
        }
    }

    #[test]
    fn a_place_that_was_used_again_has_another_number() {
        let (mut table, number) = offering();
        table.close(number);
        table.revoked(number);
        let again = table.open(PEER, 10).expect("room");
        table.granted(again, Some(RemoteKey(3)));
        assert_eq!(again.place(), number.place());
        assert_ne!(again, number);
        actions(&mut table);
        table.message(PEER, &accept(number));
        let close = Message::Close { to: LaneNumber(77), is_complete: true };
        assert_eq!(sent(&mut table), [close], "the answer to the former lane is not believed");
        assert_eq!(table.joined_with(again), None);
    }

    #[test]
    fn an_answer_of_another_peer_does_not_count() {
        let (mut table, number) = offering();
        table.message(OTHER, &accept(number));
        table.message(OTHER, &Message::Close { to: number, is_complete: true }.encode());
        let refuse = Message::Refuse { to: number, why: Refusal::Unwanted };
        table.message(OTHER, &refuse.encode());
        assert_eq!(table.joined_with(number), None);
        table.message(PEER, &accept(number));
        assert_eq!(table.joined_with(number), Some(PEER));
    }

    #[test]
    fn a_second_answer_ends_the_connection_to_the_peer() {
        let (mut table, number) = offering();
        table.message(PEER, &accept(number));
        actions(&mut table);
        table.message(PEER, &accept(number));
        let violation = Violation::NotOffered(number.0);
        assert_eq!(actions(&mut table), [Action::Disconnect { peer: PEER, violation }]);
    }

    #[test]
    fn a_peer_that_dies_ends_lanes_in_every_state() {
        let (mut table, offered) = offering();
        let granting = table.open(PEER, 11).expect("room");
        actions(&mut table);
        assert_eq!(table.open(PEER, 12), Err(Exhausted { maximum: 2 }));
        table.down(PEER);
        let refused = |token| Action::Refused { token, why: Refusal::PeerDown };
        let revoke = Action::Revoke { number: offered, key: RemoteKey(1) };
        assert_eq!(actions(&mut table), [revoke, refused(9), refused(11)]);
        table.granted(granting, Some(RemoteKey(4)));
        let late = Action::Revoke { number: granting, key: RemoteKey(4) };
        assert_eq!(actions(&mut table), [late], "a key that comes late is not left in force");
    }

    #[test]
    fn a_layout_that_is_too_large_is_refused() {
        let mut table = Table::new(1, LAYOUT);
        let layout = Layout { slots: 32, sink_bytes: 4096 };
        let (number, key) = (LaneNumber(5), 6);
        table.message(PEER, &Message::Open { number, key, token: 1, layout }.encode());
        let refuse = Message::Refuse { to: number, why: Refusal::TooLarge };
        assert_eq!(sent(&mut table), [refuse]);
    }

    proptest! {
        #[test]
        fn any_messages_and_calls_keep_the_invariants(
            input in prop::collection::vec(any::<u8>(), 0..400),
        ) {
            fuzz_table(&input);
        }
    }
}

//! Lanes that two processes keep between connections, so that the next one needs no daemon.
//!
//! A connection that ends leaves its lane mapped at both ends. End 0, the accepting process, says
//! that it is done with it ([`ShmLane::rest`]); after that end 1 alone may write to it. When end 1
//! has connected again it makes the lane as new and posts an *invitation*, which names the
//! connection ([`ShmLane::invite`]). The process that accepted that very connection claims it.
//!
//! ```text
//! end 0:  rest(round) ····················· claim ─ use ─ rest(round + 1)
//! end 1:              rests? renew · invite ······· use      (or withdraw · invite another)
//! ```
//!
//! # Invariants
//! - Between `rest` and `claim` end 0 reads the invitation and nothing else of the lane.
//! - One word decides between claim and withdrawal, by compare and exchange.
//! - With the invitation the attention of end 0 is armed: threads of it that sleep on TCP know
//!   nothing of the lane yet, and end 1 may write as soon as it is claimed.
//! - Each use has a round, so that an end 0 which claimed and did not say so yet is not taken for
//!   one that rests.
//! - The layer above keeps lanes between processes of one user alone: end 1 could forge an
//!   invitation to a connection that it does not hold.

use std::sync::atomic::{AtomicU64, Ordering};

use weft_fabric::{Attention, WaitFor};

use super::{Block, ShmLane};
use crate::ring::RingMemory;
use crate::ring::SlotMemory;

/// Offset of the word of end 0: the round above the number of messages it sent; 0 before the first.
const RESTS: usize = 64;
/// Offset of the invitation, which end 1 posts and end 0 claims.
const INVITATION: usize = 128;

const ROUND_SHIFT: u32 = 48;
const STATE_SHIFT: u32 = 62;
const FINGERPRINT: u64 = (1 << ROUND_SHIFT) - 1;
/// Rounds are counted from the first to this, and begin anew.
const ROUND_MAX: u32 = (1 << (STATE_SHIFT - ROUND_SHIFT)) - 1;
/// The round of a lane that was never kept.
pub const FIRST_ROUND: u32 = 1;

/// States of an invitation; 0 is none.
const INVITED: u64 = 1;
const CLAIMED: u64 = 2;
const ABANDONED: u64 = 3;

/// End 1 offers the lane to whoever accepted one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Invitation(u64);

impl Invitation {
    /// For the connection with this fingerprint, of which 48 bits count, in `round`.
    #[must_use]
    pub fn new(round: u32, fingerprint: u64) -> Self {
        let round = u64::from(round & ROUND_MAX) << ROUND_SHIFT;
        Self(INVITED << STATE_SHIFT | round | fingerprint & FINGERPRINT)
    }

    /// The round it begins.
    #[must_use]
    pub fn round(self) -> u32 {
        u32::try_from(self.0 >> ROUND_SHIFT).unwrap_or(0) & ROUND_MAX
    }

    /// Whether it is for the connection with this fingerprint.
    #[must_use]
    pub fn is_for(self, fingerprint: u64) -> bool {
        self.0 & FINGERPRINT == fingerprint & FINGERPRINT
    }

    const fn claimed(self) -> u64 {
        self.0 & !(INVITED << STATE_SHIFT) | CLAIMED << STATE_SHIFT
    }
}

/// The round after `round`.
#[must_use]
pub fn next_round(round: u32) -> u32 {
    round % ROUND_MAX + 1
}

impl ShmLane {
    fn rests_word(&self) -> &AtomicU64 {
        self.segment.word64(RESTS)
    }

    fn invitation_word(&self) -> &AtomicU64 {
        self.segment.word64(INVITATION)
    }

    /// End 0 is done with the lane after `round`, in which it sent so many messages. It may claim
    /// the next invitation.
    pub fn rest(&self, round: u32, sent: u64) {
        let sent = sent.min(u32::MAX.into());
        self.rests_word().store(u64::from(round) << 32 | sent, Ordering::Release);
    }

    /// For end 1: how many messages end 0 sent in `round`, when it is done with that.
    #[must_use]
    pub fn rests(&self, round: u32) -> Option<u64> {
        let word = self.rests_word().load(Ordering::Acquire);
        (word >> 32 == u64::from(round)).then_some(word & u64::from(u32::MAX))
    }

    /// End 1, which alone may write to the lane now, makes it as new: `sent` and `received` are the
    /// numbers of messages that went over it since it was new.
    pub fn renew(&self, sent: u64, received: u64) {
        for (direction, messages) in [(&self.sends, sent), (&self.receives, received)] {
            for number in 0..messages.min(u64::from(self.layout.slots)) {
                (&direction).slot(number).status().store(0, Ordering::Relaxed);
            }
            direction.words.renew();
        }
        self.open_sleepers();
    }

    /// End 1 offers the lane, which it made as new.
    pub fn invite(&self, invitation: Invitation) {
        self.peer_attention(WaitFor::Data).store(Attention::Armed as u32, Ordering::Relaxed);
        self.invitation_word().store(invitation.0, Ordering::Release);
    }

    /// End 1 takes the offer back; false when it is claimed already.
    #[must_use]
    pub fn withdraw(&self, invitation: Invitation) -> bool {
        self.exchange(invitation, 0)
    }

    /// For end 1: whether end 0 took the lane for the connection.
    #[must_use]
    pub fn is_claimed(&self, invitation: Invitation) -> bool {
        self.invitation_word().load(Ordering::Acquire) == invitation.claimed()
    }

    /// For end 0: what end 1 offers, if anything.
    #[must_use]
    pub fn invitation(&self) -> Option<Invitation> {
        let word = self.invitation_word().load(Ordering::Relaxed);
        (word >> STATE_SHIFT == INVITED).then_some(Invitation(word))
    }

    /// End 0 takes the lane for the connection that `invitation` is for; false when that was
    /// withdrawn.
    #[must_use]
    pub fn claim(&self, invitation: Invitation) -> bool {
        let is_taken = self.exchange(invitation, invitation.claimed());
        if is_taken {
            self.open_sleepers();
        }
        is_taken
    }

    /// End 1 will not offer the lane again.
    pub fn abandon(&self) {
        self.invitation_word().store(ABANDONED << STATE_SHIFT, Ordering::Relaxed);
    }

    /// For end 0: the lane will not be offered again.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.invitation_word().load(Ordering::Relaxed) >> STATE_SHIFT == ABANDONED
    }

    fn exchange(&self, invitation: Invitation, to: u64) -> bool {
        self.invitation_word()
            .compare_exchange(invitation.0, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}

impl Block {
    /// As in fresh memory.
    fn renew(&self) {
        for word in [&self.taken, &self.sink_taken, &self.messages_read, &self.stream_bytes] {
            word.store(0, Ordering::Relaxed);
        }
        for word in &self.words {
            word.store(0, Ordering::Relaxed);
        }
        for word in [&self.data_attention, &self.room_attention] {
            word.store(Attention::Watching as u32, Ordering::Relaxed);
        }
        self.receiver_sleeps.renew();
        self.sender_sleeps.renew();
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use proptest::prelude::*;
    use weft_fabric::{Lane, ReceiveCursor, SendCursor};
    use weft_memory::CopyMode;

    use super::super::{LaneLayout, ShmLane};
    use super::*;

    const LAYOUT: LaneLayout = LaneLayout { slots: 16, sink_bytes: 4096 };

    fn pair() -> (ShmLane, ShmLane) {
        let (one, file) = ShmLane::create(LAYOUT, CopyMode::Plain).expect("memory");
        let two = ShmLane::open(file.as_fd(), 1, CopyMode::Plain).expect("a lane");
        (one, two)
    }

    /// Every byte of the lane that is not the reserve's own, but for sinks.
    fn bytes(lane: &ShmLane) -> Vec<u8> {
        let mut found = vec![0; LAYOUT.sink_start(0)];
        lane.segment.read(0, &mut found);
        found[RESTS..RESTS + 8].fill(0);
        found[INVITATION..INVITATION + 8].fill(0);
        found
    }

    proptest! {
        #[test]
        fn a_renewed_lane_is_as_new(talk in proptest::collection::vec(0_usize..200, 0..60)) {
            let (one, two) = pair();
            let mut sends = [SendCursor::default(); 2];
            let mut receives = [ReceiveCursor::default(); 2];
            for (number, length) in talk.iter().enumerate() {
                let side = length % 2;
                let (from, to) = if side == 0 { (&one, &two) } else { (&two, &one) };
                to.arm(WaitFor::Data);
                to.settle();
                from.put(&mut sends[side], &vec![7; *length]);
                from.send(&mut sends[side], 1, &[b"x"]).expect("room");
                from.post(number % ShmLane::WORDS, 9);
                let _ = from.must_ring(WaitFor::Data);
                to.advance(&mut receives[side], true);
                to.release(&mut receives[side], *length as u64);
            }
            one.rest(FIRST_ROUND, sends[0].messages);
            prop_assert_eq!(two.rests(FIRST_ROUND), Some(sends[0].messages));
            two.renew(sends[1].messages, sends[0].messages);
            // Payload of slots stays: without its number it is nothing.
            let (fresh, other) = pair();
            let mut found = bytes(&two);
            for slot in 0..32 {
                let start = LAYOUT.slots_start(0) + slot * 128;
                found[start + 8..start + 128].fill(0);
            }
            prop_assert!(found == bytes(&fresh));
            drop(other);
        }
    }

    #[test]
    fn an_invitation_is_claimed_or_withdrawn_and_never_both() {
        let (one, two) = pair();
        one.rest(FIRST_ROUND, 0);
        let invitation = Invitation::new(1, 0xabcd);
        assert_eq!(one.invitation(), None);
        two.invite(invitation);
        let seen = one.invitation().expect("it was posted");
        assert!(seen.is_for(0xabcd) && !seen.is_for(0xabce) && seen.round() == 1);
        assert!(two.withdraw(invitation) && !one.claim(seen) && !two.is_claimed(invitation));
        two.invite(invitation);
        assert!(one.claim(seen) && !two.withdraw(invitation) && two.is_claimed(invitation));
        assert_eq!(one.invitation(), None, "a claimed lane is not offered");
    }

    #[test]
    fn an_end_that_claims_is_rung_for_the_first_message() {
        let (one, two) = pair();
        let invitation = Invitation::new(2, 7);
        two.renew(0, 0);
        two.invite(invitation);
        assert!(one.claim(invitation));
        assert_eq!(one.attention(WaitFor::Data), Attention::Armed);
        assert!(two.must_ring(WaitFor::Data));
    }

    #[test]
    fn rounds_begin_anew_and_none_is_0() {
        let mut round = FIRST_ROUND;
        for _ in 0..40_000 {
            round = next_round(round);
            assert_eq!(Invitation::new(round, 0).round(), round);
            assert_ne!(round, 0);
        }
    }

    #[test]
    fn an_end_that_claimed_does_not_rest_before_it_says_so() {
        let (one, two) = pair();
        assert_eq!(two.rests(FIRST_ROUND), None);
        one.rest(1, 3);
        assert_eq!(two.rests(1), Some(3));
        let invitation = Invitation::new(next_round(1), 1);
        two.invite(invitation);
        assert!(one.claim(invitation));
        assert_eq!(two.rests(2), None);
        one.rest(2, 5);
        assert_eq!((two.rests(1), two.rests(2)), (None, Some(5)));
    }

    #[test]
    fn an_abandoned_lane_is_told_from_one_that_waits() {
        let (one, two) = pair();
        assert!(!one.is_abandoned());
        two.invite(Invitation::new(u32::MAX, u64::MAX));
        assert!(!one.is_abandoned());
        two.abandon();
        assert!(one.is_abandoned() && one.invitation().is_none());
    }
}

//! Lanes that two processes keep between connections, so that the next one needs no daemon.
//!
//! When a connection ends, its lane stays mapped at both ends. End 0 is the accepting process. It
//! announces that it no longer uses the lane ([`ShmLane::rest`]); from then on only end 1 may write
//! to the lane. When end 1 connects again, it resets the lane and posts an *invitation* that names
//! the new connection ([`ShmLane::invite`]). The process that accepted that connection claims it.
//!
//! ```text
//! end 0:  rest(round) ····················· claim ─ use ─ rest(round + 1)
//! end 1:              rests? renew · invite ······· use      (or withdraw · invite another)
//! ```
//!
//! # Invariants
//! - Between `rest` and `claim`, end 0 reads the invitation and no other word of the lane.
//! - A compare-and-exchange on one word decides between claim and withdrawal.
//! - The invitation arms the attention word of end 0. Threads of end 0 that sleep on TCP do not
//!   know the lane yet, and end 1 may write as soon as the lane is claimed.
//! - Each use has a round number. So end 1 does not mistake an end 0 that claimed the lane, and
//!   whose rest word still shows the last round, for one that rests.
//! - Nothing here says whose connection an invitation names: end 1 could forge one to a connection
//!   that it does not hold, and end 0 could claim one to a connection that it did not accept. The
//!   layer above asks the kernel where the two are of different users.

use std::sync::atomic::{AtomicU64, Ordering};

use weft_fabric::{Attention, WaitFor};

use super::{Block, ShmLane};
use crate::ring::RingMemory;
use crate::ring::SlotMemory;

/// Offset of the word of end 0: the round in the high half, its sent messages in the low half; 0
/// before the first rest.
const RESTS: usize = 64;
/// Offset of the invitation, which end 1 posts and end 0 claims.
const INVITATION: usize = 128;

const ROUND_SHIFT: u32 = 48;
const STATE_SHIFT: u32 = 62;
const FINGERPRINT: u64 = (1 << ROUND_SHIFT) - 1;
/// Rounds count from [`FIRST_ROUND`] to this number and then start again.
const ROUND_MAX: u32 = (1 << (STATE_SHIFT - ROUND_SHIFT)) - 1;
/// The round of a new lane.
pub const FIRST_ROUND: u32 = 1;

/// The word of end 0 when it will claim no invitation again. No round is so high.
const RETIRED: u64 = u64::MAX;

/// States of an invitation; 0 means that there is none.
const INVITED: u64 = 1;
const CLAIMED: u64 = 2;
const ABANDONED: u64 = 3;

/// End 1 offers the lane to the process that accepted a certain connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Invitation(u64);

impl Invitation {
    /// An invitation to the connection with this fingerprint, of which 48 bits are used, in
    /// `round`.
    #[must_use]
    pub fn new(round: u32, fingerprint: u64) -> Self {
        let round = u64::from(round & ROUND_MAX) << ROUND_SHIFT;
        Self(INVITED << STATE_SHIFT | round | fingerprint & FINGERPRINT)
    }

    /// The round that the invitation begins.
    #[must_use]
    pub fn round(self) -> u32 {
        u32::try_from(self.0 >> ROUND_SHIFT).unwrap_or(0) & ROUND_MAX
    }

    /// Whether the invitation is to the connection with this fingerprint.
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

    /// End 0 no longer uses the lane after `round`, in which it sent `sent` messages. End 0 may
    /// then claim the next invitation.
    pub fn rest(&self, round: u32, sent: u64) {
        let sent = sent.min(u32::MAX.into());
        self.rests_word().store(u64::from(round) << 32 | sent, Ordering::Release);
    }

    /// For end 1: how many messages end 0 sent in `round`; `None` while end 0 still uses the lane.
    #[must_use]
    pub fn rests(&self, round: u32) -> Option<u64> {
        let word = self.rests_word().load(Ordering::Acquire);
        (word >> 32 == u64::from(round)).then_some(word & u64::from(u32::MAX))
    }

    /// End 0 announces that it will claim no invitation to the lane again.
    pub fn retire(&self) {
        self.rests_word().store(RETIRED, Ordering::Relaxed);
    }

    /// For end 1: whether end 0 retired the lane.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.rests_word().load(Ordering::Relaxed) == RETIRED
    }

    /// End 1 resets the lane, which only end 1 may write now. `sent` and `received` count the
    /// messages that end 1 sent and received since the lane was last new.
    pub fn renew(&self, sent: u64, received: u64) {
        for (direction, messages) in [(&self.sends, sent), (&self.receives, received)] {
            for number in 0..messages.min(u64::from(self.layout.slots)) {
                (&direction).slot(number).status().store(0, Ordering::Relaxed);
            }
            direction.words.renew();
        }
        self.open_sleepers();
    }

    /// End 1 offers the lane after [`ShmLane::renew`].
    pub fn invite(&self, invitation: Invitation) {
        self.peer_attention(WaitFor::Data).store(Attention::Armed as u32, Ordering::Relaxed);
        self.invitation_word().store(invitation.0, Ordering::Release);
    }

    /// End 1 withdraws the offer. False when end 0 has already claimed the lane.
    #[must_use]
    pub fn withdraw(&self, invitation: Invitation) -> bool {
        self.exchange(invitation, 0)
    }

    /// For end 1: whether end 0 claimed this invitation.
    #[must_use]
    pub fn is_claimed(&self, invitation: Invitation) -> bool {
        self.invitation_word().load(Ordering::Acquire) == invitation.claimed()
    }

    /// For end 0: the invitation that end 1 posted, if any.
    #[must_use]
    pub fn invitation(&self) -> Option<Invitation> {
        let word = self.invitation_word().load(Ordering::Relaxed);
        (word >> STATE_SHIFT == INVITED).then_some(Invitation(word))
    }

    /// End 0 takes the lane for the connection that `invitation` names. False when end 1 withdrew
    /// the invitation.
    #[must_use]
    pub fn claim(&self, invitation: Invitation) -> bool {
        let is_taken = self.exchange(invitation, invitation.claimed());
        if is_taken {
            self.open_sleepers();
        }
        is_taken
    }

    /// End 1 announces that it will not offer the lane again.
    pub fn abandon(&self) {
        self.invitation_word().store(ABANDONED << STATE_SHIFT, Ordering::Relaxed);
    }

    /// For end 0: whether end 1 abandoned the lane.
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
    /// Resets all words to their state in fresh memory.
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
        for word in [&self.data_nap, &self.room_nap] {
            word.store(0, Ordering::Relaxed);
        }
        self.receiver_sleeps.renew();
        self.sender_sleeps.renew();
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use proptest::prelude::*;
    use weft_fabric::{Carry, ReceiveCursor, SendCursor, Wake};
    use weft_memory::CopyMode;

    use super::super::{LaneLayout, ShmLane};
    use super::*;

    const LAYOUT: LaneLayout = LaneLayout { slots: 16, sink_bytes: 4096 };

    fn pair() -> (ShmLane, ShmLane) {
        let (one, file) = ShmLane::create(LAYOUT, CopyMode::Plain).expect("memory");
        let two = ShmLane::open(file.as_fd(), 1, CopyMode::Plain).expect("a lane");
        (one, two)
    }

    /// All bytes of the lane except the sinks, with the words of the reserve set to 0.
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
            // Slot payload is not cleared: without a valid status word it is never read.
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
    fn an_invitation_is_either_claimed_or_withdrawn() {
        let (one, two) = pair();
        one.rest(FIRST_ROUND, 0);
        let invitation = Invitation::new(1, 0xabcd);
        assert_eq!(one.invitation(), None);
        two.invite(invitation);
        let seen = one.invitation().expect("end 1 posted an invitation");
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
    fn a_retired_lane_is_told_from_one_that_rests() {
        let (one, two) = pair();
        assert!(!two.is_retired());
        one.rest(next_round(ROUND_MAX - 1), u64::MAX);
        assert!(!two.is_retired() && two.rests(ROUND_MAX).is_some());
        one.retire();
        assert!(two.is_retired() && two.rests(ROUND_MAX).is_none());
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

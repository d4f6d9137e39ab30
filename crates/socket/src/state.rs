//! The states of an end, as they lie in memory that other processes can write.
//!
//! Forked children and programs that were started by exec share the memory of an end. A `bool` or
//! an enum there would be undefined behaviour when its byte has another value. So a state lies
//! there as a number, and each number stands for a state. Zero is the beginning, and a number that
//! no weft writes is the state in which an end believes the least.

use std::fmt;
use std::marker::PhantomData;

use zerocopy::{FromBytes, IntoBytes};

/// States that exclude each other.
pub(crate) trait State: Copy + fmt::Debug {
    /// The state that `number` stands for.
    fn of(number: u64) -> Self;
    /// A number that stands for this state.
    fn number(self) -> u64;
}

/// A state, stored as a number. Any number is valid.
#[derive(Clone, Copy, FromBytes, IntoBytes)]
#[repr(transparent)]
pub(crate) struct Stored<S>(u64, PhantomData<S>);

impl<S: State> Stored<S> {
    #[inline]
    pub fn get(self) -> S {
        S::of(self.0)
    }

    #[inline]
    pub fn set(&mut self, state: S) {
        self.0 = state.number();
    }
}

impl<S> Default for Stored<S> {
    fn default() -> Self {
        Self(0, PhantomData)
    }
}

impl<S: State> fmt::Debug for Stored<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

/// How well an end knows the bytes of TCP, which are counted beside the kernel's call that moves
/// them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Count {
    /// All bytes are counted.
    Exact,
    /// A call of the kernel moves bytes that are not counted yet.
    InCall,
    /// A process died in such a call. Nobody knows how many bytes it moved.
    Uncertain,
}

impl State for Count {
    #[inline]
    fn of(number: u64) -> Self {
        match number {
            0 => Self::Exact,
            1 => Self::InCall,
            _ => Self::Uncertain,
        }
    }

    #[inline]
    fn number(self) -> u64 {
        self as u64
    }
}

impl Stored<Count> {
    /// A call of the kernel begins. One that nobody ended was that of a process that died.
    pub fn begin_call(&mut self) {
        self.set(match self.get() {
            Count::Exact => Count::InCall,
            Count::InCall | Count::Uncertain => Count::Uncertain,
        });
    }

    /// The bytes of the call are counted.
    pub fn end_call(&mut self) {
        if self.get() == Count::InCall {
            self.set(Count::Exact);
        }
    }
}

/// Whether an end takes bytes off the lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReceiveState {
    /// It does.
    Open,
    /// It asked the peer to send over TCP what it did not read. Unless the peer cannot, it reads
    /// no more from the lane.
    Recalling,
    /// It gives a reset: the peer broke the protocol, or nobody knows the place in the stream. A
    /// recall is of no use to it any more.
    Broken,
}

impl State for ReceiveState {
    #[inline]
    fn of(number: u64) -> Self {
        match number {
            0 => Self::Open,
            1 => Self::Recalling,
            _ => Self::Broken,
        }
    }

    #[inline]
    fn number(self) -> u64 {
        self as u64
    }
}

/// Whether an end sends more bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SendState {
    /// It does.
    Open,
    /// The direction ended.
    Shut,
    /// Nobody knows the place in the stream: writes give a reset, and so does the end of this
    /// direction to the peer.
    Broken,
}

impl State for SendState {
    #[inline]
    fn of(number: u64) -> Self {
        match number {
            0 => Self::Open,
            1 => Self::Shut,
            _ => Self::Broken,
        }
    }

    #[inline]
    fn number(self) -> u64 {
        self as u64
    }
}

/// Where the bytes lie that were sent on the lane and that the peer did not read there. A direction
/// in any state of [`SendState`] can have sent them again: one that was shut sends them, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum UnreadByPeer {
    /// On the lane alone.
    OnLane,
    /// They were sent again over TCP.
    SentAgain,
}

impl State for UnreadByPeer {
    #[inline]
    fn of(number: u64) -> Self {
        match number {
            1 => Self::SentAgain,
            // An end that is in doubt looks at the lane, where they may be.
            _ => Self::OnLane,
        }
    }

    #[inline]
    fn number(self) -> u64 {
        self as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Leave;

    /// Checks `states`, which begin with the first one, and what other numbers stand for.
    fn check<S: State + PartialEq>(states: &[S], unknown: S) {
        assert_eq!(Stored::<S>::default().get(), states[0]);
        for state in states {
            let mut stored = Stored::default();
            stored.set(*state);
            assert_eq!(stored.get(), *state);
        }
        let first_unknown = states.len() as u64;
        for number in [first_unknown, 0xff, 1 << 8, 1 << 32, (1 << 32) + 1, u64::MAX] {
            assert_eq!(S::of(number), unknown, "{number}");
        }
    }

    #[test]
    fn any_number_is_a_state_and_an_unknown_one_believes_the_least() {
        check(&[Count::Exact, Count::InCall, Count::Uncertain], Count::Uncertain);
        check(
            &[ReceiveState::Open, ReceiveState::Recalling, ReceiveState::Broken],
            ReceiveState::Broken,
        );
        check(&[SendState::Open, SendState::Shut, SendState::Broken], SendState::Broken);
        check(&[UnreadByPeer::OnLane, UnreadByPeer::SentAgain], UnreadByPeer::OnLane);
        let ways = [Leave::ForNow, Leave::GivingBack, Leave::ForGood].map(Some);
        check(&[None, ways[0], ways[1], ways[2]], Some(Leave::ForGood));
    }

    #[test]
    fn a_call_that_nobody_ended_leaves_the_count_uncertain() {
        let mut count = Stored::<Count>::default();
        count.begin_call();
        assert_eq!(count.get(), Count::InCall);
        count.end_call();
        assert_eq!(count.get(), Count::Exact);
        count.begin_call();
        count.begin_call();
        assert_eq!(count.get(), Count::Uncertain);
        count.end_call();
        assert_eq!(count.get(), Count::Uncertain, "the bytes of the dead process stay unknown");
    }
}

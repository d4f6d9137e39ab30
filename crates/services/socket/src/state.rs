//! The states of an end, as they are stored in memory that other processes can write.
//!
//! Forked children, and programs that were started by exec, share the memory of an end. A `bool` or
//! an enum there would be undefined behaviour if its byte had another value. So a state is stored
//! as a number, and each number stands for a state. Zero is the state of a new connection. A number
//! that no weft writes is the state in which an end relies on the least.

use std::fmt;
use std::marker::PhantomData;

use zerocopy::{FromBytes, IntoBytes};

/// A set of states that exclude each other.
pub(crate) trait State: Copy + fmt::Debug {
    /// The state that `number` stands for.
    fn of(number: u64) -> Self;
    /// The number that stands for this state.
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

/// How well an end knows the number of bytes of TCP. It counts them beside the system call that
/// moves them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Count {
    /// All bytes are counted.
    Exact,
    /// A system call moves bytes that are not counted yet.
    InCall,
    /// A process died in such a call, and the number of bytes that it moved is unknown.
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
    /// Begins a system call that moves bytes. A call that did not end was that of a process that
    /// died.
    pub fn begin_call(&mut self) {
        self.set(match self.get() {
            Count::Exact => Count::InCall,
            Count::InCall | Count::Uncertain => Count::Uncertain,
        });
    }

    /// Ends the call, whose bytes are counted now.
    pub fn end_call(&mut self) {
        if self.get() == Count::InCall {
            self.set(Count::Exact);
        }
    }
}

/// Whether an end takes bytes from the lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReceiveState {
    /// The end takes them.
    Open,
    /// The end asked the peer to send the unread bytes over TCP. It reads no more from the lane,
    /// unless the peer cannot send them.
    AwaitingResend,
    /// Reads give a reset: the peer broke the protocol, or the place in the stream is unknown. A
    /// resend is of no more use.
    Broken,
}

impl State for ReceiveState {
    #[inline]
    fn of(number: u64) -> Self {
        match number {
            0 => Self::Open,
            1 => Self::AwaitingResend,
            _ => Self::Broken,
        }
    }

    #[inline]
    fn number(self) -> u64 {
        self as u64
    }
}

/// Whether an end sends bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SendState {
    /// The end sends them.
    Open,
    /// The direction ended.
    Shut,
    /// The place in the stream is unknown. Writes give a reset, and the peer gets one at the end of
    /// this direction.
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

/// The place of the bytes that were sent on the lane and that the peer did not read there. It does
/// not depend on [`SendState`]: a direction that was shut sends such bytes again, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum UnreadByPeer {
    /// The lane alone.
    OnLane,
    /// TCP, since they were sent again.
    SentAgain,
}

impl State for UnreadByPeer {
    #[inline]
    fn of(number: u64) -> Self {
        match number {
            1 => Self::SentAgain,
            // The bytes may be on the lane, so an end in doubt looks there.
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
    use crate::{Leave, Peer, Phase};

    /// Checks `states`, whose first one must be zero. Other numbers must stand for `unknown`.
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
        use Phase::{Deciding, Declined, Free, Fresh, Laned, Pending};
        check(&[Free, Fresh, Deciding, Pending, Laned, Declined], Declined);
        check(&[Peer::Alive, Peer::Ended, Peer::Reset], Peer::Reset);
        check(&[Count::Exact, Count::InCall, Count::Uncertain], Count::Uncertain);
        check(
            &[ReceiveState::Open, ReceiveState::AwaitingResend, ReceiveState::Broken],
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

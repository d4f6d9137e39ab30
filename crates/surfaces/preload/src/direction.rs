//! The two directions of a connection, each behind its lock.
//!
//! A direction's lock lies in memory that forked processes share. The lane is used under one of the
//! two locks and unmapped under both. A thread that takes both takes that of the receiving
//! direction first. No thread sleeps while it holds one.

use std::ops::{Deref, DerefMut};
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use weft_socket::{Leave, ReceiveSide, Receiving, SendSide, Sending};

use crate::arena::Connection;
use crate::guard::{Lock, Rank};
use crate::lane::Lane;
use crate::shadow::KernelSocket;
use crate::{bells, carrier, lanes, log};

/// A locked direction, with the lane if this process has mapped it.
pub struct Locked<'a, S> {
    /// The direction's state.
    pub state: &'a mut S,
    /// The lane, or `None`.
    pub lane: Option<&'a Lane>,
    lock: Lock<'a>,
}

/// A locked receiving direction with a lane: of either kind, or of the one that was looked for.
pub struct ReceiveGuard<'a, L = Lane> {
    direction: Receiving<'a, L, KernelSocket>,
    _lock: Lock<'a>,
}

/// A locked sending direction with a lane, as [`ReceiveGuard`].
pub struct SendGuard<'a, L = Lane> {
    direction: Sending<'a, L, KernelSocket>,
    _lock: Lock<'a>,
}

impl Connection {
    /// Locks the receiving direction. `None` in a signal handler that interrupted the lock's
    /// holder.
    #[inline]
    pub fn receiving(&self) -> Option<Locked<'_, ReceiveSide>> {
        let lock = Lock::take(&self.shared.receive_lock, Rank::Receiving)?;
        // SAFETY: the lock of this direction is held as long as the reference.
        let state = unsafe { &mut *self.shared.receive.get() };
        Some(Locked { state, lane: self.lane(), lock })
    }

    /// Locks the sending direction, as [`Connection::receiving`].
    #[inline]
    pub fn sending(&self) -> Option<Locked<'_, SendSide>> {
        let lock = Lock::take(&self.shared.send_lock, Rank::Sending)?;
        // SAFETY: the lock of this direction is held as long as the reference.
        let state = unsafe { &mut *self.shared.send.get() };
        Some(Locked { state, lane: self.lane(), lock })
    }

    /// Locks the receiving direction of a connection, to which `fd` leads. `None` without a lane,
    /// or as in [`Connection::receiving`].
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as a call it costs redis with 50 clients 5 %")]
    pub fn receiving_on_lane(&self, fd: RawFd) -> Option<ReceiveGuard<'_>> {
        self.receiving()?.on_lane(*self, fd).ok()
    }

    /// Locks the sending direction, as [`Connection::receiving_on_lane`].
    #[inline]
    pub fn sending_on_lane(&self, fd: RawFd) -> Option<SendGuard<'_>> {
        self.sending()?.on_lane(*self, fd).ok()
    }

    /// The lane, for callers that hold a lock of the connection.
    #[inline]
    fn lane(&self) -> Option<&Lane> {
        let lane = self.local.lane.load(Ordering::Acquire);
        // SAFETY: the box was leaked when it was stored and is taken back under both locks, one of
        // which the caller holds.
        (!lane.is_null()).then(|| unsafe { &*lane })
    }

    /// Puts the lane in place.
    pub fn set_lane(&self, lane: Box<Lane>) {
        lanes::taken();
        // The next look for idle connections must not take it for idle.
        self.local.moved_before.store(u64::MAX, Ordering::Relaxed);
        let former = self.local.lane.swap(Box::into_raw(lane), Ordering::AcqRel);
        assert!(former.is_null(), "a connection has one lane");
    }

    /// Takes the lane away and unmaps it.
    pub fn drop_lane(&self) {
        let locks = (self.receiving(), self.sending());
        let lane = self.take_lane();
        drop(locks);
        drop(lane);
    }

    /// Takes the lane away from a connection that left it. A peer that has not followed yet reads
    /// what was recalled out of the memory of the lane. It has that memory by itself, unless the
    /// lane goes over the endpoint: then the lane stays as long as the peer's end.
    pub fn leave_lane_behind(&self) {
        let locks = (self.receiving(), self.sending());
        let lane = self.take_lane();
        drop(locks);
        if let Some(Lane::Endpoint(lane)) = lane.map(|lane| *lane) {
            carrier::keep_for_peer(lane);
        }
    }

    /// True when the connection has a lane over the endpoint of this process.
    pub fn is_on_far_lane(&self) -> bool {
        self.receiving().is_some_and(|receiving| receiving.lane.is_some_and(Lane::is_far))
    }

    /// In a child that was forked or cloned: the connection keeps no lane over an endpoint, which
    /// is its parent's and is not touched.
    pub fn leaves_far_lane_to_parent(&self) {
        let lane = self.local.lane.load(Ordering::Acquire);
        // SAFETY: the box was leaked when it was stored, and this child has one thread, so
        // that nobody takes it back.
        if !lane.is_null() && unsafe { &*lane }.is_far() {
            self.local.lane.store(std::ptr::null_mut(), Ordering::Release);
            lanes::free();
        }
    }

    /// Takes the lane away. The caller holds both locks until this returns.
    pub fn take_lane(&self) -> Option<Box<Lane>> {
        let lane = self.local.lane.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if lane.is_null() {
            return None;
        }
        lanes::free();
        // SAFETY: the pointer came from a box and was swapped out, so nobody else has it: users
        // hold a lock, and both are held.
        let lane = unsafe { Box::from_raw(lane) };
        if lane.is_far() {
            // An arrival may not have been told yet, and is told to nobody from here on. Threads
            // that sleep for the lane have to look at the kernel's socket in its place.
            bells::ring(self.place);
        }
        Some(lane)
    }
}

impl<'a> Locked<'a, ReceiveSide> {
    /// The direction with all that its rules use, or itself when there is no lane.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as `receiving_on_lane`")]
    pub fn on_lane(self, connection: Connection, fd: RawFd) -> Result<ReceiveGuard<'a>, Self> {
        let Some(lane) = self.lane else { return Err(self) };
        Ok(self.over(lane, connection, fd))
    }

    /// As [`Locked::on_lane`] for `lane`, which is that of the direction. Calls that have to be
    /// fast look once which kind it is of ([`crate::lane::either`]).
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as `receiving_on_lane`")]
    pub fn over<L>(self, lane: &'a L, connection: Connection, fd: RawFd) -> ReceiveGuard<'a, L> {
        let (shadow, common) = (KernelSocket { fd, connection }, &connection.shared.common);
        let direction = Receiving { state: self.state, lane, shadow, common };
        ReceiveGuard { direction, _lock: self.lock }
    }
}

impl<'a> Locked<'a, SendSide> {
    /// The direction with all that its rules use, or itself when there is no lane.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as `receiving_on_lane`")]
    pub fn on_lane(self, connection: Connection, fd: RawFd) -> Result<SendGuard<'a>, Self> {
        let Some(lane) = self.lane else { return Err(self) };
        Ok(self.over(lane, connection, fd))
    }

    /// As [`Locked::on_lane`] for `lane`, which is that of the direction.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as `receiving_on_lane`")]
    pub fn over<L>(self, lane: &'a L, connection: Connection, fd: RawFd) -> SendGuard<'a, L> {
        let (shadow, common) = (KernelSocket { fd, connection }, &connection.shared.common);
        let side = connection.side();
        let direction = Sending { state: self.state, lane, shadow, common, side };
        SendGuard { direction, _lock: self.lock }
    }
}

impl<'a, L> Deref for ReceiveGuard<'a, L> {
    type Target = Receiving<'a, L, KernelSocket>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.direction
    }
}

impl<L> DerefMut for ReceiveGuard<'_, L> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.direction
    }
}

impl<'a, L> Deref for SendGuard<'a, L> {
    type Target = Sending<'a, L, KernelSocket>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.direction
    }
}

impl<L> DerefMut for SendGuard<'_, L> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.direction
    }
}

impl<L: weft_fabric::Lane> SendGuard<'_, L> {
    /// Takes the direction back to TCP; false when that cannot be.
    #[cold]
    pub fn leave(&mut self, how: Leave) -> bool {
        let left = self.direction.leave(how);
        if left {
            self.has_left(how);
        }
        left
    }

    /// Leaves the lane to give it back, when nothing is on its way; false when that cannot be.
    pub fn begin_giving_back(&mut self) -> bool {
        let left = self.direction.begin_giving_back();
        if left {
            self.has_left(Leave::GivingBack);
        }
        left
    }

    fn has_left(&self, how: Leave) {
        let KernelSocket { fd, connection } = self.direction.shadow;
        connection.local.full_since.store(0, Ordering::Relaxed);
        connection.unbound_backlog();
        if how == Leave::GivingBack {
            lanes::expect_back(fd, connection);
        }
        log::debug!("connection {} sends over TCP again, {how:?}", connection.place);
    }
}

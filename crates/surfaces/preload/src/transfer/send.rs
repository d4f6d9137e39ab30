//! Writes to a connection.
//!
//! A writer that finds no room looks a little longer, then arms its attention word, looks once more
//! and sleeps on the kernel's socket until the peer rings. The sleep is cut into slices, since
//! a lane that stays full is left for TCP.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::Ordering;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use weft_fabric::{Carry, Lane, WaitFor};
use weft_socket::history::Outlook;
use weft_socket::{
    Drained, Peer, Phase, ReceiveSide, SendSide, Side, StaleWakeups, WriteError, closed,
};
use weft_sync::Step;
use weft_wire::stats::{BYTES_FABRIC_SENT, BYTES_TCP_SENT};

use super::tcp::send_tcp;
use super::{Attempt, How, limits_on, piece, time_left};
use crate::arena::{Connection, flag};
use crate::bells::Bell;
use crate::direction::{Locked, SendGuard};
use crate::lane::either;
use crate::signals::Watch;
use crate::waits::{LOOK_AGAIN_NS, Limit};
use crate::{backlog, calls, process, settling, signals, stats, sys, waits};

impl Connection {
    /// Writes `parts`, all of them when it may block, and returns how many bytes.
    pub fn send(&self, fd: RawFd, parts: &[&[u8]], how: How) -> Result<usize, Errno> {
        let wanted: usize = parts.iter().map(|part| part.len()).sum();
        let mut total = 0;
        let mut fd = fd;
        let mut generation = 0;
        let mut adaptive_wait = self.adaptive_wait();
        let mut waited = false;
        let watch = Watch::new();
        let mut deadline = None;
        let mut rest: Vec<&[u8]>;
        let mut left: &[&[u8]] = parts;
        loop {
            // As long as nothing was done, the call has just noted itself.
            if generation != 0 {
                match calls::number(*self, fd, generation) {
                    Some(now) => fd = now,
                    None if total > 0 => return Ok(total),
                    None => return Err(Errno::BADF),
                }
            }
            generation = self.shared.generation.load(Ordering::Relaxed);
            let mut phase = self.decide(fd, wanted - total);
            if phase == Phase::Pending && self.has(flag::EARLY) && self.blocks(how) {
                phase = self.wait_for_answer(fd);
            }
            let on_tcp = phase != Phase::Laned;
            match self.try_send(fd, left) {
                Attempt::Moved(bytes) | Attempt::MovedTheLast(bytes) => {
                    total += bytes;
                    if waited {
                        self.learn(adaptive_wait, true);
                        waited = false;
                    }
                    if total >= wanted {
                        return Ok(total);
                    }
                    rest = behind(parts, total);
                    left = &rest;
                    adaptive_wait.restart();
                    if self.has(flag::EARLY) {
                        self.wait_for_peer();
                    }
                    continue;
                }
                Attempt::Again | Attempt::Left => continue,
                Attempt::End | Attempt::Failed(_) if total > 0 => return Ok(total),
                Attempt::End => return Err(broken_pipe(how)),
                Attempt::Failed(Errno::PIPE) => return Err(broken_pipe(how)),
                Attempt::Failed(errno) => return Err(errno),
                Attempt::WouldBlock if backlog::made_room() => continue,
                Attempt::WouldBlock => {}
            }
            if !self.blocks(how) {
                self.shared.write_blocks.fetch_add(1, Ordering::Relaxed);
                return if total > 0 { Ok(total) } else { Err(Errno::AGAIN) };
            }
            if watch.saw_interruption() {
                return if total > 0 { Ok(total) } else { Err(Errno::INTR) };
            }
            waited = !on_tcp;
            // On TCP the kernel waits, as without weft.
            match if on_tcp { Step::Sleep } else { adaptive_wait.step() } {
                Step::Spin => std::hint::spin_loop(),
                Step::Yield => adaptive_wait.give_way(),
                Step::Sleep => {
                    if waited {
                        self.learn(adaptive_wait, false);
                        adaptive_wait = self.adaptive_wait();
                        waited = false;
                        if self.naps(fd, WaitFor::Room) {
                            continue;
                        }
                    }
                    match self.sleep_for_room(fd, &mut deadline) {
                        // A handler ran. Unless it has SA_RESTART, the check above ends the call.
                        Ok(()) | Err(Errno::INTR) => {}
                        Err(Errno::CANCELED) => return Err(Errno::CANCELED),
                        Err(_) if total > 0 => return Ok(total),
                        Err(errno) => return Err(errno),
                    }
                }
            }
        }
    }

    fn try_send(&self, fd: RawFd, parts: &[&[u8]]) -> Attempt {
        let Some(sending) = self.sending() else { return Attempt::Failed(Errno::AGAIN) };
        match sending.lane {
            Some(lane) => {
                either!(lane, lane => self.send_beside(sending.over(lane, *self, fd), parts))
            }
            None => self.send_without_lane(fd, sending, parts),
        }
    }

    /// Writes to the lane, or to TCP while the direction is there.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "each kind of lane has one copy, in its one caller")]
    fn send_beside<L: Lane>(&self, mut sending: SendGuard<'_, L>, parts: &[&[u8]]) -> Attempt {
        let (fd, lane) = (sending.shadow.fd, sending.lane);
        if let Some(how) = sending.leave_to_follow() {
            sending.leave(how);
        }
        sending.leave_if_over();
        if !sending.push() {
            return Attempt::WouldBlock;
        }
        if !sending.switch_for_data() {
            return self.send_before_lane(&mut sending, parts);
        }
        if self.looks_dead(fd, lane) {
            return self.send_to_the_dead(&mut sending, parts);
        }
        // A peer that sleeps reads the first piece while this end writes the next one.
        let front = front(parts, piece(lane));
        let parts = front.as_deref().unwrap_or(parts);
        match sending.state.write(lane, parts, limits_on(lane)) {
            Ok(written) => {
                if written.ring {
                    sending.ring();
                }
                if let Some(how) = sending.leave_to_follow() {
                    // The peer returned to TCP meanwhile, perhaps without seeing these bytes.
                    sending.leave(how);
                }
                drop(sending);
                stats::add(BYTES_FABRIC_SENT, written.bytes as u64);
                self.count();
                self.note_progress();
                Attempt::Moved(written.bytes)
            }
            Err(WriteError::Full) if sending.is_gone() => self.lane_is_broken(),
            Err(WriteError::Full) if self.leave_if_stuck(&mut sending) => Attempt::Again,
            Err(WriteError::Full) => Attempt::WouldBlock,
            Err(_) if !sending.state.is_shut() && sending.leave_if_over() => Attempt::Again,
            Err(WriteError::Closed)
                if sending.state.is_shut()
                    || ReceiveSide::peer_closed(lane) == Some(closed::RESET_AFTER_END) =>
            {
                Attempt::End
            }
            Err(WriteError::Closed) => self.send_to_nobody(fd, parts),
            Err(WriteError::Reset) => self.lane_is_broken(),
        }
    }

    /// Writes to TCP while the direction is there. In pieces until the peer has mapped the lane, so
    /// that the direction can switch amid a large write.
    #[cold]
    #[inline(never)]
    fn send_before_lane<L: Lane>(
        &self,
        sending: &mut SendGuard<'_, L>,
        parts: &[&[u8]],
    ) -> Attempt {
        let fd = sending.shadow.fd;
        let comes = !SendSide::peer_attached(sending.lane, self.side());
        let sent = sending.state.totals().0;
        let front = if comes { self.front_for_tcp(fd, parts, sent) } else { None };
        self.write_tcp(fd, sending.state, front.as_deref().unwrap_or(parts))
    }

    /// Writes to a peer that was killed. As on TCP: bytes that were never read make a reset.
    /// Otherwise the next bytes go out, and the peer's kernel answers them with a reset.
    #[cold]
    #[inline(never)]
    fn send_to_the_dead<L: Lane>(
        &self,
        sending: &mut SendGuard<'_, L>,
        parts: &[&[u8]],
    ) -> Attempt {
        let lost = sending.peer_died_with_bytes_unread();
        let resets = lost && !self.has(flag::SENT_TO_NOBODY);
        if resets { self.lane_is_broken() } else { self.send_to_nobody(sending.shadow.fd, parts) }
    }

    /// Writes to TCP while the connection has no lane.
    fn send_without_lane(
        &self,
        fd: RawFd,
        sending: Locked<'_, SendSide>,
        parts: &[&[u8]],
    ) -> Attempt {
        if sending.state.on_lane() {
            return Attempt::Failed(Errno::CONNRESET);
        }
        let front = self.front_for_tcp(fd, parts, sending.state.totals().0);
        let attempt = self.write_tcp(fd, sending.state, front.as_deref().unwrap_or(parts));
        if let Attempt::Moved(bytes) = attempt {
            self.shared.over_tcp.writes.add(bytes);
        }
        attempt
    }

    /// The first piece of a large write to TCP ([`Connection::piece_for_tcp`]), where `sent` bytes
    /// went before.
    fn front_for_tcp<'a>(&self, fd: RawFd, parts: &[&'a [u8]], sent: u64) -> Option<Vec<&'a [u8]>> {
        /// From here on the kernel would hold much.
        const MUCH: u64 = 64 << 10;
        let bytes = parts.iter().fold(0, |sum: usize, part| sum.saturating_add(part.len()));
        let piece = self.piece_for_tcp(bytes);
        let may_move = matches!(self.phase(), Phase::Pending | Phase::Laned);
        if may_move && sent.saturating_add(bytes as u64) > MUCH && !self.has(flag::BOUNDED) {
            self.bound_backlog(fd);
        }
        if piece == bytes { None } else { front(parts, piece) }
    }

    /// How many of `bytes` go to TCP at once. A large write goes in pieces as long as the
    /// connection may get a lane, so that it can switch in the middle.
    fn piece_for_tcp(&self, bytes: usize) -> usize {
        let piece = usize::try_from(process::settings().switch_bytes).unwrap_or(usize::MAX);
        let piece = piece.max(4096);
        if bytes <= piece {
            return bytes;
        }
        match self.phase() {
            Phase::Declined => bytes,
            Phase::Fresh if self.is_put_off() || self.outlook() == Outlook::Short => bytes,
            _ => piece,
        }
    }

    /// Sends at most `count` bytes of `file` by sendfile(2), which copies nothing. `None` where the
    /// bytes have to be read first: the connection has a lane, the kernel would wait under the lock
    /// of the direction, or it does not take them from such a file.
    pub fn send_file_over_tcp(
        &self,
        fd: RawFd,
        file: BorrowedFd<'_>,
        position: u64,
        count: usize,
    ) -> Option<Result<usize, Errno>> {
        if self.blocks(How::default()) || self.decide(fd, count) == Phase::Laned {
            return None;
        }
        let sending = self.sending()?;
        if sending.lane.is_some() || sending.state.on_lane() {
            return None;
        }
        let mut position = position;
        let piece = self.piece_for_tcp(count);
        sending.state.begin_tcp();
        let sent = rustix::fs::sendfile(sys::borrow(fd), file, Some(&mut position), piece);
        let bytes = *sent.as_ref().unwrap_or(&0);
        sending.state.wrote_tcp(bytes);
        stats::add(BYTES_TCP_SENT, bytes as u64);
        let errno = match sent {
            Ok(bytes) => {
                self.shared.over_tcp.writes.add(bytes);
                return Some(Ok(bytes));
            }
            Err(Errno::INVAL | Errno::NOSYS) => return None,
            Err(errno) => errno,
        };
        if errno == Errno::AGAIN && backlog::made_room() {
            return None;
        }
        if errno == Errno::AGAIN {
            self.shared.write_blocks.fetch_add(1, Ordering::Relaxed);
        }
        // The kernel itself signals a broken pipe.
        match self.told_once(Attempt::Failed(errno), Attempt::Failed(Errno::PIPE)) {
            Attempt::Failed(errno) => Some(Err(errno)),
            _ => None,
        }
    }

    /// Writes to TCP, with the sending direction locked.
    fn write_tcp(&self, fd: RawFd, sending: &mut SendSide, parts: &[&[u8]]) -> Attempt {
        sending.begin_tcp();
        let attempt = self.told_once(send_tcp(fd, parts), Attempt::Failed(Errno::PIPE));
        let bytes = if let Attempt::Moved(bytes) = attempt { bytes } else { 0 };
        sending.wrote_tcp(bytes);
        stats::add(BYTES_TCP_SENT, bytes as u64);
        attempt
    }

    /// The peer closed in order, or was killed after it had read everything. On TCP the next bytes
    /// still go out, and a reset answers them. So one byte is sent on the kernel's socket, to get
    /// that reset there for all that look, and the bytes of `parts` are dropped.
    #[cold]
    fn send_to_nobody(&self, fd: RawFd, parts: &[&[u8]]) -> Attempt {
        /// A segment of the loopback device: on TCP, the reset arrives before a second one goes
        /// out.
        const BYTES_MAX: usize = 65_483;
        if self.has(flag::SENT_TO_NOBODY) {
            self.set(flag::RESET_REPORTED, true);
            return Attempt::End;
        }
        let bytes = parts.iter().map(|part| part.len()).sum::<usize>().min(BYTES_MAX);
        if bytes > 0 {
            self.set(flag::SENT_TO_NOBODY, true);
            sys::ring(fd);
        }
        Attempt::Moved(bytes)
    }

    /// The peer is gone and left bytes unread: a reset once, then a broken pipe.
    fn lane_is_broken(&self) -> Attempt {
        match self.report_reset() {
            Attempt::Failed(errno) => Attempt::Failed(errno),
            _ => Attempt::Failed(Errno::PIPE),
        }
    }

    /// True when the peer was killed. The kernel is asked now and then, since a writer that never
    /// waits would not notice.
    #[inline]
    fn looks_dead<L: Carry>(&self, fd: RawFd, lane: &L) -> bool {
        /// About 10 ms of processor ticks.
        const EVERY: u64 = 25_000_000;
        let now = sys::ticks();
        let early = now.wrapping_sub(self.local.checked.load(Ordering::Relaxed)) < EVERY;
        // A peer that ended its own direction on TCP may read on.
        if early && (self.peer() == Peer::Alive || ReceiveSide::ended_on_tcp(lane)) {
            return false;
        }
        self.local.checked.store(now, Ordering::Relaxed);
        let is_dead = self.is_dead(fd, lane);
        // Of all writes those are measured that look anyway. The accepting end answers: until it
        // reads again, its peer may do anything.
        if self.side() == Side::Connected {
            self.local.asked.store(stats::turn_time(), Ordering::Relaxed);
        }
        is_dead
    }

    #[cold]
    fn is_dead<L: Carry>(&self, fd: RawFd, lane: &L) -> bool {
        let Ok(seen) = waits::poll_one(fd, PollFlags::RDHUP, 0) else { return false };
        self.note_poll(seen);
        // The stream reports a close in order. A peer without a goodbye was killed.
        // In this order: what the peer did before its end is visible when that is known.
        self.peer() != Peer::Alive
            && ReceiveSide::end_is_visible(lane)
            && match ReceiveSide::peer_closed(lane) {
                None => true,
                // Its kernel answers a wakeup when it is gone.
                Some(closed::WRITING) => {
                    self.peer() == Peer::Reset && ReceiveSide::ended_on_tcp(lane)
                }
                Some(_) => false,
            }
    }

    /// Sleeps until there may be room, as long as SO_SNDTIMEO and signals allow.
    ///
    /// A wakeup for room and one for data are the same byte. When unread data keep such a byte in
    /// the kernel's socket, the sleep is cut into short slices.
    fn sleep_for_room(&self, fd: RawFd, deadline: &mut Option<u64>) -> Result<(), Errno> {
        let generation = self.shared.generation.load(Ordering::Relaxed);
        let _hold = self.hold();
        let bell = self.takes_bell();
        self.shared.common.begin_sleep(WaitFor::Room);
        let slept = self.sleep_for_room_counted(fd, bell.as_ref(), deadline);
        self.shared.common.end_sleep(WaitFor::Room);
        let fd = calls::number(*self, fd, generation).ok_or(Errno::BADF)?;
        self.stop_waiting(fd, WaitFor::Room);
        slept
    }

    fn sleep_for_room_counted(
        &self,
        fd: RawFd,
        bell: Option<&Bell>,
        deadline: &mut Option<u64>,
    ) -> Result<(), Errno> {
        let stale = self.arm(fd, WaitFor::Room);
        let armed = {
            let Some(sending) = self.sending() else { return Err(Errno::AGAIN) };
            match sending.lane {
                Some(lane) if sending.state.on_lane() => {
                    settling::settle(lane, WaitFor::Room);
                    let may_sleep = SendSide::peer_can_ring(lane) || self.looks_for_room(lane);
                    if sending.state.writable(lane) || !may_sleep {
                        return Ok(());
                    }
                    Some(stale)
                }
                _ => None,
            }
        };
        let limit = time_left(fd, Timeout::Send, deadline);
        let slept = if let Some(stale) = armed {
            self.sleep_until_wakeup(fd, bell, stale, limit)
        } else {
            // On TCP the kernel knows when there is room. A record that goes first may wait for
            // something else: the thread that drives the endpoint wakes this one.
            if let Some(bell) = bell
                && self.sending().is_some_and(|sending| sending.state.must_be_alone())
            {
                let Some(asleep) = self.falls_asleep() else { return Ok(()) };
                let both = (bell, &asleep);
                waits::poll_with_bell(fd, PollFlags::empty(), both, Some(LOOK_AGAIN_NS))?;
                return Ok(());
            }
            waits::poll_within(fd, PollFlags::OUT, backlog::bounds(limit)).map(|_| ())
        };
        match slept {
            Ok(()) if limit == Some(0) => Err(Errno::AGAIN),
            Ok(()) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Waits for a wakeup, one slice at most. Wakeups that were stale at arming are taken out
    /// first.
    fn sleep_until_wakeup(
        &self,
        fd: RawFd,
        bell: Option<&Bell>,
        stale: StaleWakeups,
        limit: Limit,
    ) -> Result<(), Errno> {
        let slice = waits::at_most(limit, self.room_slice_ns());
        if let Some(bell) = bell
            && self.is_on_far_lane()
        {
            let mut wakes = self.wakes_by_kernel(fd);
            if self.reads_tcp(fd) {
                // Data that the program does not read do not end a wait for room.
                wakes.remove(PollFlags::IN);
            }
            let Some(asleep) = self.falls_asleep() else { return Ok(()) };
            let seen = waits::poll_with_bell(fd, wakes, (bell, &asleep), Some(slice));
            drop(asleep);
            self.note_poll_of(fd, seen?);
            return Ok(());
        }
        if self.has_heard_end_on_tcp() {
            // No wakeup comes, and the kernel would tell the end again.
            self.note_poll(waits::poll_within(fd, PollFlags::empty(), Some(slice))?);
            return Ok(());
        }
        let data_waits = self.receiving().is_some_and(|receiving| {
            receiving.lane.is_some_and(|lane| receiving.state.has_data(lane))
        });
        let drained = if data_waits { Drained::NotYet } else { self.drain(fd, stale, false) };
        if drained == Drained::Broken {
            return Ok(());
        }
        if drained == Drained::All {
            let seen = waits::poll_within(fd, PollFlags::IN | PollFlags::RDHUP, Some(slice))?;
            if seen.contains(PollFlags::IN) {
                self.woken_by_bytes();
            }
            self.note_poll_of(fd, seen);
            return Ok(());
        }
        let seen = waits::poll_one(fd, PollFlags::RDHUP, 1)?;
        if !seen.is_empty() && !self.has(flag::READING_SHUT) && self.is_behind(fd) {
            self.note_wakeup(waits::Wakeup::End);
        }
        Ok(())
    }
}

/// The first `most` bytes of `parts`; `None` when that is all of them.
#[inline]
fn front<'a>(parts: &[&'a [u8]], most: usize) -> Option<Vec<&'a [u8]>> {
    match parts {
        // Short writes are many: the search costs one of 8 bytes 5 % of its instructions.
        [part] if part.len() <= most => None,
        _ => front_of_several(parts, most),
    }
}

#[inline(never)]
fn front_of_several<'a>(parts: &[&'a [u8]], most: usize) -> Option<Vec<&'a [u8]>> {
    let mut left = most;
    for (index, part) in parts.iter().enumerate() {
        if part.len() > left {
            let mut front = parts[..index].to_vec();
            front.push(&part[..left]);
            return Some(front);
        }
        left -= part.len();
    }
    None
}

/// The bytes behind the first `skip` bytes of `parts`.
fn behind<'a>(parts: &[&'a [u8]], mut skip: usize) -> Vec<&'a [u8]> {
    let mut rest = Vec::with_capacity(parts.len());
    for part in parts {
        let cut = skip.min(part.len());
        skip -= cut;
        if cut < part.len() {
            rest.push(&part[cut..]);
        }
    }
    rest
}

fn broken_pipe(how: How) -> Errno {
    if !how.no_signal {
        signals::raise_pipe();
    }
    Errno::PIPE
}

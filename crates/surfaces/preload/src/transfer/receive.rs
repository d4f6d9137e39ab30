//! Reads from a connection.
//!
//! A reader that finds nothing looks a little longer, then arms its attention word, looks once more
//! and sleeps in the kernel's `recv` on the kernel's socket (with MSG_PEEK). So timeouts, signals,
//! the peer's end and its death are the kernel's own. The peer wakes the reader with one byte.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use weft_fabric::{Carry, Lane, Medium, WaitFor};
use weft_socket::{Drained, Empty, Origin, Phase, ReadError, ReceiveSide, closed};
use weft_sync::Step;
use weft_wire::stats::{BYTES_FABRIC_RECEIVED, BYTES_TCP_RECEIVED};

use super::peek::peek_lane_behind;
use super::tcp::{receive_tcp, wait_and_receive};
use super::{Attempt, How, piece, time_left};
use crate::arena::{Connection, flag};
use crate::bells::Bell;
use crate::direction::ReceiveGuard;
use crate::lane::either;
use crate::signals::Watch;
use crate::{calls, cancel, process, stats, sys, waits};

impl Connection {
    /// Reads into `targets` one after the other, and returns how many bytes; 0 at the end of file.
    #[inline]
    pub fn receive(&self, fd: RawFd, targets: &mut [&mut [u8]], how: How) -> Result<usize, Errno> {
        let result = self.receive_now(fd, targets, how);
        if self.has(flag::UNPROVEN) && !how.peek {
            self.leaves_armed(fd);
        }
        result
    }

    #[inline(never)]
    fn receive_now(&self, fd: RawFd, targets: &mut [&mut [u8]], how: How) -> Result<usize, Errno> {
        if how.peek && how.wait_all {
            return self.peek_for_all(fd, targets, how);
        }
        let wanted: usize = targets.iter().map(|target| target.len()).sum();
        let mut total = 0;
        let mut fd = fd;
        let mut generation = 0;
        let mut adaptive_wait = self.adaptive_wait();
        let mut waited = false;
        let watch = Watch::new();
        let mut short = None;
        let mut deadline = None;
        if self.has(flag::LOW_WATER) && self.blocks(how) && wanted > 0 && self.reads_tcp(fd) {
            // If the wait ends without enough bytes, those that are there are read all the same.
            short = waits::wait_for_bytes(fd, wanted).err();
            if short == Some(Errno::CANCELED) {
                return Err(Errno::CANCELED);
            }
        }
        if self.blocks(how) {
            self.note_read();
        }
        if let Some(result) = self.receive_as_without_weft(fd, targets, wanted, how) {
            return result;
        }
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
            let on_tcp = self.decide(fd, 0) != Phase::Laned;
            match self.try_receive(fd, targets, total, how) {
                Attempt::Moved(bytes) => {
                    total += bytes;
                    if waited {
                        self.learn(adaptive_wait, true);
                        waited = false;
                    }
                    if !how.wait_all || total == wanted {
                        return Ok(total);
                    }
                    adaptive_wait.restart();
                    continue;
                }
                // A short read says that no more bytes are there. Programs with edge triggering
                // rely on that.
                Attempt::MovedTheLast(bytes) => {
                    total += bytes;
                    if how.peek || total == wanted {
                        return Ok(total);
                    }
                    adaptive_wait.restart();
                    continue;
                }
                Attempt::Again => continue,
                Attempt::Left => {
                    self.leave_lane_behind();
                    continue;
                }
                Attempt::End => return Ok(total),
                Attempt::Failed(_) if total > 0 => return Ok(total),
                Attempt::Failed(errno) => return Err(errno),
                Attempt::WouldBlock if wanted == 0 => return Ok(0),
                Attempt::WouldBlock => {}
            }
            if !self.blocks(how) || total > 0 && !how.wait_all {
                return if total > 0 { Ok(total) } else { Err(Errno::AGAIN) };
            }
            if let Some(errno) = short {
                return if total > 0 { Ok(total) } else { Err(errno) };
            }
            if watch.saw_interruption() {
                return if total > 0 { Ok(total) } else { Err(Errno::INTR) };
            }
            if self.has(flag::UNPROVEN) {
                self.reads_in_vain(fd);
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
                        if self.naps(fd, WaitFor::Data) {
                            continue;
                        }
                    }
                    match self.sleep_for_data(fd, watch, &mut deadline) {
                        Ok(()) => {}
                        // The thread ends in its hook, so the bytes that it read are not reported.
                        Err(Errno::CANCELED) => return Err(Errno::CANCELED),
                        Err(_) if total > 0 => return Ok(total),
                        Err(errno) => return Err(errno),
                    }
                }
            }
        }
    }

    /// Reads by one call of the kernel that waits; `None` when the connection could move meanwhile,
    /// since that call would take wakeups for data. No other thread or process may hold the
    /// connection, and signal handlers are kept from moving it.
    fn receive_as_without_weft(
        &self,
        fd: RawFd,
        targets: &mut [&mut [u8]],
        wanted: usize,
        how: How,
    ) -> Option<Result<usize, Errno>> {
        let waits = self.blocks(how) && !how.peek && !how.wait_all && wanted > 0;
        if !waits || !process::is_single_threaded() {
            return None;
        }
        let undecided = matches!(self.decide(fd, 0), Phase::Fresh | Phase::Pending);
        // The decision may have begun the thread that drives the endpoint, which moves connections.
        if !undecided || self.is_shared() || !process::is_single_threaded() {
            return None;
        }
        let former = self.begin_kernel_wait();
        let result = loop {
            if let Some(result) = cancel::sleeping(|| wait_and_receive(fd, targets)) {
                break result;
            }
        };
        Self::end_kernel_wait(former);
        if let (Ok(bytes @ 1..), Some(receiving)) = (result, self.receiving()) {
            receiving.state.begin_tcp();
            receiving.state.took_tcp(bytes);
            self.shared.over_tcp.reads.add(bytes);
            stats::add(BYTES_TCP_RECEIVED, bytes as u64);
        }
        Some(result)
    }

    /// Reads bytes that are there into the part of `targets` behind the first `skip` bytes.
    fn try_receive(&self, fd: RawFd, targets: &mut [&mut [u8]], skip: usize, how: How) -> Attempt {
        let Some(receiving) = self.receiving() else { return Attempt::Failed(Errno::AGAIN) };
        match receiving.lane {
            Some(lane) => either!(lane, lane => {
                self.receive_beside(receiving.over(lane, *self, fd), targets, skip, how)
            }),
            // Another holder left the lane for good while this call waited.
            None if receiving.state.on_lane() && self.phase() == Phase::Declined => {
                self.told_once(receive_tcp(fd, targets, skip, usize::MAX, how.peek), Attempt::End)
            }
            // This process cannot map the lane: the daemon that would pass it is gone.
            None if receiving.state.on_lane() || self.has_lane_of_parent() => {
                Attempt::Failed(Errno::CONNRESET)
            }
            None => match self
                .told_once(receive_tcp(fd, targets, skip, usize::MAX, how.peek), Attempt::End)
            {
                Attempt::Moved(bytes) if !how.peek => {
                    receiving.state.took_tcp(bytes);
                    self.shared.over_tcp.reads.add(bytes);
                    stats::add(BYTES_TCP_RECEIVED, bytes as u64);
                    Attempt::Moved(bytes)
                }
                Attempt::End if self.has(flag::RESET_TAKEN) => self.report_reset(),
                other => other,
            },
        }
    }

    /// True in a child whose parent's endpoint has the lane. The place where the lane begins is not
    /// known here, so what lies on TCP may be behind its bytes.
    fn has_lane_of_parent(&self) -> bool {
        process::settings().between_hosts && self.phase() == Phase::Laned
    }

    /// Reads from the lane, or from TCP while the direction is there.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "each kind of lane has one copy, in its one caller")]
    fn receive_beside<L: Lane>(
        &self,
        mut receiving: ReceiveGuard<'_, L>,
        targets: &mut [&mut [u8]],
        skip: usize,
        how: How,
    ) -> Attempt {
        let fd = receiving.shadow.fd;
        let mut room = false;
        let attempt = match receiving.origin() {
            Origin::Lane => self.read_lane(fd, &mut receiving, targets, skip, how, &mut room),
            Origin::Tcp { at_most } => {
                let limit = at_most.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(0));
                self.read_tcp_beside_lane(fd, &mut receiving, targets, skip, limit, how)
            }
            // Wakeups come first that have not arrived yet, unless the connection ended.
            Origin::Wakeups(_) | Origin::Return => match receive_tcp(fd, targets, skip, 1, true) {
                Attempt::Moved(_) => Attempt::Again,
                end @ (Attempt::End | Attempt::Failed(_)) if is_far(receiving.lane) => {
                    self.after_end_of_tcp(&mut receiving, end)
                }
                other => self.told_once(other, Attempt::End),
            },
        };
        drop(receiving);
        if room {
            self.ring_for_room(fd);
        }
        attempt
    }

    /// Reads up to `limit` bytes from TCP, those in front of the boundary to the lane.
    #[allow(clippy::too_many_arguments, reason = "one call's buffers, and where to read")]
    fn read_tcp_beside_lane<L: Lane>(
        &self,
        fd: RawFd,
        receiving: &mut ReceiveGuard<'_, L>,
        targets: &mut [&mut [u8]],
        skip: usize,
        limit: usize,
        how: How,
    ) -> Attempt {
        // Peeked first: wakeups that the peer sent since lie behind the data, and are for other
        // threads.
        match receive_tcp(fd, targets, skip, limit, true) {
            Attempt::Moved(bytes) => match receiving.data_of(bytes) {
                // A part of a record, whose rest is on its way.
                None => Attempt::WouldBlock,
                // All bytes are wakeups: the peer posted the switch before it sent them.
                Some(0) => Attempt::Again,
                Some(data) if how.peek => {
                    let behind = data == limit;
                    let more = if behind { peek_lane_behind(receiving, targets, data) } else { 0 };
                    Attempt::Moved(data + more)
                }
                Some(data) => self.take_tcp(fd, receiving, targets, skip, data),
            },
            end @ (Attempt::End | Attempt::Failed(_)) => self.after_end_of_tcp(receiving, end),
            other => other,
        }
    }

    /// The result of a read of TCP that the kernel answered by an `end`. The peer may have
    /// switched, written and closed since the look. All that it posted before its end is visible by
    /// now, or its own word of the end is still on its way.
    fn after_end_of_tcp<L: Lane>(
        &self,
        receiving: &mut ReceiveGuard<'_, L>,
        end: Attempt,
    ) -> Attempt {
        match receiving.after_end_of_tcp() {
            after @ (Empty::LookAgain | Empty::Wait) => {
                if let Attempt::Failed(errno) = end
                    && is_far(receiving.lane)
                {
                    // The kernel tells it once, and no wakeup made it.
                    self.note_error(errno);
                    self.set(flag::RESET_TAKEN, true);
                }
                self.note_wakeup(waits::Wakeup::End);
                if after == Empty::Wait { Attempt::WouldBlock } else { Attempt::Again }
            }
            Empty::PeerDied if self.was_reset_over_endpoint(receiving.lane) => self.report_reset(),
            Empty::PeerDied => self.told_once(end, Attempt::End),
            Empty::Broken => self.report_reset(),
        }
    }

    /// True if the peer reset a connection whose lane goes over the endpoint. Either word of it may
    /// come first, the kernel's or the lane's.
    fn was_reset_over_endpoint(&self, lane: &impl Carry) -> bool {
        self.has(flag::RESET_TAKEN)
            || is_far(lane) && ReceiveSide::peer_closed(lane) == Some(closed::RESET)
    }

    /// Takes `data` bytes that were peeked.
    fn take_tcp<L: Lane>(
        &self,
        fd: RawFd,
        receiving: &mut ReceiveGuard<'_, L>,
        targets: &mut [&mut [u8]],
        skip: usize,
        data: usize,
    ) -> Attempt {
        receiving.state.begin_tcp();
        let attempt = receive_tcp(fd, targets, skip, data, false);
        receiving.state.took_tcp(if let Attempt::Moved(bytes) = attempt { bytes } else { 0 });
        let Attempt::Moved(bytes) = attempt else { return attempt };
        stats::add(BYTES_TCP_RECEIVED, bytes as u64);
        if receiving.origin() == Origin::Lane {
            return Attempt::MovedTheLast(bytes);
        }
        attempt
    }

    #[inline]
    #[allow(clippy::too_many_arguments, reason = "one call's buffers, and where to read")]
    fn read_lane<L: Lane>(
        &self,
        fd: RawFd,
        receiving: &mut ReceiveGuard<'_, L>,
        targets: &mut [&mut [u8]],
        skip: usize,
        how: How,
        room: &mut bool,
    ) -> Attempt {
        if how.peek {
            return self.peek_lane(fd, receiving, targets);
        }
        let lane = receiving.lane;
        let mut total = 0;
        let mut short = false;
        let mut left = skip;
        for target in targets.iter_mut() {
            let begin = left.min(target.len());
            left -= begin;
            let part = &mut target[begin..];
            if part.is_empty() {
                continue;
            }
            // In pieces, so that a peer that sleeps for lack of room goes on while this end reads
            // the rest.
            for part in part.chunks_mut(piece(lane)) {
                if std::mem::take(room) {
                    self.ring_for_room(fd);
                }
                let wanted = part.len();
                match receiving.state.read(lane, part, false) {
                    Ok(reading) => {
                        total += reading.bytes;
                        *room |= reading.room;
                        short = reading.bytes < wanted;
                    }
                    Err(_) if total > 0 => short = true,
                    Err(error) => {
                        *room |= receiving.state.settle_room(lane);
                        return self.lane_is_empty(fd, receiving, error);
                    }
                }
                if short {
                    break;
                }
            }
            if short {
                break;
            }
        }
        stats::add(BYTES_FABRIC_RECEIVED, total as u64);
        if self.local.asked.load(Ordering::Relaxed) != 0 {
            self.end_turn();
        }
        self.count();
        if short && receiving.state.origin(lane) == Origin::Return {
            // The kernel's read stops at an urgent byte.
            let on_tcp = matches!(receiving.origin(), Origin::Tcp { .. });
            if on_tcp && !sys::is_at_mark(fd) {
                return Attempt::MovedTheLast(total);
            }
        }
        Attempt::Moved(total)
    }

    /// The turn that a write began has ended.
    #[cold]
    #[inline(never)]
    fn end_turn(&self) {
        stats::turn_ended(self.local.asked.swap(0, Ordering::Relaxed));
    }

    /// The result of a read that found nothing on the lane.
    pub(super) fn lane_is_empty<L: Lane>(
        &self,
        fd: RawFd,
        receiving: &mut ReceiveGuard<'_, L>,
        error: ReadError,
    ) -> Attempt {
        if self.phase() == Phase::Declined {
            return Attempt::Left;
        }
        self.follow(fd, receiving.lane);
        if self.has(flag::READING_SHUT) {
            return Attempt::End;
        }
        match error {
            ReadError::Ended if self.has(flag::RESET_TAKEN) => self.report_reset(),
            ReadError::Ended => Attempt::End,
            ReadError::Reset => self.report_reset(),
            ReadError::Return => Attempt::Again,
            ReadError::Empty => match receiving.found_empty() {
                Empty::Wait => Attempt::WouldBlock,
                Empty::LookAgain => Attempt::Again,
                Empty::Broken => self.tells_failure(fd, receiving.lane),
                Empty::PeerDied => self.peer_is_dead(receiving.lane),
            },
        }
    }

    /// The error of a connection of which bytes are missing. Across a network the kernel knows a
    /// better one where the other host does not answer any more.
    fn tells_failure(&self, fd: RawFd, lane: &impl Carry) -> Attempt {
        let seen = if is_far(lane) {
            receive_tcp(fd, &mut [&mut [0]], 0, 1, true)
        } else {
            Attempt::WouldBlock
        };
        match seen {
            Attempt::Failed(errno) if errno != Errno::CONNRESET => {
                self.set(flag::RESET_REPORTED, true);
                Attempt::Failed(errno)
            }
            _ => self.report_reset(),
        }
    }

    /// The kernel reports that the peer is gone, and the lane has no goodbye: the peer was killed.
    /// As on TCP, that is an end, or a reset if the peer left bytes of this end unread.
    fn peer_is_dead(&self, lane: &impl Carry) -> Attempt {
        let unread = self.sending().is_some_and(|sending| sending.state.unread_by_peer(lane));
        if unread { self.report_reset() } else { Attempt::End }
    }

    /// Sleeps until there may be something to read, as long as SO_RCVTIMEO and signals allow.
    fn sleep_for_data(
        &self,
        fd: RawFd,
        watch: Watch,
        deadline: &mut Option<u64>,
    ) -> Result<(), Errno> {
        let generation = self.shared.generation.load(Ordering::Relaxed);
        let _hold = self.hold();
        let bell = self.takes_bell();
        self.shared.common.begin_sleep(WaitFor::Data);
        let stale = self.arm(fd, WaitFor::Data);
        let wakeup = if self.settle(WaitFor::Data) && self.readable(fd) == Some(true) {
            waits::Wakeup::Bytes
        } else if self.drain(fd, stale, false) == Drained::Broken {
            waits::Wakeup::Failed(Errno::CONNRESET)
        } else if watch.saw_interruption() {
            waits::Wakeup::Interrupted
        } else {
            self.wait_for_wakeup(fd, bell.as_ref(), deadline)
        };
        self.shared.common.end_sleep(WaitFor::Data);
        // Another thread may have closed the descriptor. Its number may lead to another connection
        // by now.
        let Some(fd) = calls::number(*self, fd, generation) else {
            return match wakeup {
                waits::Wakeup::Failed(errno) => Err(errno),
                waits::Wakeup::Interrupted => Err(Errno::INTR),
                waits::Wakeup::Cancelled => Err(Errno::CANCELED),
                _ => Err(Errno::BADF),
            };
        };
        if let waits::Wakeup::Failed(errno) = wakeup
            && self.reads_tcp(fd)
        {
            // The kernel tells it once, and told the library.
            self.note_error(errno);
            self.set(flag::RESET_TAKEN, true);
        }
        self.note_wakeup(wakeup);
        self.stop_waiting(fd, WaitFor::Data);
        match wakeup {
            waits::Wakeup::Interrupted => Err(Errno::INTR),
            waits::Wakeup::Cancelled => Err(Errno::CANCELED),
            waits::Wakeup::Nothing => Err(Errno::AGAIN),
            waits::Wakeup::Bytes
            | waits::Wakeup::Woken
            | waits::Wakeup::End
            | waits::Wakeup::Failed(_) => Ok(()),
        }
    }

    fn wait_for_wakeup(
        &self,
        fd: RawFd,
        bell: Option<&Bell>,
        deadline: &mut Option<u64>,
    ) -> waits::Wakeup {
        let wakeup = match bell {
            None => waits::wait_for_wakeup(fd),
            Some(bell) => {
                let limit = time_left(fd, Timeout::Recv, deadline);
                let slice = self.bounds_sleep(limit);
                let events = self.wakes_by_kernel(fd);
                let Some(asleep) = self.falls_asleep() else { return waits::Wakeup::Woken };
                let seen = waits::poll_with_bell(fd, events, (bell, &asleep), slice);
                drop(asleep);
                match seen {
                    Ok(seen) if seen.is_empty() && limit == Some(0) => waits::Wakeup::Nothing,
                    Ok(seen) => {
                        self.note_poll_of(fd, seen);
                        if seen.contains(PollFlags::IN) {
                            self.woken_by_bytes();
                        }
                        return waits::Wakeup::Woken;
                    }
                    Err(Errno::CANCELED) => waits::Wakeup::Cancelled,
                    // The caller finds out whether the handler lets calls go on.
                    Err(_) => waits::Wakeup::Woken,
                }
            }
        };
        if wakeup == waits::Wakeup::Bytes {
            self.woken_by_bytes();
        }
        wakeup
    }
}

/// True for a lane that goes over an endpoint.
fn is_far(lane: &impl Carry) -> bool {
    lane.medium() == Medium::Network
}

//! Reading and writing a tracked connection, blocking or not.
//!
//! A reader that finds nothing looks a little longer, then arms its attention word, looks once
//! more and sleeps in the kernel's own `recv` on the shadow socket (with MSG_PEEK): so timeouts,
//! signals, the peer's end and its death are the kernel's. The peer wakes it with one byte.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use weft_fabric::WaitFor;
use weft_socket::{Leave, Origin, ReadError, ReceiveSide, SendSide, WriteError};
use weft_sync::{Patience, Step};
use weft_transport_shm::lane::ShmLane;
use weft_wire::stats::{
    BYTES_FABRIC_RECEIVED, BYTES_FABRIC_SENT, BYTES_TCP_RECEIVED, BYTES_TCP_SENT,
};

use crate::arena::{Connection, flag, peer, phase};
use crate::bells::Owed;
use crate::route::LOOK_AGAIN_MS;
use crate::signals::Watch;
use crate::{process, settling, signals, stats, sys};

/// How a call wants its bytes.
#[derive(Clone, Copy, Default)]
pub struct How {
    /// Leave them there.
    pub peek: bool,
    /// Do not wait.
    pub dont_wait: bool,
    /// Wait for all of them.
    pub wait_all: bool,
    /// No SIGPIPE.
    pub no_signal: bool,
}

/// What a direction can do right now.
enum Attempt {
    Moved(usize),
    /// The last bytes before the direction moves between TCP and the lane; what follows may be
    /// there already.
    MovedTheLast(usize),
    /// Something changed: try again at once.
    Again,
    End,
    WouldBlock,
    Failed(Errno),
}

impl Connection {
    fn patience(&self) -> Patience {
        let settings = process::settings();
        let share = self.local.share.load(Ordering::Relaxed);
        Patience::new(settings.spins, settings.yields).with_share(share)
    }

    fn learn(&self, mut patience: Patience, hit: bool) {
        if hit {
            self.found_awake();
            patience.hit();
        } else {
            patience.miss();
        }
        self.local.share.store(patience.share(), Ordering::Relaxed);
    }

    fn blocks(&self, how: How) -> bool {
        !how.dont_wait && !self.has(flag::NONBLOCKING)
    }

    /// Reads into `targets` one after the other; 0 is the end.
    pub fn receive(&self, fd: RawFd, targets: &mut [&mut [u8]], how: How) -> Result<usize, Errno> {
        let wanted: usize = targets.iter().map(|target| target.len()).sum();
        let mut total = 0;
        let mut patience = self.patience();
        let mut waited = false;
        let watch = Watch::new();
        let mut short = None;
        if self.has(flag::LOW_WATER) && self.blocks(how) && wanted > 0 && self.reads_tcp(fd) {
            // When it ends without enough, what is there is read all the same.
            short = sys::wait_for_bytes(fd, wanted).err();
        }
        loop {
            let on_tcp = self.decide(fd, 0) != phase::LANED;
            match self.try_receive(fd, targets, total, how) {
                Attempt::Moved(bytes) => {
                    total += bytes;
                    if waited {
                        self.learn(patience, true);
                        waited = false;
                    }
                    if !how.wait_all || how.peek || total == wanted {
                        return Ok(total);
                    }
                    patience.restart();
                    continue;
                }
                // A short read says that there is no more: edges rely on that.
                Attempt::MovedTheLast(bytes) => {
                    total += bytes;
                    if how.peek || total == wanted {
                        return Ok(total);
                    }
                    patience.restart();
                    continue;
                }
                Attempt::Again => continue,
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
            waited = !on_tcp;
            // On TCP alone the kernel waits, as without weft.
            match if on_tcp { Step::Sleep } else { patience.step() } {
                Step::Spin => std::hint::spin_loop(),
                Step::Yield => patience.give_way(),
                Step::Sleep => {
                    if waited {
                        self.learn(patience, false);
                        patience = self.patience();
                        waited = false;
                    }
                    match self.sleep_for_data(fd, watch) {
                        Ok(()) => {}
                        Err(_) if total > 0 => return Ok(total),
                        Err(errno) => return Err(errno),
                    }
                }
            }
        }
    }

    /// Moves what is there into the part of `targets` behind the first `skip` bytes.
    fn try_receive(&self, fd: RawFd, targets: &mut [&mut [u8]], skip: usize, how: How) -> Attempt {
        let Some(receiving) = self.receiving() else { return Attempt::Failed(Errno::AGAIN) };
        let mut room = false;
        let attempt = match receiving.lane {
            Some(lane) => match self.origin(fd, receiving.state, lane) {
                Origin::Lane => {
                    self.read_lane(fd, receiving.state, lane, targets, skip, how, &mut room)
                }
                Origin::Tcp { at_most } => {
                    let limit = at_most.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(0));
                    self.read_tcp_beside_lane(fd, receiving.state, lane, targets, skip, limit, how)
                }
                // Bells that did not arrive yet, unless the connection ended.
                Origin::Bells(_) | Origin::Back => {
                    match self.told_once(receive_tcp(fd, targets, skip, 1, true), Attempt::End) {
                        Attempt::Moved(_) => Attempt::Again,
                        other => other,
                    }
                }
            },
            // Its lane is gone with the daemon that would have to pass it.
            None if receiving.state.on_lane() => Attempt::Failed(Errno::CONNRESET),
            None => match self
                .told_once(receive_tcp(fd, targets, skip, usize::MAX, how.peek), Attempt::End)
            {
                Attempt::Moved(bytes) if !how.peek => {
                    receiving.state.took_tcp(bytes);
                    self.moved_over_tcp(bytes);
                    stats::add(BYTES_TCP_RECEIVED, bytes as u64);
                    Attempt::Moved(bytes)
                }
                other => other,
            },
        };
        drop(receiving);
        if room {
            self.ring_for_room(fd);
        }
        attempt
    }

    /// Reads what lies on TCP in front of a boundary, if there is one.
    #[allow(clippy::too_many_arguments, reason = "one call's buffers, and where to read")]
    fn read_tcp_beside_lane(
        &self,
        fd: RawFd,
        state: &mut ReceiveSide,
        lane: &ShmLane,
        targets: &mut [&mut [u8]],
        skip: usize,
        limit: usize,
        how: How,
    ) -> Attempt {
        // Looked at first: what the peer rang since belongs to others, and is behind the data.
        match self.told_once(receive_tcp(fd, targets, skip, limit, true), Attempt::End) {
            Attempt::Moved(bytes) => match state.data_of(lane, bytes) {
                // Nothing but bells: the switch was posted before they were sent.
                0 => Attempt::Again,
                data if how.peek => Attempt::Moved(data),
                data => self.take_tcp(fd, state, lane, targets, skip, data),
            },
            // The peer may have switched, spoken and closed since the look: what it posted before
            // its end is visible with it.
            Attempt::End | Attempt::Failed(_) if self.origin(fd, state, lane) == Origin::Lane => {
                self.heard(sys::Bell::End);
                Attempt::Again
            }
            other => other,
        }
    }

    /// Takes `data` bytes that were looked at before.
    fn take_tcp(
        &self,
        fd: RawFd,
        state: &mut ReceiveSide,
        lane: &ShmLane,
        targets: &mut [&mut [u8]],
        skip: usize,
        data: usize,
    ) -> Attempt {
        state.begin_tcp();
        let attempt = receive_tcp(fd, targets, skip, data, false);
        state.took_tcp(if let Attempt::Moved(bytes) = attempt { bytes } else { 0 });
        let Attempt::Moved(bytes) = attempt else { return attempt };
        stats::add(BYTES_TCP_RECEIVED, bytes as u64);
        if self.origin(fd, state, lane) == Origin::Lane {
            return Attempt::MovedTheLast(bytes);
        }
        attempt
    }

    #[inline]
    #[allow(clippy::too_many_arguments, reason = "one call's buffers, and where to read")]
    fn read_lane(
        &self,
        fd: RawFd,
        state: &mut ReceiveSide,
        lane: &ShmLane,
        targets: &mut [&mut [u8]],
        skip: usize,
        how: How,
        room: &mut bool,
    ) -> Attempt {
        if how.peek && targets.len() > 1 {
            return self.peek_lane(fd, state, lane, targets);
        }
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
            let wanted = part.len();
            match state.read(lane, part, how.peek) {
                Ok(reading) => {
                    total += reading.bytes;
                    *room |= reading.room;
                    short = reading.bytes < wanted;
                }
                Err(_) if total > 0 => short = true,
                Err(error) => return self.lane_is_empty(fd, state, lane, error),
            }
            if short {
                break;
            }
        }
        if !how.peek {
            stats::add(BYTES_FABRIC_RECEIVED, total as u64);
            self.count();
        }
        if short && state.origin(lane) == Origin::Back {
            // A read stops at an urgent byte.
            let on_tcp = matches!(self.origin(fd, state, lane), Origin::Tcp { .. });
            if on_tcp && !sys::is_at_mark(fd) {
                return Attempt::MovedTheLast(total);
            }
        }
        Attempt::Moved(total)
    }

    /// Looks at what is on the lane with a vector: each look starts at the head, so that it takes
    /// one for all parts.
    fn peek_lane(
        &self,
        fd: RawFd,
        state: &mut ReceiveSide,
        lane: &ShmLane,
        targets: &mut [&mut [u8]],
    ) -> Attempt {
        let wanted = targets.iter().map(|target| target.len()).sum();
        let there = usize::try_from(state.available(lane)).unwrap_or(usize::MAX);
        // At least one byte, so that an end is found.
        let mut seen = vec![0; there.max(1).min(wanted)];
        match state.read(lane, &mut seen, true) {
            Ok(reading) => {
                let mut rest = &seen[..reading.bytes];
                for target in targets {
                    let (part, behind) = rest.split_at(target.len().min(rest.len()));
                    target[..part.len()].copy_from_slice(part);
                    rest = behind;
                }
                Attempt::Moved(reading.bytes)
            }
            Err(error) => self.lane_is_empty(fd, state, lane, error),
        }
    }

    /// Nothing on the lane: is that for now, or the end?
    fn lane_is_empty(
        &self,
        fd: RawFd,
        state: &ReceiveSide,
        lane: &ShmLane,
        error: ReadError,
    ) -> Attempt {
        self.follow(fd, lane);
        if self.has(flag::READING_SHUT) {
            return Attempt::End;
        }
        match error {
            ReadError::Ended => Attempt::End,
            ReadError::Reset => self.report_reset(),
            ReadError::Back => Attempt::Again,
            ReadError::Empty => match self.peer() {
                peer::ALIVE => Attempt::WouldBlock,
                // What the peer sent before it ended may have come after we looked.
                _ if state.readable(lane) => Attempt::Again,
                _ => self.peer_is_dead(lane),
            },
        }
    }

    /// The kernel says the peer is gone, and it did not say goodbye: it was killed. As TCP has it,
    /// that is an end, unless something we sent was never read.
    fn peer_is_dead(&self, lane: &ShmLane) -> Attempt {
        let unread = self.sending().is_some_and(|sending| sending.state.unread_by_peer(lane));
        if unread { self.report_reset() } else { Attempt::End }
    }

    /// ECONNRESET, the first time.
    fn report_reset(&self) -> Attempt {
        let former = self.shared.flags.fetch_or(flag::RESET_REPORTED, Ordering::Relaxed);
        if former & flag::RESET_REPORTED == 0 {
            Attempt::Failed(Errno::CONNRESET)
        } else {
            Attempt::End
        }
    }

    /// Sleeps until there may be something to read, as long as SO_RCVTIMEO and signals allow.
    fn sleep_for_data(&self, fd: RawFd, watch: Watch) -> Result<(), Errno> {
        let generation = self.shared.generation.load(Ordering::Relaxed);
        self.begin_sleep(WaitFor::Data);
        let owed = self.arm(WaitFor::Data);
        let bell = if self.settle(WaitFor::Data) && self.readable(fd) == Some(true) {
            sys::Bell::Bytes
        } else {
            self.drain(fd, owed);
            if watch.saw_interruption() { sys::Bell::Interrupted } else { sys::wait_for_bell(fd) }
        };
        if self.shared.generation.load(Ordering::Relaxed) != generation {
            // Closed by another thread meanwhile; the number may be another connection by now.
            return Err(Errno::BADF);
        }
        self.heard(bell);
        self.end_sleep(WaitFor::Data);
        self.stop_waiting(WaitFor::Data);
        match bell {
            sys::Bell::Interrupted => Err(Errno::INTR),
            sys::Bell::Nothing => Err(Errno::AGAIN),
            sys::Bell::Bytes | sys::Bell::End | sys::Bell::Failed(_) => Ok(()),
        }
    }

    /// Writes `parts`, all of them when it may block.
    pub fn send(&self, fd: RawFd, parts: &[&[u8]], how: How) -> Result<usize, Errno> {
        let wanted: usize = parts.iter().map(|part| part.len()).sum();
        let mut total = 0;
        let mut patience = self.patience();
        let mut waited = false;
        let watch = Watch::new();
        let mut deadline = None;
        let mut rest: Vec<&[u8]>;
        let mut left: &[&[u8]] = parts;
        loop {
            let on_tcp = self.decide(fd, wanted - total) != phase::LANED;
            match self.try_send(fd, left) {
                Attempt::Moved(bytes) | Attempt::MovedTheLast(bytes) => {
                    total += bytes;
                    if waited {
                        self.learn(patience, true);
                        waited = false;
                    }
                    if total >= wanted {
                        return Ok(total);
                    }
                    rest = behind(parts, total);
                    left = &rest;
                    patience.restart();
                    continue;
                }
                Attempt::Again => continue,
                Attempt::End | Attempt::Failed(_) if total > 0 => return Ok(total),
                Attempt::End => return Err(broken_pipe(how)),
                Attempt::Failed(Errno::PIPE) => return Err(broken_pipe(how)),
                Attempt::Failed(errno) => return Err(errno),
                Attempt::WouldBlock => {}
            }
            if !self.blocks(how) {
                self.set(flag::WRITE_BLOCKED, true);
                return if total > 0 { Ok(total) } else { Err(Errno::AGAIN) };
            }
            if watch.saw_interruption() {
                return if total > 0 { Ok(total) } else { Err(Errno::INTR) };
            }
            waited = !on_tcp;
            // On TCP alone the kernel waits, as without weft.
            match if on_tcp { Step::Sleep } else { patience.step() } {
                Step::Spin => std::hint::spin_loop(),
                Step::Yield => patience.give_way(),
                Step::Sleep => {
                    if waited {
                        self.learn(patience, false);
                        patience = self.patience();
                        waited = false;
                    }
                    match self.sleep_for_room(fd, &mut deadline) {
                        // Handlers that restart; others are seen above.
                        Ok(()) | Err(Errno::INTR) => {}
                        Err(_) if total > 0 => return Ok(total),
                        Err(errno) => return Err(errno),
                    }
                }
            }
        }
    }

    fn try_send(&self, fd: RawFd, parts: &[&[u8]]) -> Attempt {
        let Some(sending) = self.sending() else { return Attempt::Failed(Errno::AGAIN) };
        let Some(lane) = sending.lane else {
            if sending.state.on_lane() {
                return Attempt::Failed(Errno::CONNRESET);
            }
            let attempt = match front(parts, self.piece()) {
                Some(front) => self.write_tcp(fd, sending.state, &front),
                None => self.write_tcp(fd, sending.state, parts),
            };
            if let Attempt::Moved(bytes) = attempt {
                self.moved_over_tcp(bytes);
            }
            return attempt;
        };
        if sending.state.is_called_back(lane) {
            self.leave(fd, sending.state, lane, Leave::ForGood);
        }
        if !sending.state.switch(lane, self.side()) {
            return self.write_tcp(fd, sending.state, parts);
        }
        if self.looks_dead(fd) {
            // As TCP has it: what was never read makes a reset, else the peer's kernel answers
            // what comes next with one.
            // The kernel's own reset is about what went over TCP, unless it was a bell.
            let over_tcp = sending.state.totals().1 == 0 && self.peer() == peer::RESET;
            let unread = over_tcp || sending.state.unread_by_peer(lane);
            let resets = unread && !self.has(flag::SENT_TO_NOBODY);
            return if resets { self.lane_is_broken() } else { self.send_to_nobody(fd, parts) };
        }
        match sending.state.write(lane, parts, process::settings().limits) {
            Ok(written) => {
                if written.ring {
                    self.ring(fd, sending.state);
                }
                drop(sending);
                stats::add(BYTES_FABRIC_SENT, written.bytes as u64);
                self.count();
                self.is_not_stuck();
                Attempt::Moved(written.bytes)
            }
            Err(WriteError::Full) if self.peer() != peer::ALIVE => self.lane_is_broken(),
            Err(WriteError::Full) if self.leaves_when_full(fd, sending.state, lane) => {
                Attempt::Again
            }
            Err(WriteError::Full) => Attempt::WouldBlock,
            Err(WriteError::Closed) if sending.state.is_shut() => Attempt::End,
            Err(WriteError::Closed) => self.send_to_nobody(fd, parts),
            Err(WriteError::Reset) => self.lane_is_broken(),
        }
    }

    /// Bytes written to TCP at once: as long as a lane may come, a large write goes in pieces, so
    /// that it can move in the middle.
    fn piece(&self) -> usize {
        match self.phase() {
            phase::DECLINED => usize::MAX,
            _ => usize::try_from(process::settings().switch_bytes).unwrap_or(usize::MAX).max(4096),
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

    /// The peer closed in order, or was killed when it had read everything. On TCP the next bytes
    /// still go out, and the reset that answers them breaks the pipe: a byte on the kernel's socket
    /// fetches that reset for all who look there.
    #[cold]
    fn send_to_nobody(&self, fd: RawFd, parts: &[&[u8]]) -> Attempt {
        /// A segment of the loopback device; the reset is there before a second one.
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

    /// A reset is told once, by the kernel or by a lane, whoever knew of it first; `after` is what
    /// is told from then on.
    fn told_once(&self, attempt: Attempt, after: Attempt) -> Attempt {
        if !matches!(attempt, Attempt::Failed(Errno::CONNRESET)) {
            return attempt;
        }
        self.heard(sys::Bell::Failed(Errno::CONNRESET));
        let former = self.shared.flags.fetch_or(flag::RESET_REPORTED, Ordering::Relaxed);
        if former & flag::RESET_REPORTED == 0 { attempt } else { after }
    }

    /// The peer is gone with what we sent: a reset once, then a broken pipe.
    fn lane_is_broken(&self) -> Attempt {
        match self.report_reset() {
            Attempt::Failed(errno) => Attempt::Failed(errno),
            _ => Attempt::Failed(Errno::PIPE),
        }
    }

    /// The peer was killed. A writer that never waits would not notice: it asks the kernel now and
    /// then.
    #[inline]
    fn looks_dead(&self, fd: RawFd) -> bool {
        /// About 10 ms of processor ticks.
        const EVERY: u64 = 25_000_000;
        let now = sys::ticks();
        let early = now.wrapping_sub(self.local.checked.load(Ordering::Relaxed)) < EVERY;
        if early && self.peer() == peer::ALIVE {
            return false;
        }
        self.local.checked.store(now, Ordering::Relaxed);
        self.is_dead(fd)
    }

    #[cold]
    fn is_dead(&self, fd: RawFd) -> bool {
        let events = PollFlags::RDHUP;
        match sys::poll_one(fd, events, 0) {
            Ok(seen) if seen.intersects(PollFlags::ERR | PollFlags::HUP) => {
                self.heard(sys::Bell::Failed(Errno::CONNRESET));
                !self.peer_said_goodbye()
            }
            // After the own shutdown for reading the kernel says so about this side.
            Ok(seen) if seen.contains(PollFlags::RDHUP) && !self.has(flag::READING_SHUT) => {
                self.heard(sys::Bell::End);
                // Closed in order is for the stream to tell; without a word it was killed.
                self.peer() != peer::ALIVE && !self.peer_said_goodbye()
            }
            _ => false,
        }
    }

    fn peer_said_goodbye(&self) -> bool {
        // The caller holds the sending lock, under which the lane stays.
        let lane = self.local.lane.load(Ordering::Acquire);
        // SAFETY: see above; the pointer is a leaked box.
        !lane.is_null() && weft_socket::ReceiveSide::peer_closed(unsafe { &*lane }).is_some()
    }

    /// Sleeps until there may be room, as long as SO_SNDTIMEO and signals allow.
    ///
    /// The bell for room and the bell for data are the same byte: when unread data keeps one in
    /// the kernel's socket, this waits in short slices instead.
    fn sleep_for_room(&self, fd: RawFd, deadline: &mut Option<u64>) -> Result<(), Errno> {
        self.begin_sleep(WaitFor::Room);
        let slept = self.sleep_for_room_counted(fd, deadline);
        self.end_sleep(WaitFor::Room);
        self.stop_waiting(WaitFor::Room);
        slept
    }

    fn sleep_for_room_counted(&self, fd: RawFd, deadline: &mut Option<u64>) -> Result<(), Errno> {
        let armed = {
            let Some(sending) = self.sending() else { return Err(Errno::AGAIN) };
            match sending.lane {
                Some(lane) if sending.state.on_lane() => {
                    let owed = self.arm_word(lane, WaitFor::Room);
                    settling::settle(lane, WaitFor::Room);
                    if sending.state.writable(lane) || !SendSide::is_answered(lane) {
                        return Ok(());
                    }
                    Some(owed)
                }
                _ => None,
            }
        };
        let limit_ms = send_timeout_ms(fd).map(|limit| time_left_ms(limit, deadline));
        let slept = if let Some(owed) = armed {
            self.sleep_until_bell(fd, owed, limit_ms)
        } else {
            // On TCP the kernel knows when there is room.
            let wait = limit_ms.unwrap_or(i64::from(i32::MAX));
            sys::poll_one(fd, PollFlags::OUT, wait).map(|_| ())
        };
        match slept {
            Ok(()) if limit_ms == Some(0) => Err(Errno::AGAIN),
            Ok(()) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Waits for a bell, at most a slice; those that were owed at arming are taken first.
    fn sleep_until_bell(&self, fd: RawFd, owed: Owed, limit_ms: Option<i64>) -> Result<(), Errno> {
        let slice = limit_ms.map_or(LOOK_AGAIN_MS, |limit| limit.min(LOOK_AGAIN_MS));
        let data_waits = self.receiving().is_some_and(|receiving| {
            receiving.lane.is_some_and(|lane| receiving.state.has_data(lane))
        });
        if !data_waits {
            self.drain(fd, owed);
            let seen = sys::poll_one(fd, PollFlags::IN | PollFlags::RDHUP, slice)?;
            if seen.intersects(PollFlags::HUP | PollFlags::ERR) {
                self.heard(sys::Bell::Failed(Errno::CONNRESET));
            } else if seen.contains(PollFlags::RDHUP) && !self.has(flag::READING_SHUT) {
                self.heard(sys::Bell::End);
            }
            return Ok(());
        }
        let seen = sys::poll_one(fd, PollFlags::RDHUP, 1)?;
        if !seen.is_empty() && !self.has(flag::READING_SHUT) {
            self.heard(sys::Bell::End);
        }
        Ok(())
    }
}

/// The first `most` bytes of `parts`; `None` when that is all of them.
fn front<'a>(parts: &[&'a [u8]], most: usize) -> Option<Vec<&'a [u8]>> {
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

/// What is behind the first `skip` bytes of `parts`.
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

/// What is left of `limit`, which begins to run at the first call.
fn time_left_ms(limit: i64, deadline: &mut Option<u64>) -> i64 {
    let now = sys::now_ns();
    let limit_ns = u64::try_from(limit).unwrap_or(0) * 1_000_000;
    let end = *deadline.get_or_insert(now + limit_ns);
    i64::try_from(end.saturating_sub(now).div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

fn send_timeout_ms(fd: RawFd) -> Option<i64> {
    use rustix::net::sockopt::{Timeout, socket_timeout};
    let time = socket_timeout(sys::borrow(fd), Timeout::Send).ok()??;
    i64::try_from(time.as_millis()).ok()
}

/// Parts of a vector that one call of the kernel is given.
const PARTS_MAX: usize = 64;

fn receive_tcp(
    fd: RawFd,
    targets: &mut [&mut [u8]],
    skip: usize,
    limit: usize,
    peek: bool,
) -> Attempt {
    let (mut before, mut room) = (skip, limit);
    let mut parts: Vec<IoSliceMut<'_>> = Vec::with_capacity(targets.len().min(PARTS_MAX));
    for target in targets.iter_mut() {
        let begin = before.min(target.len());
        before -= begin;
        let end = target.len().min(begin.saturating_add(room));
        room -= end - begin;
        if begin < end && parts.len() < PARTS_MAX {
            parts.push(IoSliceMut::new(&mut target[begin..end]));
        }
    }
    if parts.is_empty() {
        return Attempt::WouldBlock;
    }
    let mut flags = RecvFlags::DONTWAIT;
    flags.set(RecvFlags::PEEK, peek);
    let mut beside = rustix::net::RecvAncillaryBuffer::new(&mut []);
    match rustix::net::recvmsg(sys::borrow(fd), &mut parts, &mut beside, flags) {
        Ok(received) if received.bytes == 0 => Attempt::End,
        Ok(received) => Attempt::Moved(received.bytes),
        Err(Errno::AGAIN) => Attempt::WouldBlock,
        Err(errno) => Attempt::Failed(errno),
    }
}

fn send_tcp(fd: RawFd, parts: &[&[u8]]) -> Attempt {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let slices: Vec<_> = parts.iter().take(PARTS_MAX).map(|part| IoSlice::new(part)).collect();
    let mut beside = rustix::net::SendAncillaryBuffer::new(&mut []);
    match rustix::net::sendmsg(sys::borrow(fd), &slices, &mut beside, flags) {
        Ok(bytes) => Attempt::Moved(bytes),
        Err(Errno::AGAIN) => Attempt::WouldBlock,
        Err(errno) => Attempt::Failed(errno),
    }
}

//! Blocks that a reader takes straight from the writer's memory (`weft_socket::block`).
//!
//! Whoever comes to a lane is told by the daemon which process is at the other end, if the two
//! belong to one user and count processes alike, and tries whether the kernel lets it read that
//! process's memory. A connection that was inherited or passed since has other holders: they pull
//! nothing and offer nothing.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::PollFlags;
use rustix::io::Errno;
use weft_fabric::WaitFor;
use weft_memory::read_process;
use weft_socket::{Block, PullsFrom, ReceiveSide, SendSide};
use weft_sync::Step;
use weft_transport_shm::lane::ShmLane;
use weft_wire::stats::{BYTES_FABRIC_RECEIVED, BYTES_FABRIC_SENT, BYTES_PULLED};

use super::send::{send_timeout_ms, time_left_ms};
use super::{Attempt, How};
use crate::arena::Connection;
use crate::signals::Watch;
use crate::{control, log, process, settling, stats, sys};

/// Bytes that follow a block that is withdrawn.
const FOLLOWING_BYTES: usize = 120;
/// Blocks that are not offered after one of which nothing was pulled.
const WITHHELD: u32 = 64;
/// A reader that asks for less at a time is better served by the lane.
const PULLED_BYTES_MIN: usize = 4096;

/// Blocks that pay on the peer's processor, bytes, as the daemon measured.
static PAYS_FROM: AtomicU64 = AtomicU64::new(u64::MAX);
static PAYS_TO: AtomicU64 = AtomicU64::new(0);

/// What became of a block.
pub(super) struct Lent {
    /// Bytes that were sent.
    pub bytes: usize,
    /// Why the call cannot go on.
    pub error: Option<Errno>,
}

impl Connection {
    /// Called with a lane that nobody uses yet: says from whom this end pulls blocks. `peer` is the
    /// process at the other end, if the daemon vouches for it, else 0.
    pub fn pulls_from(&self, lane: &ShmLane, peer: u32) {
        let advice = control::advice();
        PAYS_FROM.store(advice.block_bytes_min, Ordering::Relaxed);
        PAYS_TO.store(advice.block_bytes_max, Ordering::Relaxed);
        let wanted = match process::settings().block_bytes {
            0 if advice.block_bytes_max == 0 => PullsFrom::Nobody,
            0 => process::only_processor().map_or(PullsFrom::Nobody, PullsFrom::Processor),
            _ => PullsFrom::Anybody,
        };
        // Asked last: where nobody wants to pull, no call is made that a sandbox could mind.
        let reads = wanted != PullsFrom::Nobody && may_read(peer);
        let (from, peer) = if reads { (wanted, peer) } else { (PullsFrom::Nobody, 0) };
        let processes = u64::from(process::pid()) << 32 | u64::from(peer);
        self.local.processes.store(processes, Ordering::Relaxed);
        ReceiveSide::pull_from(lane, from);
    }

    /// The same for a lane on which this end pulls none.
    pub fn pulls_from_nobody(&self) {
        self.local.processes.store(u64::from(process::pid()) << 32, Ordering::Relaxed);
    }

    /// This is the process that came to the lane, which the other end knows by its number.
    fn is_holder(&self) -> bool {
        let own = self.local.processes.load(Ordering::Relaxed) >> 32;
        own == u64::from(process::pid()) && !self.is_shared()
    }

    /// The process at the other end, if this one may read it.
    fn other_process(&self) -> Option<u32> {
        let processes = self.local.processes.load(Ordering::Relaxed);
        let [own, other] = [processes >> 32, processes & u64::from(u32::MAX)];
        let is_own = own == u64::from(process::pid());
        u32::try_from(other).ok().filter(|other| is_own && *other > 0)
    }

    /// This process becomes another program: what another thread has out is not there then.
    pub fn revoke_block(&self) {
        if let Some(sending) = self.sending()
            && let Some(lane) = sending.lane
        {
            sending.state.revoke_block(lane);
        }
    }

    /// A thread of the former program of this process may have had a block out.
    pub fn forget_block(&self) {
        if !self.is_shared()
            && let Some(sending) = self.sending()
            && sending.state.is_block_out()
        {
            sending.state.forget_block();
        }
    }

    /// True when a write of `wanted` bytes, of which so many are left in one piece, may be offered.
    #[inline]
    fn may_lend(&self, wanted: usize, left: usize) -> bool {
        let (wanted, left) = (wanted as u64, left as u64);
        match process::settings().block_bytes {
            0 => {
                wanted <= PAYS_TO.load(Ordering::Relaxed)
                    && left >= PAYS_FROM.load(Ordering::Relaxed)
            }
            forced => left >= forced,
        }
    }

    /// Offers the peer what is left of a write that finds no room, and waits until it was pulled,
    /// or the call cannot wait any longer. `None` where that is not done.
    pub(super) fn lend(
        &self,
        fd: RawFd,
        wanted: usize,
        left: &[&[u8]],
        watch: Watch,
        deadline: &mut Option<u64>,
    ) -> Option<Lent> {
        let part = left.iter().find(|part| !part.is_empty())?;
        if !self.may_lend(wanted, part.len()) || !self.is_holder() {
            return None;
        }
        if self.local.blocks_withheld.load(Ordering::Relaxed) > 0 {
            self.local.blocks_withheld.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        {
            let sending = self.sending()?;
            let lane = sending.lane?;
            let pays = match SendSide::peer_pulls(lane) {
                PullsFrom::Nobody => false,
                _ if process::settings().block_bytes > 0 => true,
                PullsFrom::Anybody => false,
                PullsFrom::Processor(number) => process::only_processor() == Some(number),
            };
            if !pays {
                return None;
            }
            let (process, address) = (process::pid(), part.as_ptr() as u64);
            let block = Block { process, address, bytes: part.len() as u64 };
            if sending.state.offer_block(lane, block)? {
                self.ring(fd, sending.state);
            }
        }
        let error = self.wait_for_puller(fd, watch, deadline).err();
        let bytes = self.end_block(fd, part);
        Some(Lent { bytes, error })
    }

    /// Returns when the block is over, or the peer did nothing about it for a slice of time.
    fn wait_for_puller(
        &self,
        fd: RawFd,
        watch: Watch,
        deadline: &mut Option<u64>,
    ) -> Result<(), Errno> {
        let mut patience = self.patience();
        loop {
            if self.is_block_over() || watch.saw_interruption() {
                return Ok(());
            }
            match patience.step() {
                Step::Spin => std::hint::spin_loop(),
                Step::Yield => patience.give_way(),
                Step::Sleep => break,
            }
        }
        self.begin_sleep(WaitFor::Room);
        let owed = self.arm(WaitFor::Room);
        if let Some(sending) = self.sending()
            && let Some(lane) = sending.lane
        {
            settling::settle(lane, WaitFor::Room);
        }
        let slept = if self.is_block_over() {
            Ok(())
        } else {
            let limit_ms = send_timeout_ms(fd).map(|limit| time_left_ms(limit, deadline));
            match self.sleep_until_bell(fd, owed, limit_ms) {
                Ok(()) if limit_ms == Some(0) => Err(Errno::AGAIN),
                // Handlers that restart; others the caller sees.
                Err(Errno::INTR) => Ok(()),
                slept => slept,
            }
        };
        self.end_sleep(WaitFor::Room);
        self.stop_waiting(WaitFor::Room);
        slept
    }

    fn is_block_over(&self) -> bool {
        let Some(sending) = self.sending() else { return true };
        let Some(lane) = sending.lane else { return true };
        sending.state.is_block_over(lane) || !SendSide::is_answered(lane)
    }

    /// Withdraws the block that `part` is, and returns how much of that was sent.
    fn end_block(&self, fd: RawFd, part: &[u8]) -> usize {
        let mut pulled = None;
        let in_time = wait_for(fd, || {
            if let Some(sending) = self.sending() {
                pulled = match sending.lane {
                    Some(lane) => sending.state.withdraw_block(lane),
                    None => Some(sending.state.forget_block()),
                };
            }
            pulled.is_some()
        });
        let Some(sending) = self.sending() else { return 0 };
        if pulled.is_none() {
            // What a peer that is gone pulled nobody will know of.
            if sending.state.is_block_out() {
                sending.state.forget_block();
            }
            if !in_time {
                self.abort(fd, sending.state, sending.lane);
                return 0;
            }
        }
        let pulled = usize::try_from(pulled.unwrap_or(0)).unwrap_or(0).min(part.len());
        if pulled == 0 {
            self.local.blocks_withheld.store(WITHHELD, Ordering::Relaxed);
        } else {
            stats::add(BYTES_FABRIC_SENT, pulled as u64);
            self.count();
            self.is_not_stuck();
        }
        let Some(lane) = sending.lane else { return pulled };
        if sending.state.is_block_out() {
            // Another thread's, which can be read as well.
            return pulled;
        }
        let rest = &part[pulled..];
        let following = &rest[..rest.len().min(FOLLOWING_BYTES)];
        let followed = self.follow_block(fd, sending.state, lane, following);
        sending.state.settle_block(lane);
        pulled + followed
    }

    /// Sends `bytes` behind a block that is withdrawn, so that what could be read stays so: over
    /// TCP when another thread has left the lane meanwhile.
    fn follow_block(&self, fd: RawFd, state: &mut SendSide, lane: &ShmLane, bytes: &[u8]) -> usize {
        if bytes.is_empty() || state.is_shut() {
            return 0;
        }
        if !state.on_lane() {
            let attempt = self.write_tcp(fd, state, &[bytes]);
            return if let Attempt::Moved(bytes) = attempt { bytes } else { 0 };
        }
        let Ok(written) = state.write(lane, &[bytes], process::settings().limits) else { return 0 };
        if written.ring {
            self.ring(fd, state);
        }
        stats::add(BYTES_FABRIC_SENT, written.bytes as u64);
        written.bytes
    }

    /// Takes the block at the head into the part of `targets` behind the first `skip` bytes, as far
    /// as that goes.
    #[cold]
    #[allow(clippy::too_many_arguments, reason = "one call's buffers, and where to read")]
    pub(super) fn pull(
        &self,
        fd: RawFd,
        state: &mut ReceiveSide,
        lane: &ShmLane,
        targets: &mut [&mut [u8]],
        skip: usize,
        how: How,
        room: &mut bool,
    ) -> Attempt {
        let Some(block) = state.block(lane) else {
            wait_for(fd, || !state.is_block_settling(lane));
            state.skip_block(lane);
            return Attempt::Again;
        };
        let mut parts = beginning(targets, skip, block.bytes);
        let wanted: usize = parts.iter().map(|part| part.len()).sum();
        if wanted == 0 {
            return Attempt::Moved(0);
        }
        let process = self.other_process().filter(|process| *process == block.process);
        let copied = match process {
            Some(process) => read_process(process, block.address, &mut parts),
            None => Err(Errno::PERM),
        };
        // Of a peer that is gone the number may name another process by now.
        let is_there = is_quiet(fd, PollFlags::RDHUP, 0);
        let bytes = match copied {
            Ok(bytes @ 1..) if is_there => bytes,
            failed => {
                log::debug!("a block of {block:?} cannot be read: {failed:?}");
                ReceiveSide::pull_from(lane, PullsFrom::Nobody);
                if state.refuse_block(lane) {
                    self.ring_for_room(fd);
                }
                wait_for(fd, || state.readable(lane));
                return Attempt::Again;
            }
        };
        if how.peek {
            return if state.offers_block(lane) { Attempt::Moved(bytes) } else { Attempt::Again };
        }
        let Some(ring) = state.pulled(lane, block, bytes as u64) else { return Attempt::Again };
        *room |= ring;
        if bytes < PULLED_BYTES_MIN && (bytes as u64) < block.bytes {
            ReceiveSide::pull_from(lane, PullsFrom::Nobody);
            *room |= state.refuse_block(lane);
        }
        stats::add(BYTES_FABRIC_RECEIVED, bytes as u64);
        stats::add(BYTES_PULLED, bytes as u64);
        self.count();
        Attempt::Moved(bytes)
    }
}

/// Waits for a peer that is about to go on, which takes it some instructions, unless it lost the
/// processor; not for one that is gone. False when it took longer than a peer of ours may, which
/// on a machine with too much to do can be without a processor for seconds.
fn wait_for(fd: RawFd, mut there: impl FnMut() -> bool) -> bool {
    const YIELDS_NS: u64 = 1_000_000;
    const MOST_NS: u64 = 10_000_000_000;
    let start = sys::now_ns();
    while !there() {
        match sys::now_ns() - start {
            0..YIELDS_NS => rustix::thread::sched_yield(),
            YIELDS_NS..MOST_NS => {
                // Its end alone says nothing: it may have sent that on the way back to TCP.
                if !is_quiet(fd, PollFlags::empty(), 1) {
                    return true;
                }
            }
            _ => return false,
        }
    }
    true
}

/// The kernel says none of `events`, nor of an error, within so many milliseconds. A signal, which
/// says nothing of the peer, ends the time but not the question.
fn is_quiet(fd: RawFd, events: PollFlags, mut milliseconds: i64) -> bool {
    loop {
        match sys::poll_one(fd, events, milliseconds) {
            Ok(seen) => return seen.is_empty(),
            Err(Errno::INTR) => milliseconds = 0,
            Err(_) => return false,
        }
    }
}

/// The kernel lets this process read `process`.
fn may_read(process: u32) -> bool {
    /// Where no program has memory.
    const NOWHERE: u64 = 8;
    process > 0 && read_process(process, NOWHERE, &mut [&mut [0]]) == Err(Errno::FAULT)
}

/// The first `most` bytes of `targets` behind `skip`.
fn beginning<'a>(targets: &'a mut [&mut [u8]], mut skip: usize, most: u64) -> Vec<&'a mut [u8]> {
    let mut left = usize::try_from(most).unwrap_or(usize::MAX);
    let mut parts = Vec::with_capacity(targets.len());
    for target in targets {
        let begin = skip.min(target.len());
        skip -= begin;
        let part = &mut target[begin..];
        let size = part.len().min(left);
        left -= size;
        if size > 0 {
            parts.push(&mut part[..size]);
        }
    }
    parts
}

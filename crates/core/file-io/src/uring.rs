//! Requests by io_uring(7).
//!
//! Invariant: a slot is occupied from the submission to the end of its last part, and holds the
//! file and the memory that the kernel uses. The ring is dropped when no slot is.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::Errno;

use crate::engine::{Action, Done, Request};
use crate::pool::Pool;

/// Most bytes of one entry: lengths in entries have 32 bits, and the kernel moves at most 2 GiB.
const PART_BYTES_MAX: usize = 1 << 30;

struct Slot {
    request: Request,
    moved: usize,
}

pub(crate) struct Uring {
    ring: IoUring,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    registered: Option<Pool>,
    /// Slots whose entry had no room in the queue yet.
    queue: Vec<usize>,
}

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uring").field("pending", &self.pending()).finish_non_exhaustive()
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

impl Uring {
    pub fn new(depth: u32) -> Result<Self, Errno> {
        let ring = IoUring::new(depth).map_err(|error| errno(&error))?;
        let mut probe = io_uring::Probe::new();
        ring.submitter().register_probe(&mut probe).map_err(|error| errno(&error))?;
        let needed = [opcode::Read::CODE, opcode::Write::CODE, opcode::Fsync::CODE];
        if !needed.iter().all(|code| probe.is_supported(*code)) {
            return Err(Errno::NOSYS);
        }
        let depth = depth as usize;
        let slots = std::iter::repeat_with(|| None).take(depth).collect();
        let free = (0..depth).rev().collect();
        Ok(Self { ring, slots, free, registered: None, queue: Vec::new() })
    }

    pub fn register(&mut self, pool: &Pool) -> bool {
        if self.registered.is_some() {
            return false;
        }
        let (base, length) = pool.memory();
        let all = libc::iovec { iov_base: base.as_ptr().cast(), iov_len: length };
        // SAFETY: the memory lives as long as the pool, of which `registered` keeps a clone until
        // the ring is gone.
        let result = unsafe { self.ring.submitter().register_buffers(&[all]) };
        if result.is_ok() {
            self.registered = Some(pool.clone());
        }
        result.is_ok()
    }

    pub fn pending(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring owns the descriptor and lives as long as the borrow.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }

    pub fn submit(&mut self, request: Request) -> Result<(), Request> {
        let Some(slot) = self.free.pop() else { return Err(request) };
        self.slots[slot] = Some(Slot { request, moved: 0 });
        self.queue.push(slot);
        Ok(())
    }

    pub fn wait(&mut self, count: usize, into: &mut Vec<Done>) -> io::Result<()> {
        let wanted = count.min(self.pending());
        let before = into.len();
        loop {
            self.fill_queue();
            self.reap(into);
            let missing = wanted.saturating_sub(into.len() - before);
            let has_new = !self.ring.submission().is_empty();
            if missing == 0 && !has_new && self.queue.is_empty() {
                return Ok(());
            }
            // Short counts go on one part at a time, so one end at a time is waited for.
            match self.ring.submit_and_wait(missing.min(1)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                Err(error) => return Err(error),
            }
            self.reap(into);
        }
    }

    /// Moves entries from the own queue to that of the ring.
    fn fill_queue(&mut self) {
        while let Some(slot) = self.queue.pop() {
            let entry = self.entry(slot);
            // SAFETY: the memory and the file of the entry are in the slot, which stays occupied
            // until the kernel has reported the end of the entry.
            if unsafe { self.ring.submission().push(&entry) }.is_err() {
                self.queue.push(slot);
                return;
            }
        }
    }

    /// The entry for the rest of a slot's request.
    fn entry(&self, slot: usize) -> squeue::Entry {
        let Slot { request, moved } = self.slots[slot].as_ref().expect("the slot is occupied");
        let file = types::Fd(request.file.as_fd().as_raw_fd());
        let entry = match (request.action, &request.space) {
            (Action::Sync, _) => opcode::Fsync::new(file).build(),
            (Action::DataSync, _) => {
                opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build()
            }
            (Action::Read { at }, Some(space)) => {
                let (start, length) = (space.start(*moved).as_ptr(), part(space.length() - moved));
                let at = at + *moved as u64;
                if self.is_registered(space.pool()) {
                    opcode::ReadFixed::new(file, start, length, 0).offset(at).build()
                } else {
                    opcode::Read::new(file, start, length).offset(at).build()
                }
            }
            (Action::Write { at }, Some(space)) => {
                let (start, length) = (space.start(*moved).as_ptr(), part(space.length() - moved));
                let at = at + *moved as u64;
                if self.is_registered(space.pool()) {
                    opcode::WriteFixed::new(file, start, length, 0).offset(at).build()
                } else {
                    opcode::Write::new(file, start, length).offset(at).build()
                }
            }
            (Action::Read { .. } | Action::Write { .. }, None) => {
                unreachable!("a read or write has memory")
            }
        };
        entry.user_data(slot as u64)
    }

    fn is_registered(&self, pool: Option<&Pool>) -> bool {
        match (&self.registered, pool) {
            (Some(registered), Some(pool)) => registered.is(pool),
            _ => false,
        }
    }

    fn reap(&mut self, into: &mut Vec<Done>) {
        while let Some(entry) = self.ring.completion().next() {
            let number = usize::try_from(entry.user_data()).expect("the number of a slot");
            let count = entry.result();
            let slot = self.slots[number].as_mut().expect("an entry's slot is occupied");
            let result = match usize::try_from(count) {
                Ok(count) => {
                    slot.moved += count;
                    let length = slot.request.space.as_ref().map_or(0, crate::Space::length);
                    let is_read = matches!(slot.request.action, Action::Read { .. });
                    if slot.moved < length && count > 0 {
                        self.queue.push(number);
                        continue;
                    }
                    // A write that moves nothing has no end, as in the plain way.
                    let is_whole = slot.moved == length || is_read;
                    if is_whole { Ok(slot.moved) } else { Err(Errno::IO) }
                }
                Err(_) => {
                    let error = Errno::from_raw_os_error(-count);
                    if error == Errno::INTR || error == Errno::AGAIN {
                        self.queue.push(number);
                        continue;
                    }
                    Err(error)
                }
            };
            let slot = self.slots[number].take().expect("it is occupied");
            self.free.push(number);
            into.push(Done { token: slot.request.token, result, space: slot.request.space });
        }
    }
}

/// Bytes of one entry, of those that are left.
fn part(left: usize) -> u32 {
    u32::try_from(left.min(PART_BYTES_MAX)).expect("a part has 30 bits")
}

impl Drop for Uring {
    fn drop(&mut self) {
        // Operations that were not passed to the kernel are given up; the rest must end, for the
        // kernel uses the memory of the slots.
        for slot in self.queue.drain(..) {
            self.slots[slot] = None;
            self.free.push(slot);
        }
        let mut done = Vec::new();
        while self.pending() > 0 {
            if self.wait(1, &mut done).is_err() {
                // The memory cannot be given back while the kernel may use it.
                self.slots.drain(..).for_each(std::mem::forget);
                std::mem::forget(self.registered.take());
                return;
            }
            done.clear();
        }
    }
}

//! The epoll sets of this process: the descriptors that lead to each, and its registrations.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use weft_sync::Learned;

use super::kernel::{GENERATIONS, REGISTRATIONS_MAX};
use super::registration::Registration;
use crate::arena;
use crate::guard::{ForkLock, LocalGuard, LocalLock, Rank};
use crate::sys;
use crate::table::{self, Entry};

const SETS_MAX: usize = 4096;

/// One set.
#[derive(Default)]
pub(super) struct Set {
    pub(super) registrations: Vec<Option<Registration>>,
    pub(super) free: Vec<u32>,
    pub(super) by_fd: HashMap<RawFd, u32>,
    /// The generation of the last registration.
    generation: u32,
    pub(super) hot: Vec<u32>,
    /// The last look found something.
    pub(super) busy: bool,
    pub(super) looks: u32,
    pub(super) learned: Learned,
    pub(super) descriptors: u32,
    /// Threads that sleep in the kernel's wait.
    pub(super) sleeping: u32,
    /// A connection of this set waits for room: for how many ns a thread sleeps at most before it
    /// looks.
    pub(super) room_ns: Option<u64>,
    /// Registrations on lanes for which the kernel still has the program's data.
    pub(super) untagged: Vec<u32>,
    /// Another set, or a poll, waits for this set.
    pub(super) nested: bool,
    /// The sets in this set.
    pub(super) inner: Vec<RawFd>,
    /// Calls in a row in which hot connections alone filled the program's buffer.
    pub(super) full_calls: u32,
    /// The library saw a wait for this set, so it sees them all. A program may wait by system calls
    /// of its own: then it is not seen what it waits for, and when.
    pub(super) is_seen: bool,
    /// The set was inherited by fork and is not used by this process: its kernel side is another's.
    pub(super) inherited: bool,
}

pub(super) type Slot = LocalLock<Set>;

static SETS: [AtomicPtr<Slot>; SETS_MAX] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; SETS_MAX];
static SETS_END: AtomicU32 = AtomicU32::new(0);
static FREE_SETS: LocalLock<Vec<u32>> = LocalLock::new(Rank::FreeSets, Vec::new());

pub(super) fn set_at(number: u32) -> Option<&'static Slot> {
    let set = SETS.get(number as usize)?.load(Ordering::Acquire);
    // SAFETY: sets are leaked boxes, so a pointer that was stored stays valid.
    (!set.is_null()).then(|| unsafe { &*set })
}

pub(super) fn all_sets() -> impl Iterator<Item = &'static Slot> {
    (0..SETS_END.load(Ordering::Acquire)).filter_map(set_at)
}

/// Tracks a set that was just created.
pub fn created(epfd: RawFd) {
    let errno = sys::errno();
    drop(set_of(epfd, true));
    sys::set_errno(errno);
}

/// The set behind `epfd`, locked. With `make`, a set that is not tracked yet is tracked from now
/// on.
#[inline(always)]
pub(super) fn set_of(epfd: RawFd, make: bool) -> Option<LocalGuard<'static, Set>> {
    if let Entry::Epoll(number) = table::get(epfd) {
        let mut set = set_at(number)?.lock()?;
        if set.inherited {
            set.take_over();
        }
        return Some(set);
    }
    if !make || !table::covers(epfd) {
        return None;
    }
    let mut free = FREE_SETS.lock()?;
    let number = match free.pop() {
        Some(number) => number,
        None => {
            let number = SETS_END.load(Ordering::Relaxed);
            let slot = SETS.get(number as usize)?;
            slot.store(
                Box::into_raw(Box::new(Slot::new(Rank::Set, Set::default()))),
                Ordering::Release,
            );
            SETS_END.store(number + 1, Ordering::Release);
            number
        }
    };
    drop(free);
    let mut set = set_at(number)?.lock()?;
    *set = Set { descriptors: 1, ..Set::default() };
    table::set(epfd, Entry::Epoll(number));
    Some(set)
}

impl Set {
    pub(super) fn get(&mut self, index: u32) -> Option<&mut Registration> {
        self.registrations.get_mut(index as usize)?.as_mut()
    }

    /// Adds a registration, with a new generation, and returns its index; `None` when there are too
    /// many.
    pub(super) fn insert(&mut self, mut registration: Registration) -> Option<u32> {
        let fd = registration.fd;
        self.generation = (self.generation + 1) % GENERATIONS;
        registration.generation = self.generation;
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.registrations.len() < REGISTRATIONS_MAX => {
                self.registrations.push(None);
                u32::try_from(self.registrations.len() - 1).ok()?
            }
            None => return None,
        };
        if !self.is_seen {
            count_unseen(&registration, 1);
        } else if let Some(connection) = arena::at(registration.place) {
            connection.proves_wait();
        }
        self.registrations[index as usize] = Some(registration);
        self.by_fd.insert(fd, index);
        Some(index)
    }

    /// The library saw a wait for this set.
    #[cold]
    pub(super) fn see(&mut self) {
        self.is_seen = true;
        for registration in self.registrations.iter().flatten() {
            count_unseen(registration, -1);
            if let Some(connection) = arena::at(registration.place) {
                connection.proves_wait();
            }
        }
    }

    /// This process begins to use a set that it inherited.
    #[cold]
    fn take_over(&mut self) {
        self.inherited = false;
        for registration in self.registrations.iter().flatten() {
            if let Some(connection) = arena::at(registration.place) {
                connection.shared.common.begin_watch(1);
            }
        }
    }

    pub(super) fn remove(&mut self, index: u32) {
        let Some(place) = self.registrations.get_mut(index as usize) else { return };
        let Some(registration) = place.take() else { return };
        // The descriptor may have a later registration already.
        if self.by_fd.get(&registration.fd) == Some(&index) {
            self.by_fd.remove(&registration.fd);
        }
        self.hot.retain(|hot| *hot != index);
        self.free.push(index);
        if let Some(connection) = arena::at(registration.place) {
            if !self.inherited {
                connection.shared.common.end_watch(1);
            }
            if !self.is_seen {
                count_unseen(&registration, -1);
            }
            let registered = &connection.local.registered;
            let _ = registered
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1));
        }
    }
}

fn count_unseen(registration: &Registration, change: i32) {
    if let Some(connection) = arena::at(registration.place) {
        connection.local.unseen_sets.fetch_add(change.cast_unsigned(), Ordering::Relaxed);
    }
}

/// A descriptor of the set was closed. Without descriptors the set is freed.
pub fn destroyed(number: u32) {
    let Some(slot) = set_at(number) else { return };
    let Some(mut set) = slot.lock() else { return };
    set.descriptors = set.descriptors.saturating_sub(1);
    if set.descriptors > 0 {
        return;
    }
    for index in 0..u32::try_from(set.registrations.len()).unwrap_or(0) {
        set.remove(index);
    }
    *set = Set::default();
    drop(set);
    if let Some(mut free) = FREE_SETS.lock() {
        free.push(number);
    }
}

/// Counts one more descriptor of the set.
pub fn retain(number: u32) {
    if let Some(mut set) = set_at(number).and_then(Slot::lock) {
        set.descriptors += 1;
    }
}

/// Locks all sets, for fork.
pub fn before_fork() {
    FREE_SETS.take();
    all_sets().for_each(ForkLock::take);
}

/// Frees the locks, in both processes after fork.
pub fn after_fork() {
    all_sets().for_each(ForkLock::give_back);
    FREE_SETS.give_back();
}

/// In a forked child: it uses none of the sets yet.
pub fn forked() {
    for mut set in all_sets().filter_map(Slot::lock) {
        set.inherited = true;
    }
}

/// This process ends: none of its sets relies on wakeups any more.
pub fn ended() {
    for set in all_sets().filter_map(Slot::lock).filter(|set| !set.inherited) {
        for registration in set.registrations.iter().flatten() {
            if let Some(connection) = arena::at(registration.place) {
                connection.shared.common.end_watch(1);
            }
        }
    }
}

/// True when `epfd` is a set that the library tracks.
pub fn is_ours(epfd: RawFd) -> bool {
    matches!(table::get(epfd), Entry::Epoll(_))
}

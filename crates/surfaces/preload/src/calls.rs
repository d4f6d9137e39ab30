//! The calls that threads make on connections just now.
//!
//! A call of the kernel holds the file on which it works: another thread may close the number
//! meanwhile, and a new file may get it. So each call of the library notes the connection and the
//! number by which it came, in memory of its thread that others read. A thread that closes a
//! number looks for such notes. Short calls it waits for. For calls that wait it keeps the socket
//! open under a number of the library's own, the *lent* one, and they go on with that. The last of
//! them gives it back, and that is the end of the connection, as in the kernel.
//!
//! # Invariants
//! - A place in the arenas has another connection only when no call on it is noted.
//! - A call notes itself, executes a fence, and looks once more what its number leads to. A thread
//!   that closes the number changes that first, executes a fence, and then looks for notes. The
//!   fence of the call is none where `membarrier` serves the other ([`weft_sync::fence`]).
//! - A call uses its number under a lock, right after it looked at it ([`number`]), or in a sleep.
//!   A thread that closes the number waits until the kernel has begun that sleep.
//! - A handler that leaves by a jump leaves a note behind, so no thread waits longer than
//!   [`SETTLED_NS`] for the others. A note that is older is taken away.

use std::cell::Cell;
use std::ops::Deref;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

use weft_sync::fence::{heavy, light};

use crate::arena::{self, Connection};
use crate::deferral::{self, Noted};
use crate::guard::{ForkLock, LocalLock, Rank};
use crate::table::{self, Entry};
use crate::{process, sys};

/// How long a thread that closes a number waits for the calls of others.
const SETTLED_NS: u64 = 200_000_000;
/// How long a call waits for a thread that closes its number. That one may wait for a peer.
const LEFT_NS: u64 = 5_000_000_000;

/// More threads than these are not seen by those that close.
const THREADS: usize = 1 << 14;
static NOTES: [Noted; THREADS] = [const { Noted::new() }; THREADS];
/// One above the highest place that a thread has had.
static HIGHEST: AtomicU32 = AtomicU32::new(0);
/// `membarrier` does not serve: calls execute the fence.
static FULL: AtomicBool = AtomicBool::new(false);
/// Called when the last call leaves that uses a lent number.
static RETURN: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
/// The lent numbers. No other lock is taken under this one, except those of a direction.
static LENT: LocalLock<Vec<RawFd>> = LocalLock::new(Rank::Lent, Vec::new());
static ARE_LENT: AtomicBool = AtomicBool::new(false);

/// The note of a call: its number, and the table's entry of that. 0 is none.
#[inline]
fn note_of(word: u32, fd: RawFd) -> u64 {
    u64::from(fd.unsigned_abs()) << 32 | u64::from(word)
}

fn place_of(note: u64) -> Option<u32> {
    table::place_of(u32::try_from(note & u64::from(u32::MAX)).ok()?)
}

fn number_of(note: u64) -> RawFd {
    RawFd::try_from(note >> 32).unwrap_or(-1)
}

/// A call on a connection, which stays where it is until this is dropped.
pub struct Call {
    connection: Connection,
    note: Option<&'static AtomicU64>,
}

impl Deref for Call {
    type Target = Connection;

    #[inline]
    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl Drop for Call {
    #[inline]
    fn drop(&mut self) {
        if let Some(note) = self.note {
            note.store(0, Ordering::Release);
        }
        if self.connection.local.lent.load(Ordering::Relaxed) != 0 {
            leaves(self.connection);
        }
    }
}

/// Prepares this process. `give_back` ends the use of a lent number.
pub fn begin(give_back: fn(Connection)) {
    FULL.store(!weft_sync::fence::register(), Ordering::Relaxed);
    RETURN.store(give_back as *mut (), Ordering::Release);
}

/// Notes a call on the connection to which `fd` leads; `None` when that is none.
#[inline(always)]
#[allow(clippy::inline_always, reason = "each call on a connection begins with it")]
pub fn enter(fd: RawFd) -> Option<Call> {
    let (place, slot, word) = match table::connection(fd) {
        Ok(found) => found,
        Err(Entry::Leaving(_)) => return enter_later(fd),
        Err(_) => return None,
    };
    let noted = deferral::noted().load(Ordering::Relaxed);
    // SAFETY: null, or a place of the static array.
    let noted: Option<&'static Noted> = unsafe { noted.as_ref() };
    let Some(noted) = noted.filter(|noted| noted.calls[0].load(Ordering::Relaxed) == 0) else {
        return enter_slowly(fd, noted);
    };
    let connection = arena::at(place)?;
    let note = &noted.calls[0];
    note.store(note_of(word, fd), Ordering::Relaxed);
    light(false);
    if slot.load(Ordering::Relaxed) != word {
        note.store(0, Ordering::Release);
        return again(fd);
    }
    Some(Call { connection, note: Some(note) })
}

/// The same for a thread that has no place yet or no use for one, for a call inside of another one,
/// and where calls execute the fence.
#[cold]
#[inline(never)]
fn enter_slowly(fd: RawFd, noted: Option<&'static Noted>) -> Option<Call> {
    let (place, slot, word) = table::connection(fd).ok()?;
    let connection = arena::at(place)?;
    let Some(noted) = noted.or_else(claim) else {
        let is_seen = !process::has_own_files();
        return is_seen.then_some(Call { connection, note: None });
    };
    let is_inner = noted.calls[0].load(Ordering::Relaxed) != 0;
    let note = &noted.calls[usize::from(is_inner)];
    note.store(note_of(word, fd), Ordering::Relaxed);
    fence(Ordering::SeqCst);
    if slot.load(Ordering::Relaxed) != word {
        note.store(0, Ordering::Release);
        return again(fd);
    }
    Some(Call { connection, note: Some(note) })
}

/// The number led elsewhere before the call was noted.
#[cold]
#[inline(never)]
fn again(fd: RawFd) -> Option<Call> {
    enter(fd)
}

/// Another thread is closing the number: waits until that is done.
#[cold]
#[inline(never)]
fn enter_later(fd: RawFd) -> Option<Call> {
    let start = sys::now_ns();
    loop {
        match table::get(fd) {
            Entry::Leaving(task) if task != sys::task() && sys::now_ns() - start < LEFT_NS => {
                pause(start);
            }
            Entry::Connection(_) => return enter(fd),
            _ => return None,
        }
    }
}

/// Yields, and sleeps a little when it takes long.
fn pause(start: u64) {
    const YIELDING_NS: u64 = 200_000;
    if sys::now_ns() - start < YIELDING_NS {
        rustix::thread::sched_yield();
    } else {
        let moment = rustix::thread::Timespec { tv_sec: 0, tv_nsec: 100_000 };
        let _ = rustix::thread::nanosleep(&moment);
    }
}

/// The place of a thread, which is free again when the thread ends.
struct Owner(Cell<Option<&'static Noted>>);

impl Drop for Owner {
    fn drop(&mut self) {
        deferral::noted().store(std::ptr::null_mut(), Ordering::Relaxed);
        if let Some(noted) = self.0.take() {
            noted.calls.iter().for_each(|call| call.store(0, Ordering::Release));
            noted.task.store(0, Ordering::Release);
        }
    }
}

thread_local! {
    static OWNER: Owner = const { Owner(Cell::new(None)) };
}

/// The place of the calling thread, if it has one.
fn own() -> Option<&'static Noted> {
    OWNER.try_with(|owner| owner.0.get()).ok()?
}

/// Gives the calling thread a place for its notes. `None` when all are taken, and in a thread that
/// ends.
#[cold]
fn claim() -> Option<&'static Noted> {
    let task = sys::task();
    // In a thread that ends there is none.
    let had = OWNER.try_with(|owner| owner.0.get()).ok()?;
    if had.is_some() || process::has_own_files() {
        return had.filter(|_| !process::has_own_files());
    }
    let (noted, index) = NOTES.iter().zip(1u32..).find(|(noted, _)| {
        let free = noted.task.load(Ordering::Relaxed) == 0;
        free && noted.task.compare_exchange(0, task, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    })?;
    HIGHEST.fetch_max(index, Ordering::SeqCst);
    if !FULL.load(Ordering::Relaxed) {
        deferral::noted().store(std::ptr::from_ref(noted).cast_mut(), Ordering::Relaxed);
    }
    let _ = OWNER.try_with(|owner| owner.0.set(Some(noted)));
    Some(noted)
}

/// The calling thread has descriptors of its own from here on: it makes no call on a connection.
pub fn begin_own_files() {
    deferral::noted().store(std::ptr::null_mut(), Ordering::Relaxed);
}

/// The notes of other threads on the connection at `place`, with the threads.
fn others(place: u32) -> impl Iterator<Item = (&'static AtomicU64, u64, u32)> {
    let own = own().map_or(std::ptr::null(), std::ptr::from_ref);
    let highest = HIGHEST.load(Ordering::SeqCst) as usize;
    NOTES[..highest.min(THREADS)].iter().filter(move |noted| !std::ptr::eq(*noted, own)).flat_map(
        move |noted| {
            noted.calls.iter().filter_map(move |call| {
                let note = call.load(Ordering::Acquire);
                let task = noted.task.load(Ordering::Relaxed);
                (place_of(note) == Some(place)).then_some((call, note, task))
            })
        },
    )
}

/// True when calls of other threads came to the connection by `fd`, whose entry the caller changed.
pub fn has_others(connection: Connection, fd: RawFd) -> bool {
    if process::is_single_threaded() {
        return false;
    }
    heavy();
    others(connection.place).any(|(_, note, _)| number_of(note) == fd)
}

/// Waits until no call of another thread uses `fd` to reach the connection. Those that go on have
/// the lent number, or sleep in the kernel. Takes the notes away of others that do not answer.
pub fn settle(connection: Connection, fd: RawFd) {
    heavy();
    let start = sys::now_ns();
    loop {
        let mut is_settled = true;
        let is_over = sys::now_ns() - start > SETTLED_NS;
        for (call, note, task) in others(connection.place) {
            if number_of(note) != fd || sys::sleeps_for(task, fd) {
                continue;
            }
            is_settled = false;
            if is_over {
                let _ = call.compare_exchange(note, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
        if is_settled || is_over {
            return;
        }
        pause(start);
    }
}

/// Takes away all notes of calls that came to the connection by `fd`, which was closed unseen.
pub fn forsake(connection: Connection, fd: RawFd) {
    if !has_others(connection, fd) {
        return;
    }
    settle(connection, fd);
    for (call, note, _) in others(connection.place).filter(|(_, note, _)| number_of(*note) == fd) {
        let _ = call.compare_exchange(note, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// The number by which a call that came by `fd`, and has waited, reaches the connection. `None` if
/// it was closed and the call does not hold the connection any more. `generation` is that of the
/// connection at the call's beginning.
#[inline(never)]
pub fn number(connection: Connection, fd: RawFd, generation: u32) -> Option<RawFd> {
    let start = sys::now_ns();
    loop {
        if connection.shared.generation.load(Ordering::Relaxed) != generation {
            return None;
        }
        let entry = table::get(fd);
        if entry == Entry::Connection(connection.place) {
            return Some(fd);
        }
        let lent = connection.local.lent.load(Ordering::Acquire);
        if lent != 0 {
            return takes(connection.place, fd, lent);
        }
        match entry {
            Entry::Leaving(task) if task != sys::task() && sys::now_ns() - start < LEFT_NS => {
                pause(start);
            }
            _ => return None,
        }
    }
}

/// Notes that the call goes on with the lent number. `None` when its note was taken away.
fn takes(place: u32, fd: RawFd, lent: RawFd) -> Option<RawFd> {
    let noted = own()?;
    let word = table::word_of(place);
    let (from, to) = (note_of(word, fd), note_of(word, lent));
    let takes = |call: &AtomicU64| {
        call.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .map_or_else(|now| now == to, |_| true)
    };
    // The innermost call first.
    noted.calls.iter().rev().any(takes).then_some(lent)
}

/// A call leaves a connection that has a lent number.
#[cold]
fn leaves(connection: Connection) {
    heavy();
    if has_own(connection.place) || is_lent_used(connection) {
        return;
    }
    let give_back = RETURN.load(Ordering::Acquire);
    if !give_back.is_null() {
        // SAFETY: `begin` stored a function of this type.
        let give_back: fn(Connection) = unsafe { std::mem::transmute(give_back) };
        give_back(connection);
    }
}

/// True when the calling thread has noted another call on the connection at `place`.
fn has_own(place: u32) -> bool {
    own().is_some_and(|own| {
        own.calls.iter().any(|call| place_of(call.load(Ordering::Relaxed)) == Some(place))
    })
}

/// True while calls of other threads need the lent number: the one by which they came is closed.
pub fn is_lent_used(connection: Connection) -> bool {
    let leads = |fd| table::get(fd) == Entry::Connection(connection.place);
    let lent = connection.local.lent.load(Ordering::Acquire);
    others(connection.place).any(|(_, note, _)| {
        let fd = number_of(note);
        fd == lent || !leads(fd)
    })
}

/// Lends `fd` to the calls that came to the connection by a number that is about to be closed. The
/// table leads from it to the connection. False if another number is lent already.
pub fn lend(connection: Connection, fd: RawFd) -> bool {
    let Some(mut lent) = LENT.lock() else { return false };
    let place = &connection.local.lent;
    if place.compare_exchange(0, fd, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return false;
    }
    lent.push(fd);
    ARE_LENT.store(true, Ordering::Relaxed);
    true
}

/// The number `fd` is not lent any more, if it was: the program replaces it by a file of its own.
pub fn stops_lending(connection: Connection, fd: RawFd) {
    let Some(mut lent) = LENT.lock() else { return };
    let place = &connection.local.lent;
    if place.compare_exchange(fd, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
        lent.retain(|other| *other != fd);
        ARE_LENT.store(!lent.is_empty(), Ordering::Relaxed);
    }
}

/// Ends the use of the connection's lent number if no call needs it, and returns it.
pub fn take_back(connection: Connection) -> Option<RawFd> {
    let mut lent = LENT.lock()?;
    if is_lent_used(connection) {
        return None;
    }
    let fd = connection.local.lent.swap(0, Ordering::AcqRel);
    lent.retain(|other| *other != fd);
    ARE_LENT.store(!lent.is_empty(), Ordering::Relaxed);
    (fd != 0).then_some(fd)
}

/// True while numbers are lent.
#[inline]
pub fn are_lent() -> bool {
    ARE_LENT.load(Ordering::Relaxed)
}

/// The lent numbers.
pub fn lent() -> Vec<RawFd> {
    if are_lent() { LENT.lock().map_or_else(Vec::new, |lent| lent.clone()) } else { Vec::new() }
}

/// The lock of this module, for fork.
pub fn lock() -> &'static dyn ForkLock {
    &LENT
}

/// In a forked child: the calls of other threads are the parent's. Returns the numbers that were
/// lent to them.
pub fn forked() -> Vec<RawFd> {
    let own = own().map_or(std::ptr::null(), std::ptr::from_ref);
    for noted in NOTES[..HIGHEST.load(Ordering::SeqCst) as usize].iter() {
        if std::ptr::eq(noted, own) {
            noted.task.store(sys::task(), Ordering::Relaxed);
        } else {
            noted.calls.iter().for_each(|call| call.store(0, Ordering::Relaxed));
            noted.task.store(0, Ordering::Relaxed);
        }
    }
    ARE_LENT.store(false, Ordering::Relaxed);
    LENT.lock().map_or_else(Vec::new, |mut lent| std::mem::take(&mut *lent))
}

//! The arenas: memory with the state of connections, which forked processes share.
//!
//! A process allocates places for connections from an arena of its own. A forked child keeps its
//! parent's arenas mapped for the connections that it inherited, and starts another arena for its
//! own. The state of one process alone is in private memory beside the arena: the mapping of a
//! lane, for example, or how many descriptors of the process lead to a connection.

use std::cell::UnsafeCell;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Ordering,
};

use rustix::fs::{Mode, OFlags};
use weft_memory::Segment;
use weft_socket::over_tcp::OverTcp;
use weft_socket::token::Tokens;
use weft_socket::{Common, Peer, Phase, ReceiveSide, SendSide, SharedPhase, Side};
use weft_sync::lock::{SharedLock, process_lives};

use crate::guard::{LocalLock, Rank};
use crate::lane::Lane;
use crate::{process, sys};

/// Bits of [`Shared::flags`].
pub mod flag {
    /// The socket has O_NONBLOCK.
    pub const NONBLOCKING: u32 = 1;
    /// The program called shutdown(SHUT_RD).
    pub const READING_SHUT: u32 = 2;
    /// The program waited where the library saw it, or would have: by a read that may block, or by
    /// `poll` or `select`.
    pub const AWAITED: u32 = 4;
    /// The connection was counted as one of the fabric.
    pub const COUNTED: u32 = 8;
    /// A reset was reported to the program. Later writes give EPIPE, and later reads an end of
    /// file.
    pub const RESET_REPORTED: u32 = 16;
    /// Bytes were sent after the peer had closed in order. The connection fails with EPIPE.
    pub const SENT_TO_NOBODY: u32 = 32;
    /// SO_RCVLOWAT is above 1. Reads that may wait do so in the kernel, which knows for how many
    /// bytes.
    pub const LOW_WATER: u32 = 64;
    /// The program set TCP_NODELAY. The kernel's socket may differ while it carries wakeups.
    pub const NO_DELAY: u32 = 128;
    /// The program set TCP_CORK. The kernel's socket may differ while it carries wakeups.
    pub const CORKED: u32 = 256;
    /// The lane is being given back.
    pub const GIVING_BACK: u32 = 512;
    /// The connection wanted a lane when the process could have no more.
    pub const NO_LANE: u32 = 1024;
    /// The other end is of a user whom the daemon does not serve.
    pub const OTHER_USER: u32 = 2048;
    /// The next long write waits for the peer once, which is to come to the lane.
    pub const EARLY: u32 = 4096;
    /// The kernel told the library a failure of the connection, and the program has yet to be told:
    /// in a wait for bytes of TCP, or over the endpoint before the lane told its end.
    pub const RESET_TAKEN: u32 = 8192;
    /// The library may not have counted all bytes of TCP ([`super::Shared::unseen_user`]).
    pub const UNSEEN: u32 = 16384;
    /// The connecting end offers a kept lane to its peer ([`crate::reserve`]).
    pub const INVITED: u32 = 32768;
    /// The connection asked the daemon for a lane that pays only if it is kept.
    pub const PRIMES: u32 = 65536;
    /// TCP_INQ: `recvmsg` tells how many bytes are left to read.
    pub const TELLS_UNREAD: u32 = 1 << 17;
    /// This end ended its sending direction on TCP while it had no lane.
    pub const SENDING_SHUT: u32 = 1 << 18;
    /// The backlog in the kernel's socket is or was bounded ([`crate::backlog`]).
    pub const BOUNDED: u32 = 1 << 19;
    /// The daemon did not answer an offer: the connection asks again, after a while.
    pub const PUT_OFF: u32 = 1 << 20;
    /// The library saw the program wait for the connection ([`crate::unproven`]).
    pub const PROVEN: u32 = 1 << 21;
    /// It did not, and the lane stays armed while the program is outside of the library.
    pub const UNPROVEN: u32 = 1 << 22;
}

/// The state of a connection that all processes of its end share. Zeroed memory is a free place.
/// Any bytes are valid.
#[repr(C, align(64))]
pub struct Shared {
    pub phase: SharedPhase,
    pub generation: AtomicU32,
    /// Descriptors that lead to the connection, in all processes.
    pub refs: AtomicU32,
    pub side: AtomicU32,
    pub flags: AtomicU32,
    /// The place of its address in [`crate::history`], or 0.
    pub address: AtomicU32,
    /// The calls and bytes over TCP while the connection had no lane.
    pub over_tcp: OverTcp,
    /// State that both directions use without a lock.
    pub common: Common,
    /// The inode of the kernel's socket, which finds the connection again behind another
    /// descriptor.
    pub inode: AtomicU64,
    /// A process that uses the connection where the library does not see it, or 0. Such uses are
    /// the C library's own streams, calls behind a filter of system calls, and a program that is
    /// about to start.
    pub unseen_user: AtomicU32,
    /// The process that brought the connection to its lane while other processes held it, or 0.
    /// Those processes have not mapped the lane. Children of the process have.
    pub bringer: AtomicU32,
    /// How many writes found no room and did not wait. Each is followed by an edge.
    pub write_blocks: AtomicU32,
    /// How many children were forked, and programs started, by processes that held the connection.
    pub heirs: AtomicU32,
    /// The last of those children, or 0 when its number is not known.
    pub heir: AtomicU32,
    pub token: AtomicU64,
    pub receive_lock: SharedLock,
    pub send_lock: SharedLock,
    pub receive: UnsafeCell<ReceiveSide>,
    pub send: UnsafeCell<SendSide>,
}

// SAFETY: the two cells are used under their locks alone; everything else is atomic.
unsafe impl Sync for Shared {}

/// The state of a connection that one process keeps for itself. Zeroed memory is its beginning.
#[derive(Default)]
pub struct Local {
    /// The lane, leaked from a box. Used under a lock of a direction.
    pub lane: AtomicPtr<Lane>,
    /// Descriptors of this process that lead to the connection.
    pub fds: AtomicU32,
    /// Epoll sets of this process that contain the connection.
    pub registered: AtomicU32,
    /// Those of them for which the library saw no wait.
    pub unseen_sets: AtomicU32,
    /// Lessons from earlier waits ([`weft_sync::Learned`]).
    pub learned: AtomicU32,
    /// Lessons from earlier naps ([`weft_sync::Naps`]).
    pub naps: AtomicU32,
    /// Finds in a row after which the connection counts as awake; 0 when it does.
    pub finds_left: AtomicU32,
    /// A wait in the kernel ended with bytes. They are wakeups, unless the peer's socket had a user
    /// without weft.
    pub woken_by_bytes: AtomicBool,
    /// An error that the kernel told a call of the library, and no call of the program; 0 for none.
    pub kernel_error: AtomicU16,
    /// When a writer last looked at the kernel's socket, in ticks.
    pub checked: AtomicU64,
    /// When a write began the turn that is measured, by [`crate::stats::turn_time`]; 0 for none.
    pub asked: AtomicU64,
    /// Since when the lane is full and the peer takes nothing, in ticks; 0 when that is not so.
    pub full_since: AtomicU64,
    /// The sum of messages and bytes that the peer had taken by then.
    pub full_taken: AtomicU64,
    /// Bytes that both directions had moved over lanes at the last look for idle connections.
    pub moved_before: AtomicU64,
    /// The round of this use of the lane, or [`NOT_KEPT`].
    pub round: AtomicU32,
    /// The process at the other end of the lane, if the lane may be kept
    /// ([`weft_wire::control::Partner::word`]).
    pub partner: AtomicU64,
    /// How often this process had forked when the connection got its lane.
    pub forks: AtomicU32,
    /// The descriptor by which calls go on whose own one was closed, or 0.
    pub lent: AtomicI32,
    /// Sleeps that keep the place from being used again, and [`FREED`].
    holds: AtomicU32,
    /// The last look for the answer to an offer.
    pub looked: Looked,
}

/// The moment of a look for an answer. Where several connections had a place one after the other,
/// it may be one of an earlier connection: then a look comes early.
#[derive(Default)]
pub struct Looked {
    /// Calls of the connection by then.
    pub calls: AtomicU64,
    /// Bytes of the connection by then.
    pub bytes: AtomicU64,
    /// The time in ticks.
    pub at: AtomicU64,
}

/// In [`Local::holds`]: the place has no connection any more.
const FREED: u32 = 1 << 31;

/// The value of [`Local::round`] for a lane that must not be kept.
pub const NOT_KEPT: u32 = 0;

/// Places of an arena. Programs that have little memory pay for one with their address space.
const PLACES: usize = 1 << 15;
const ARENAS: usize = 128;
const BYTES: usize = PLACES * size_of::<Shared>();

struct Arena {
    shared: Segment,
    local: Box<[Local]>,
    /// Kept for programs that this process becomes by exec.
    memory: OwnedFd,
    inode: u64,
}

static ALL: [AtomicPtr<Arena>; ARENAS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; ARENAS];
/// The number of the arena from which this process allocates, plus one; 0 for none yet.
static CURRENT: AtomicU32 = AtomicU32::new(0);
static TOKENS: Tokens = Tokens::new();
static FREE: LocalLock<FreePlaces> =
    LocalLock::new(Rank::Places, FreePlaces { next: 0, freed: Vec::new() });

struct FreePlaces {
    next: usize,
    freed: Vec<u32>,
}

/// A connection that this process holds.
#[derive(Clone, Copy)]
pub struct Connection {
    /// Its place in the arenas, as the table of descriptors names it.
    pub place: u32,
    /// The part that forked processes share.
    pub shared: &'static Shared,
    /// The part that belongs to this process alone.
    pub local: &'static Local,
}

impl Connection {
    /// Which end of the connection this is.
    #[inline]
    pub fn side(&self) -> Side {
        if self.shared.side.load(Ordering::Relaxed) == 0 { Side::Accepted } else { Side::Connected }
    }

    /// A number that no other connection has, at this place or another; never 0.
    pub fn identity(&self) -> u64 {
        let generation = self.shared.generation.load(Ordering::Relaxed);
        u64::from(self.place + 1) << 32 | u64::from(generation)
    }

    /// The phase of the connection.
    #[inline]
    pub fn phase(&self) -> Phase {
        self.shared.phase.get()
    }

    /// The kernel's word about the peer.
    #[inline]
    pub fn peer(&self) -> Peer {
        self.shared.common.peer()
    }

    /// Sets what a connection has that begins, except its directions and those that use it.
    pub fn begins(&self, side: Side, nonblocking: bool, address: u32) {
        let Self { shared, local, .. } = self;
        shared.generation.fetch_add(1, Ordering::Relaxed);
        shared.side.store(u32::from(side == Side::Connected), Ordering::Relaxed);
        shared.flags.store(if nonblocking { flag::NONBLOCKING } else { 0 }, Ordering::Relaxed);
        shared.address.store(address, Ordering::Relaxed);
        shared.over_tcp.reset();
        shared.token.store(new_token(), Ordering::Relaxed);
        shared.inode.store(0, Ordering::Relaxed);
        shared.bringer.store(0, Ordering::Relaxed);
        local.learned.store(0, Ordering::Relaxed);
        local.naps.store(0, Ordering::Relaxed);
        local.finds_left.store(0, Ordering::Relaxed);
        local.checked.store(0, Ordering::Relaxed);
        local.asked.store(0, Ordering::Relaxed);
        local.full_since.store(0, Ordering::Relaxed);
        local.woken_by_bytes.store(false, Ordering::Relaxed);
        local.kernel_error.store(0, Ordering::Relaxed);
        local.moved_before.store(0, Ordering::Relaxed);
        local.round.store(NOT_KEPT, Ordering::Relaxed);
    }

    /// Keeps the place from being used again as long as the value lives. The caller has noted its
    /// call.
    pub fn hold(&self) -> Hold {
        self.local.holds.fetch_add(1, Ordering::AcqRel);
        Hold(*self)
    }

    /// In a forked child: the threads that held the place are the parent's.
    pub fn forget_holds(&self) {
        self.local.holds.store(0, Ordering::Relaxed);
    }

    /// Counts a child that is about to be forked, or a program that is about to start.
    pub fn count_heir(&self) {
        self.shared.heir.store(0, Ordering::Relaxed);
        self.shared.refs.fetch_add(1, Ordering::AcqRel);
        self.shared.heirs.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes back [`Connection::count_heir`], since that failed.
    pub fn uncount_heir(&self) {
        self.shared.refs.fetch_sub(1, Ordering::AcqRel);
        self.shared.heirs.fetch_sub(1, Ordering::Relaxed);
    }

    /// In the parent: names the child that was forked, by the number that this process knows it by.
    pub fn name_heir(&self, child: u32) {
        self.shared.heir.store(child, Ordering::Relaxed);
    }

    /// True when this process, which allocated the connection, gave it up, and its only heir was
    /// killed. With several heirs it is not known which of them hold it.
    fn is_orphan(&self, is_alive: impl FnOnce(u32) -> bool) -> bool {
        let heir = self.shared.heir.load(Ordering::Relaxed);
        self.shared.heirs.load(Ordering::Relaxed) == 1 && heir != 0 && !is_alive(heir)
    }

    /// True when `bit` of [`flag`] is set.
    #[inline]
    pub fn has(&self, bit: u32) -> bool {
        self.shared.flags.load(Ordering::Relaxed) & bit != 0
    }

    /// Sets or clears `bit`.
    pub fn set(&self, bit: u32, on: bool) {
        if on {
            self.shared.flags.fetch_or(bit, Ordering::Relaxed);
        } else {
            self.shared.flags.fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

/// The connection at `place`, which the table of descriptors gave. `None` when its arena is not
/// mapped.
#[inline]
pub fn at(place: u32) -> Option<Connection> {
    let arena = ALL.get(place as usize / PLACES)?.load(Ordering::Acquire);
    if arena.is_null() {
        return None;
    }
    // SAFETY: arenas are leaked boxes, so a pointer that was stored stays valid.
    let arena = unsafe { &*arena };
    let index = place as usize % PLACES;
    // SAFETY: Shared is atomics, locks of atomics, and two cells whose values derive `FromBytes`:
    // all bytes are valid that forked children, and programs that these became by exec, may write.
    // The reference reads no cell; each is used under its lock alone.
    let shared = unsafe { arena.shared.shared::<Shared>(index * size_of::<Shared>()) };
    // SAFETY: the segment lives as long as the leaked arena.
    let shared: &'static Shared = unsafe { &*std::ptr::from_ref(shared) };
    Some(Connection { place, shared, local: &arena.local[index] })
}

/// Allocates a connection in [`Phase::Fresh`] with one reference; `None` when there is no room, and
/// in a child by clone(2).
/// `address` is its place in [`crate::history`], or 0.
pub fn allocate(side: Side, nonblocking: bool, address: u32) -> Option<Connection> {
    if process::is_cloned() {
        return None;
    }
    let mut free = FREE.lock()?;
    if CURRENT.load(Ordering::Relaxed) == 0 {
        start_arena(&mut free)?;
    }
    let base = (CURRENT.load(Ordering::Relaxed) - 1) * u32::try_from(PLACES).ok()?;
    let index = match free.freed.pop() {
        Some(index) => index,
        None if free.next < PLACES => {
            free.next += 1;
            u32::try_from(free.next - 1).ok()?
        }
        None => {
            reclaim(base, &mut free.freed);
            free.freed.pop()?
        }
    };
    let connection = at(base + index)?;
    let shared = connection.shared;
    shared.phase.set(Phase::Declined);
    // Under the lock, so that `reclaim` of another thread does not take the place for an orphan.
    shared.heirs.store(0, Ordering::Relaxed);
    shared.heir.store(0, Ordering::Relaxed);
    drop(free);
    shared.refs.store(1, Ordering::Relaxed);
    connection.local.fds.store(1, Ordering::Relaxed);
    shared.common.reset();
    shared.write_blocks.store(0, Ordering::Relaxed);
    shared.unseen_user.store(0, Ordering::Relaxed);
    // SAFETY: the place is free, so nobody else uses its cells.
    unsafe { *shared.receive.get() = ReceiveSide::default() };
    // SAFETY: as above.
    unsafe { *shared.send.get() = SendSide::default() };
    connection.begins(side, nonblocking, address);
    connection.local.registered.store(0, Ordering::Relaxed);
    connection.local.lent.store(0, Ordering::Relaxed);
    connection.local.holds.store(0, Ordering::Relaxed);
    connection.local.unseen_sets.store(0, Ordering::Relaxed);
    shared.phase.set(Phase::Fresh);
    Some(connection)
}

/// A new number for the daemon, of the process's id and a count.
pub fn new_token() -> u64 {
    TOKENS.next(process::pid())
}

/// The former program of this process gave `token` to a connection that lives on: no other
/// connection gets it.
pub fn keep_token(token: u64) {
    TOKENS.keep(process::pid(), token);
}

/// A place that is not used again as long as this lives.
pub struct Hold(pub Connection);

impl Drop for Hold {
    fn drop(&mut self) {
        if self.0.local.holds.fetch_sub(1, Ordering::AcqRel) == FREED | 1 {
            free_now(self.0);
        }
    }
}

/// Frees the place of a connection without references, when nobody holds it any more.
pub fn free(connection: Connection) {
    if connection.local.holds.fetch_or(FREED, Ordering::AcqRel) == 0 {
        free_now(connection);
    }
}

fn free_now(connection: Connection) {
    connection.shared.phase.set(Phase::Free);
    let places = u32::try_from(PLACES).expect("2^15");
    let current = CURRENT.load(Ordering::Relaxed);
    // The owner of another arena finds the place when that arena has no new ones ([`reclaim`]).
    if current != 0
        && connection.place / places == current - 1
        && let Some(mut free) = FREE.lock()
    {
        free.freed.push(connection.place % places);
    }
}

fn start_arena(free: &mut FreePlaces) -> Option<()> {
    let number = ALL.iter().position(|arena| arena.load(Ordering::Relaxed).is_null())?;
    let (shared, memory) = Segment::create("weft-arena", BYTES).ok()?;
    put(number, shared, memory)?;
    *free = FreePlaces { next: 0, freed: Vec::new() };
    CURRENT.store(u32::try_from(number).ok()? + 1, Ordering::Relaxed);
    Some(())
}

fn put(number: usize, shared: Segment, memory: OwnedFd) -> Option<()> {
    // SAFETY: Local is made of atomics, for which zero is a valid value.
    let local = unsafe { Box::<[Local]>::new_zeroed_slice(PLACES).assume_init() };
    let memory = sys::high(memory);
    let inode = rustix::fs::fstat(&memory).ok()?.st_ino;
    let arena = Box::new(Arena { shared, local, memory, inode });
    ALL[number].store(Box::into_raw(arena), Ordering::Release);
    Some(())
}

/// The arena that holds `place`.
pub fn number_of(place: u32) -> u32 {
    place / u32::try_from(PLACES).expect("2^15")
}

/// A copy of an arena's descriptor that exec keeps.
pub fn memory_of(number: u32) -> Option<OwnedFd> {
    let arena = ALL.get(number as usize)?.load(Ordering::Acquire);
    if arena.is_null() {
        return None;
    }
    // SAFETY: as in `at`.
    let arena = unsafe { &*arena };
    let ours = |fd: &OwnedFd| rustix::fs::fstat(fd).is_ok_and(|found| found.st_ino == arena.inode);
    if ours(&arena.memory) {
        return sys::inheritable(&arena.memory);
    }
    // The program closed a descriptor that it did not know, as children do before exec. The parent
    // may still have it.
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    let path = format!("/proc/{parent}/fd/{}", arena.memory.as_raw_fd());
    let again = rustix::fs::open(path, OFlags::RDWR, Mode::empty()).ok()?;
    ours(&again).then_some(again)
}

/// Maps an arena that the former program of this process left.
pub fn adopt(number: usize, memory: OwnedFd) {
    if ALL.get(number).is_some_and(|slot| slot.load(Ordering::Acquire).is_null())
        && let Ok(shared) = Segment::open(memory.as_fd(), BYTES, true)
    {
        put(number, shared, memory);
    }
}

/// Finds the places that forked processes freed, or left when they were killed.
#[cold]
fn reclaim(base: u32, freed: &mut Vec<u32>) {
    let mut last = (0, true);
    let mut is_alive = |process: u32| {
        if last.0 != process {
            last = (process, process_lives(process));
        }
        last.1
    };
    for index in 0..u32::try_from(PLACES).unwrap_or(0) {
        let Some(connection) = at(base + index) else { return };
        let holds = connection.local.holds.load(Ordering::Relaxed);
        if connection.local.fds.load(Ordering::Relaxed) != 0 || holds & !FREED != 0 {
            continue;
        }
        let is_free = connection.phase() == Phase::Free;
        if !is_free && !connection.is_orphan(&mut is_alive) {
            continue;
        }
        if !is_free {
            // The one that was killed may have held them.
            connection.shared.receive_lock.reset();
            connection.shared.send_lock.reset();
            connection.shared.phase.set(Phase::Free);
        }
        freed.push(index);
    }
}

/// In a forked child: the connections are inherited, the places for new ones are not.
pub fn forked() {
    CURRENT.store(0, Ordering::Relaxed);
    if let Some(mut free) = FREE.lock() {
        *free = FreePlaces { next: 0, freed: Vec::new() };
    }
}

/// The locks of this module, for fork.
pub fn lock() -> &'static dyn crate::guard::ForkLock {
    &FREE
}

//! The state that the endpoints of this process share about a memory: the stamps of the keys that
//! they granted to it, and its move.
//!
//! Each endpoint belongs to a thread of its own, and any of them may revoke a key. The one that
//! does sets the stamps of all keys, those of other endpoints, too, and calls their endpoints. All
//! that were called drive the move when they poll, so that it ends even if the one that began it
//! does not poll again. Only the endpoint that granted a key can have the broker publish it again,
//! and so only that endpoint says that it is *still*.
//!
//! # Invariants
//! - A stamp of a key in force is written under the lock of its memory alone. It says *still* only
//!   if no move is under way and the broker has the memory where it is now.
//! - A key that comes into force during a move gets the phase of the move, and every later phase.
//! - The lock is held for some looks and for fences, never for a copy, and never while an endpoint
//!   is called. Locks are taken in this order: that of a memory's sharing, then that of an
//!   endpoint's peers, or that of the memory's place.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use weft_memory::{Memory, Moving, SegmentError};
use weft_sync::{atomic::pause, fence};

use crate::address_vector::StandingWord;
use crate::doorbell::Doorbell;
use crate::moves::{BYTES_MAX, LOOKS};
use crate::registers::{Inside, Phase, Registers, Stamp};

/// An endpoint that granted keys, as other endpoints of this process reach it.
#[derive(Debug)]
pub struct Granter {
    registers: Arc<Registers>,
    doorbell: Arc<Doorbell>,
    /// The registers of the peers, and whether they are down.
    peers: Mutex<Vec<(Arc<Registers>, Arc<StandingWord>)>>,
    /// Memory with a key of this endpoint moves or has moved.
    called: AtomicBool,
}

impl Granter {
    /// An endpoint without peers.
    pub fn new(registers: Arc<Registers>, doorbell: Arc<Doorbell>) -> Self {
        let (peers, called) = (Mutex::default(), AtomicBool::new(false));
        Self { registers, doorbell, peers, called }
    }

    /// A peer came.
    pub fn add_peer(&self, registers: &Arc<Registers>, standing: &Arc<StandingWord>) {
        self.peers.lock().push((Arc::clone(registers), Arc::clone(standing)));
    }

    /// Some peer is down.
    pub fn forget_the_dead(&self) {
        self.peers.lock().retain(|(_, standing)| !standing.is_down());
    }

    /// Has the endpoint look at the moves of its memory, and wakes it.
    fn call(&self) {
        self.called.store(true, Ordering::Release);
        self.doorbell.ring_broker();
    }

    /// Whether the endpoint was called since this was asked last.
    pub fn take_call(&self) -> bool {
        self.called.load(Ordering::Relaxed) && self.called.swap(false, Ordering::Acquire)
    }

    /// The peers that announced a write.
    fn writers(&self) -> Vec<Writer> {
        let peers = self.peers.lock();
        peers.iter().filter_map(|(registers, standing)| Writer::of(registers, standing)).collect()
    }
}

/// A peer that announced a write.
#[derive(Debug)]
pub struct Writer {
    inside: Inside,
    standing: Arc<StandingWord>,
}

impl Writer {
    /// The peer with these registers, if it announced a write.
    pub fn of(registers: &Arc<Registers>, standing: &Arc<StandingWord>) -> Option<Self> {
        Some(Self { inside: Inside::of(registers)?, standing: Arc::clone(standing) })
    }

    /// Whether the write may still go on.
    pub fn lasts(&self) -> bool {
        self.inside.lasts() && !self.standing.is_down()
    }
}

/// The state that endpoints share about a memory.
#[derive(Debug, Default)]
pub struct Sharing {
    state: Mutex<KeysInForce>,
}

#[derive(Debug, Default)]
struct KeysInForce {
    /// The keys in force.
    keys: Vec<Key>,
    step: Step,
    /// How many moves have ended. Wraps.
    ended: u64,
    /// Why the last move that ended has failed.
    error: Option<SegmentError>,
}

#[derive(Debug)]
struct Key {
    of: Arc<Granter>,
    slot: u16,
    generation: u32,
}

#[derive(Debug, Default)]
enum Step {
    #[default]
    Still,
    Closing {
        inside: Vec<Writer>,
        until: Duration,
    },
    Copying(Moving),
    /// A thread is copying, without the lock.
    Taken,
}

impl Step {
    fn phase(&self) -> Phase {
        match self {
            Self::Still => Phase::Still,
            Self::Closing { .. } => Phase::Closing,
            Self::Copying(_) | Self::Taken => Phase::Left,
        }
    }
}

/// A move, as an endpoint waits for its end.
#[derive(Clone, Copy, Debug)]
pub struct Awaited {
    /// Moves that have ended when this one has not.
    ended: u64,
    /// How often the memory had been moved before.
    moves: u32,
}

/// How a move stands for an endpoint that waits for it.
#[derive(Debug)]
pub enum Outcome {
    /// It is under way.
    Pending,
    /// The memory is out of reach of those who had it when the wait began.
    Moved,
    /// The memory could not be moved.
    Stayed(SegmentError),
    /// It was over, or given up, before it could serve: another one is needed.
    Again,
}

/// How a key stands that comes into force.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It serves.
    Serves,
    /// It serves when the move has ended and it was published again.
    Moves,
    /// It serves when it was published again.
    Behind,
}

impl KeysInForce {
    /// Sets the stamps of all keys, and has every processor see them.
    fn set_phase(&self, memory: &Memory, phase: Phase) {
        let moves = memory.moves();
        for Key { of, slot, generation } in &self.keys {
            of.registers.set_stamp(*slot, Stamp::of(*generation, moves, phase));
        }
        fence::heavy();
    }

    /// The endpoints that granted keys, and `also`.
    fn granters(&self, also: Option<&Arc<Granter>>) -> Vec<Arc<Granter>> {
        let mut granters: Vec<Arc<Granter>> = Vec::new();
        for granter in self.keys.iter().map(|key| &key.of).chain(also) {
            if !granters.iter().any(|other| Arc::ptr_eq(other, granter)) {
                granters.push(Arc::clone(granter));
            }
        }
        granters
    }

    /// The move is over. Returns the endpoints to call.
    fn end(&mut self, error: Option<SegmentError>) -> Vec<Arc<Granter>> {
        self.step = Step::Still;
        self.ended = self.ended.wrapping_add(1);
        self.error = error;
        self.granters(None)
    }
}

impl Sharing {
    /// A key is in force from now on, which the broker passes with the memory as it was after
    /// `moves` moves.
    pub fn put_in_force(
        &self,
        memory: &Memory,
        of: &Arc<Granter>,
        (slot, generation): (u16, u32),
        moves: u32,
    ) -> Standing {
        let mut state = self.state.lock();
        state.keys.push(Key { of: Arc::clone(of), slot, generation });
        let now = memory.moves();
        let (phase, standing) = match state.step.phase() {
            Phase::Still if now == moves => (Phase::Still, Standing::Serves),
            Phase::Still => (Phase::Left, Standing::Behind),
            phase => (phase, Standing::Moves),
        };
        of.registers.set_stamp(slot, Stamp::of(generation, now, phase));
        standing
    }

    /// The broker has the memory of a key as it was after `moves` moves. Whether the key serves.
    pub fn settle(
        &self,
        memory: &Memory,
        of: &Granter,
        (slot, generation): (u16, u32),
        moves: u32,
    ) -> bool {
        let state = self.state.lock();
        let settles = state.step.phase() == Phase::Still && memory.moves() == moves;
        if settles {
            of.registers.set_stamp(slot, Stamp::of(generation, moves, Phase::Still));
        }
        settles
    }

    /// A key is void.
    pub fn void(&self, of: &Arc<Granter>, slot: u16) {
        let mut state = self.state.lock();
        state.keys.retain(|key| key.slot != slot || !Arc::ptr_eq(&key.of, of));
        of.registers.set_stamp(slot, Stamp::NEVER);
    }

    /// Begins the move that takes the memory out of reach of those who have it now, or joins the
    /// one that is under way. `by` is the endpoint whose key is void.
    pub fn withdraw(&self, memory: &Memory, by: &Arc<Granter>, until: Duration) -> Awaited {
        let mut state = self.state.lock();
        let awaited = Awaited { ended: state.ended, moves: memory.moves() };
        match &mut state.step {
            Step::Still => {
                state.set_phase(memory, Phase::Closing);
                let granters = state.granters(Some(by));
                let inside = granters.iter().flat_map(|granter| granter.writers()).collect();
                state.step = Step::Closing { inside, until };
                drop(state);
                for other in granters.iter().filter(|other| !Arc::ptr_eq(other, by)) {
                    other.call();
                }
            }
            // Those who write by the key that is void now are waited for, too.
            Step::Closing { inside, until: former } => {
                inside.extend(by.writers());
                *former = until.max(*former);
            }
            Step::Copying(_) | Step::Taken => {}
        }
        awaited
    }

    /// Waits for the move that is under way, or for one that has just ended.
    pub fn join(&self, memory: &Memory) -> Awaited {
        let state = self.state.lock();
        let is_over = matches!(state.step, Step::Still);
        let ended = if is_over { state.ended.wrapping_sub(1) } else { state.ended };
        Awaited { ended, moves: memory.moves() }
    }

    /// Takes the next step of the move, unless another thread does or there is none.
    pub fn drive(&self, memory: &Memory, now: Duration) {
        let mut state = self.state.lock();
        let moving = match std::mem::replace(&mut state.step, Step::Taken) {
            Step::Closing { mut inside, until } => {
                for _ in 0..LOOKS {
                    inside.retain(Writer::lasts);
                    if inside.is_empty() {
                        break;
                    }
                    pause();
                }
                if !inside.is_empty() && now < until {
                    state.step = Step::Closing { inside, until };
                    return;
                }
                // Memory that somebody else has, too, stays, and so does what a port has
                // registered: those who were writing have ended.
                if !memory.may_move() {
                    let called = state.end(None);
                    drop(state);
                    called.iter().for_each(|granter| granter.call());
                    return;
                }
                state.set_phase(memory, Phase::Left);
                None
            }
            Step::Copying(moving) => Some(moving),
            other => {
                state.step = other;
                return;
            }
        };
        drop(state);
        let moving = moving.map_or_else(|| memory.begin_move(), Ok);
        let moved = moving.and_then(|moving| moving.on(BYTES_MAX));
        let mut state = self.state.lock();
        let called = match moved {
            Ok(Some(moving)) => {
                state.step = Step::Copying(moving);
                return;
            }
            Ok(None) => state.end(None),
            Err(error) => state.end(Some(error)),
        };
        drop(state);
        called.iter().for_each(|granter| granter.call());
    }

    /// How the move stands that an endpoint waits for.
    pub fn outcome(&self, memory: &Memory, awaited: Awaited) -> Outcome {
        let state = self.state.lock();
        if state.ended == awaited.ended {
            return Outcome::Pending;
        }
        // The memory may have been at its new place already when the wait began.
        if memory.moves() != awaited.moves || !memory.may_move() {
            return Outcome::Moved;
        }
        state.error.clone().map_or(Outcome::Again, Outcome::Stayed)
    }

    /// An endpoint ends, and its keys with it. A move that no endpoint drives any more is given up.
    ///
    /// Where others granted keys, too, those who write by a key of the ended endpoint are told that
    /// it is void: the memory may move, and nobody would say so to them.
    pub fn leave(&self, of: &Arc<Granter>) {
        let mut state = self.state.lock();
        let (own, others) =
            std::mem::take(&mut state.keys).into_iter().partition(|key| Arc::ptr_eq(&key.of, of));
        state.keys = others;
        if !state.keys.is_empty() {
            let own: Vec<Key> = own;
            own.iter().for_each(|key| of.registers.set_stamp(key.slot, Stamp::NEVER));
            fence::heavy();
        } else if !matches!(state.step, Step::Still | Step::Taken) {
            let former = std::mem::take(&mut state.step);
            let _ = state.end(None);
            drop(state);
            // A copy that is given up takes the lock of the memory's place.
            drop(former);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use weft_memory::MemoryOptions;

    fn granter() -> Arc<Granter> {
        let (registers, _file) = Registers::create().expect("memory");
        let (ring, _woken) = crate::sys::wakeup_socket().expect("sockets");
        let (doorbell, _file) = Doorbell::create(ring).expect("memory");
        Arc::new(Granter::new(Arc::new(registers), Arc::new(doorbell)))
    }

    const KEY: (u16, u32) = (3, 9);

    fn stamp(of: &Granter) -> Stamp {
        of.registers.stamp(KEY.0)
    }

    #[test]
    fn a_key_serves_only_when_no_move_is_under_way_and_the_broker_has_the_memory() {
        let memory = Memory::fresh(MemoryOptions::bytes(2 * BYTES_MAX)).expect("memory");
        let (sharing, one, other) = (memory.kept::<Sharing>(), granter(), granter());
        assert_eq!(sharing.put_in_force(&memory, &one, KEY, 0), Standing::Serves);
        let awaited = sharing.withdraw(&memory, &other, Duration::ZERO);
        assert!(one.take_call() && !other.take_call() && !one.take_call());
        assert_eq!(stamp(&one), Stamp::of(KEY.1, 0, Phase::Closing));
        assert_eq!(sharing.put_in_force(&memory, &other, KEY, 0), Standing::Moves);
        sharing.drive(&memory, Duration::ZERO);
        for of in [&one, &other] {
            assert_eq!(stamp(of), Stamp::of(KEY.1, 0, Phase::Left));
            assert!(!sharing.settle(&memory, of, KEY, 0), "it is being copied");
        }
        assert!(matches!(sharing.outcome(&memory, awaited), Outcome::Pending));
        sharing.drive(&memory, Duration::ZERO);
        assert!(matches!(sharing.outcome(&memory, awaited), Outcome::Moved));
        assert!(one.take_call() && other.take_call());
        assert!(!sharing.settle(&memory, &one, KEY, 0), "the broker has the former memory");
        assert!(sharing.settle(&memory, &one, KEY, 1));
        assert_eq!(stamp(&one), Stamp::of(KEY.1, 1, Phase::Still));
        assert_eq!(stamp(&other), Stamp::of(KEY.1, 0, Phase::Left), "its endpoint says so");
        sharing.void(&one, KEY.0);
        let _ = sharing.withdraw(&memory, &one, Duration::ZERO);
        assert_eq!(stamp(&one), Stamp::NEVER, "a void key has no phase");
        assert_eq!(sharing.put_in_force(&memory, &one, KEY, 0), Standing::Moves);
        sharing.drive(&memory, Duration::ZERO);
        sharing.drive(&memory, Duration::ZERO);
        sharing.void(&one, KEY.0);
        assert_eq!(sharing.put_in_force(&memory, &one, KEY, 1), Standing::Behind);
    }

    #[test]
    fn memory_that_a_port_has_registered_stays_and_its_keys_serve_again() {
        let memory = Memory::fresh(MemoryOptions::bytes(4096)).expect("memory");
        let (sharing, one) = (memory.kept::<Sharing>(), granter());
        assert_eq!(sharing.put_in_force(&memory, &one, KEY, 0), Standing::Serves);
        let stay = memory.stay().expect("it does not move");
        let awaited = sharing.withdraw(&memory, &one, Duration::ZERO);
        assert_eq!(stamp(&one), Stamp::of(KEY.1, 0, Phase::Closing), "no operation begins");
        sharing.drive(&memory, Duration::ZERO);
        assert!(matches!(sharing.outcome(&memory, awaited), Outcome::Moved));
        assert!(sharing.settle(&memory, &one, KEY, 0), "where it was");
        assert_eq!(stamp(&one), Stamp::of(KEY.1, 0, Phase::Still));
        // A port that lets go of it in between has the wait begin again.
        let awaited = sharing.withdraw(&memory, &one, Duration::ZERO);
        sharing.drive(&memory, Duration::ZERO);
        drop(stay);
        assert!(matches!(sharing.outcome(&memory, awaited), Outcome::Again));
    }

    #[test]
    fn a_move_whose_memory_is_there_already_serves_no_later_revocation() {
        let memory = Memory::fresh(MemoryOptions::bytes(4096)).expect("memory");
        let (sharing, one) = (memory.kept::<Sharing>(), granter());
        assert_eq!(sharing.put_in_force(&memory, &one, KEY, 0), Standing::Serves);
        let first = sharing.withdraw(&memory, &one, Duration::ZERO);
        // As a thread does it that stands still between the end of the copy and its lock.
        let former = std::mem::replace(&mut sharing.state.lock().step, Step::Taken);
        assert!(memory.begin_move().expect("memory").on(usize::MAX).expect("memory").is_none());
        let late = sharing.withdraw(&memory, &one, Duration::ZERO);
        assert!(matches!(sharing.outcome(&memory, late), Outcome::Pending));
        drop(former);
        let _ = sharing.state.lock().end(None);
        assert!(matches!(sharing.outcome(&memory, first), Outcome::Moved));
        assert!(matches!(sharing.outcome(&memory, late), Outcome::Again));
    }
}

//! Explores all interleavings of the attention words: one sender, one to three waiters, and the
//! store buffers of x86.
//!
//! Each thread is a list of small steps over memory, with a buffer for its stores. A store may
//! leave its buffer at any moment. The sleeper's heavy fence empties all buffers, as `membarrier`
//! does. The sender's light fence empties none. A waiter that slept before asks the sender for full
//! fences (`weft_transport_shm::sleeper`). Each of these empties the sender's buffer. Once the
//! sender has agreed, the waiter's own fence empties only the waiter's buffer. A waiter may
//! withdraw the request whenever it is awake. The test visits all states that can be reached. A
//! wakeup is lost in a state in which a waiter sleeps, a message is there, and no wakeup is on its
//! way.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

const WATCHING: u8 = 0;
const ARMED: u8 = 1;
const RUNG: u8 = 2;

/// The lower part of the word `PAYS` says which end pays for the fence. The part above counts how
/// often a waiter asked the sender to pay.
const CHEAP: u8 = 0;
const SLEPT: u8 = 1;
const ASKED: u8 = 2;
const AGREED: u8 = 3;
const STATES: u8 = 3;
const NUMBER: u8 = STATES + 1;

/// Places in memory: number of published messages, attention word, and the end that pays.
const PUBLISHED: usize = 0;
const WORD: usize = 1;
const PAYS: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum At {
    // Steps of the sender.
    Publish,
    ReadPays,
    FullFence,
    ReadWord,
    Claim,
    Ring,
    // Steps of a waiter.
    Read,
    Arm,
    Settle,
    Ask,
    HeavyFence,
    Agree,
    Look,
    Drain,
    Sleep,
    StopWaiting,
    TakeBack,
    Over,
}

/// The sender and its waiters. Without memory from the heap a state is copied twice as fast.
const THREADS_MAX: usize = 4;

/// Size of the model, and steps that the code under test takes or leaves out.
#[derive(Clone, Copy, Default)]
struct Rules {
    waiters: usize,
    messages: u8,
    /// Number of messages after which a waiter leaves, 0 if it never does.
    leave_after: u8,
    without_settle: bool,
    without_look: bool,
    /// A waiter that wakes disarms the word, even if another thread waits.
    disarm_for_all: bool,
    /// Stale wakeups are taken before the look instead of after it.
    drain_before_look: bool,
    /// The sender reads which end pays before it publishes.
    reads_pays_first: bool,
    /// A waiter sets AGREED before the heavy fence.
    agree_at_once: bool,
    /// A waiter can ask the sender to pay.
    adaptive: bool,
    /// The end that pays at first.
    pays: u8,
    /// How often waiters may withdraw the request, in all.
    take_backs: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    memory: [u8; 3],
    /// Stores under way as (place, value). Thread 0 is the sender.
    buffers: [VecDeque<(usize, u8)>; THREADS_MAX],
    /// Threads that the rules do not have are over.
    at: [At; THREADS_MAX],
    sent: u8,
    taken: u8,
    taken_by: [u8; THREADS_MAX],
    wakeups: u8,
    /// Number of stale wakeups so far, and number of wakeups that were drained so far.
    stale: u8,
    drained: u8,
    /// The value of `stale` when each waiter armed.
    stale_before: [u8; THREADS_MAX],
    sleepers: u8,
    /// The value of `PAYS` that each thread last read or wrote.
    pays: [u8; THREADS_MAX],
    take_backs: u8,
}

impl State {
    fn new(rules: Rules) -> Self {
        let mut at = [At::Over; THREADS_MAX];
        at[1..=rules.waiters].fill(At::Read);
        at[0] = if rules.reads_pays_first { At::ReadPays } else { At::Publish };
        Self {
            memory: [0, WATCHING, rules.pays],
            buffers: [const { VecDeque::new() }; THREADS_MAX],
            at,
            sent: 0,
            taken: 0,
            taken_by: [0; THREADS_MAX],
            wakeups: 0,
            stale: 0,
            drained: 0,
            stale_before: [0; THREADS_MAX],
            sleepers: 0,
            pays: [CHEAP; THREADS_MAX],
            take_backs: rules.take_backs,
        }
    }

    fn load(&self, thread: usize, place: usize) -> u8 {
        let own = self.buffers[thread].iter().rev().find(|(at, _)| *at == place);
        own.map_or(self.memory[place], |(_, value)| *value)
    }

    fn store(&mut self, thread: usize, place: usize, value: u8) {
        self.buffers[thread].push_back((place, value));
    }

    fn flush_one(&mut self, thread: usize) {
        if let Some((place, value)) = self.buffers[thread].pop_front() {
            self.memory[place] = value;
        }
    }

    fn flush(&mut self, thread: usize) {
        while !self.buffers[thread].is_empty() {
            self.flush_one(thread);
        }
    }

    fn exchange(&mut self, thread: usize, from: u8, to: u8) -> bool {
        self.exchange_at(WORD, thread, from, to)
    }

    fn exchange_at(&mut self, place: usize, thread: usize, from: u8, to: u8) -> bool {
        self.flush(thread);
        let fits = self.memory[place] == from;
        if fits {
            self.memory[place] = to;
        }
        fits
    }

    fn disarm(&mut self, thread: usize) {
        self.flush(thread);
        self.stale += u8::from(std::mem::replace(&mut self.memory[WORD], WATCHING) == RUNG);
    }

    /// The word is never `WATCHING` in between, since another waiter may rely on it being armed.
    fn arm(&mut self, thread: usize) {
        match self.load(thread, WORD) {
            WATCHING => self.store(thread, WORD, ARMED),
            RUNG => self.stale += u8::from(self.exchange(thread, RUNG, ARMED)),
            _ => {}
        }
    }

    fn drain(&mut self, thread: usize) {
        let stale = self.stale_before[thread].saturating_sub(self.drained);
        let drained = stale.min(self.wakeups);
        self.drained += drained;
        self.wakeups -= drained;
    }

    fn send(&mut self, rules: Rules) {
        let at = self.at[0];
        self.at[0] = match at {
            At::Publish => {
                self.sent += 1;
                self.store(0, PUBLISHED, self.sent);
                if !rules.adaptive {
                    At::ReadWord
                } else if !rules.reads_pays_first {
                    At::ReadPays
                } else if matches!(self.pays[0] & STATES, ASKED | AGREED) {
                    At::FullFence
                } else {
                    At::ReadWord
                }
            }
            At::ReadPays => {
                self.pays[0] = self.load(0, PAYS);
                if rules.reads_pays_first {
                    At::Publish
                } else if matches!(self.pays[0] & STATES, ASKED | AGREED) {
                    At::FullFence
                } else {
                    At::ReadWord
                }
            }
            At::FullFence => {
                self.flush(0);
                At::ReadWord
            }
            At::ReadWord if self.load(0, WORD) == ARMED => At::Claim,
            At::Claim if self.exchange(0, ARMED, RUNG) => At::Ring,
            At::Ring => {
                self.wakeups += 1;
                self.next_message(rules)
            }
            _ => self.next_message(rules),
        };
    }

    fn next_message(&self, rules: Rules) -> At {
        match (self.sent == rules.messages, rules.reads_pays_first) {
            (true, _) => At::Over,
            (false, true) => At::ReadPays,
            (false, false) => At::Publish,
        }
    }

    /// Makes one step of a waiter. A step that takes or arms stands for a call under a lock.
    fn wait(&mut self, thread: usize, rules: Rules) {
        let there = self.load(thread, PUBLISHED) > self.taken;
        let at = self.at[thread];
        self.at[thread] = match at {
            At::Read if there => {
                self.flush(thread);
                self.taken += 1;
                self.taken_by[thread] += 1;
                let done =
                    self.taken_by[thread] == rules.leave_after || self.taken == rules.messages;
                if done { At::Over } else { At::Read }
            }
            At::Read if self.taken == rules.messages => At::Over,
            At::Read => {
                self.sleepers += 1;
                At::Arm
            }
            At::Arm => {
                self.arm(thread);
                self.stale_before[thread] = self.stale;
                if rules.drain_before_look {
                    self.drain(thread);
                }
                if rules.without_settle { At::Look } else { At::Settle }
            }
            At::Settle if !rules.adaptive => self.heavy_fence(rules),
            At::Settle => {
                self.flush(thread);
                self.pays[thread] = self.load(thread, PAYS);
                match self.pays[thread] & STATES {
                    AGREED => after_fence(rules),
                    ASKED => At::HeavyFence,
                    _ => At::Ask,
                }
            }
            At::Ask => {
                let word = self.pays[thread];
                let next = match word & STATES {
                    CHEAP => word & !STATES | SLEPT,
                    _ => (word & !STATES).wrapping_add(NUMBER) | ASKED,
                };
                let asked = self.exchange_at(PAYS, thread, word, next);
                self.pays[thread] = if asked { next } else { CHEAP };
                if rules.agree_at_once { At::Agree } else { At::HeavyFence }
            }
            At::HeavyFence if rules.agree_at_once => self.heavy_fence(rules),
            At::HeavyFence => {
                self.heavy_fence(rules);
                At::Agree
            }
            At::Agree => {
                let word = std::mem::take(&mut self.pays[thread]);
                if word & STATES == ASKED {
                    self.exchange_at(PAYS, thread, word, word & !STATES | AGREED);
                }
                if rules.agree_at_once { At::HeavyFence } else { after_fence(rules) }
            }
            At::TakeBack => {
                let word = std::mem::take(&mut self.pays[thread]);
                self.exchange_at(PAYS, thread, word, word & !STATES | CHEAP);
                At::Read
            }
            At::Look if there => At::StopWaiting,
            At::Look => At::Drain,
            At::Drain => {
                self.drain(thread);
                At::Sleep
            }
            At::Sleep => At::StopWaiting,
            At::StopWaiting => {
                self.sleepers -= 1;
                if self.sleepers > 0 && !rules.disarm_for_all {
                    self.stale += u8::from(self.exchange(thread, RUNG, ARMED));
                } else {
                    self.disarm(thread);
                }
                At::Read
            }
            other => other,
        };
    }

    fn heavy_fence(&mut self, rules: Rules) -> At {
        (0..self.buffers.len()).for_each(|thread| self.flush(thread));
        after_fence(rules)
    }

    fn can_step(&self, thread: usize) -> bool {
        match self.at[thread] {
            At::Over => false,
            At::Sleep => self.wakeups > 0,
            _ => true,
        }
    }

    fn successors(&self, rules: Rules) -> Vec<Self> {
        let mut next = Vec::new();
        for thread in 0..self.at.len() {
            if !self.buffers[thread].is_empty() {
                let mut state = self.clone();
                state.flush_one(thread);
                next.push(state);
            }
            if self.can_step(thread) {
                let mut state = self.clone();
                if thread == 0 {
                    state.send(rules)
                } else {
                    state.wait(thread, rules)
                }
                next.push(state);
            }
            let pays = self.load(thread, PAYS);
            if self.at[thread] == At::Read && pays & STATES != CHEAP && self.take_backs > 0 {
                let mut state = self.clone();
                state.take_backs -= 1;
                state.pays[thread] = pays;
                state.at[thread] = At::TakeBack;
                next.push(state);
            }
        }
        next
    }

    /// True if a waiter sleeps while a message is there. Call it if no thread can go on.
    fn is_lost(&self) -> bool {
        self.at.contains(&At::Sleep) && self.memory[PUBLISHED] > self.taken
    }
}

fn after_fence(rules: Rules) -> At {
    if rules.without_look { At::Drain } else { At::Look }
}

/// The hash of rustc (FxHash), for states that nobody chooses in order to make them collide.
#[derive(Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        // The table takes its place from the low bits, and multiplying mixes the high ones.
        self.0.rotate_left(26)
    }

    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = self.0.wrapping_add(word).wrapping_mul(0xf135_7aea_2e62_a9c5);
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(byte.into());
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }
}

/// Returns the number of states, and one in which a wakeup was lost.
fn explore(rules: Rules) -> (usize, Option<State>) {
    const STATES_MAX: usize = 2_000_000;
    let mut seen = HashSet::<_, BuildHasherDefault<Mixed>>::default();
    let mut open = vec![State::new(rules)];
    while let Some(state) = open.pop() {
        let next = state.successors(rules);
        if next.is_empty() && state.is_lost() {
            return (seen.len(), Some(state));
        }
        for state in next {
            if !seen.contains(&state) {
                seen.insert(state.clone());
                open.push(state);
            }
        }
        assert!(seen.len() < STATES_MAX, "the model is not finite");
    }
    (seen.len(), None)
}

#[test]
fn nobody_sleeps_through_a_message() {
    for (waiters, messages) in [(1, 1), (1, 3), (1, 5), (2, 1), (2, 2), (2, 3)] {
        let rules = Rules { waiters, messages, ..Rules::default() };
        let (states, lost) = explore(rules);
        println!("{waiters} waiters, {messages} messages: {states} states");
        assert_eq!(lost, None);
        assert!(states > 10, "{states} states are no exploration");
    }
}

#[test]
fn what_is_left_out_is_missed() {
    let one = Rules { waiters: 1, messages: 2, ..Rules::default() };
    assert!(explore(Rules { without_settle: true, ..one }).1.is_some());
    assert!(explore(Rules { without_look: true, ..one }).1.is_some());
    // With two waiters, the first one takes the wakeup away from the second.
    let two = Rules { waiters: 2, messages: 2, leave_after: 1, ..Rules::default() };
    assert!(explore(Rules { disarm_for_all: true, ..two }).1.is_some());
}

#[test]
fn who_pays_for_the_fence_is_known_to_both() {
    let adaptive = Rules { adaptive: true, ..Rules::default() };
    let mut all = 0;
    for (pays, waiters, messages, take_backs) in [
        (CHEAP, 1, 3, 2),
        (SLEPT, 1, 3, 2),
        (AGREED, 1, 3, 2),
        (CHEAP, 2, 1, 1),
        (SLEPT, 2, 2, 1),
        (AGREED, 2, 2, 1),
        (SLEPT, 3, 1, 1),
    ] {
        let rules = Rules { pays, waiters, messages, take_backs, ..adaptive };
        let (states, lost) = explore(rules);
        println!("{pays}: {waiters} waiters, {messages} messages: {states} states");
        assert_eq!(lost, None);
        all += states;
    }
    assert!(all > 1000, "{all} states are no exploration");
}

#[test]
fn what_is_agreed_too_early_is_missed() {
    let adaptive = Rules { adaptive: true, pays: SLEPT, waiters: 1, ..Rules::default() };
    let one = Rules { messages: 2, take_backs: 1, ..adaptive };
    assert!(explore(Rules { reads_pays_first: true, ..one }).1.is_some());
    // The waiter that asks takes one of two messages and leaves. The other waiter relied on it.
    let two = Rules { waiters: 2, leave_after: 1, take_backs: 0, ..one };
    assert_eq!(explore(two).1, None);
    assert!(explore(Rules { agree_at_once: true, ..two }).1.is_some());
}

/// A waiter that takes some of the messages and leaves must not take the wakeup that wakes another
/// waiter.
#[test]
fn what_a_waiter_leaves_behind_wakes_another() {
    for (waiters, leave_after, messages) in [(2, 1, 2), (2, 1, 3), (2, 2, 3), (2, 2, 4), (3, 1, 2)]
    {
        let rules = Rules { waiters, messages, leave_after, ..Rules::default() };
        let (_, lost) = explore(rules);
        assert_eq!(lost, None);
        assert!(explore(Rules { drain_before_look: true, ..rules }).1.is_some());
    }
}

//! The attention words, all interleavings: one sender, one or two waiters, x86's store buffers.
//!
//! Each thread is a list of small steps over memory with a buffer of stores for each thread; a
//! store leaves its buffer whenever chance has it. The sleeper's fence empties all buffers, as
//! `membarrier` does, the sender's light fence none. All states that can be reached are visited;
//! one in which a waiter sleeps with a message there and no bell coming is a lost wake-up.

use std::collections::{HashSet, VecDeque};

const WATCHING: u8 = 0;
const ARMED: u8 = 1;
const RUNG: u8 = 2;

/// Memory: how many messages were published, and the attention word.
const PUBLISHED: usize = 0;
const WORD: usize = 1;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum At {
    // The sender.
    Publish,
    ReadWord,
    Claim,
    Ring,
    // A waiter.
    Read,
    Arm,
    Settle,
    Look,
    Drain,
    Sleep,
    StopWaiting,
    Over,
}

/// What the code under test does and does not do.
#[derive(Clone, Copy, Default)]
struct Rules {
    waiters: usize,
    messages: u8,
    /// How many messages a waiter reads before it leaves; 0 is all that come.
    leave_after: u8,
    without_settle: bool,
    without_look: bool,
    /// The one who wakes disarms whoever else waits.
    disarm_for_all: bool,
    /// Bells that are owed are taken before the look instead of after it.
    drain_before_look: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    memory: [u8; 2],
    /// Stores under way: (place, value), thread 0 is the sender.
    buffers: Vec<VecDeque<(usize, u8)>>,
    at: Vec<At>,
    sent: u8,
    taken: u8,
    taken_by: Vec<u8>,
    bells: u8,
    /// Bells that nobody waits for any more, in all, and how many were taken.
    owed: u8,
    drained: u8,
    /// What was owed in all when each waiter armed.
    owed_before: Vec<u8>,
    sleepers: u8,
}

impl State {
    fn new(rules: Rules) -> Self {
        let mut at = vec![At::Read; rules.waiters + 1];
        at[0] = At::Publish;
        Self {
            memory: [0, WATCHING],
            buffers: vec![VecDeque::new(); rules.waiters + 1],
            at,
            sent: 0,
            taken: 0,
            taken_by: vec![0; rules.waiters + 1],
            bells: 0,
            owed: 0,
            drained: 0,
            owed_before: vec![0; rules.waiters + 1],
            sleepers: 0,
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
        self.flush(thread);
        let fits = self.memory[WORD] == from;
        if fits {
            self.memory[WORD] = to;
        }
        fits
    }

    fn disarm(&mut self, thread: usize) {
        self.flush(thread);
        self.owed += u8::from(std::mem::replace(&mut self.memory[WORD], WATCHING) == RUNG);
    }

    /// Never by way of `WATCHING`: another waiter may rely on the word being armed.
    fn arm(&mut self, thread: usize) {
        match self.load(thread, WORD) {
            WATCHING => self.store(thread, WORD, ARMED),
            RUNG => self.owed += u8::from(self.exchange(thread, RUNG, ARMED)),
            _ => {}
        }
    }

    fn drain(&mut self, thread: usize) {
        let owed = self.owed_before[thread].saturating_sub(self.drained);
        let drained = owed.min(self.bells);
        self.drained += drained;
        self.bells -= drained;
    }

    fn send(&mut self, rules: Rules) {
        let at = self.at[0];
        self.at[0] = match at {
            At::Publish => {
                self.sent += 1;
                self.store(0, PUBLISHED, self.sent);
                At::ReadWord
            }
            At::ReadWord if self.load(0, WORD) == ARMED => At::Claim,
            At::Claim if self.exchange(0, ARMED, RUNG) => At::Ring,
            At::Ring => {
                self.bells += 1;
                self.next_message(rules)
            }
            _ => self.next_message(rules),
        };
    }

    fn next_message(&self, rules: Rules) -> At {
        if self.sent == rules.messages { At::Over } else { At::Publish }
    }

    /// One step of a waiter; a lock is held in each of those that take or arm.
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
                self.owed_before[thread] = self.owed;
                if rules.drain_before_look {
                    self.drain(thread);
                }
                if rules.without_settle { At::Look } else { At::Settle }
            }
            At::Settle => {
                (0..self.buffers.len()).for_each(|thread| self.flush(thread));
                if rules.without_look { At::Drain } else { At::Look }
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
                    self.owed += u8::from(self.exchange(thread, RUNG, ARMED));
                } else {
                    self.disarm(thread);
                }
                At::Read
            }
            other => other,
        };
    }

    fn can_step(&self, thread: usize) -> bool {
        match self.at[thread] {
            At::Over => false,
            At::Sleep => self.bells > 0,
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
        }
        next
    }

    /// Nothing goes on, and somebody sleeps while a message is there.
    fn is_lost(&self) -> bool {
        self.at.contains(&At::Sleep) && self.memory[PUBLISHED] > self.taken
    }
}

/// How many states there are, and one in which a wake-up was lost.
fn explore(rules: Rules) -> (usize, Option<State>) {
    const STATES_MAX: usize = 2_000_000;
    let mut seen = HashSet::new();
    let mut open = vec![State::new(rules)];
    while let Some(state) = open.pop() {
        let next = state.successors(rules);
        if next.is_empty() && state.is_lost() {
            return (seen.len(), Some(state));
        }
        for state in next {
            if seen.insert(state.clone()) {
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
    // Two, the first of whom takes the bell away from the second.
    let two = Rules { waiters: 2, messages: 2, leave_after: 1, ..Rules::default() };
    assert!(explore(Rules { disarm_for_all: true, ..two }).1.is_some());
}

/// A waiter that takes some of what is there and leaves has not taken the bell that wakes another.
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

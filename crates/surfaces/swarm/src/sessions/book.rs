//! The book: which sessions there are at both ends, and which requests and blocks have arrived.
//!
//! Invariant: a mark (of a session, a request or a block) is given once in a run.

use std::collections::{BTreeMap, BTreeSet};

use crate::ledger::Life;

/// One end of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    /// Its program has heard nothing of it.
    Unheard,
    There,
    Over,
    /// Its peer was disconnected.
    Disconnected,
}

#[derive(Debug)]
struct Talk {
    lives: [Life; 2],
    sides: [Side; 2],
}

/// Everything that programs of a run know together.
pub(super) struct Book {
    /// Sessions between programs, by the mark that the opener sends.
    talks: BTreeMap<u64, Talk>,
    dead: BTreeSet<Life>,
    next: u64,
    /// Requests that were answered at the service, and blocks that arrived.
    served: BTreeSet<u64>,
    arrived: BTreeSet<u64>,
    /// Programs get no memory for a while: messages that need some are lost, and told as such.
    pub may_lose: bool,
    /// Answers and blocks.
    pub done: u64,
}

impl Book {
    pub const fn new(may_lose: bool) -> Self {
        Self {
            talks: BTreeMap::new(),
            dead: BTreeSet::new(),
            next: 1,
            served: BTreeSet::new(),
            arrived: BTreeSet::new(),
            may_lose,
            done: 0,
        }
    }

    /// A new mark.
    pub const fn mark(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// A program opens a session with another one.
    pub fn open(&mut self, mark: u64, lives: [Life; 2]) {
        self.talks.insert(mark, Talk { lives, sides: [Side::There, Side::Unheard] });
    }

    /// A session was asked for at a program.
    pub fn hello(&mut self, mark: u64, own: Life) -> Result<Life, String> {
        let talk = self.talks.get_mut(&mark).ok_or(format!("{own:?}: a hello of nobody"))?;
        if talk.lives[1] != own || talk.sides[1] != Side::Unheard {
            return Err(format!("{own:?}: the hello {mark} arrived twice, or elsewhere: {talk:?}"));
        }
        talk.sides[1] = Side::There;
        Ok(talk.lives[0])
    }

    /// A session is over at a program.
    pub fn over(&mut self, mark: u64, own: Life, was_disconnected: bool) {
        let talk = self.talks.get_mut(&mark).expect("it was opened");
        let side = usize::from(talk.lives[0] != own);
        talk.sides[side] = if was_disconnected { Side::Disconnected } else { Side::Over };
    }

    pub fn die(&mut self, life: Life) {
        self.dead.insert(life);
    }

    /// A request arrived at its service.
    pub fn serve(&mut self, mark: u64) -> Result<(), String> {
        if self.served.insert(mark) { Ok(()) } else { Err(format!("request {mark} came twice")) }
    }

    /// An answer arrived.
    pub fn answered(&mut self, mark: u64) -> Result<(), String> {
        self.done += 1;
        let is_served = self.served.contains(&mark);
        if is_served { Ok(()) } else { Err(format!("request {mark} was answered unasked")) }
    }

    /// A block arrived.
    pub fn block(&mut self, mark: u64) -> Result<(), String> {
        self.done += 1;
        if self.arrived.insert(mark) { Ok(()) } else { Err(format!("block {mark} came twice")) }
    }

    /// Checks that sessions are over at both ends or at none. A program disconnects nobody by
    /// itself: where both ends were, the fabric showed one of them a peer that broke the protocol.
    pub fn check(&self) -> Result<(), String> {
        for (mark, Talk { lives, sides }) in &self.talks {
            if *sides == [Side::Disconnected; 2] {
                return Err(format!("{lives:?} were disconnected, and neither broke the protocol"));
            }
            let is_there = |side: usize| sides[side] == Side::There;
            for (own, other) in [(0, 1), (1, 0)] {
                let is_alone = self.dead.contains(&lives[other]) || !is_there(other);
                if !self.dead.contains(&lives[own]) && is_there(own) && is_alone {
                    return Err(format!(
                        "session {mark} is there at {:?}, and not at {:?}: {sides:?}",
                        lives[own], lives[other]
                    ));
                }
            }
        }
        Ok(())
    }
}

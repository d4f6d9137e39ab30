//! The messages between PEs of several hosts, without input and output: bytes and changes in, bytes
//! and answers out.
//!
//! A PE's memory is changed by its own process alone, so that there is one owner of the atomicity
//! of each word: atomics of PEs on its host and those that come by messages exclude each other.
//!
//! # Invariants
//! - A message is checked entry by entry, and what an entry names is checked by [`Memory`].
//! - A question is open until its answer came, or its PE is down. An answer goes where its
//!   question wanted it, and has the bytes that were asked for.
//! - A quiet is over for a PE when all that was begun before it is known to be there, or the PE is
//!   down.

use weft_fabric::{Atomic, Width};

use super::entry::{Breach, DATA_BYTES, Entries, Entry, Place};
use super::link::{Link, QUESTIONS_MAX, Standing};
use super::pes::Pes;

/// The memory of this PE, as messages of others reach it. Each call checks its range.
pub trait Memory {
    /// Copies bytes to a place. 4 or 8 bytes at a multiple of them are one store.
    ///
    /// # Errors
    /// [`Breach::Outside`].
    fn write(&mut self, place: Place, bytes: &[u8]) -> Result<(), Breach>;

    /// Copies bytes of a place.
    ///
    /// # Errors
    /// [`Breach::Outside`].
    fn read(&mut self, place: Place, into: &mut [u8]) -> Result<(), Breach>;

    /// Changes a word by one atomic of the processor, and gives its former value.
    ///
    /// # Errors
    /// [`Breach::Outside`], also for a word that is not aligned.
    fn change(&mut self, place: Place, atomic: Atomic) -> Result<u64, Breach>;

    /// Copies bytes to the copy of the control area of another PE.
    ///
    /// # Errors
    /// [`Breach::Outside`].
    fn show(&mut self, of: usize, offset: usize, bytes: &[u8]) -> Result<(), Breach>;

    /// Copies an answer to where the program wants it: the value that it gave with the question.
    fn land(&mut self, at: usize, bytes: &[u8]);
}

/// Where an answer goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Goes {
    /// To the caller, who takes it.
    ToCaller,
    /// To memory of the program ([`Memory::land`]).
    To(usize),
}

/// An answer that came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    bytes: [u8; DATA_BYTES],
    length: usize,
}

impl Answer {
    /// The bytes of the answer.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// The word that the answer is.
    #[must_use]
    pub fn word(&self) -> u64 {
        let mut word = [0; 8];
        let length = self.length.min(8);
        word[..length].copy_from_slice(&self.bytes[..length]);
        u64::from_le_bytes(word)
    }
}

/// A question of this PE.
#[derive(Clone, Copy, Debug)]
enum Question {
    Free,
    /// Asked. The answer has so many bytes.
    Open {
        pe: usize,
        length: usize,
        goes: Goes,
    },
    /// Asked, whether so many changes are over.
    Confirms {
        pe: usize,
        changes: u64,
    },
    Answered(Answer),
    /// The PE is down, and the caller does not know yet.
    Lost {
        pe: usize,
    },
}

/// Why something could not be begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// Too much is under way: poll, and try again.
    Busy,
    /// The PE is down.
    Down {
        /// The PE.
        pe: usize,
    },
}

/// The state of one PE towards all PEs of other hosts.
#[derive(Debug)]
pub struct Machine<M> {
    memory: M,
    /// By the number of the PE. Those of the own host have one that is never used.
    links: Vec<Link>,
    questions: Vec<Question>,
    free: Vec<u32>,
    /// PEs with something under way that a quiet waits for.
    dirty: Pes,
    /// PEs with messages that are to leave.
    sending: Pes,
    /// PEs with a message that waits for more.
    lingering: Pes,
}

impl<M: Memory> Machine<M> {
    /// A PE of a job of so many. Its messages have up to so many bytes, at least
    /// [`MESSAGE_BYTES`](super::entry::MESSAGE_BYTES).
    #[must_use]
    pub fn new(pes: usize, memory: M, message_bytes: usize) -> Self {
        Self {
            memory,
            links: (0..pes).map(|_| Link::new(message_bytes)).collect(),
            questions: Vec::new(),
            free: Vec::new(),
            dirty: Pes::none_of(pes),
            sending: Pes::none_of(pes),
            lingering: Pes::none_of(pes),
        }
    }

    /// The memory of this PE.
    pub fn memory(&mut self) -> &mut M {
        &mut self.memory
    }

    pub(super) fn link(&mut self, pe: usize) -> &mut Link {
        &mut self.links[pe]
    }

    /// Whether a PE is there.
    #[must_use]
    pub fn standing(&self, pe: usize) -> Standing {
        self.links[pe].standing
    }

    fn up(&mut self, pe: usize) -> Result<&mut Link, Refused> {
        let link = &mut self.links[pe];
        match link.standing {
            Standing::Up => Ok(link),
            Standing::Down => Err(Refused::Down { pe }),
        }
    }

    /// Adds bytes for a place of a PE, at most so many that they take a few entries.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn put(&mut self, pe: usize, place: Place, bytes: &[u8]) -> Result<(), Refused> {
        // A queue with room takes all of them.
        if !self.up(pe)?.has_room() {
            return Err(Refused::Busy);
        }
        for (part, bytes) in bytes.chunks(DATA_BYTES).enumerate() {
            let place = place.plus(part * DATA_BYTES);
            self.add(pe, &Entry::Put { place, bytes });
        }
        Ok(())
    }

    /// Adds a change for a PE. It leaves with others, or when [`Machine::hurry`] says so.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn change(&mut self, pe: usize, entry: &Entry<'_>) -> Result<(), Refused> {
        if !self.up(pe)?.has_room() {
            return Err(Refused::Busy);
        }
        self.add(pe, entry);
        Ok(())
    }

    fn add(&mut self, pe: usize, entry: &Entry<'_>) {
        let link = &mut self.links[pe];
        link.push(entry);
        link.changes.begun += 1;
        self.dirty.insert(pe);
        self.note(pe);
    }

    /// Shows a PE a part of the own control area. Nobody waits for it, so that it is let in also
    /// where the queue is full: a PE shows its steps, each of which waits for those of others.
    pub fn show(&mut self, pe: usize, offset: usize, bytes: &[u8]) {
        let Ok(link) = self.up(pe) else { return };
        for (part, bytes) in bytes.chunks(DATA_BYTES).enumerate() {
            let offset = u32::try_from(offset + part * DATA_BYTES);
            let offset = offset.expect("a control area has less than 4 GiB");
            link.push(&Entry::Control { offset, bytes });
        }
        link.hurry();
        self.note(pe);
    }

    /// Sends data ahead for a collective call of a PE with its flags at a place.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn send_eager(&mut self, pe: usize, place: Place, bytes: &[u8]) -> Result<(), Refused> {
        let link = self.up(pe)?;
        // A call without data is known by a piece without any.
        if !link.has_room() || !link.eager.send(bytes.len().div_ceil(DATA_BYTES).max(1)) {
            return Err(Refused::Busy);
        }
        if bytes.is_empty() {
            link.push(&Entry::Eager { place, bytes });
        }
        for bytes in bytes.chunks(DATA_BYTES) {
            link.push(&Entry::Eager { place, bytes });
        }
        link.hurry();
        self.note(pe);
        Ok(())
    }

    /// Takes the next piece of the data that a PE sent for a call with its flags at a place:
    /// [`DATA_BYTES`] of them or what is left. Nothing while none is there.
    ///
    /// # Errors
    /// [`Refused::Down`]: none comes.
    pub fn take_eager(&mut self, pe: usize, place: Place) -> Result<Option<Vec<u8>>, Refused> {
        let link = &mut self.links[pe];
        let Some(piece) = link.eager.take(place) else {
            return self.up(pe).map(|_| None);
        };
        if link.standing == Standing::Up
            && let Some(pieces) = link.eager.tell()
        {
            link.push(&Entry::Taken { pieces });
            link.hurry();
            self.note(pe);
        }
        Ok(Some(piece))
    }

    /// Asks for the former value of a word that is changed. Gives the number of the question.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn fetch(
        &mut self,
        pe: usize,
        place: Place,
        atomic: Atomic,
        goes: Goes,
    ) -> Result<u32, Refused> {
        let length = match atomic.width {
            Width::Bits32 => 4,
            Width::Bits64 => 8,
        };
        self.ask(pe, length, goes, |id| Entry::Fetch { id, place, atomic })
    }

    /// Asks for at most [`DATA_BYTES`] bytes of a place. Gives the number of the question.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn read(
        &mut self,
        pe: usize,
        place: Place,
        length: usize,
        goes: Goes,
    ) -> Result<u32, Refused> {
        self.ask(pe, length, goes, |id| Entry::Read { id, place, length })
    }

    fn ask(
        &mut self,
        pe: usize,
        length: usize,
        goes: Goes,
        entry: impl FnOnce(u32) -> Entry<'static>,
    ) -> Result<u32, Refused> {
        if !self.up(pe)?.may_ask() {
            return Err(Refused::Busy);
        }
        let id = self.question(Question::Open { pe, length, goes });
        let link = &mut self.links[pe];
        link.push(&entry(id));
        link.questions += 1;
        if let Goes::To(_) = goes {
            link.landings.begun += 1;
            self.dirty.insert(pe);
        } else {
            link.hurry();
        }
        self.note(pe);
        Ok(id)
    }

    fn question(&mut self, question: Question) -> u32 {
        if let Some(id) = self.free.pop() {
            self.questions[id as usize] = question;
            return id;
        }
        let id = u32::try_from(self.questions.len()).expect("questions are bounded for each PE");
        self.questions.push(question);
        id
    }

    /// Takes the answer to a question that goes to the caller; nothing while it is under way.
    ///
    /// # Errors
    /// [`Refused::Down`]: it never comes.
    pub fn take(&mut self, id: u32) -> Result<Option<Answer>, Refused> {
        let taken = match self.questions.get(id as usize) {
            Some(Question::Answered(answer)) => Ok(Some(*answer)),
            Some(Question::Lost { pe }) => Err(Refused::Down { pe: *pe }),
            _ => return Ok(None),
        };
        self.questions[id as usize] = Question::Free;
        self.free.push(id);
        taken
    }

    /// Lets leave what waits for a PE.
    pub fn hurry(&mut self, pe: usize) {
        self.links[pe].hurry();
        self.note(pe);
    }

    /// Lets leave all that waits.
    pub fn hurry_all(&mut self) {
        while let Some(pe) = self.lingering.next(0) {
            self.lingering.remove(pe);
            self.hurry(pe);
        }
    }

    /// Whether a message waits for more.
    #[must_use]
    pub fn lingers(&self) -> bool {
        !self.lingering.is_empty()
    }

    /// Notes whether something is to leave for a PE.
    fn note(&mut self, pe: usize) {
        let link = &self.links[pe];
        if link.next().is_some() {
            self.sending.insert(pe);
        }
        if link.lingers() {
            self.lingering.insert(pe);
        } else {
            self.lingering.remove(pe);
        }
    }

    /// Has the next quiet ask a PE also where nothing was changed.
    pub fn touch(&mut self, pe: usize) {
        if let Ok(link) = self.up(pe) {
            link.changes.begun += 1;
            self.dirty.insert(pe);
        }
    }

    /// Asks a PE whether all changes before are over, unless it was asked already.
    pub fn confirm(&mut self, pe: usize) {
        let link = &mut self.links[pe];
        if link.standing == Standing::Down {
            return;
        }
        // With too many under way the quiet asks again later.
        if link.confirms < QUESTIONS_MAX
            && let Some(changes) = link.changes.ask()
        {
            link.confirms += 1;
            let id = self.question(Question::Confirms { pe, changes });
            self.links[pe].push(&Entry::Confirm { id });
        }
        self.hurry(pe);
    }

    /// The PEs with something under way that a quiet waits for, from one on.
    #[must_use]
    pub fn next_dirty(&self, from: usize) -> Option<usize> {
        self.dirty.next(from)
    }

    /// Notes that something is under way to a PE beside messages.
    pub(super) fn soil(&mut self, pe: usize) {
        self.dirty.insert(pe);
    }

    /// Notes a get of a PE that lands by itself.
    pub(super) fn gets(&mut self, pe: usize, number: u64) {
        self.links[pe].gets.insert(number);
        self.dirty.insert(pe);
    }

    /// It has landed.
    pub(super) fn landed(&mut self, pe: usize, number: u64) {
        self.links[pe].gets.remove(&number);
        self.clean(pe);
    }

    /// Notes that less may be under way to a PE.
    pub(super) fn clean(&mut self, pe: usize) {
        if !self.links[pe].is_dirty() {
            self.dirty.remove(pe);
        }
    }

    /// The next PE, from one on, to which something is to leave.
    #[must_use]
    pub fn next_sending(&self, from: usize) -> Option<usize> {
        self.sending.next(from)
    }

    /// The message that is to leave next for a PE.
    #[must_use]
    pub fn message(&self, pe: usize) -> Option<&[u8]> {
        self.links[pe].next()
    }

    /// The message has left.
    pub fn sent(&mut self, pe: usize) {
        self.links[pe].sent();
        if self.links[pe].next().is_none() {
            self.sending.remove(pe);
        }
    }

    /// Handles a message of a PE.
    ///
    /// # Errors
    /// [`Breach`]: the entries before it are done.
    pub fn received(&mut self, from: usize, message: &[u8]) -> Result<(), Breach> {
        if self.links[from].standing == Standing::Down {
            return Ok(());
        }
        for entry in Entries::of(message) {
            self.handle(from, entry?)?;
        }
        self.note(from);
        Ok(())
    }

    fn handle(&mut self, from: usize, entry: Entry<'_>) -> Result<(), Breach> {
        match entry {
            Entry::Put { place, bytes } => self.memory.write(place, bytes),
            Entry::Change { place, atomic } => self.memory.change(place, atomic).map(drop),
            Entry::Fetch { id, place, atomic } => {
                let former = self.memory.change(place, atomic)?.to_le_bytes();
                let length = match atomic.width {
                    Width::Bits32 => 4,
                    Width::Bits64 => 8,
                };
                self.links[from].answer(id, &former[..length])
            }
            Entry::Read { id, place, length } => {
                let mut bytes = [0; DATA_BYTES];
                self.memory.read(place, &mut bytes[..length])?;
                self.links[from].answer(id, &bytes[..length])
            }
            Entry::Confirm { id } => self.links[from].answer(id, &[]),
            Entry::Answer { id, bytes } => self.answered(from, id, bytes),
            Entry::Control { offset, bytes } => self.memory.show(from, offset as usize, bytes),
            Entry::Eager { place, bytes } => self.links[from].eager.came(place, bytes),
            Entry::Taken { pieces } => self.links[from].eager.taken(pieces as usize),
        }
    }

    fn answered(&mut self, from: usize, id: u32, answer: &[u8]) -> Result<(), Breach> {
        let unasked = || Breach::Unasked { id, bytes: answer.len() };
        let question = self.questions.get(id as usize).copied();
        let next = match question {
            Some(Question::Open { pe, length, goes }) if (pe, length) == (from, answer.len()) => {
                self.links[from].questions -= 1;
                match goes {
                    Goes::ToCaller => {
                        let mut bytes = [0; DATA_BYTES];
                        bytes[..length].copy_from_slice(answer);
                        Question::Answered(Answer { bytes, length })
                    }
                    Goes::To(at) => {
                        self.memory.land(at, answer);
                        // Answers come in the order of their questions.
                        self.links[from].landings.over += 1;
                        Question::Free
                    }
                }
            }
            Some(Question::Confirms { pe, changes }) if pe == from && answer.is_empty() => {
                self.links[from].changes.reached(changes);
                self.links[from].confirms -= 1;
                Question::Free
            }
            _ => return Err(unasked()),
        };
        self.questions[id as usize] = next;
        if matches!(next, Question::Free) {
            self.free.push(id);
            self.clean(from);
        }
        Ok(())
    }

    /// A PE is not reached any more. Questions to it end.
    pub fn down(&mut self, pe: usize) {
        self.links[pe].end();
        for set in [&mut self.dirty, &mut self.sending, &mut self.lingering] {
            set.remove(pe);
        }
        for (id, question) in (0..).zip(&mut self.questions) {
            match *question {
                Question::Open { pe: to, goes: Goes::ToCaller, .. } if to == pe => {
                    *question = Question::Lost { pe };
                }
                Question::Open { pe: to, .. } | Question::Confirms { pe: to, .. } if to == pe => {
                    *question = Question::Free;
                    self.free.push(id);
                }
                _ => {}
            }
        }
    }
}

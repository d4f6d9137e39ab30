//! Requests at their target. It alone changes words of its memory as words.

use std::sync::atomic::Ordering;

use weft_fabric::{Access, Atomic, Command, OperationError, SignalChange, Target, Width};
use weft_memory::{CopyMode, Memory, Segment};

use super::Engine;
use super::pair::Response;
use crate::nic::Nic;
use crate::packet::{Answer, Request, Short};

/// A word of a granted range.
struct Word {
    memory: Memory,
    place: usize,
}

impl Word {
    fn segment(&self) -> &Segment {
        self.memory.segment()
    }

    /// Calls `write`, which changes `length` bytes here and nothing else.
    fn writing<R>(&self, length: usize, write: impl FnOnce(&Segment) -> R) -> R {
        self.memory.writing(self.place, length, write)
    }
}

impl<N: Nic> Engine<N> {
    /// Serves a request of a peer.
    pub(super) fn serve(&mut self, handle: u32, number: u64, request: Request) {
        if let Request::Resolve(key) = request {
            return self.answer_for_key(handle, number, key);
        }
        let result = self.serve_value(handle, request).map(Answer::Value);
        self.answer(handle, number, result);
    }

    /// Answers a request.
    pub(super) fn answer(
        &mut self,
        handle: u32,
        number: u64,
        result: Result<Answer, OperationError>,
    ) {
        if let Some(pair) = self.pair_mut(handle) {
            pair.sending.answers.push_back(Response { number, result, short: None });
            self.give_turn(handle);
        }
    }

    /// A short put of a peer has come. False if it is refused: then its room is returned with the
    /// answer.
    pub(super) fn serve_short(&mut self, handle: u32, short: &Short<'_>) -> bool {
        match self.store_short(handle, short) {
            Ok(()) => {
                if let Some(told) = short.told() {
                    self.deliver_notification(handle, told);
                }
                true
            }
            Err(error) => {
                if let Some(pair) = self.pair_mut(handle) {
                    let (number, place) = (short.number, pair.receiving.handled);
                    let result = Err(error);
                    pair.sending.answers.push_back(Response { number, result, short: Some(place) });
                    self.give_turn(handle);
                }
                false
            }
        }
    }

    /// Writes the bytes of a short put, and changes its word behind them. Nothing is written if any
    /// of it is refused.
    fn store_short(&self, handle: u32, short: &Short<'_>) -> Result<(), OperationError> {
        let needed = (short.command(), Access::WRITE);
        let length = short.bytes.len() as u64;
        let place = self.place(handle, needed, short.target, length, 1)?;
        let word = match short.signal() {
            Some(signal) => {
                let needed = (Command::Put, signal.change.access());
                Some((self.word(handle, needed, signal.target, 8)?, signal.change))
            }
            None => None,
        };
        place.writing(short.bytes.len(), |segment| {
            segment.write(place.place, short.bytes, CopyMode::Plain);
        });
        if let Some((word, change)) = word {
            signal_word(&word, change);
        }
        Ok(())
    }

    fn serve_value(&mut self, handle: u32, request: Request) -> Result<u64, OperationError> {
        match request {
            Request::Atomic(target, atomic) => {
                let needed = (Command::Atomic, atomic.operation.access());
                let width = match atomic.width {
                    Width::Bits32 => 4,
                    Width::Bits64 => 8,
                };
                let word = self.word(handle, needed, target, width)?;
                let former = change(&word, atomic);
                Ok(if atomic.fetches { former } else { 0 })
            }
            Request::Signal(target, signal) => {
                signal_word(
                    &self.word(handle, (Command::Put, signal.access()), target, 8)?,
                    signal,
                );
                Ok(0)
            }
            Request::Store { target, value, length, is_word } => {
                let bytes = value.to_le_bytes();
                let Some(bytes) = bytes.get(..length.into()).filter(|bytes| !bytes.is_empty())
                else {
                    return Err(OperationError::InvalidLength { length: length.into() });
                };
                let command = if is_word { Command::Put } else { Command::ImmediatePut };
                let width = if is_word { length } else { 1 };
                let needed = (command, Access::WRITE);
                let word = self.place(handle, needed, target, length.into(), width)?;
                store(&word, value, bytes, is_word);
                Ok(0)
            }
            Request::Load { target, length } => {
                if ![1, 2, 4, 8].contains(&length) {
                    return Err(OperationError::InvalidLength { length: length.into() });
                }
                let needed = (Command::Get, Access::READ);
                let word = self.place(handle, needed, target, length.into(), length)?;
                Ok(load(&word, length))
            }
            Request::Flush | Request::Resolve(_) => Ok(0),
        }
    }

    fn word(
        &self,
        handle: u32,
        needed: (Command, Access),
        target: Target,
        width: u8,
    ) -> Result<Word, OperationError> {
        self.place(handle, needed, target, width.into(), width)
    }

    /// The place of `length` bytes in an own range, which must lie at a multiple of `width`.
    fn place(
        &self,
        handle: u32,
        needed: (Command, Access),
        target: Target,
        length: u64,
        width: u8,
    ) -> Result<Word, OperationError> {
        let grant = self.grants.get(&target.key).filter(|grant| grant.is_for(handle));
        let grant = grant.ok_or(OperationError::InvalidKey)?;
        let offset = target.offset;
        grant.access.check(needed, (offset, length), grant.length)?;
        // The range was checked to lie in memory.
        let place = usize::try_from(grant.start + offset).unwrap_or(usize::MAX);
        let memory = grant.ground.memory();
        if !memory.segment().is_aligned(place, width.into()) {
            return Err(OperationError::Misaligned { offset, alignment: width.into() });
        }
        Ok(Word { memory: memory.clone(), place })
    }
}

/// Changes a word, and returns its former value.
fn change(word: &Word, atomic: Atomic) -> u64 {
    match atomic.width {
        Width::Bits64 => word.writing(8, |segment| {
            let new = |old| Some(atomic.apply(old));
            let cell = segment.word64(word.place);
            match cell.fetch_update(Ordering::AcqRel, Ordering::Acquire, new) {
                Ok(old) | Err(old) => old,
            }
        }),
        Width::Bits32 => {
            let low = |value: u64| u32::try_from(value & u64::from(u32::MAX)).unwrap_or(0);
            let new = |old: u32| Some(low(atomic.apply(old.into())));
            word.writing(4, |segment| {
                let cell = segment.word32(word.place);
                match cell.fetch_update(Ordering::AcqRel, Ordering::Acquire, new) {
                    Ok(old) | Err(old) => old.into(),
                }
            })
        }
    }
}

/// Changes the word of a put with a signal.
fn signal_word(word: &Word, change: SignalChange) {
    word.writing(8, |segment| {
        let new = |old| Some(change.apply(old));
        let cell = segment.word64(word.place);
        let _ = cell.fetch_update(Ordering::AcqRel, Ordering::Acquire, new);
    });
}

fn store(word: &Word, value: u64, bytes: &[u8], is_word: bool) {
    let low = u32::try_from(value & u64::from(u32::MAX)).unwrap_or(0);
    word.writing(bytes.len(), |segment| match (is_word, bytes.len()) {
        (true, 8) => segment.word64(word.place).store(value, Ordering::Release),
        (true, 4) => segment.word32(word.place).store(low, Ordering::Release),
        _ => segment.write(word.place, bytes, CopyMode::Plain),
    });
}

fn load(word: &Word, length: u8) -> u64 {
    match length {
        8 => word.segment().word64(word.place).load(Ordering::Acquire),
        4 => word.segment().word32(word.place).load(Ordering::Acquire).into(),
        length => {
            let mut bytes = [0; 8];
            word.segment().read(word.place, &mut bytes[..length.into()]);
            u64::from_le_bytes(bytes)
        }
    }
}

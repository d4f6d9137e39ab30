//! Memory, processes and ends for tests and fuzzing: what a surface gives the protocol.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::{Rc, Weak};

use weft_fabric::{Endpoint, Region};

use crate::atomics::Call;
use crate::{Fault, Introduction, Memory, Options, Outcome, PeerId, Rdm, Span, Surface};

/// A range of bytes that several hold.
#[derive(Clone, Debug)]
pub struct Bytes {
    /// A number that serves as address.
    pub number: u64,
    bytes: Rc<RefCell<Vec<u8>>>,
    at: usize,
    length: usize,
}

thread_local! {
    static ALL: RefCell<HashMap<u64, Weak<RefCell<Vec<u8>>>>> = RefCell::default();
    static ENDED: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// Addresses: the number of the memory, and 40 bits of offset.
const SHIFT: u32 = 40;

impl Bytes {
    /// Memory with these bytes.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        ALL.with_borrow_mut(|all| {
            let (number, length) = (all.len() as u64 + 1, bytes.len());
            let bytes = Rc::new(RefCell::new(bytes));
            all.insert(number, Rc::downgrade(&bytes));
            Self { number, bytes, at: 0, length }
        })
    }

    /// Memory of `length` zeros.
    #[must_use]
    pub fn zeros(length: usize) -> Self {
        Self::new(vec![0; length])
    }

    /// Takes all memory from this byte on away, also from others that hold it.
    pub fn take_away(&self, from: usize) {
        self.bytes.borrow_mut().truncate(self.at + from);
    }

    /// Its bytes.
    ///
    /// # Panics
    /// When some were taken away.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        self.bytes.borrow()[self.at..self.at + self.length].to_vec()
    }
}

impl Memory for Bytes {
    fn length(&self) -> usize {
        self.length
    }

    fn part(&self, at: usize, length: usize) -> Self {
        assert!(at + length <= self.length, "parts lie inside");
        Self { at: self.at + at, length, ..self.clone() }
    }

    fn copy(&self) -> Result<Self, Fault> {
        let mut bytes = vec![0; self.length];
        self.read(0, &mut bytes)?;
        Ok(Self::new(bytes))
    }

    fn pour(&self, at: usize, length: usize, take: &mut dyn FnMut(&[u8])) -> Result<(), Fault> {
        assert!(at + length <= self.length, "ranges lie inside");
        // In two pieces, so that both ends meet pieces.
        let bytes = self.bytes.borrow();
        let range = bytes.get(self.at + at..self.at + at + length).ok_or(Fault)?;
        let (one, other) = range.split_at(length / 3);
        for piece in [one, other] {
            if !piece.is_empty() {
                take(piece);
            }
        }
        Ok(())
    }

    fn fill(&self, at: usize, length: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<(), Fault> {
        assert!(at + length <= self.length, "ranges lie inside");
        let mut bytes = self.bytes.borrow_mut();
        let range = bytes.get_mut(self.at + at..self.at + at + length).ok_or(Fault)?;
        let (one, other) = range.split_at_mut(length / 2);
        for piece in [one, other] {
            if !piece.is_empty() {
                fill(piece);
            }
        }
        Ok(())
    }

    fn spans(&self) -> Option<Vec<Span>> {
        let address = self.number << SHIFT | self.at as u64;
        Some(vec![Span { address, length: self.length as u64 }])
    }

    fn change(&self, at: usize, call: &Call<'_>) -> Result<Vec<u8>, Fault> {
        let bytes = call.datatype.bytes();
        let mut all = vec![0; call.count * bytes];
        self.read(at, &mut all)?;
        for index in 0..call.count {
            let old = &all[index * bytes..][..bytes];
            let new = call.new_value(index, old).ok_or(Fault)?;
            self.write(at + index * bytes, new.bytes())?;
        }
        Ok(all)
    }
}

/// A process of a test: the kernel copies from it until it ends.
#[derive(Debug)]
pub struct Fake {
    /// The number of the process.
    pub process: u32,
}

impl Fake {
    /// Ends a process.
    pub fn end(process: u32) {
        ENDED.with_borrow_mut(|ended| ended.push(process));
    }
}

impl Surface for Fake {
    type Memory = Bytes;
    type Token = u64;
    type Process = u32;

    fn introduction(&self) -> Introduction {
        Introduction { process: self.process, address: 8, word: 77 }
    }

    fn find(&self, introduction: &Introduction) -> Option<u32> {
        let lives = !ENDED.with_borrow(|ended| ended.contains(&introduction.process));
        (lives && introduction.word == 77).then_some(introduction.process)
    }

    fn fetch(&self, from: &u32, spans: &[Span], skip: u64, target: &Bytes) -> Result<(), Fault> {
        if ENDED.with_borrow(|ended| ended.contains(from)) {
            return Err(Fault);
        }
        let [span] = spans else { return Err(Fault) };
        let (number, at) = (span.address >> SHIFT, span.address & ((1 << SHIFT) - 1));
        let source =
            ALL.with_borrow(|all| all.get(&number).and_then(Weak::upgrade)).ok_or(Fault)?;
        let at = usize::try_from(at + skip).map_err(|_| Fault)?;
        let bytes = source.borrow().get(at..at + target.length()).ok_or(Fault)?.to_vec();
        target.write(0, &bytes)
    }
}

/// A region with the bytes of memory.
fn lend<E: Endpoint>(endpoint: &mut E, memory: &Bytes) -> Option<E::Region> {
    let bytes = memory.copy().ok()?.to_vec();
    let region = endpoint.register(bytes.len() as u64).ok()?;
    region.write(0, &bytes).ok()?;
    Some(region)
}

/// An end, and what was reported to it.
pub struct End<E: Endpoint> {
    /// The datagrams.
    pub rdm: Rdm<E, Fake>,
    /// All outcomes so far.
    pub outcomes: Vec<Outcome<u64>>,
}

impl<E: Endpoint> End<E> {
    /// Datagrams of a process over an endpoint.
    ///
    /// # Panics
    /// When there is no memory for chunks.
    pub fn new(endpoint: E, process: u32, options: Options) -> Self {
        let birth = u64::from(process) * 1_000_003;
        let rdm = Rdm::new(endpoint, Fake { process }, options, birth).expect("memory for chunks");
        Self { rdm: rdm.lending(lend), outcomes: Vec::new() }
    }

    /// Another end as a peer.
    pub fn peer(&mut self, other: &Self) -> PeerId {
        let (address, birth) = other.rdm.name();
        self.rdm.peer(address, birth)
    }

    /// Makes progress, and keeps the outcomes.
    pub fn poll(&mut self) {
        self.rdm.poll();
        self.rdm.take_outcomes(|outcome| self.outcomes.push(*outcome));
    }
}

//! Memory of the program, and copies by the kernel: given by the surface.

use std::fmt::Debug;

use crate::atomics::Call;

/// Memory that is not there any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault;

/// A range of addresses of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The first address.
    pub address: u64,
    /// Bytes.
    pub length: u64,
}

/// Memory of the program: the source or the target of an operation.
///
/// Ranges that are named lie inside it; callers check that before.
pub trait Memory: Clone {
    /// Bytes.
    fn length(&self) -> usize;

    /// A range of it.
    #[must_use]
    fn part(&self, at: usize, length: usize) -> Self;

    /// Memory with the same bytes, which is there as long as somebody has it.
    ///
    /// # Errors
    /// As [`Memory::pour`].
    fn copy(&self) -> Result<Self, Fault>;

    /// Lets `take` read its pieces, one after the other.
    ///
    /// # Errors
    /// [`Fault`], of memory that was registered without being there.
    fn pour(&self, at: usize, length: usize, take: &mut dyn FnMut(&[u8])) -> Result<(), Fault>;

    /// Lets `fill` write to its pieces, one after the other.
    ///
    /// # Errors
    /// As [`Memory::pour`].
    fn fill(&self, at: usize, length: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<(), Fault>;

    /// Copies bytes out of it.
    ///
    /// # Errors
    /// As [`Memory::pour`].
    #[inline]
    fn read(&self, at: usize, target: &mut [u8]) -> Result<(), Fault> {
        let (mut done, length) = (0, target.len());
        self.pour(at, length, &mut |piece| {
            target[done..done + piece.len()].copy_from_slice(piece);
            done += piece.len();
        })
    }

    /// Copies bytes into it.
    ///
    /// # Errors
    /// As [`Memory::pour`].
    #[inline]
    fn write(&self, at: usize, source: &[u8]) -> Result<(), Fault> {
        let mut done = 0;
        self.fill(at, source.len(), &mut |piece| {
            piece.copy_from_slice(&source[done..done + piece.len()]);
            done += piece.len();
        })
    }

    /// The addresses of its pieces; `None` if they are not to be told.
    fn spans(&self) -> Option<Vec<Span>>;

    /// Changes words of it, each as a whole, and returns the former values.
    ///
    /// # Errors
    /// [`Fault`], and for words that do not lie at a multiple of their size.
    fn change(&self, at: usize, call: &Call<'_>) -> Result<Vec<u8>, Fault>;
}

/// The words by which a process is found and recognised. Peers send them, so they are not believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Introduction {
    /// The number of the process; 0 for a process that is not to be copied from.
    pub process: u32,
    /// The address of a word of it.
    pub address: u64,
    /// The random value of the word.
    pub word: u64,
}

/// The surroundings of the protocol.
pub trait Surface {
    /// Memory of the program.
    type Memory: Memory + Debug;
    /// The caller's name for an operation.
    type Token: Copy + Debug;
    /// Another process, whose memory the kernel copies from.
    type Process: Debug;

    /// How this process is found.
    fn introduction(&self) -> Introduction;

    /// The process that introduced itself, if the kernel copies from it and the word is there.
    fn find(&self, introduction: &Introduction) -> Option<Self::Process>;

    /// Copies bytes of another process, from byte `skip` of its spans on, until `target` is full.
    ///
    /// # Errors
    /// [`Fault`]: the process ended, or has no such memory.
    fn fetch(
        &self,
        from: &Self::Process,
        spans: &[Span],
        skip: u64,
        target: &Self::Memory,
    ) -> Result<(), Fault>;
}

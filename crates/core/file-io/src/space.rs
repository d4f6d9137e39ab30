//! The memory of a request.

use std::ptr::NonNull;
use std::sync::Arc;

use weft_memory::Segment;

use crate::pool::{Buffer, Pool};

/// Memory that a read fills or a write empties: a range of a buffer, or of a shared segment. It is
/// the engine's until the request is done.
#[derive(Debug)]
pub struct Space {
    kind: Memory,
    offset: usize,
    length: usize,
}

#[derive(Debug)]
enum Memory {
    Own(Buffer),
    /// Others may write to it at any time; the kernel copies, and no reference to it is formed.
    Shared(Arc<Segment>),
}

impl Space {
    /// `length` bytes of a buffer, from `offset` on.
    ///
    /// # Panics
    /// When the range leaves the buffer.
    #[must_use]
    pub fn buffer(buffer: Buffer, offset: usize, length: usize) -> Self {
        let end = offset.checked_add(length);
        assert!(end.is_some_and(|end| end <= buffer.len()), "the range leaves the buffer");
        Self { kind: Memory::Own(buffer), offset, length }
    }

    /// `length` bytes of a segment, from `offset` on: a region of a fabric, for example. The
    /// segment must not be moved meanwhile ([`weft_memory::Moving`]).
    ///
    /// # Panics
    /// When the range leaves the segment, or it cannot be written.
    #[must_use]
    pub fn shared(segment: Arc<Segment>, offset: usize, length: usize) -> Self {
        let end = offset.checked_add(length);
        assert!(end.is_some_and(|end| end <= segment.length()), "the range leaves the segment");
        assert!(segment.writable(), "a segment that is read-only cannot be filled");
        Self { kind: Memory::Shared(segment), offset, length }
    }

    /// Bytes of the range.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// The buffer, if it is one.
    #[must_use]
    pub fn into_buffer(self) -> Option<Buffer> {
        match self.kind {
            Memory::Own(buffer) => Some(buffer),
            Memory::Shared(_) => None,
        }
    }

    pub(crate) fn pool(&self) -> Option<&Pool> {
        match &self.kind {
            Memory::Own(buffer) => Some(buffer.pool()),
            Memory::Shared(_) => None,
        }
    }

    /// The first byte of the range, `past` bytes behind its begin.
    pub(crate) fn start(&self, past: usize) -> NonNull<u8> {
        assert!(past <= self.length, "inside the range");
        match &self.kind {
            // SAFETY: the range is inside the buffer, as `buffer` has checked.
            Memory::Own(buffer) => unsafe { buffer.base().add(self.offset + past) },
            Memory::Shared(segment) => segment.address(self.offset + past, self.length - past),
        }
    }
}

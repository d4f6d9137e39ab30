//! A store in memory, on one node if that is asked for.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, fallocate};
use weft_block::gate::{Gate, Held};
use weft_block::store::{Extent, Store, StoreError};
use weft_memory::{CopyMode, Memory, MemoryOptions, SegmentError};

/// Bytes of a page, the unit in which space is taken and given back.
const PAGE: u64 = 4096;

/// A store in memory. Its pages are taken when they are first written, and not by reading.
/// Readers and writers of the same bytes at the same time may see a mixture, as on any disk.
#[derive(Debug)]
pub struct MemoryStore {
    memory: Memory,
    file: Arc<OwnedFd>,
    bytes: u64,
    /// A bit for each page that was written since it was last given back.
    written: Vec<AtomicU64>,
    /// Held shared by writers, and alone by those who give pages back.
    giving_back: Arc<Gate>,
}

impl MemoryStore {
    /// `bytes` of zeros, on a node or anywhere.
    ///
    /// # Errors
    /// [`SegmentError`].
    pub fn new(bytes: u64, node: Option<u32>) -> Result<Self, SegmentError> {
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut options = MemoryOptions::bytes(length).huge_pages();
        if let Some(node) = node {
            options = options.on_node(node);
        }
        let memory = Memory::fresh(options)?;
        let file = memory.file().expect("fresh memory has a file");
        let words = length.div_ceil(64 * place(PAGE));
        let written = std::iter::repeat_with(AtomicU64::default).take(words).collect();
        Ok(Self { memory, file, bytes, written, giving_back: Arc::default() })
    }

    /// A store of another size with the bytes of this one, as many as fit.
    ///
    /// # Errors
    /// [`SegmentError`].
    pub fn resized(&self, bytes: u64, node: Option<u32>) -> Result<Self, SegmentError> {
        const STEP: u64 = 1 << 20;
        let new = Self::new(bytes, node)?;
        let (mut at, end) = (0, bytes.min(self.bytes));
        while at < end {
            let extents = self.extents(at, end - at, 1).unwrap_or_default();
            let extent = extents.first().copied();
            let extent = extent.unwrap_or(Extent { length: end - at, is_hole: false });
            let stop = at + extent.length.min(end - at);
            while at < stop && !extent.is_hole {
                let step = usize::try_from(STEP.min(stop - at)).expect("a MiB");
                let place = usize::try_from(at).expect("it is mapped");
                let (from, to) = (self.memory.segment(), new.memory.segment());
                new.mark(at, step as u64);
                from.copy(place, to, place, step, CopyMode::Plain);
                at += step as u64;
            }
            at = stop;
        }
        Ok(new)
    }

    fn is_written(&self, page: u64) -> bool {
        let word = &self.written[place(page / 64)];
        word.load(Ordering::Acquire) & 1 << (page % 64) != 0
    }

    fn mark(&self, at: u64, length: u64) {
        for page in at / PAGE..(at + length).div_ceil(PAGE) {
            if !self.is_written(page) {
                let word = &self.written[place(page / 64)];
                word.fetch_or(1 << (page % 64), Ordering::AcqRel);
            }
        }
    }

    /// The end of the pages from the one at `at` on that were all written, or all not.
    fn end_of_run(&self, at: u64, end: u64) -> (bool, u64) {
        let first = at / PAGE;
        let is_written = self.is_written(first);
        let whole = if is_written { u64::MAX } else { 0 };
        let (mut page, last) = (first + 1, end.div_ceil(PAGE));
        while page < last && self.is_written(page) == is_written {
            // 64 pages at a time.
            page += 1;
            while page % 64 == 0
                && page + 64 <= last
                && self.written[place(page / 64)].load(Ordering::Acquire) == whole
            {
                page += 64;
            }
        }
        (is_written, (page * PAGE).min(end))
    }
}

fn place(at: u64) -> usize {
    usize::try_from(at).expect("a place in mapped memory")
}

impl Store for MemoryStore {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn is_quick(&self) -> bool {
        true
    }

    fn is_thin(&self) -> bool {
        true
    }

    fn memory(&self) -> Option<&dyn Any> {
        Some(&self.memory)
    }

    fn hold(&self, at: u64, length: u64, writes: bool) -> Option<Held> {
        let held = self.giving_back.try_shared()?;
        let end = at.checked_add(length).filter(|end| *end <= self.bytes)?;
        if writes {
            self.mark(at, length);
            return Some(held);
        }
        // Reading where nothing was written would take pages.
        let (is_written, until) = self.end_of_run(at, end);
        (is_written && until == end).then_some(held)
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), StoreError> {
        let end = at + into.len() as u64;
        // A command that was checked before the store became smaller.
        if end > self.bytes {
            return Err(StoreError::Unreadable);
        }
        let mut from = at;
        while from < end {
            let (is_written, until) = self.end_of_run(from, end);
            let part = &mut into[place(from - at)..place(until - at)];
            if is_written {
                self.memory.segment().read(place(from), part);
            } else {
                part.fill(0);
            }
            from = until;
        }
        Ok(())
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), StoreError> {
        if at + from.len() as u64 > self.bytes {
            return Err(StoreError::Unwritable);
        }
        let _writing = self.giving_back.shared();
        self.mark(at, from.len() as u64);
        self.memory.segment().write(place(at), from, CopyMode::Plain);
        Ok(())
    }

    fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn zero(&self, at: u64, length: u64, _may_unmap: bool) -> Result<(), StoreError> {
        let end = at + length;
        if end > self.bytes {
            return Err(StoreError::Unwritable);
        }
        let _alone = self.giving_back.alone();
        let mut from = at;
        while from < end {
            let (is_written, until) = self.end_of_run(from, end);
            if is_written {
                // The kernel zeroes the parts of pages, and takes the whole ones.
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&*self.file, flags, from, until - from)
                    .map_err(|_| StoreError::Unwritable)?;
                for page in from.div_ceil(PAGE)..until / PAGE {
                    let word = &self.written[place(page / 64)];
                    word.fetch_and(!(1 << (page % 64)), Ordering::AcqRel);
                }
            }
            from = until;
        }
        Ok(())
    }

    fn extents(&self, at: u64, length: u64, count: usize) -> Result<Vec<Extent>, StoreError> {
        let end = (at + length).min(self.bytes);
        let (mut from, mut all) = (at, Vec::new());
        while from < end && all.len() < count {
            let (is_written, until) = self.end_of_run(from, end);
            all.push(Extent { length: until - from, is_hole: !is_written });
            from = until;
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroed_bytes_read_as_zeros_and_are_holes() {
        let store = MemoryStore::new(1 << 20, None).expect("memory");
        store.write(8192, &[7; 8192]).expect("in memory");
        let hole = Extent { length: 8192, is_hole: true };
        let data = Extent { length: 8192, is_hole: false };
        assert_eq!(store.extents(0, 16_384, 9), Ok(vec![hole, data]));
        store.zero(8192, 4096, true).expect("in memory");
        let mut bytes = [1; 8192];
        store.read(8192, &mut bytes).expect("in memory");
        assert!(bytes[..4096] == [0; 4096] && bytes[4096..] == [7; 4096]);
        assert_eq!(store.extents(0, 1 << 20, 1).expect("in memory")[0].length, 12_288);
    }

    #[test]
    fn only_bytes_that_were_written_are_read_in_place_and_nothing_is_given_back_meanwhile() {
        let store = MemoryStore::new(1 << 20, None).expect("memory");
        assert!(store.hold(0, 4096, false).is_none(), "there is no page");
        let held = store.hold(512, 1024, true).expect("memory");
        assert!(!store.giving_back.is_free());
        drop(held);
        assert!(store.giving_back.is_free());
        assert!(store.hold(0, 4096, false).is_some() && store.hold(0, 4608, false).is_none());
        assert!(
            store.hold(1 << 20, 512, true).is_none() && store.hold(512, u64::MAX, true).is_none()
        );
    }

    #[test]
    fn a_new_size_keeps_the_bytes() {
        let store = MemoryStore::new(1 << 20, None).expect("memory");
        store.write((1 << 20) - 512, &[9; 512]).expect("in memory");
        let larger = store.resized(2 << 20, None).expect("memory");
        let mut bytes = [0; 512];
        larger.read((1 << 20) - 512, &mut bytes).expect("in memory");
        assert_eq!((bytes, larger.bytes()), ([9; 512], 2 << 20));
        assert_eq!(larger.extents(0, 1 << 20, 1).expect("memory")[0].length, (1 << 20) - 4096);
    }
}

//! Memory that exists already becomes a segment: its pages are replaced by those of a file.
//!
//! Invariant: the bytes are the same afterwards, at the same addresses, and so are those that
//! others write meanwhile, where it is allowed that they write.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use rustix::mm::MprotectFlags;

use crate::copy::{self, CopyMode};
use crate::segment::{Segment, SegmentError, map_over, os};

/// Pages that are kept from writers at a time.
const PART_PAGES: usize = 64;

impl Segment {
    /// Makes memory that exists already shareable: its bytes move to a new memfd, which is mapped
    /// in their place. At the end of the segment the memory stays as it is then.
    ///
    /// # Errors
    /// [`SegmentError::Misaligned`] unless address and length are multiples of the page size;
    /// [`SegmentError::Os`].
    ///
    /// # Safety
    /// The range must be mapped for reading and writing and belong to the caller, who keeps it
    /// mapped as long as the segment lives. During the call no other thread may write to it, and
    /// the kernel must not be asked to (by I/O that is under way). Afterwards no reference to its
    /// bytes may be used while a peer may write to them.
    pub unsafe fn adopt(
        name: &str,
        base: NonNull<u8>,
        length: usize,
    ) -> Result<(Self, OwnedFd), SegmentError> {
        check_pages(base, length)?;
        let (fresh, file) = Self::create(name, length)?;
        // SAFETY: the caller promises that the range is mapped, and that nobody writes to it.
        unsafe { copy_pages(base, fresh.base(), length) };
        // SAFETY: the caller owns exactly this range of addresses, and the file has its length.
        unsafe { map_over(base, length, file.as_fd(), 0) }?;
        // SAFETY: as before.
        Ok((unsafe { Self::in_place(base, length) }?, file))
    }

    /// The same while other threads may write. A part is read-only from before its bytes are copied
    /// until it is mapped: a write in that time raises SIGSEGV, and has to be done again. Nothing
    /// else happens in between, so this takes some microseconds.
    ///
    /// # Errors
    /// As [`Segment::adopt`]. Then a part of the range may be a copy that no segment has.
    ///
    /// # Safety
    /// As [`Segment::adopt`], but for writes of other threads: the handler of SIGSEGV returns from
    /// those in the range, so that they are done again.
    pub unsafe fn adopt_from_writers(
        name: &str,
        base: NonNull<u8>,
        length: usize,
    ) -> Result<(Self, OwnedFd), SegmentError> {
        check_pages(base, length)?;
        let page = rustix::param::page_size();
        let (fresh, file) = Self::create(name, length)?;
        for offset in (0..length).step_by(PART_PAGES * page) {
            let bytes = (PART_PAGES * page).min(length - offset);
            // SAFETY: the part is inside of the range.
            let [part, copy] = [base, fresh.base()].map(|base| unsafe { base.add(offset) });
            // SAFETY: the range is the caller's, who can stand that writes fault.
            unsafe { protect(part, bytes, MprotectFlags::READ) }?;
            // SAFETY: the part is mapped, and nobody can write to it.
            unsafe { copy_pages(part, copy, bytes) };
            // SAFETY: the caller owns these addresses, and the file has as many bytes behind.
            if let Err(error) = unsafe { map_over(part, bytes, file.as_fd(), offset) } {
                // SAFETY: as before; it is as it was.
                unsafe { protect(part, bytes, MprotectFlags::READ | MprotectFlags::WRITE) }?;
                return Err(error);
            }
        }
        // SAFETY: as before.
        Ok((unsafe { Self::in_place(base, length) }?, file))
    }
}

/// Whether a range is whole pages.
fn check_pages(base: NonNull<u8>, length: usize) -> Result<(), SegmentError> {
    let (page, address) = (rustix::param::page_size(), base.addr().get());
    let is_whole = length != 0 && length.is_multiple_of(page) && address.is_multiple_of(page);
    is_whole.then_some(()).ok_or(SegmentError::Misaligned { address, length, page })
}

/// Copies whole pages. One of zeros takes no memory, and is left out.
///
/// # Safety
/// Both ranges are mapped, nobody writes to the first, and the second is fresh.
unsafe fn copy_pages(from: NonNull<u8>, to: NonNull<u8>, length: usize) {
    let page = rustix::param::page_size();
    for offset in (0..length).step_by(page) {
        // SAFETY: the caller promises that the range is mapped.
        let from = unsafe { from.as_ptr().add(offset) };
        // SAFETY: a whole page of the range, which is aligned.
        if unsafe { is_zero(from, page) } {
            continue;
        }
        // SAFETY: the caller's promise. The new mapping is elsewhere.
        unsafe { copy::copy(from, to.as_ptr().add(offset), page, CopyMode::Plain) };
    }
}

/// Changes how whole pages may be used.
///
/// # Safety
/// The pages are the caller's, and what their users do is allowed afterwards.
unsafe fn protect(
    base: NonNull<u8>,
    length: usize,
    access: MprotectFlags,
) -> Result<(), SegmentError> {
    // SAFETY: the caller's promise.
    let changed = unsafe { rustix::mm::mprotect(base.as_ptr().cast(), length, access) };
    changed.map_err(|error| os("mprotect", length, error))
}

/// Whether all bytes of a page are 0.
///
/// # Safety
/// The page must be mapped for reading.
unsafe fn is_zero(page: *const u8, bytes: usize) -> bool {
    let words = page.cast::<u64>();
    // SAFETY: the caller promises the page, which is aligned.
    (0..bytes / size_of::<u64>()).all(|word| unsafe { words.add(word).read_volatile() } == 0)
}

//! Buffers of one size in one piece of memory, which is mapped once and may be registered.
//!
//! A buffer is one owner's at a time and comes back when it is dropped. Invariant: a number is in
//! `free`, or one [`Buffer`] has it.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use thiserror::Error;

/// Every buffer starts on such a boundary, which is enough for O_DIRECT on all devices.
const ALIGNMENT: usize = 4_096;

/// Why there is no pool.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The sizes make no pool.
    #[error("{count} buffers of {bytes} bytes make no pool; take fewer or smaller ones")]
    Shape {
        /// Bytes of a buffer.
        bytes: usize,
        /// Buffers.
        count: usize,
    },
}

/// Buffers of one size, each page-aligned. Clones are the same pool.
#[derive(Clone, Debug)]
pub struct Pool {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    base: NonNull<u8>,
    layout: Layout,
    bytes: usize,
    count: usize,
    free: Mutex<Vec<usize>>,
    came_back: Condvar,
}

// SAFETY: `base` is an allocation of its own, and bytes of it are reached through a `Buffer` alone,
// of which there is one for each range.
unsafe impl Send for Inner {}
// SAFETY: as above; everything else in it is locked or constant.
unsafe impl Sync for Inner {}

impl Pool {
    /// `count` zeroed buffers of `bytes` bytes, which is rounded up to whole pages of 4 KiB. Pages
    /// that nobody touched take no memory.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn new(bytes: usize, count: usize) -> Result<Self, PoolError> {
        let refused = PoolError::Shape { bytes, count };
        let stride = bytes.checked_next_multiple_of(ALIGNMENT).ok_or(refused.clone())?;
        let all = stride.checked_mul(count).filter(|all| *all > 0).ok_or(refused.clone())?;
        let layout = Layout::from_size_align(all, ALIGNMENT).map_err(|_| refused)?;
        // SAFETY: the layout has a size that is not zero.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { handle_alloc_error(layout) };
        let free = Mutex::new((0..count).rev().collect());
        let came_back = Condvar::new();
        Ok(Self { inner: Arc::new(Inner { base, layout, bytes: stride, count, free, came_back }) })
    }

    /// Bytes of a buffer.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        self.inner.bytes
    }

    /// The number of buffers.
    #[must_use]
    pub fn count(&self) -> usize {
        self.inner.count
    }

    /// The number of buffers that nobody has.
    #[must_use]
    pub fn idle(&self) -> usize {
        self.inner.free.lock().len()
    }

    /// A buffer, if one is free. Its bytes are those of its last use.
    #[must_use]
    pub fn take(&self) -> Option<Buffer> {
        let number = self.inner.free.lock().pop()?;
        Some(Buffer { pool: self.clone(), number })
    }

    /// A buffer, for which this waits at most `within`.
    #[must_use]
    pub fn take_within(&self, within: Duration) -> Option<Buffer> {
        let mut free = self.inner.free.lock();
        if free.is_empty() {
            self.inner.came_back.wait_for(&mut free, within);
        }
        let number = free.pop()?;
        drop(free);
        Some(Buffer { pool: self.clone(), number })
    }

    /// The memory of all buffers, for who binds it to a NUMA node or registers it elsewhere.
    #[must_use]
    pub fn memory(&self) -> (NonNull<u8>, usize) {
        (self.inner.base, self.inner.layout.size())
    }

    /// Whether the two are one pool.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, and no buffer is left: each holds the pool.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// A buffer of a pool.
#[derive(Debug)]
pub struct Buffer {
    pool: Pool,
    number: usize,
}

impl Buffer {
    /// The pool that it belongs to.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        let inner = &self.pool.inner;
        // SAFETY: the number is below the count, so the place is inside the allocation.
        unsafe { inner.base.add(self.number * inner.bytes) }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range is this buffer's alone, and its bytes were zeroed when it was made.
        unsafe { std::slice::from_raw_parts(self.base().as_ptr(), self.pool.inner.bytes) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the buffer is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.base().as_ptr(), self.pool.inner.bytes) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut free = self.pool.inner.free.lock();
        debug_assert!(free.len() < self.pool.inner.count, "a buffer comes back once");
        free.push(self.number);
        drop(free);
        self.pool.inner.came_back.notify_one();
    }
}

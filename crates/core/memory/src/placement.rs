//! Where the pages of a segment come from: NUMA nodes, huge pages, at once or when needed.

use rustix::io::Errno;

use crate::segment::{Segment, SegmentError};

/// Binds pages to nodes; from `linux/mempolicy.h`.
const MPOL_BIND: libc::c_int = 2;
/// Nodes that a mask has room for.
const NODES_MAX: usize = 1024;

impl Segment {
    /// Takes the pages that are not present yet from one NUMA node alone.
    ///
    /// # Errors
    /// [`SegmentError::Os`], for a node that does not exist as well.
    pub(crate) fn bind_to_node(&self, node: u32) -> Result<(), SegmentError> {
        let failed = |errno: Errno| SegmentError::Os {
            call: "mbind",
            length: self.length(),
            errno: errno.raw_os_error(),
        };
        let node = node as usize;
        if node >= NODES_MAX {
            return Err(failed(Errno::INVAL));
        }
        let mut mask = [0_u64; NODES_MAX / 64];
        mask[node / 64] = 1 << (node % 64);
        // SAFETY: the range is the mapping of this segment, and the kernel reads as many bits of
        // the mask as it has. The call changes no bytes.
        let result = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base().as_ptr(),
                self.length(),
                MPOL_BIND,
                mask.as_ptr(),
                NODES_MAX,
                0,
            )
        };
        if result == 0 { Ok(()) } else { Err(failed(last_errno())) }
    }

    /// Asks for huge pages. The system may have none, or keep them from shared memory.
    pub(crate) fn prefer_huge_pages(&self) {
        // SAFETY: the range is the mapping of this segment. The call changes no bytes.
        let _ = unsafe {
            libc::madvise(self.base().as_ptr().cast(), self.length(), libc::MADV_HUGEPAGE)
        };
    }

    /// Makes all pages present.
    ///
    /// # Errors
    /// [`SegmentError::Os`]: the system lacks memory.
    pub(crate) fn populate(&self) -> Result<(), SegmentError> {
        // SAFETY: the range is the mapping of this segment. The call changes no bytes.
        let result = unsafe {
            libc::madvise(self.base().as_ptr().cast(), self.length(), libc::MADV_POPULATE_WRITE)
        };
        let errno = if result == 0 { return Ok(()) } else { last_errno() };
        if errno == Errno::INVAL {
            // The kernel is older than 5.14. An addition of 0 writes to the page, so that it is
            // present, and leaves its bytes as they are.
            for offset in (0..self.length() / 8 * 8).step_by(rustix::param::page_size()) {
                self.word64(offset).fetch_add(0, std::sync::atomic::Ordering::Relaxed);
            }
            return Ok(());
        }
        let (call, length) = ("madvise", self.length());
        Err(SegmentError::Os { call, length, errno: errno.raw_os_error() })
    }
}

fn last_errno() -> Errno {
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    Errno::from_raw_os_error(errno)
}

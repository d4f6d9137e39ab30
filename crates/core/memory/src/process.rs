//! Copies by the kernel between the memory of this process and that of another one:
//! `process_vm_readv(2)` and `process_vm_writev(2)`.
//!
//! # Invariants
//! - The kernel says which process it is, by the socket that the process made, and never a number
//!   that the process wrote.
//! - No copy goes unnoticed to a process that has the number of one that ended: the process is held
//!   by a descriptor (pidfd) since before anything was copied, which says when it has ended.
//! - Only ranges of segments and slices of this process are named to the kernel as local memory.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use thiserror::Error;

use crate::segment::Segment;

/// Why the kernel did not copy, or not all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum CopyError {
    /// The process has ended.
    #[error("the process has ended")]
    Ended,
    /// The kernel does not allow the copy, or has no such call.
    #[error("{call} is refused with errno {errno}")]
    Refused {
        /// The system call.
        call: &'static str,
        /// Its error number.
        errno: i32,
    },
    /// The other process has no memory there, or none of that kind. A part may be copied.
    #[error("the other process has no such memory")]
    Unmapped,
}

impl CopyError {
    fn of(call: &'static str, errno: Errno) -> Self {
        match errno {
            Errno::SRCH => Self::Ended,
            Errno::FAULT => Self::Unmapped,
            _ => Self::Refused { call, errno: errno.raw_os_error() },
        }
    }
}

/// Another process, or this one.
#[derive(Debug)]
pub struct Process {
    number: libc::pid_t,
    /// Readable when the process has ended.
    held: OwnedFd,
}

/// `SO_PEERPIDFD` of `asm-generic/socket.h`, since Linux 6.5.
const SO_PEERPIDFD: libc::c_int = 77;

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.held.as_fd()
    }
}

const READ: &str = "process_vm_readv";
const WRITE: &str = "process_vm_writev";

impl Process {
    /// The process that made the socket pair of which `socket` is one end. It is of the own user:
    /// root, which may copy to any process, could else be shown a socket of somebody else.
    ///
    /// # Errors
    /// [`CopyError::Refused`]: the process is of another user, or not in this process's namespace
    /// of process numbers, or the kernel has no descriptors of processes. [`CopyError::Ended`].
    pub fn that_made(socket: BorrowedFd<'_>) -> Result<Self, CopyError> {
        let refused = |call: &'static str| move |errno: Errno| CopyError::of(call, errno);
        let credentials = rustix::net::sockopt::socket_peercred(socket);
        let rustix::net::UCred { pid: number, uid, .. } =
            credentials.map_err(refused("getsockopt(SO_PEERCRED)"))?;
        if uid != rustix::process::geteuid() {
            return Err(CopyError::of("getsockopt(SO_PEERCRED)", Errno::PERM));
        }
        let held = match peer_pidfd(socket) {
            Ok(held) => held,
            // An older kernel. The caller makes sure of the process by a word of its memory.
            Err(Errno::NOPROTOOPT) => {
                let flags = rustix::process::PidfdFlags::empty();
                rustix::process::pidfd_open(number, flags).map_err(refused("pidfd_open"))?
            }
            Err(errno) => return Err(CopyError::of("getsockopt(SO_PEERPIDFD)", errno)),
        };
        Ok(Self { number: number.as_raw_nonzero().get(), held })
    }

    /// Whether the process lives.
    #[must_use]
    pub fn lives(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut ended = [PollFd::new(&self.held, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // An error says nothing of the process, which is then taken for dead.
        poll(&mut ended, Some(&now)) == Ok(0)
    }

    /// The 8 bytes at `address` of the process.
    ///
    /// # Errors
    /// [`CopyError`].
    pub fn word(&self, address: u64) -> Result<u64, CopyError> {
        let mut bytes = [0; 8];
        let base = bytes.as_mut_ptr();
        self.copy(READ, base, address, bytes.len())?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Copies `length` bytes at `address` of the process to `offset` of a segment.
    ///
    /// # Errors
    /// [`CopyError`]. A part may be copied.
    ///
    /// # Panics
    /// When the range is outside the segment, or the segment is read-only.
    pub fn read(
        &self,
        address: u64,
        segment: &Segment,
        offset: usize,
        length: usize,
    ) -> Result<(), CopyError> {
        assert!(segment.writable(), "a read-only segment cannot be written");
        let base = segment.bytes(offset, length);
        self.copy(READ, base.as_ptr(), address, length)
    }

    /// Copies `length` bytes at `offset` of a segment to `address` of the process.
    ///
    /// # Errors
    /// [`CopyError`]. A part may be copied.
    ///
    /// # Panics
    /// When the range is outside the segment.
    pub fn write_from(
        &self,
        segment: &Segment,
        offset: usize,
        length: usize,
        address: u64,
    ) -> Result<(), CopyError> {
        let base = segment.bytes(offset, length);
        self.copy(WRITE, base.as_ptr(), address, length)
    }

    /// Copies bytes to `address` of the process.
    ///
    /// # Errors
    /// [`CopyError`]. A part may be copied.
    pub fn write(&self, bytes: &[u8], address: u64) -> Result<(), CopyError> {
        self.copy(WRITE, bytes.as_ptr().cast_mut(), address, bytes.len())
    }

    /// Has the kernel copy, in as many calls as it wants. `call` says which way; callers pass local
    /// memory that may be read, and written for [`READ`].
    fn copy(
        &self,
        call: &'static str,
        local: *mut u8,
        address: u64,
        length: usize,
    ) -> Result<(), CopyError> {
        let copy = if call == READ { libc::process_vm_readv } else { libc::process_vm_writev };
        let mut done = 0;
        while done < length {
            let place = usize::try_from(address).ok().and_then(|place| place.checked_add(done));
            let place = place.ok_or(CopyError::Unmapped)?;
            let length = length - done;
            let here = libc::iovec { iov_base: local.wrapping_add(done).cast(), iov_len: length };
            let there = std::ptr::without_provenance_mut(place);
            let there = libc::iovec { iov_base: there, iov_len: length };
            // SAFETY: the local range is memory that the caller may have read or written, and the
            // remote one is only a number here: the kernel checks it.
            let copied = unsafe { copy(self.number, &raw const here, 1, &raw const there, 1, 0) };
            match usize::try_from(copied) {
                // The kernel copied nothing and does not say why.
                Ok(0) => return Err(CopyError::Unmapped),
                // Less than all: the next call says why, or copies on.
                Ok(copied) => done += copied,
                Err(_) => return Err(CopyError::of(call, last_error())),
            }
        }
        Ok(())
    }
}

fn last_error() -> Errno {
    let errno = std::io::Error::last_os_error().raw_os_error();
    errno.map_or(Errno::INVAL, Errno::from_raw_os_error)
}

/// The descriptor of the process that made a socket.
fn peer_pidfd(socket: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let mut file: libc::c_int = -1;
    let mut length = libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or(0);
    // SAFETY: the kernel writes at most `length` bytes to `file`, and both live for the call.
    let got = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut file).cast(),
            &raw mut length,
        )
    };
    if got != 0 || file < 0 {
        return Err(last_error());
    }
    // SAFETY: the kernel has just made this descriptor for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn own() -> Process {
        let made = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let (one, _two) = made.expect("descriptors");
        Process::that_made(one.as_fd()).expect("this process")
    }

    #[test]
    fn the_kernel_copies_to_and_from_the_process_that_made_the_socket() {
        let process = own();
        assert!(process.lives());
        let word = AtomicU64::new(7);
        let address = (&raw const word).addr() as u64;
        assert_eq!(process.word(address), Ok(7));
        assert_eq!(process.write(&9_u64.to_ne_bytes(), address), Ok(()));
        assert_eq!(word.load(Ordering::Relaxed), 9);
        let there = Segment::anonymous(8192).expect("memory");
        let here = Segment::anonymous(8192).expect("memory");
        let base = there.base().addr().get() as u64;
        there.write(5, b"over there", crate::CopyMode::Plain);
        process.read(base + 5, &here, 100, 10).expect("mapped");
        process.write_from(&here, 100, 10, base + 4000).expect("mapped");
        let mut seen = [0; 10];
        there.read(4000, &mut seen);
        assert_eq!(&seen, b"over there");
    }

    #[test]
    fn memory_that_is_not_there_is_an_error_also_behind_some_that_is() {
        let process = own();
        let here = Segment::anonymous(8192).expect("memory");
        for address in [0, 16, u64::MAX - 8] {
            assert!(process.word(address).is_err(), "{address:#x}");
        }
        let there = Segment::anonymous(2 * 4096).expect("memory");
        let base = there.base();
        // SAFETY: the page belongs to `there`, to which nothing refers.
        unsafe {
            let page = base.as_ptr().add(4096).cast();
            rustix::mm::mprotect(page, 4096, rustix::mm::MprotectFlags::empty()).expect("a page");
        }
        let address = base.addr().get() as u64;
        assert_eq!(process.read(address, &here, 0, 8192), Err(CopyError::Unmapped));
        assert_eq!(process.read(address, &here, 0, 4096), Ok(()));
    }

    #[test]
    fn a_process_that_has_ended_is_known_to_have() {
        let mut child = std::process::Command::new("true").spawn().expect("a program");
        let number = rustix::process::Pid::from_child(&child);
        let flags = rustix::process::PidfdFlags::empty();
        let held = rustix::process::pidfd_open(number, flags).expect("a child");
        child.wait().expect("a child");
        let process = Process { number: number.as_raw_nonzero().get(), held };
        assert!(!process.lives());
        assert_eq!(process.word(4096), Err(CopyError::Ended));
    }
}

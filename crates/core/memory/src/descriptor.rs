//! Transfers between segments and file descriptors, without a copy in this program.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use crate::{Memory, Segment};

impl Segment {
    /// Reads from `source` with one call: the first bytes into `head`, the rest into the segment
    /// from `offset` on, at most `length` bytes. Returns the number of bytes in all. The bytes are
    /// those at `position` of a file; `None` means the next ones, of a file or a socket.
    ///
    /// # Errors
    /// Those of readv(2) and preadv(2); EINVAL for a position that no file has.
    ///
    /// # Panics
    /// When the range is outside the segment, or the mapping is read-only.
    pub fn fill(
        &self,
        head: &mut [u8],
        offset: usize,
        length: usize,
        source: BorrowedFd<'_>,
        position: Option<u64>,
    ) -> Result<usize, Errno> {
        assert!(self.writable(), "a read-only segment cannot be written");
        let parts = [
            libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: head.len() },
            libc::iovec { iov_base: self.bytes(offset, length).as_ptr().cast(), iov_len: length },
        ];
        let source = source.as_raw_fd();
        // The kernel writes to `head`, which is borrowed exclusively, and to a range of the
        // mapping. No reference to that range exists, and it tolerates concurrent writers.
        result(match position.map(place) {
            // SAFETY: as above.
            None => unsafe { libc::readv(source, parts.as_ptr(), 2) },
            // SAFETY: as above.
            Some(at) => unsafe { libc::preadv(source, parts.as_ptr(), 2, at?) },
        })
    }

    /// Writes to `target` with one call: `head`, and behind it `length` bytes of the segment from
    /// `offset` on. Returns the number of bytes in all. They go to `position` of a file; `None`
    /// means behind what was written last, to a file or a socket.
    ///
    /// # Errors
    /// Those of writev(2) and pwritev(2); EINVAL for a position that no file has.
    ///
    /// # Panics
    /// When the range is outside the segment.
    pub fn pour(
        &self,
        head: &[u8],
        offset: usize,
        length: usize,
        target: BorrowedFd<'_>,
        position: Option<u64>,
    ) -> Result<usize, Errno> {
        let parts = [
            libc::iovec { iov_base: head.as_ptr().cast_mut().cast(), iov_len: head.len() },
            libc::iovec { iov_base: self.bytes(offset, length).as_ptr().cast(), iov_len: length },
        ];
        let target = target.as_raw_fd();
        // The kernel reads from `head`, which is borrowed, and from a range of the mapping.
        result(match position.map(place) {
            // SAFETY: as above.
            None => unsafe { libc::writev(target, parts.as_ptr(), 2) },
            // SAFETY: as above.
            Some(at) => unsafe { libc::pwritev(target, parts.as_ptr(), 2, at?) },
        })
    }
}

impl Memory {
    /// As [`Segment::fill`], for memory that may move meanwhile. The kernel may wait for bytes as
    /// long as it likes, so nothing is locked.
    ///
    /// # Errors
    /// As [`Segment::fill`]. With [`io::ErrorKind::Other`] the memory was moved: bytes were read
    /// and may be missing.
    ///
    /// # Panics
    /// As [`Segment::fill`].
    pub fn fill(
        &self,
        head: &mut [u8],
        offset: usize,
        length: usize,
        source: BorrowedFd<'_>,
        position: Option<u64>,
    ) -> io::Result<usize> {
        let watch = self.watch();
        let filled = self.segment().fill(head, offset, length, source, position)?;
        if !watch.keep(offset, length) {
            let moved = "the memory was moved while it was filled: bytes may be missing";
            return Err(io::Error::other(moved));
        }
        Ok(filled)
    }
}

/// A position as the kernel has it, which is signed.
fn place(position: u64) -> Result<libc::off_t, Errno> {
    libc::off_t::try_from(position).map_err(|_| Errno::INVAL)
}

fn result(moved: isize) -> Result<usize, Errno> {
    usize::try_from(moved)
        .map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn a_packet_passes_through_a_segment_unchanged() {
        let packet: Vec<u8> = (0..=255).cycle().take(5_000).collect();
        let (near, far) = UnixDatagram::pair().expect("a pair");
        let segment = Segment::anonymous(16 << 10).expect("memory");
        let mut head = [0; 100];
        assert_eq!(near.send(&packet).expect("room"), 5_000);
        assert_eq!(segment.fill(&mut head, 3_000, 8_000, far.as_fd(), None), Ok(5_000));
        assert_eq!(head, packet[..100]);
        assert_eq!(segment.pour(&head, 3_000, 4_900, far.as_fd(), None), Ok(5_000));
        let mut received = vec![0; 6_000];
        assert_eq!(near.recv(&mut received).expect("the message was sent"), 5_000);
        assert!(received[..5_000] == packet);
        far.set_nonblocking(true).expect("a socket");
        assert_eq!(segment.fill(&mut head, 0, 8_000, far.as_fd(), None), Err(Errno::AGAIN));
    }

    #[test]
    fn a_position_of_a_file_is_kept_to_and_a_socket_has_none() {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create("weft-test", flags).expect("memory");
        let segment = Segment::anonymous(4_096).expect("memory");
        segment.write(100, b"middle", crate::CopyMode::Plain);
        assert_eq!(segment.pour(b"the ", 100, 6, file.as_fd(), Some(1 << 33)), Ok(10));
        let mut head = [0; 2];
        assert_eq!(segment.fill(&mut head, 0, 4, file.as_fd(), Some((1 << 33) + 2)), Ok(6));
        let mut seen = [0; 4];
        segment.read(0, &mut seen);
        assert_eq!((&head, &seen), (b"e ", b"midd"));
        assert_eq!(rustix::fs::tell(&file), Ok(0), "the file's own position stays");
        assert_eq!(segment.fill(&mut [], 0, 4, file.as_fd(), None), Ok(4));
        segment.read(0, &mut seen);
        assert_eq!((seen, rustix::fs::tell(&file)), ([0; 4], Ok(4)), "the next bytes");
        let beyond = segment.pour(&[], 0, 4, file.as_fd(), Some(u64::MAX));
        assert_eq!(beyond, Err(Errno::INVAL));
        let (near, _far) = UnixDatagram::pair().expect("a pair");
        assert_eq!(segment.pour(&[], 0, 4, near.as_fd(), Some(0)), Err(Errno::SPIPE));
        assert_eq!(segment.fill(&mut [], 0, 4, near.as_fd(), Some(0)), Err(Errno::SPIPE));
    }

    #[test]
    #[should_panic(expected = "segment")]
    fn a_range_outside_the_segment_is_refused() {
        let segment = Segment::anonymous(4_096).expect("memory");
        let _ = segment.fill(&mut [], 4_000, 100, std::io::stdin().as_fd(), None);
    }
}

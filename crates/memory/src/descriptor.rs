//! Transfers between segments and file descriptors, without a copy in this program.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use crate::Segment;

impl Segment {
    /// Reads from `source` with one call: the first bytes into `head`, the rest into the segment
    /// from `offset` on, at most `length` bytes. Returns the number of bytes in all.
    ///
    /// # Errors
    /// Those of readv(2).
    ///
    /// # Panics
    /// When the range is outside the segment, or the mapping is read-only.
    pub fn fill(
        &self,
        head: &mut [u8],
        offset: usize,
        length: usize,
        source: BorrowedFd<'_>,
    ) -> Result<usize, Errno> {
        assert!(self.writable(), "a read-only segment cannot be written");
        let parts = [
            libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: head.len() },
            libc::iovec { iov_base: self.bytes(offset, length).as_ptr().cast(), iov_len: length },
        ];
        // SAFETY: the kernel writes to `head`, which is borrowed exclusively, and to a range of the
        // mapping. No reference to that range exists, and it tolerates concurrent writers.
        result(unsafe { libc::readv(source.as_raw_fd(), parts.as_ptr(), 2) })
    }

    /// Writes to `target` with one call: `head`, and behind it `length` bytes of the segment from
    /// `offset` on. Returns the number of bytes in all.
    ///
    /// # Errors
    /// Those of writev(2).
    ///
    /// # Panics
    /// When the range is outside the segment.
    pub fn pour(
        &self,
        head: &[u8],
        offset: usize,
        length: usize,
        target: BorrowedFd<'_>,
    ) -> Result<usize, Errno> {
        let parts = [
            libc::iovec { iov_base: head.as_ptr().cast_mut().cast(), iov_len: head.len() },
            libc::iovec { iov_base: self.bytes(offset, length).as_ptr().cast(), iov_len: length },
        ];
        // SAFETY: the kernel reads from `head`, which is borrowed, and from a range of the mapping.
        result(unsafe { libc::writev(target.as_raw_fd(), parts.as_ptr(), 2) })
    }
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
        assert_eq!(segment.fill(&mut head, 3_000, 8_000, far.as_fd()), Ok(5_000));
        assert_eq!(head, packet[..100]);
        assert_eq!(segment.pour(&head, 3_000, 4_900, far.as_fd()), Ok(5_000));
        let mut received = vec![0; 6_000];
        assert_eq!(near.recv(&mut received).expect("the message was sent"), 5_000);
        assert!(received[..5_000] == packet);
        far.set_nonblocking(true).expect("a socket");
        assert_eq!(segment.fill(&mut head, 0, 8_000, far.as_fd()), Err(Errno::AGAIN));
    }

    #[test]
    #[should_panic(expected = "segment")]
    fn a_range_outside_the_segment_is_refused() {
        let segment = Segment::anonymous(4_096).expect("memory");
        let _ = segment.fill(&mut [], 4_000, 100, std::io::stdin().as_fd());
    }
}

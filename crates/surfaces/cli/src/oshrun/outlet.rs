//! Bytes that wait to be written to a descriptor, without waiting for its reader.

use std::os::fd::AsFd;

use rustix::io::Errno;

/// More than this, and whoever fills the outlet is to stop.
const FULL_BYTES: usize = 1024 * 1024;
/// Less than this, and it may go on.
const LOW_BYTES: usize = 256 * 1024;
/// A pipe that is ready takes this many bytes without waiting.
const WRITE_BYTES: usize = 4096;

/// Bytes on their way to one descriptor.
#[derive(Debug, Default)]
pub struct Outlet {
    bytes: Vec<u8>,
    begin: usize,
    is_full: bool,
}

impl Outlet {
    /// Adds bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.begin);
        self.begin = 0;
        self.bytes.extend_from_slice(bytes);
        self.is_full = self.is_full || self.bytes.len() > FULL_BYTES;
    }

    /// Whether all has been written.
    pub fn is_empty(&self) -> bool {
        self.begin == self.bytes.len()
    }

    /// Whether too much waits.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Writes as much as a descriptor takes at once that was found ready.
    ///
    /// # Errors
    /// Those of the system; the reader is gone at `PIPE`.
    pub fn write(&mut self, to: impl AsFd) -> Result<usize, Errno> {
        let rest = self.bytes.get(self.begin..).unwrap_or_default();
        let piece = rest.get(..WRITE_BYTES.min(rest.len())).unwrap_or_default();
        match rustix::io::write(to, piece) {
            Ok(written) => {
                self.begin += written;
                let left = self.bytes.len() - self.begin;
                self.is_full = self.is_full && left > LOW_BYTES;
                Ok(written)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(errno) => Err(errno),
        }
    }

    /// Writes until the descriptor, which does not wait, takes no more.
    ///
    /// # Errors
    /// As [`Outlet::write`].
    pub fn drain(&mut self, to: impl AsFd) -> Result<(), Errno> {
        while !self.is_empty() && self.write(&to)? > 0 {}
        Ok(())
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outlet_is_full_until_little_is_left() {
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        let mut outlet = Outlet::default();
        outlet.push(&vec![b'x'; FULL_BYTES + 1]);
        let mut buffer = vec![0; WRITE_BYTES];
        let mut left = FULL_BYTES + 1;
        while !outlet.is_empty() {
            assert_eq!(outlet.is_full(), left > LOW_BYTES);
            left -= outlet.write(&writer).expect("room");
            rustix::io::read(&reader, &mut buffer).expect("bytes");
        }
        assert_eq!(left, 0);
    }
}

//! Packets on their way from and to the device, which the kernel copies directly where it can.
//!
//! The first bytes of a packet are read in private memory, where nobody else writes. The rest may
//! lie in a ring, which the kernel fills and empties itself.

use std::io;
use std::os::fd::BorrowedFd;

use weft_fabric::{Addressable, Window};

/// First bytes of a packet that are always in private memory: all headers that are read, and every
/// packet that goes in messages.
pub(crate) const HEAD_BYTES: usize = 512;

/// Where to read the next packet from the device into.
#[derive(Debug)]
pub enum Space<'a, R> {
    /// Into private memory, which is large enough for the longest packet.
    Bytes(&'a mut [u8]),
    /// The first bytes into private memory, the rest into a slot of a ring.
    Ring {
        /// For the first bytes.
        head: &'a mut [u8],
        /// The ring's memory.
        region: &'a R,
        /// Offset in the ring of the rest.
        offset: u64,
        /// Bytes available there.
        length: u64,
    },
}

impl<R: Addressable> Space<'_, R> {
    /// Has the kernel read a packet from `device` and returns its length. `read` is used when the
    /// whole packet goes into private memory. That is always so where windows are no memory, and
    /// a driver of such ports needs nothing else.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn fill(
        self,
        device: BorrowedFd<'_>,
        read: impl FnOnce(BorrowedFd<'_>, &mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        match self {
            Self::Bytes(bytes) => read(device, bytes),
            Self::Ring { head, region, offset, length } => {
                region.fill(head, offset, length, device, None)
            }
        }
    }
}

/// A packet for the device.
#[derive(Debug)]
pub enum Delivery<'a, W> {
    /// All of it is in private memory.
    Bytes(&'a [u8]),
    /// The first bytes are in private memory, the rest is in the ring of its sender, who may still
    /// overwrite it.
    Ring {
        /// The first bytes.
        head: &'a [u8],
        /// The ring's memory.
        window: &'a W,
        /// Offset in the ring of the rest.
        offset: u64,
        /// Bytes of the rest.
        length: u64,
    },
}

impl<W: Window> Delivery<'_, W> {
    /// Bytes of the packet.
    #[must_use]
    pub fn length(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Ring { head, length, .. } => {
                head.len() + usize::try_from(*length).unwrap_or(usize::MAX - HEAD_BYTES)
            }
        }
    }

    /// A copy of the packet. Bytes that can no longer be read are zero.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes.to_vec(),
            Self::Ring { head, window, offset, .. } => {
                let mut packet = head.to_vec();
                packet.resize(self.length(), 0);
                // Fails if the sender is gone, or took its memory back.
                let _ = window.load(*offset, &mut packet[head.len()..]);
                packet
            }
        }
    }
}

impl<W: Window + Addressable> Delivery<'_, W> {
    /// Has the kernel write the packet to `device`. `write` is used when all of it is in private
    /// memory, as it always is where windows are no memory.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn pour(
        &self,
        device: BorrowedFd<'_>,
        write: impl FnOnce(BorrowedFd<'_>, &[u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        match self {
            Self::Bytes(bytes) => write(device, bytes),
            Self::Ring { head, window, offset, length } => {
                window.pour(head, *offset, *length, device, None)
            }
        }
    }
}

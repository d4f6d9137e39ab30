//! Packets on their way in from the device and out to it, where they need not be copied.
//!
//! A packet's first bytes are looked at in memory that nobody else writes; what follows may lie in
//! a ring, which the kernel fills and empties itself.

use std::io;
use std::os::fd::BorrowedFd;

use weft_fabric::{Region, Window};

/// The first bytes of a packet: the headers that are looked at, and all of what goes in messages.
pub(crate) const HEAD_BYTES: usize = 512;

/// Where the next packet of the device goes.
#[derive(Debug)]
pub enum Space<'a, R> {
    /// Memory for the longest.
    Bytes(&'a mut [u8]),
    /// Its first bytes into memory, what follows into a place of a ring.
    Ring {
        /// For the first bytes.
        head: &'a mut [u8],
        /// The ring.
        region: &'a R,
        /// Where in it what follows goes.
        offset: u64,
        /// The most that may follow.
        length: u64,
    },
}

impl<R: Region> Space<'_, R> {
    /// Has the kernel read a packet from `device`, by `read` where it goes to memory alone. Returns
    /// its length.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn fill(
        self,
        device: BorrowedFd<'_>,
        read: impl FnOnce(BorrowedFd<'_>, &mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        match self {
            Self::Bytes(bytes) => read(device, bytes),
            Self::Ring { head, region, offset, length } => {
                region.fill(head, offset, length, device)
            }
        }
    }
}

/// A packet for the device.
#[derive(Debug)]
pub enum Delivery<'a, W> {
    /// It is here.
    Bytes(&'a [u8]),
    /// What follows its first bytes is in the ring of its sender, who may still write there.
    Ring {
        /// The first bytes.
        head: &'a [u8],
        /// The ring.
        window: &'a W,
        /// Where in it what follows lies.
        offset: u64,
        /// Bytes that follow.
        length: u64,
    },
}

impl<W: Window> Delivery<'_, W> {
    /// Its length.
    #[must_use]
    pub fn length(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Ring { head, length, .. } => {
                head.len() + usize::try_from(*length).unwrap_or(usize::MAX - HEAD_BYTES)
            }
        }
    }

    /// Has the kernel write it to `device`, by `write` where it is in memory.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn pour(
        &self,
        device: BorrowedFd<'_>,
        write: impl FnOnce(BorrowedFd<'_>, &[u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        match self {
            Self::Bytes(bytes) => write(device, bytes),
            Self::Ring { head, window, offset, length } => {
                window.pour(head, *offset, *length, device)
            }
        }
    }

    /// A copy of it; what cannot be read any more is zero.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes.to_vec(),
            Self::Ring { head, window, offset, .. } => {
                let mut packet = head.to_vec();
                packet.resize(self.length(), 0);
                // The sender is gone, or took its memory back.
                let _ = window.load(*offset, &mut packet[head.len()..]);
                packet
            }
        }
    }
}

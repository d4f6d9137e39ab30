//! The memory of one block, which a file is read into or written from.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use weft_file_io::{Buffer, Pool};
use weft_transfer::Hasher;

use crate::fabric::{Idle, Lease};
use crate::reading::read_whole;
use crate::writing::write_whole;

/// Bytes that are hashed at once behind the call that read them, while they are in a cache.
pub(crate) const STEP_BYTES: usize = 128 << 10;

/// The memory of a block.
#[derive(Debug)]
pub(crate) enum Space {
    /// Of this process.
    Own(Buffer),
    /// Memory that both ends of a transfer over the fabric know: the receiver's block, or one of
    /// this end's from which it is put there.
    Lent(Lease),
}

impl Space {
    /// Reads a piece of a file to a place of the block, until it is whole or the file ends. Returns
    /// the bytes and their hash. `scratch` is for bytes that are on their way to the hash.
    ///
    /// `in_steps` hashes while the bytes are in a cache. Else it is one call of the kernel, as
    /// `O_DIRECT` wants it.
    pub fn fill(
        &mut self,
        (at, length): (usize, usize),
        (file, offset): (&OwnedFd, u64),
        in_steps: bool,
        scratch: &mut Vec<u8>,
    ) -> Result<(usize, u128), Errno> {
        let (mut read, mut hasher) = (0, Hasher::default());
        let step = if in_steps { STEP_BYTES } else { length };
        while read < length {
            let wanted = step.min(length - read);
            let (place, from) = (at + read, offset + read as u64);
            let count = match self {
                Self::Own(buffer) => {
                    let space = &mut buffer[place..place + wanted];
                    let count = read_whole(file, space, from)?;
                    hasher.update(&space[..count]);
                    count
                }
                Self::Lent(lease) => {
                    let count = lease.fill((place, wanted), (file, from), scratch)?;
                    lease.hash((place, count), scratch, &mut hasher);
                    count
                }
            };
            read += count;
            if count < wanted {
                break;
            }
        }
        Ok((read, hasher.end()))
    }

    /// Writes bytes of the block to a place of a file.
    pub fn pour(
        &self,
        (at, length): (usize, usize),
        file: &OwnedFd,
        offset: u64,
    ) -> Result<(), Errno> {
        match self {
            Self::Own(buffer) => write_whole(file, &buffer[at..at + length], offset),
            Self::Lent(lease) => lease.pour((at, length), file, offset),
        }
    }
}

/// Where the reading end has its blocks from.
#[derive(Clone, Debug)]
pub(crate) enum Supply {
    /// Memory of this process.
    Own(Pool),
    /// Blocks that the other end granted, by the sessions that carry them.
    Lent(Vec<Arc<Idle>>),
}

impl Supply {
    /// A block, if one is free.
    pub fn take(&self) -> Option<Space> {
        match self {
            Self::Own(pool) => pool.take().map(Space::Own),
            Self::Lent(idle) => {
                // Of the session that has carried the least lately.
                let most = idle.iter().max_by_key(|idle| idle.left())?;
                most.take().map(Space::Lent)
            }
        }
    }
}

//! Blocks of a session, and the memory that they lie in.
//!
//! The other end may write to this memory at any time. So the kernel copies between it and files,
//! and what this program looks at it copies out, once.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustix::io::Errno;
use weft_fabric::{Addressable, Endpoint, Region, Window};
use weft_open::AnyEndpoint;
use weft_session::{BlockId, SessionId};
use weft_transfer::Hasher;
use weft_transport_shm::ShmWindow;

use super::hub::{Order, Post};
use crate::reading::{read_whole, without_direct};

/// Bytes that are copied out of a block and hashed at once, so few that the copy stays in the
/// nearest cache.
const HASHED_BYTES: usize = 16 << 10;

/// The regions of the endpoints.
pub(crate) type FabricRegion = <AnyEndpoint as Endpoint>::Region;

/// The memory of a pool of blocks.
#[derive(Clone, Debug)]
pub(crate) enum BlockMemory {
    /// The other end's, mapped into this process.
    Window(Arc<ShmWindow>),
    /// This end's.
    Region(FabricRegion),
}

impl BlockMemory {
    fn fill(&self, at: u64, length: u64, file: &OwnedFd, offset: u64) -> io::Result<usize> {
        match self {
            Self::Window(window) => window.fill(&mut [], at, length, file.as_fd(), Some(offset)),
            Self::Region(region) => region.fill(&mut [], at, length, file.as_fd(), Some(offset)),
        }
    }

    fn pour(&self, at: u64, length: u64, file: &OwnedFd, offset: u64) -> io::Result<usize> {
        match self {
            Self::Window(window) => window.pour(&[], at, length, file.as_fd(), Some(offset)),
            Self::Region(region) => region.pour(&[], at, length, file.as_fd(), Some(offset)),
        }
    }

    /// False if the memory is out of reach: its owner is gone.
    fn load(&self, at: u64, into: &mut [u8]) -> bool {
        match self {
            Self::Window(window) => window.load(at, into).is_ok(),
            Self::Region(region) => region.read(at, into).is_ok(),
        }
    }

    fn store(&self, at: u64, bytes: &[u8]) -> bool {
        match self {
            Self::Window(window) => window.store(at, bytes).is_ok(),
            Self::Region(region) => region.write(at, bytes).is_ok(),
        }
    }
}

/// The blocks of one session that the reading end may fill. They are there when the other end has
/// granted its pool.
#[derive(Debug)]
pub(crate) struct Idle {
    /// The place of the session among those of the transfer.
    stream: usize,
    pool: OnceLock<(BlockMemory, u32)>,
    free: Mutex<Vec<u32>>,
}

impl Idle {
    /// Those of a session, none yet.
    pub fn of(stream: usize) -> Self {
        Self { stream, pool: OnceLock::new(), free: Mutex::default() }
    }

    /// How many are free.
    pub fn left(&self) -> usize {
        self.free.lock().len()
    }

    /// The pool was granted, with so many bytes from block to block.
    pub fn set(&self, memory: BlockMemory, stride: u32) {
        // A second one was refused.
        let _ = self.pool.set((memory, stride));
    }

    /// A block is free, again or at first.
    pub fn add(&self, place: u32) {
        self.free.lock().push(place);
    }

    /// A free block: the one that was used last, as some of it may be in a cache.
    pub fn take(self: &Arc<Self>) -> Option<Lease> {
        let (memory, stride) = self.pool.get()?;
        let place = self.free.lock().pop()?;
        let begin = u64::from(place) * u64::from(*stride);
        let back = Back::Idle(Arc::clone(self), place);
        Some(Lease { memory: Some(memory.clone()), begin, back })
    }
}

/// Where a block goes when it is dropped.
#[derive(Debug)]
enum Back {
    /// To the free ones of this end.
    Idle(Arc<Idle>, u32),
    /// To the other end, which may fill it again.
    Peer(Arc<Post>, SessionId, BlockId),
    /// It was passed.
    Nowhere,
}

/// A block that is this end's for a while.
#[derive(Debug)]
pub(crate) struct Lease {
    /// `None` if the other end is gone, and its memory with it. The loop of this end hears of it;
    /// until then files are read for nobody.
    memory: Option<BlockMemory>,
    begin: u64,
    back: Back,
}

impl Lease {
    /// A block that the other end passed.
    pub fn of_peer(
        memory: BlockMemory,
        stride: u32,
        post: Arc<Post>,
        session: SessionId,
        block: BlockId,
    ) -> Self {
        let begin = u64::from(block.place) * u64::from(stride);
        Self { memory: Some(memory), begin, back: Back::Peer(post, session, block) }
    }

    /// The place of its session among those of the transfer; the first for blocks of the other end.
    pub fn stream(&self) -> usize {
        match &self.back {
            Back::Idle(idle, _) => idle.stream,
            _ => 0,
        }
    }

    /// Its number in the pool, if this end fills it.
    pub fn place(&self) -> Option<u32> {
        match self.back {
            Back::Idle(_, place) => Some(place),
            _ => None,
        }
    }

    /// It is the other end's from now on.
    pub fn passed(mut self) {
        self.back = Back::Nowhere;
    }

    /// Where it lies in its region, if that is this end's.
    pub fn region(&self) -> Option<(&FabricRegion, u64)> {
        match &self.memory {
            Some(BlockMemory::Region(region)) => Some((region, self.begin)),
            _ => None,
        }
    }

    /// Reads from a file to a place of the block, at least one byte unless the file ends there.
    pub fn fill(
        &mut self,
        (at, length): (usize, usize),
        (file, offset): (&OwnedFd, u64),
        scratch: &mut Vec<u8>,
    ) -> Result<usize, Errno> {
        let mut filled = 0;
        while filled < length {
            let (place, from) = ((at + filled) as u64, offset + filled as u64);
            let Some(memory) = &self.memory else {
                let scratch = at_least(scratch, length - filled);
                return Ok(filled + read_whole(file, scratch, from)?);
            };
            match memory.fill(self.begin + place, (length - filled) as u64, file, from) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::INTR) => {}
                    Some(Errno::INVAL) if without_direct(file) => {}
                    Some(errno) => return Err(errno),
                    None => self.memory = None,
                },
            }
        }
        Ok(filled)
    }

    /// Hashes bytes of the block.
    pub fn hash(&self, (at, length): (usize, usize), scratch: &mut Vec<u8>, into: &mut Hasher) {
        let mut hashed = 0;
        while hashed < length {
            let count = (length - hashed).min(HASHED_BYTES);
            let bytes = at_least(scratch, count);
            if let Some(memory) = &self.memory {
                memory.load(self.begin + (at + hashed) as u64, bytes);
            }
            into.update(bytes);
            hashed += count;
        }
    }

    /// Writes bytes of the block to a place of a file.
    pub fn pour(
        &self,
        (at, length): (usize, usize),
        file: &OwnedFd,
        offset: u64,
    ) -> Result<(), Errno> {
        let memory = self.memory.as_ref().ok_or(Errno::IO)?;
        let mut poured = 0;
        while poured < length {
            let (place, to) = (self.begin + (at + poured) as u64, offset + poured as u64);
            match memory.pour(place, (length - poured) as u64, file, to) {
                Ok(0) => return Err(Errno::IO),
                Ok(count) => poured += count,
                Err(error) => match Errno::from_io_error(&error).unwrap_or(Errno::IO) {
                    Errno::INTR => {}
                    Errno::INVAL if without_direct(file) => {}
                    errno => return Err(errno),
                },
            }
        }
        Ok(())
    }

    /// Writes bytes to a place of the block.
    pub fn store(&self, at: u64, bytes: &[u8]) {
        if let Some(memory) = &self.memory {
            // If that fails, the other end is gone.
            memory.store(self.begin + at, bytes);
        }
    }

    /// Copies bytes out of the block; `None` if the range is not there.
    pub fn load(&self, at: u64, length: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; length];
        let memory = self.memory.as_ref()?;
        memory.load(self.begin + at, &mut bytes).then_some(bytes)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.back, Back::Nowhere) {
            Back::Idle(idle, place) => idle.add(place),
            Back::Peer(post, session, block) => post.order(Order::Free(session, block)),
            Back::Nowhere => {}
        }
    }
}

fn at_least(scratch: &mut Vec<u8>, length: usize) -> &mut [u8] {
    if scratch.len() < length {
        scratch.resize(length, 0);
    }
    &mut scratch[..length]
}

//! Blocks: bytes that the reader takes straight out of the writer's memory, with one copy (ZCopy of
//! 003 section 5.5.3.3, with the reader's get in place of the NIC's).
//!
//! A writer whose call waits for room *offers* what is left of it by a `BLOCK` message: where it is
//! in its memory. A reader that comes to the message *pulls*: it copies, and says then how much,
//! which counts if the writer did not withdraw the block meanwhile. So the writer's call can end at
//! any moment, neither waits for the other's copy, and what is behind the message is behind the
//! block. What was not pulled by then goes over the lane, or over TCP, like anything else.
//!
//! # The words
//! The writer posts `BLOCK`, the number of the block and whether it is offered. The reader
//! posts `PULLED_OF`, the number and its own state, and `PULLED`, how much. To
//! pull, it says that it is at it, fences, and looks whether the block is still offered; to
//! withdraw, the writer says so, fences, and looks whether the reader is at it. One of the two sees
//! the other.
//!
//! # Readiness
//! Who was told that there is something to read may count on it. So a writer that withdraws a block
//! sends some more of it over the lane before it says that the block is done with
//! ([`SendSide::settle_block`]), and a reader waits for that before it goes past.

use weft_fabric::{Lane, ReceiveCursor, WaitFor};

use crate::receive::ReceiveSide;
use crate::route::word;
use crate::send::SendSide;
use crate::stream::{closed, tag};

/// How a block stands with its writer.
mod offered {
    /// It is withdrawn, and what can be said of what follows was said.
    pub const NO_MORE: u64 = 0;
    pub const OPEN: u64 = 1;
    /// It is withdrawn, and something follows.
    pub const SETTLING: u64 = 2;
}

/// What the reader of a block is about.
mod pulling {
    pub const IDLE: u64 = 0;
    /// Between looking whether the block is offered and saying how much was pulled.
    pub const COUNTING: u64 = 1;
    /// It pulls no more of this one.
    pub const REFUSED: u64 = 2;
    pub const MASK: u64 = 3;
}

/// From whom an end pulls blocks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PullsFrom {
    /// From nobody.
    Nobody,
    /// From a writer on the only processor that this end runs on: where one of the two runs at a
    /// time, they cannot copy at once.
    Processor(u32),
    /// From any.
    Anybody,
}

impl PullsFrom {
    const fn to_word(self) -> u64 {
        match self {
            Self::Nobody => 0,
            Self::Anybody => 1,
            Self::Processor(number) => 2 + number as u64,
        }
    }

    fn of_word(value: u64) -> Self {
        match value {
            0 => Self::Nobody,
            1 => Self::Anybody,
            // What makes no sense is no processor of this machine.
            _ => u32::try_from(value - 2).map_or(Self::Nobody, Self::Processor),
        }
    }
}

/// A block at the head of the receiving direction, as the peer says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// The writer's process, by its own number for it.
    pub process: u32,
    /// Where the next byte to pull is in its memory.
    pub address: u64,
    /// Bytes from there on, at least 1.
    pub bytes: u64,
}

impl Block {
    pub(crate) const MESSAGE_BYTES: usize = 20;

    fn to_message(self) -> [u8; Self::MESSAGE_BYTES] {
        let mut message = [0; Self::MESSAGE_BYTES];
        message[..4].copy_from_slice(&self.process.to_le_bytes());
        message[4..12].copy_from_slice(&self.address.to_le_bytes());
        message[12..].copy_from_slice(&self.bytes.to_le_bytes());
        message
    }

    /// The message at `cursor`, of which `pulled` bytes were pulled; `None` when it makes no sense.
    pub(crate) fn read<L: Lane>(lane: &L, cursor: &ReceiveCursor, pulled: u64) -> Option<Self> {
        let mut message = [0; Self::MESSAGE_BYTES];
        lane.read(cursor, 0, &mut message);
        let (process, rest) = message.split_first_chunk()?;
        let (address, bytes) = rest.split_first_chunk()?;
        let address = u64::from_le_bytes(*address);
        let bytes = u64::from_le_bytes(bytes.try_into().ok()?);
        address.checked_add(bytes)?;
        Some(Self {
            process: u32::from_le_bytes(*process),
            address: address.checked_add(pulled)?,
            bytes: bytes.checked_sub(pulled).filter(|left| *left > 0)?,
        })
    }
}

/// True while the peer offers the block of this number.
pub(crate) fn is_offered<L: Lane>(lane: &L, number: u64) -> bool {
    lane.posted(word::BLOCK) == number << 2 | offered::OPEN
}

/// True while something has to be done about the block of this number before going past it.
pub(crate) fn is_due<L: Lane>(lane: &L, number: u64) -> bool {
    let posted = lane.posted(word::BLOCK);
    posted == number << 2 | offered::OPEN || posted == number << 2 | offered::SETTLING
}

/// The writer's side.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Offering {
    /// Blocks offered so far; the last one is the one below.
    blocks: u64,
    bytes: u64,
    /// How much of it was pulled, once that is known.
    pulled: u64,
    is_withdrawn: bool,
    /// Nothing more will be pulled, and how much was is known.
    is_counted: bool,
    /// Until whoever offered it knows how much was pulled.
    is_out: bool,
}

impl Offering {
    /// True while somebody is to learn what became of a block.
    pub const fn is_out(&self) -> bool {
        self.is_out
    }

    /// How much was pulled; `None` while the reader is counting.
    fn pulled<L: Lane>(&self, lane: &L) -> Option<(u64, bool)> {
        let of = lane.posted(word::PULLED_OF);
        if of >> 2 != self.blocks {
            return Some((0, false));
        }
        match of & pulling::MASK {
            pulling::COUNTING => None,
            state => {
                let bytes = lane.posted(word::PULLED).min(self.bytes);
                Some((bytes, state == pulling::REFUSED))
            }
        }
    }

    /// Offers it no more. Returns how much was pulled; `None` while the reader is counting.
    pub fn withdraw<L: Lane>(&mut self, lane: &L) -> Option<u64> {
        if self.is_out && !self.is_counted {
            lane.post(word::BLOCK, self.blocks << 2 | offered::SETTLING);
            self.is_withdrawn = true;
            lane.settle();
            self.pulled = self.pulled(lane)?.0;
            self.is_counted = true;
        }
        Some(self.pulled)
    }

    /// As [`Offering::withdraw`], waiting for a reader that is counting: some instructions, unless
    /// it lost the processor, or is no reader of ours.
    pub fn withdraw_now<L: Lane>(&mut self, lane: &L) -> bool {
        const LOOKS: u32 = 4096;
        (0..LOOKS).any(|_| self.withdraw(lane).is_some())
    }
}

impl SendSide {
    /// From whom the peer pulls blocks.
    pub fn peer_pulls<L: Lane>(lane: &L) -> PullsFrom {
        PullsFrom::of_word(lane.posted(word::PULLS_FROM))
    }

    /// Offers the peer a block of this process's memory, behind all that was written. Returns
    /// whether the caller must ring; `None` when that cannot be now.
    ///
    /// The memory stays as it is until [`SendSide::withdraw_block`] has said how much was pulled.
    pub fn offer_block<L: Lane>(&mut self, lane: &L, block: Block) -> Option<bool> {
        // A slot more than the message takes, so that the block can be followed by some bytes when
        // it is withdrawn: what could be read stays so.
        const SLOTS: u64 = 2;
        let may = self.on_lane()
            && !self.is_shut()
            && !self.offering.is_out
            && block.bytes > 0
            && lane.posted(word::CLOSED) & closed::MASK == closed::WRITING
            && lane.slots_free(&mut self.cursor, SLOTS) >= SLOTS;
        if !may {
            return None;
        }
        let former = self.offering;
        let blocks = former.blocks + 1;
        let bytes = block.bytes;
        self.offering = Offering { blocks, bytes, is_out: true, ..Offering::default() };
        // Before the message, which a reader that finds it takes for withdrawn else.
        lane.post(word::BLOCK, blocks << 2 | offered::OPEN);
        if lane.send(&mut self.cursor, tag::BLOCK, &[&block.to_message()]).is_err() {
            self.offering = former;
            return None;
        }
        Some(lane.must_ring(WaitFor::Data))
    }

    /// True when nothing more will be pulled from the block that was offered.
    pub fn is_block_over<L: Lane>(&self, lane: &L) -> bool {
        let offering = &self.offering;
        offering.is_withdrawn
            || offering
                .pulled(lane)
                .is_some_and(|(bytes, is_refused)| is_refused || bytes == offering.bytes)
    }

    /// Withdraws the block that was offered. Returns how many bytes of it were pulled, which are
    /// sent by that; `None` while the peer is counting: ask again, unless it died.
    /// [`SendSide::settle_block`] is due.
    pub fn withdraw_block<L: Lane>(&mut self, lane: &L) -> Option<u64> {
        self.offering.withdraw(lane)?;
        let pulled = self.forget_block();
        lane.account(self.lane_bytes);
        Some(pulled)
    }

    /// The memory of a block that another thread has out is about to go: nothing more of it is
    /// pulled, and that thread is told how much was when it withdraws the block.
    pub fn revoke_block<L: Lane>(&mut self, lane: &L) {
        if self.offering.is_out && self.offering.withdraw_now(lane) {
            self.settle_block(lane);
        }
    }

    /// What follows a block that was withdrawn was sent, as far as it could be.
    pub fn settle_block<L: Lane>(&self, lane: &L) {
        lane.post(word::BLOCK, self.offering.blocks << 2 | offered::NO_MORE);
    }

    /// True while a thread has a block out.
    #[must_use]
    pub const fn is_block_out(&self) -> bool {
        self.offering.is_out
    }

    /// As [`SendSide::withdraw_block`] where no lane is left to look at: of a peer that died while
    /// it was counting nobody will know what it pulled.
    pub fn forget_block(&mut self) -> u64 {
        assert!(self.offering.is_out, "a block was offered");
        let pulled = self.offering.pulled;
        self.offering.is_out = false;
        self.lane_bytes += pulled;
        pulled
    }
}

impl ReceiveSide {
    /// Says from whom this end pulls blocks.
    pub fn pull_from<L: Lane>(lane: &L, from: PullsFrom) {
        lane.post(word::PULLS_FROM, from.to_word());
    }

    /// The block at the head, after [`crate::ReadError::Block`]; `None` when it is withdrawn:
    /// [`ReceiveSide::is_block_settling`] for a moment, and then there is
    /// [`ReceiveSide::skip_block`].
    pub fn block<L: Lane>(&self, lane: &L) -> Option<Block> {
        let position = &self.position;
        let slot = lane.peek(&position.cursor).ok()??;
        let is_block = slot.tag == tag::BLOCK
            && usize::from(slot.length) == Block::MESSAGE_BYTES
            && position.chunk_left == 0;
        if !is_block || !self.offers_block(lane) {
            return None;
        }
        Block::read(lane, &position.cursor, position.pulled)
    }

    /// True while something is about to follow the block at the head, which is withdrawn.
    pub fn is_block_settling<L: Lane>(&self, lane: &L) -> bool {
        let number = self.position.blocks + 1;
        lane.posted(word::BLOCK) == number << 2 | offered::SETTLING
    }

    /// Goes past the block at the head when that is withdrawn.
    pub fn skip_block<L: Lane>(&mut self, lane: &L) {
        let head = lane.peek(&self.position.cursor);
        let is_block = matches!(head, Ok(Some(slot)) if slot.tag == tag::BLOCK);
        if is_block && self.position.chunk_left == 0 && !self.offers_block(lane) {
            self.pass_block(lane);
        }
    }

    /// True while the peer offers the block at the head, so that what was copied from it was there.
    pub fn offers_block<L: Lane>(&self, lane: &L) -> bool {
        is_offered(lane, self.position.blocks + 1)
    }

    /// So many bytes of `block` were copied. Returns whether the peer is to be rung; `None` when it
    /// withdrew the block before: they count for nothing.
    pub fn pulled<L: Lane>(&mut self, lane: &L, block: Block, bytes: u64) -> Option<bool> {
        let number = self.begin_pulling(lane);
        lane.post(word::PULLED_OF, number << 2 | pulling::COUNTING);
        lane.settle();
        let counts = is_offered(lane, number);
        if counts {
            self.position.pulled += bytes;
            self.lane_bytes += bytes;
            lane.post(word::PULLED, self.position.pulled);
        }
        lane.post(word::PULLED_OF, number << 2 | pulling::IDLE);
        if !counts {
            return None;
        }
        if bytes < block.bytes {
            return Some(false);
        }
        self.pass_block(lane);
        Some(lane.is_awaited(WaitFor::Room))
    }

    /// Nothing more is pulled from the block at the head. Returns whether the peer is to be rung.
    pub fn refuse_block<L: Lane>(&mut self, lane: &L) -> bool {
        let number = self.begin_pulling(lane);
        lane.post(word::PULLED_OF, number << 2 | pulling::REFUSED);
        self.pass_block(lane);
        lane.is_awaited(WaitFor::Room)
    }

    /// The number of the block at the head, of which the words speak from here on.
    fn begin_pulling<L: Lane>(&self, lane: &L) -> u64 {
        // Whoever reads this knows by the other word whether it is of this block.
        lane.post(word::PULLED, self.position.pulled);
        self.position.blocks + 1
    }

    fn pass_block<L: Lane>(&mut self, lane: &L) {
        let mut position = self.position.behind_block();
        lane.advance(&mut position.cursor, false);
        self.position = position;
        self.unrung_messages += 1;
    }
}

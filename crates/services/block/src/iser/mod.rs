//! iSER in weft's form: SCSI commands over sessions of the fabric, whose data the target puts into
//! memory that the initiator granted, and gets from there.
//!
//! Source: NUMA-RDMA#back-end (a read is an RDMA write of the target, a write its RDMA read), RFC
//! 7145. A session of `weft-session` has the additions of iSER to iSCSI: a hello in place of the
//! login, credits in place of CmdSN and posted receives, keys for the life of the session in place
//! of STags.
//!
//! | step | read | write |
//! |---|---|---|
//! | 1 | request: tag, command | request: tag, command |
//! | 2 | data are put into a block, which has the tag | a filled block is passed, with the tag |
//! | 3 | answer: status, sense | the target gets the block, runs the command, gives it back |
//! | 4 | | answer: status, sense |
//!
//! The data of a plain read or write of a store in memory move between the block and that memory
//! and nowhere else. Those of others go through a stage of the target.
//!
//! An endpoint that is not the one for the unit refuses a hello and names it: sessions are at the
//! endpoint of a thread near the unit's memory.
//!
//! A pool of blocks for each direction is lent when the session opens and never again. Short data
//! of commands that are answered from the state of a unit ride with the answer.

mod initiator;
mod moves;
mod target;

#[cfg(test)]
mod tests;

pub use initiator::{Answered, Done, Initiator};
pub use target::{Event, Surroundings, Target, Ticket};

/// The name of the protocol.
pub const PROTOCOL: &str = "block";
/// Its versions.
pub const VERSIONS: std::ops::RangeInclusive<u16> = 1..=1;
/// Bytes of a block: the data of one command at most.
pub const BLOCK_BYTES: u32 = 256 << 10;
/// Blocks of a pool: commands of one direction with data on their way.
pub const BLOCKS: u32 = 32;
/// The code of a refusal whose text is the address of the endpoint to ask.
const MOVED: u16 = 5;
/// Bytes of the head of a request: tag, bytes of data to the target, and from it, and the command.
const REQUEST_BYTES: usize = 4 + 4 + 4 + 16;

/// A request, as heads have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Request {
    tag: u32,
    data_out: u32,
    data_in: u32,
    command: [u8; 16],
}

impl Request {
    fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut head = [0; REQUEST_BYTES];
        head[..4].copy_from_slice(&self.tag.to_le_bytes());
        head[4..8].copy_from_slice(&self.data_out.to_le_bytes());
        head[8..12].copy_from_slice(&self.data_in.to_le_bytes());
        head[12..].copy_from_slice(&self.command);
        head
    }

    /// The request of a head; `None` for one of another length, or of more data than a block has.
    fn parse(head: &[u8]) -> Option<Self> {
        let head: &[u8; REQUEST_BYTES] = head.try_into().ok()?;
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| head[at + byte]));
        let (tag, data_out, data_in) = (word(0), word(4), word(8));
        let command = std::array::from_fn(|byte| head[12 + byte]);
        let fits = data_out <= BLOCK_BYTES && data_in <= BLOCK_BYTES;
        fits.then_some(Self { tag, data_out, data_in, command })
    }
}

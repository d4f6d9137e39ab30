//! A SCSI target without I/O: logical units, their commands and their state.
//!
//! [`Unit::begin`] takes a command of a session and answers it, or says by a [`Job`] which work on
//! the store is to be done. A driver runs jobs on threads that may wait.
//!
//! Source: SAM-5, SPC-4, SBC-3.

mod copy;
mod direct;
mod inquiry;
mod job;
mod mode;
mod opcodes;
mod report;
mod reservation;
mod sanitize;
mod sense;
mod unit;
mod work;

#[cfg(test)]
mod tests;

pub use direct::Direct;
pub use inquiry::{Identity, Nature};
pub use job::{Direction, Job, Outcome};
pub use opcodes::Access;
pub use report::{decode_number, encode_number};
pub use reservation::Port;
pub use sense::{Field, Key, Sense};
pub use unit::{Begun, Directory, Link, NoUnits, Reply, Status, Unit, UnitOptions, absent};

/// Bytes of a block.
pub const BLOCK_BYTES: u32 = 512;
/// Blocks that a command moves at most: 8 MiB.
pub const TRANSFER_BLOCKS_MAX: u32 = 16_384;
/// Blocks that COMPARE AND WRITE compares at most.
pub const COMPARE_BLOCKS_MAX: u8 = 255;
/// Blocks of one UNMAP at most: 512 MiB.
pub const UNMAP_BLOCKS_MAX: u32 = 1 << 20;
/// Ranges of one UNMAP at most.
pub const UNMAP_RANGES_MAX: u32 = 256;
/// Blocks of one WRITE SAME at most: 16 MiB.
pub const WRITE_SAME_BLOCKS_MAX: u64 = 1 << 15;
/// Descriptors of units in one EXTENDED COPY at most.
pub const COPY_TARGETS_MAX: u16 = 8;
/// Descriptors of segments in one EXTENDED COPY at most.
pub const COPY_SEGMENTS_MAX: u16 = 32;
/// Bytes of all descriptors of one EXTENDED COPY at most.
pub const COPY_LIST_BYTES_MAX: u32 = 2048;
/// Bytes of one segment of an EXTENDED COPY at most.
pub const COPY_BYTES_MAX: u32 = 64 << 20;
/// Bytes of parameters at most, of any command that is no data of blocks.
pub const PARAMETER_BYTES_MAX: usize = 8192;

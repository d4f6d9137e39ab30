//! Layer 1: shared memory that no other process can shrink, and copies into and out of it.
//!
//! A [`Segment`] is a sealed memfd and its mapping. Other processes may write to it at any time, so
//! no reference to its bytes ever exists: words are atomics, and bytes are copied. A [`Memory`] is
//! a segment of this process that transports can register: fresh, from a descriptor, or made of
//! memory that was there already. A [`Process`] is another process to whose memory the kernel
//! copies. The `unsafe` code of weft's memory handling is in this crate. May
//! depend on `weft-sync` and the operating system.

mod adopt;
mod blocks;
mod copy;
mod descriptor;
mod husk;
#[cfg(feature = "test-doors")]
pub mod kinds;
mod memory;
mod moving;
mod placement;
mod process;
mod reservation;
mod segment;
mod span;
mod view;
mod word;

pub use blocks::{Block, Blocks};
pub use copy::CopyMode;
pub use husk::Husk;
pub use memory::{Memory, MemoryOptions};
pub use moving::{Moving, Stay, Watch};
pub use process::{CopyError, Process};
pub use reservation::Reservation;
pub use segment::{Segment, SegmentError};
pub use span::{Part, PartMut, Span};
pub use view::View;

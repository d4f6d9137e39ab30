//! Layer 1: shared memory that nobody can shrink under us, and copies in and out of it.
//!
//! A [`Segment`] is a sealed memfd and its mapping. Others may write it at any time, so no
//! reference to its bytes ever exists: words are atomics, bytes are copied. `unsafe` in weft's
//! memory handling lives here. May depend on `weft-sync` and the operating system.

mod blocks;
mod copy;
mod descriptor;
mod segment;
mod view;

pub use blocks::{Block, Blocks};
pub use copy::CopyMode;
pub use segment::{Segment, SegmentError};
pub use view::View;

//! Layer 0: atomics, asymmetric fences, adaptive waiting and cross-process locks.
//!
//! All code that orders memory between threads or processes uses this crate, so that the model
//! checker can replace the machine (`--cfg loom`). May depend on the operating system's fence and
//! futex calls, and on nothing of weft's.

pub mod atomic;
pub mod crowd;
#[cfg(not(loom))]
pub mod fence;
#[cfg(loom)]
#[path = "fence_loom.rs"]
pub mod fence;
#[cfg(not(loom))]
pub mod futex;
#[cfg(not(loom))]
pub mod lock;
mod patience;
mod sys;

pub use patience::{Learned, Patience, Step};

//! Layer 1: reads, writes and syncs of files, many at a time.
//!
//! An [`Engine`] takes [`Request`]s and gives each back as a [`Done`], with the bytes it moved and
//! the memory that it was given. It works by io_uring(7) with registered buffers where the kernel
//! lets it, else by pread(2) and pwrite(2) inside of [`Engine::submit`]. May depend on
//! `weft-memory` and the operating system. It has no thread and no clock.
//!
//! # Promises
//! - *Whole*: a request moves all its bytes. A read is short only at the end of the file; a write
//!   is never short. The engine goes on behind short counts of the kernel.
//! - *Ownership*: memory and file are the engine's from [`Engine::submit`] until [`Done`]. An
//!   engine that is dropped waits for what the kernel still does.
//! - *Limits*: an engine has at most [`Options::depth`] requests; one more is given back. A
//!   [`Pool`] has a fixed number of buffers.
//! - *Order*: none. A sync covers the writes that were done before it was submitted.
//!
//! # Where things are
//! | module | what |
//! |---|---|
//! | `pool` | page-aligned buffers of one size, which come back when dropped |
//! | `space` | the memory of a request: a buffer, or a range of shared memory |
//! | `engine` | the requests in flight, whatever does them |
//! | `uring`, `plain` | the two ways |
//! | `direct` | O_DIRECT: how a file is opened for it, and what has to be aligned |
//!
//! # Example
//! ```
//! use std::sync::Arc;
//! use weft_file_io::{Action, Engine, Options, Pool, Request, Space};
//!
//! let mut engine = Engine::new(&Options::default())?;
//! let pool = Pool::new(64 << 10, 4)?;
//! engine.register(&pool);
//! let file = Arc::new(tempfile::tempfile()?.into());
//!
//! let mut buffer = pool.take().expect("a new pool has all buffers");
//! buffer[..5].copy_from_slice(b"hello");
//! let space = Some(Space::buffer(buffer, 0, 5));
//! let write = Action::Write { at: 100 };
//! engine.submit(Request { token: 1, file: Arc::clone(&file), action: write, space })
//!     .expect("a new engine has room");
//! let mut done = Vec::new();
//! engine.wait(1, &mut done)?;
//! assert_eq!((done[0].token, done[0].result), (1, Ok(5)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod direct;
mod engine;
mod plain;
mod pool;
mod space;
mod uring;

pub use direct::{Alignment, alignment_of};
pub use engine::{Action, Done, Engine, EngineError, Kind, Options, Request, Way};
pub use pool::{Buffer, Pool, PoolError};
pub use space::Space;

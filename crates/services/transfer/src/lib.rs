//! Layer 3: trees of files that move in blocks which the receiver grants, without I/O.
//!
//! [`Source`] is the end that reads files, [`Target`] the one that writes them. Both are state
//! machines: messages, ends of jobs and entries of a walk go in; messages, jobs and reports come
//! out. A driver owns files, threads, connections and the clock. So the same code runs over a
//! stream of bytes, over the fabric, inside one process, under the fuzzer and in a simulation. The
//! crate may depend on nothing of weft.
//!
//! Source: NUMA-RDMA#rftp ( granted blocks, credits that double, loading, sending and storing that
//! overlap); `docs/design/017-transfer.md`.
//!
//! # How a transfer goes
//! ```text
//! source                                            target
//!   Begin, Entries, DirectoryEnd …  ───────────────▶  makes directories and links
//!                 ◀───────────────  Answers, Grant    what is needed; blocks that may come
//!   Block: pieces of files, hashes ───────────────▶   stores, journals, gives the block back
//!   FileEnd: root of the hashes    ───────────────▶   syncs, reads back, compares, renames
//!                 ◀───────────────  Again | Ended     damaged pieces again, or it is over
//!   WalkEnd                        ───────────────▶   links, times of directories
//!                 ◀───────────────  Done
//! ```
//!
//! # Promises
//! - *Memory*: both ends are bounded by [`Limits`] and the [`Window`], whatever the peer does.
//! - *Trust*: a peer that breaks the protocol is an [`Offence`]; paths are checked where they come
//!   in. Bytes are under their name only when they are those that the source hashed.
//! - *Resume*: what a [`Journal`] says is a hint. The driver hashes it again, and a cut or damaged
//!   journal costs bytes on the way and nothing else.
//!
//! # Where things are
//! | module | what |
//! |---|---|
//! | `message` | messages and frames |
//! | `entry`, `path` | entries of a tree and their paths |
//! | `source`, `target`, `window` | the machines |
//! | `checksum` | leaves and the tree over them |
//! | `journal` | records of what is at the target |
//! | `exclude` | patterns |
//! | `model` | a transfer over a long way, in virtual time |
//! | `hostile` | peers that send anything, for tests and the fuzzer |
#![forbid(unsafe_code)]

mod checksum;
mod codec;
mod entry;
mod exclude;
pub mod hostile;
mod journal;
mod message;
pub mod model;
mod offence;
mod path;
mod source;
mod target;
mod window;

pub use checksum::{Hasher, Leaf, hash, root};
pub use codec::InvalidBytes;
pub use entry::{
    ATTRIBUTES_BYTES_MAX, ATTRIBUTES_MAX, Attribute, Entry, FileId, Kind, Metadata, Moment,
};
pub use exclude::{Excludes, InvalidPattern};
pub use journal::{
    Journal, Kept, PathId, Record, TEMPORARY_PREFIX, fuzz_journal, journal_name, transfer_id,
};
pub use message::{
    Answer, BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, BLOCK_FRAME_BYTES_MAX, Block, Code, FRAME_BYTES_MAX,
    Frame, HEAD_BYTES, Head, Hello, Meeting, Message, Need, PLACES_MAX, Range, Role, SEGMENTS_MAX,
    SERVICES_MAX, Segment, Steadiness, Summary, Terms, Trouble, VERSION,
};
pub use offence::Offence;
pub use path::{InvalidPath, NAME_BYTES_MAX, PATH_BYTES_MAX, TreePath, is_name, shown};
pub use source::{BlockNumber, Job, Limits, Loaded, Piece, Source, SourceEvent};
pub use target::{
    Checked, Finished, Lost, Made, Store, Stored, Target, TargetEvent, TargetOptions, Task,
};
pub use window::Window;

//! The replicated key-value store that ships its index (RED-SEA-D2.3#2.1, Tebis).
//!
//! Layer 3. [`store`] is what a front end (the Redis protocol, the native protocol) sees of a
//! store; [`engine`] is a store of one region in one directory. Files are behind [`disk`], so that
//! the same code runs on a disk that forgets, tears and fails.
//!
//! | module | what |
//! |---|---|
//! | [`store`], [`node`] | what a front end sees of a store, and of its node and cluster |
//! | [`engine`] | the log, level 0, tables, and the work behind |
//! | [`disk`] | files of a directory, or of a simulated disk |
//! | [`manifest`] | which tables and segments a region consists of |
//! | [`table`] | sorted pairs in a file |
//! | [`cluster`] | who is the primary: the record, leases, the choice of the next one |
//! | [`replication`] | a primary that ships its log and its tables, and backups |
//! | `record`, `segment` | the log |
//! | `level0`, `slot` | the newest changes in memory, and where a value is |

#![forbid(unsafe_code)]

pub mod cluster;
pub mod disk;
pub mod engine;
pub mod format;
mod level0;
pub mod manifest;
pub mod node;
mod record;
pub mod replication;
mod segment;
mod slot;
pub mod store;
pub mod table;

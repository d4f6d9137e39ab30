//! The primary of a region: the record, leases, and the choice of the next primary. Without I/O.
//! A cluster has one region or several, each with a record, a primary and leases of its own.
//!
//! The scheme is that of PacificA (Lin et al., MSR-TR-2008-25). A small record says who is the
//! primary and who is in sync; it is changed by compare-and-set alone, so of two nodes that change
//! it at a time one has to read it again. Leases are not in it: a primary holds one as long as each
//! backup that the record names has answered lately ([`Leases`]). So nothing is written while
//! nothing changes, and a coordinator that is away harms nobody until a node fails.
//!
//! | module | what |
//! |---|---|
//! | `record` | [`Record`]: the nodes, the primary, the set in sync, and each change of them |
//! | `lease` | [`Leases`]: until when a primary may answer reads |
//! | `follower` | [`Follower`]: what a node that is no primary does next |
//!
//! Always true:
//! - Each node of [`Record::in_sync`] has all that was acknowledged.
//! - A node becomes the primary by a change of the record alone, and only if it is in sync.
//! - A backup answers no lease from the moment on at which it stands for primary, and it stands
//!   when its last answer is older than a lease. A primary counts from the time of its question,
//!   which is before the answer. So the lease of the old primary is over before there is a new one.

mod follower;
mod lease;
mod record;

pub use follower::{Follower, Step};
pub use lease::Leases;
pub use record::{Has, MEMBERS_MAX, MemberEntry, REGIONS_MAX, Record, Refused, slots_of};

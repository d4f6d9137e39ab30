//! A node comes into the records of its cluster.

use std::thread;
use std::time::{Duration, Instant};

use weft_kv::cluster::{MemberEntry, Record, Refused};
use weft_kv::replication::primary::Peer;

use super::coordination::{Coordination, NoRecord, Seen};

/// How long the first try to be in the cluster goes on.
const JOINED_WITHIN: Duration = Duration::from_secs(10);
/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(100);
/// Tries to change the record, which others change as well.
const TRIES: usize = 8;

/// A node and the region that it comes to, with what they have to agree about.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub region: u32,
    /// Regions of the cluster.
    pub regions: u32,
    /// Nodes that begin the cluster.
    pub replicas: u32,
    /// The lease, if this node is the first.
    pub lease_ms: u64,
    pub member: MemberEntry,
}

/// Why a node is not in the cluster.
pub(super) enum NoEntry {
    /// It must not be.
    Refused(String),
    /// It can be tried again.
    Later(String),
}

impl From<NoRecord> for NoEntry {
    fn from(error: NoRecord) -> Self {
        Self::Later(error.to_string())
    }
}

/// The number of regions: that of the cluster, or the wanted one if there is no cluster yet.
pub(super) fn regions_of(
    coordination: &mut dyn Coordination,
    wanted: Option<u32>,
) -> Result<u32, String> {
    try_again(|| {
        let there = coordination.read()?.record.map(|record| record.regions);
        let count = there.or(wanted).unwrap_or(1);
        agree(count, wanted.unwrap_or(count))?;
        Ok(count)
    })
}

fn agree(there: u32, wanted: u32) -> Result<(), NoEntry> {
    let refused = || NoEntry::Refused(Refused::Regions { there, wanted }.to_string());
    (there == wanted).then_some(()).ok_or_else(refused)
}

/// Comes into the record of a region. Returns the place of the node, and the record.
pub(super) fn enter(
    coordination: &mut dyn Coordination,
    entry: &Entry,
) -> Result<(Peer, Record), String> {
    try_again(|| register(coordination, entry))
}

fn try_again<T>(mut attempt: impl FnMut() -> Result<T, NoEntry>) -> Result<T, String> {
    let end = Instant::now() + JOINED_WITHIN;
    loop {
        match attempt() {
            Ok(result) => return Ok(result),
            Err(NoEntry::Refused(why)) => return Err(why),
            Err(NoEntry::Later(why)) if Instant::now() > end => return Err(why),
            Err(NoEntry::Later(_)) => thread::sleep(PAUSE),
        }
    }
}

/// One try of [`enter`].
pub(super) fn register(
    coordination: &mut dyn Coordination,
    entry: &Entry,
) -> Result<(Peer, Record), NoEntry> {
    let refused = |error: Refused| NoEntry::Refused(error.to_string());
    let Entry { region, regions, replicas, lease_ms, member } = entry;
    for _ in 0..TRIES {
        let Seen { record, version } = coordination.read()?;
        let fresh = || Record::of_region(*replicas, *lease_ms, *region, *regions);
        let mut record = record.unwrap_or_else(fresh);
        let before = record.clone();
        agree(record.regions, *regions)?;
        if record.region != *region {
            let there = record.region;
            let why = format!("the record of region {region} is one of region {there}");
            return Err(NoEntry::Refused(why));
        }
        let me = record.register(member.clone(), *replicas).map_err(refused)?;
        if record == before || coordination.replace(&record, version)? {
            return Ok((me, record));
        }
    }
    Err(NoEntry::Later("the record of the cluster changes all the time".to_owned()))
}

//! A program: its endpoint, its memory, and what it waits for.
//!
//! # Invariant
//! Each life of a program has memory of its own at every other one, since a put of a program that
//! has died may still be on its way.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use weft_fabric::{
    Access, Audience, Blocking, Endpoint, Group, LocalRange, Peer, Region, RemoteKey,
};

use super::keys::Extra;
use super::operations::Pending;
use crate::ledger::Life;
use crate::plan::{LIVES_MAX, PROGRAMS_MAX};
use crate::stage::Stage;
use crate::workload::pattern;

const USER: u32 = 1_000;
/// Control calls end within it.
pub(super) const SOON: Duration = Duration::from_secs(1);
/// Slots of a program in the region of each other one.
pub(super) const SLOTS: usize = 2;
/// Bytes of a slot; longer than a packet of the network.
pub(super) const SLOT_BYTES: usize = 1_536;
/// Bytes of a region that only its owner writes, for gets.
pub(super) const OWN_BYTES: usize = 2_048;
pub(super) const GROUPS: u8 = 3;

pub(super) struct Link {
    pub to: Life,
    pub is_down: bool,
    pub waits: bool,
}

pub(super) struct Program<E: Endpoint> {
    pub life: Life,
    pub host: usize,
    pub endpoint: E,
    pub region: E::Region,
    /// Where gets put their bytes.
    pub scratch: E::Region,
    pub key: RemoteKey,
    pub links: BTreeMap<Peer, Link>,
    pub pending: BTreeMap<u64, (Peer, Pending)>,
    pub waits_for_group: BTreeSet<Group>,
    pub extras: Vec<Extra<E::Region>>,
    pub next: u64,
    pub sent_to_groups: u32,
}

impl<E: Endpoint> Program<E> {
    /// Starts a life of a program.
    pub fn start(stage: &Stage<'_, E>, life: Life, host: usize) -> Result<Self, String> {
        let mut endpoint = stage.open(host, USER)?;
        let length = offset_of((small(PROGRAMS_MAX), 0), 0);
        let failed = |error: &dyn std::error::Error| format!("{life:?} does not start: {error}");
        let region = endpoint.register(size(length)).map_err(|error| failed(&error))?;
        let scratch = endpoint.register(size(OWN_BYTES)).map_err(|error| failed(&error))?;
        region.write(0, &pattern(own_number(life), OWN_BYTES)).map_err(|error| failed(&error))?;
        let whole = LocalRange::whole(&region);
        let key = endpoint.grant_within(whole, Audience::Partition, Access::all(), SOON);
        let key = key.map_err(|error| failed(&error))?;
        for number in 0..GROUPS {
            if !(life.0 + life.1 + number).is_multiple_of(3) {
                let group = Group::new(number).expect("there are 64");
                endpoint.join_within(group, SOON).map_err(|error| failed(&error))?;
            }
        }
        Ok(Self {
            life,
            host,
            endpoint,
            region,
            scratch,
            key,
            links: BTreeMap::new(),
            pending: BTreeMap::new(),
            waits_for_group: BTreeSet::new(),
            extras: Vec::new(),
            next: 0,
            sent_to_groups: 0,
        })
    }
}

/// Number of the bytes that only their owner writes.
pub(super) fn own_number(life: Life) -> u64 {
    1 << 40 | u64::from(life.0) << 8 | u64::from(life.1)
}

pub(super) fn offset_of(writer: Life, slot: usize) -> usize {
    let words = 8 * PROGRAMS_MAX * LIVES_MAX;
    OWN_BYTES + words + (number_of(writer) * SLOTS + slot) * SLOT_BYTES
}

pub(super) fn word_of(writer: Life) -> usize {
    OWN_BYTES + 8 * number_of(writer)
}

/// The place of a life among all. A put of a program that has died may still be on its way, so each
/// life has memory of its own.
fn number_of(life: Life) -> usize {
    usize::from(life.0) * LIVES_MAX + usize::from(life.1)
}

pub(super) fn size(bytes: usize) -> u64 {
    u64::try_from(bytes).expect("a length in memory fits 64 bits")
}

pub(super) fn small(place: usize) -> u8 {
    u8::try_from(place).expect("a plan has few programs")
}

pub(super) fn bytes_of<R: Region>(
    region: &R,
    offset: usize,
    length: usize,
) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; length];
    region.read(size(offset), &mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}

//! The broker's tables: endpoints, their pairs, groups and keys.
//!
//! Invariant: every table is bounded by [`Limits`] or by the number of VPIDs.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use weft_fabric::{Access, PartitionId};
use weft_options::share;

use super::ProcessId;
use crate::bell::VPIDS;
use crate::doorbell::Doorbell;
use crate::registers::KEYS_MAX;

/// Bounds of the broker's tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Endpoints of the node, at most 256.
    pub endpoints_max: u16,
    /// Keys of all endpoints together; each holds a descriptor.
    pub keys_max: usize,
    /// How many percent of the endpoints and keys that others leave one user may have.
    pub user_share: u8,
    /// The user who may have all, as user 0 may.
    pub user_unbounded: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { endpoints_max: VPIDS, keys_max: 16_384, user_share: share::ALL, user_unbounded: 0 }
    }
}

impl Limits {
    /// How many of `maximum` places `user` may have who has `own` of the `all` that are taken.
    pub(crate) fn allowance(&self, user: u32, maximum: usize, own: usize, all: usize) -> usize {
        let is_bounded = user != 0 && user != self.user_unbounded;
        let percent = if is_bounded { self.user_share } else { share::ALL };
        share::allowance(maximum, all.saturating_sub(own), percent)
    }
}

/// One bit for each VPID.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct VpidSet(pub [u64; 4]);

impl VpidSet {
    pub fn insert(&mut self, vpid: u16) {
        self.0[usize::from(vpid / 64) % 4] |= 1 << (vpid % 64);
    }

    pub fn remove(&mut self, vpid: u16) {
        self.0[usize::from(vpid / 64) % 4] &= !(1 << (vpid % 64));
    }

    pub fn contains(&self, vpid: u16) -> bool {
        vpid < VPIDS && self.0[usize::from(vpid / 64) % 4] & (1 << (vpid % 64)) != 0
    }

    pub fn iter(self) -> impl Iterator<Item = u16> {
        (0..VPIDS).filter(move |vpid| self.contains(*vpid))
    }
}

/// What an endpoint brought for its peers.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub doorbell: Arc<OwnedFd>,
    pub registers: Arc<OwnedFd>,
    pub bell: Arc<OwnedFd>,
}

/// A published key.
#[derive(Debug)]
pub(crate) struct Key {
    pub generation: u32,
    pub access: Access,
    pub length: u64,
    pub file: Arc<OwnedFd>,
    /// How often it was handed out.
    pub resolved: u64,
}

/// An open endpoint.
#[derive(Debug)]
pub(crate) struct Entry {
    pub process: ProcessId,
    pub uid: u32,
    pub partition: PartitionId,
    pub flags: u32,
    pub birth: u64,
    pub files: Files,
    pub doorbell: Arc<Doorbell>,
    pub pairs: VpidSet,
    /// Pairs that it announced after a restart and whose other end has not come back yet, with
    /// the birth it must have.
    pub awaited: Vec<(u16, u64)>,
    /// One bit for each group it joined.
    pub groups: u64,
    /// One bit for each group whose members it knows: it is told once that they changed.
    pub asked: u64,
    pub keys: Vec<Option<Key>>,
    /// How many keys there are.
    pub keys_count: usize,
}

impl Entry {
    pub fn key(&self, slot: u16, generation: u32) -> Option<&Key> {
        let key = self.keys.get(usize::from(slot))?.as_ref()?;
        (key.generation == generation).then_some(key)
    }

    pub fn key_mut(&mut self, slot: u16, generation: u32) -> Option<&mut Key> {
        let key = self.keys.get_mut(usize::from(slot))?.as_mut()?;
        (key.generation == generation).then_some(key)
    }

    /// Puts a key in its slot, where the same key with other memory may have been. How many keys
    /// more there are, or `None` when there is no such slot or it is another's.
    pub fn publish(&mut self, slot: u16, key: Key) -> Option<usize> {
        if slot >= KEYS_MAX {
            return None;
        }
        let place = usize::from(slot);
        if self.keys.len() <= place {
            self.keys.resize_with(place + 1, || None);
        }
        let same = |former: &Key| former.generation == key.generation;
        let more = match &self.keys[place] {
            Some(former) if !same(former) => return None,
            Some(_) => 0,
            None => 1,
        };
        self.keys[place] = Some(key);
        self.keys_count += more;
        Some(more)
    }
}

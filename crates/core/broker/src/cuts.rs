//! Endpoints of sites between which no way is left.
//!
//! A *site* is a node of a lab. The sites of a lab share this broker, and the lab's manager says
//! between which of them its links lead no way. Two endpoints that are a pair, or have met at their
//! ports, then hold each other: both begin nothing and take nothing, until a way leads there again.
//! When that lasts as long as the promised silence, the pair ends.
//!
//! # Invariants
//! - Both ends of a pair are told that they hold each other, or neither is.
//! - Endpoints of programs that are at no site reach all others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use weft_wire::endpoint_control::{Held, NO_VPID, PeerGone, gone};

use crate::ProcessId;
use crate::ports::address;
use crate::state::{Outgoing, State};
use crate::tables::Entry;

/// A node of a lab.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Site(pub u16);

/// The pairs of sites between which no way leads.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cuts(BTreeSet<(Site, Site)>);

impl Cuts {
    /// Whether no way leads between the two sites, of which each may be none.
    #[must_use]
    pub fn part(&self, one: Option<Site>, other: Option<Site>) -> bool {
        let (Some(one), Some(other)) = (one, other) else { return false };
        self.0.contains(&(one.min(other), one.max(other)))
    }

    /// Whether any two sites are cut off from each other.
    #[must_use]
    pub fn any(&self) -> bool {
        !self.0.is_empty()
    }
}

impl FromIterator<(Site, Site)> for Cuts {
    fn from_iter<I: IntoIterator<Item = (Site, Site)>>(pairs: I) -> Self {
        Self(pairs.into_iter().map(|(one, other)| (one.min(other), one.max(other))).collect())
    }
}

/// How two endpoints of this node know each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum By {
    /// They share memory.
    Memory,
    /// They have met at their ports.
    Ports,
}

/// The sites, as the broker knows them.
#[derive(Debug, Default)]
pub(crate) struct Sites {
    of: BTreeMap<ProcessId, Site>,
    cuts: Cuts,
    /// Since when the pairs of `cuts` are cut off whose endpoints still hold each other.
    since: BTreeMap<(Site, Site), Duration>,
}

impl State {
    /// The client is at a site. To be said before its first request.
    pub fn is_at(&mut self, process: ProcessId, site: Site) {
        self.sites.of.insert(process, site);
    }

    pub(crate) fn site_of(&self, process: ProcessId) -> Option<Site> {
        self.sites.of.get(&process).copied()
    }

    pub(crate) fn forget_site(&mut self, process: ProcessId) {
        self.sites.of.remove(&process);
    }

    /// Whether a way leads between two endpoints of this node.
    pub(crate) fn leads(&self, vpid: u16, peer: u16) -> bool {
        let site = |vpid| self.entry(vpid).and_then(|entry| entry.site);
        !self.sites.cuts.part(site(vpid), site(peer))
    }

    /// From `now` on, these sites are cut off from each other. `now` is by the clock of
    /// [`State::handle`].
    pub fn set_cuts(&mut self, cuts: Cuts, now: Duration, out: &mut Vec<Outgoing>) {
        if cuts == self.sites.cuts {
            return;
        }
        let former = std::mem::replace(&mut self.sites.cuts, cuts);
        let is_new = |pair: &&(Site, Site)| !former.0.contains(pair);
        let new: Vec<_> = self.sites.cuts.0.iter().filter(is_new).copied().collect();
        self.sites.since.retain(|pair, _| self.sites.cuts.0.contains(pair));
        self.sites.since.extend(new.into_iter().map(|pair| (pair, now)));
        for (by, known) in [(By::Memory, self.pairs()), (By::Ports, self.meetings())] {
            for (vpid, peer) in known {
                let (one, other) = self.sites_of(vpid, peer);
                if former.part(one, other) != self.sites.cuts.part(one, other) {
                    self.tell_held(vpid, peer, by, out);
                }
            }
        }
        // Members that were out of reach can be sent to again.
        let partitions: BTreeSet<_> =
            self.entries.iter().flatten().map(|entry| entry.partition).collect();
        for partition in partitions {
            self.tell_groups(partition, NO_VPID, u64::MAX, out);
        }
    }

    /// The endpoints of this node.
    fn by_vpid(&self) -> impl Iterator<Item = (u16, &Entry)> {
        (0..).zip(&self.entries).filter_map(|(vpid, entry)| Some((vpid, entry.as_ref()?)))
    }

    /// The pairs of this node, each once.
    fn pairs(&self) -> BTreeSet<(u16, u16)> {
        let of = |(vpid, entry): (u16, &Entry)| {
            let peers = entry.pairs.iter().filter(|peer| *peer > vpid);
            peers.map(|peer| (vpid, peer)).collect::<Vec<_>>()
        };
        self.by_vpid().flat_map(of).collect()
    }

    /// The endpoints of this node that have met at their ports, each two once.
    fn meetings(&self) -> BTreeSet<(u16, u16)> {
        let of = |(vpid, entry): (u16, &Entry)| {
            let here = entry.met.keys().filter(|with| with.node == self.node);
            let others = here.map(|with| with.vpid.0).filter(|other| *other != vpid);
            others.map(|other| (vpid.min(other), vpid.max(other))).collect::<Vec<_>>()
        };
        self.by_vpid().flat_map(of).collect()
    }

    fn sites_of(&self, vpid: u16, peer: u16) -> (Option<Site>, Option<Site>) {
        let site = |vpid| self.entry(vpid).and_then(|entry| entry.site);
        (site(vpid), site(peer))
    }

    /// Tells both ends of a pair from before a restart whether they hold each other: links may have
    /// changed while there was no broker.
    pub(crate) fn tell_held_again(&self, vpid: u16, peer: u16, by: By, out: &mut Vec<Outgoing>) {
        if let (Some(_), Some(_)) = self.sites_of(vpid, peer) {
            self.tell_held(vpid, peer, by, out);
        }
    }

    /// Tells both ends of a pair whether they hold each other.
    fn tell_held(&self, vpid: u16, peer: u16, by: By, out: &mut Vec<Outgoing>) {
        let is_held = u8::from(!self.leads(vpid, peer));
        for (vpid, peer) in [(vpid, peer), (peer, vpid)] {
            let Some(entry) = self.entry(vpid) else { continue };
            let held = Held { vpid, node: self.node.0, peer, is_held };
            match by {
                By::Memory => out.push(entry.news(held)),
                By::Ports => out.extend(entry.news_of_ports(held)),
            }
        }
    }

    /// Ends the pairs that have held each other for the promised silence.
    pub(crate) fn end_held(&mut self, now: Duration, out: &mut Vec<Outgoing>) {
        let silence = Duration::from_millis(self.silence_ms);
        let is_over = |since: &Duration| !silence.is_zero() && *since + silence <= now;
        if !self.sites.since.values().any(is_over) {
            return;
        }
        let over = self.sites.since.extract_if(.., |_, since| is_over(since));
        let over: Cuts = over.map(|(pair, _)| pair).collect();
        let is_lost = |(vpid, peer): &(u16, u16)| {
            let (one, other) = self.sites_of(*vpid, *peer);
            over.part(one, other)
        };
        let pairs: Vec<_> = self.pairs().into_iter().filter(is_lost).collect();
        let meetings: Vec<_> = self.meetings().into_iter().filter(is_lost).collect();
        for (vpid, peer) in pairs {
            self.unpair(vpid, peer, out);
            self.unpair(peer, vpid, out);
            self.tell_gone(vpid, peer, gone::UNREACHABLE, out);
            self.tell_gone(peer, vpid, gone::UNREACHABLE, out);
        }
        let (node, reason) = (self.node.0, gone::UNREACHABLE);
        for (one, other) in meetings {
            for (vpid, peer) in [(one, other), (other, one)] {
                if !self.end_meeting(vpid, address(node, peer), None, out) {
                    continue;
                }
                if let Some(entry) = self.entry(vpid) {
                    out.extend(entry.news_of_ports(PeerGone { vpid, node, peer, reason }));
                }
            }
        }
    }

    /// When [`State::end_held`] has something to do.
    pub(crate) fn next_end_of_held(&self) -> Option<Duration> {
        let first = self.sites.since.values().min().filter(|_| self.silence_ms != 0)?;
        Some(*first + Duration::from_millis(self.silence_ms))
    }

    /// Whether an endpoint that asks for the members of a group is told of this one: a way leads
    /// there, or did when the two became a pair or met.
    pub(crate) fn is_within_reach(&self, vpid: u16, other: u16) -> bool {
        let other_address = address(self.node.0, other);
        let knows =
            |entry: &Entry| entry.pairs.contains(other) || entry.met.contains_key(&other_address);
        self.leads(vpid, other) || self.entry(vpid).is_some_and(knows)
    }
}

#[cfg(test)]
#[path = "cuts_tests.rs"]
mod tests;

//! The primary's side: which backup has which batch, when a batch is acknowledged, who is in sync.
//!
//! The driver gives what the engine wrote, what backups said and what the record of the cluster
//! says; it takes messages ([`Primary::poll_transmit`]) and events ([`Primary::poll_event`]). There
//! is no clock: a backup that is silent too long is told by [`Primary::down`].
//!
//! Always true: [`Primary::acknowledged`] is not above what the local system or any backup that
//! counts has. A backup that the record names, or may name since a change of it has no answer yet,
//! counts, also while it is down: nothing is acknowledged until the record names it no more.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::message::{Envelope, Message, Offer};
use crate::format::Epoch;
use crate::manifest::Edit;
use crate::table::TableMeta;

/// Names a node.
pub type Peer = u32;

/// Messages that wait for a backup that joins, before it has to begin again, and their bytes.
const WAITING_MAX: usize = 10_000;
const WAITING_BYTES_MAX: usize = 256 << 20;

/// Work and news for a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// All batches up to this one may be answered.
    Acknowledged(u64),
    /// The record of the cluster should name other backups as in sync: [`Primary::proposal`] says
    /// which.
    Propose,
    /// The backup lacks these tables and these segments from these offsets on: give them to
    /// [`Primary::lacking`].
    Fetch {
        /// The backup.
        peer: Peer,
        /// Epoch and id of tables.
        tables: Vec<(Epoch, u64)>,
        /// Segments with offsets.
        log: Vec<(u64, u64)>,
    },
    /// There is a newer primary: this one must stop.
    Deposed(Epoch),
}

/// How a backup stands.
enum Standing {
    /// It is not reached.
    Down,
    /// It gets what it lacks; what is written meanwhile waits.
    Joining { waiting: VecDeque<Message>, bytes: usize, lsn: u64 },
    /// It gets all, and counts.
    Following { delivered: u64 },
}

/// The state of a primary of one region.
pub struct Primary {
    epoch: Epoch,
    /// The newest batch that the local system has.
    local: u64,
    acknowledged: u64,
    peers: BTreeMap<Peer, Standing>,
    /// The backups that the record names.
    recorded: BTreeSet<Peer>,
    /// Those of changes that have no answer yet: the record may name them.
    in_doubt: BTreeSet<Peer>,
    /// The backups for which [`Event::Propose`] was given last.
    proposed: Option<BTreeSet<Peer>>,
    is_deposed: bool,
    out: VecDeque<(Peer, Envelope)>,
    events: VecDeque<Event>,
}

impl Primary {
    /// A primary whose store has batches up to `lsn`; the record names these backups.
    #[must_use]
    pub fn new(epoch: Epoch, lsn: u64, recorded: BTreeSet<Peer>) -> Self {
        Self {
            epoch,
            local: lsn,
            acknowledged: lsn,
            peers: recorded.iter().map(|&peer| (peer, Standing::Down)).collect(),
            recorded,
            in_doubt: BTreeSet::new(),
            proposed: None,
            is_deposed: false,
            out: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// The newest batch that may be answered.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// The backups that the record names or may name: each of them can become the primary.
    #[must_use]
    pub fn named(&self) -> BTreeSet<Peer> {
        self.recorded.union(&self.in_doubt).copied().collect()
    }

    /// The backups that the record should name, if it does not surely name them: those that follow
    /// at this moment, for one that does so no more may lack what was acknowledged since. The
    /// driver changes the record at once. The outcome is in doubt until [`Primary::record`].
    pub fn proposal(&mut self) -> Option<BTreeSet<Peer>> {
        let wanted = self.wanted();
        let is_so = wanted == self.recorded && self.in_doubt.is_empty();
        if is_so || self.is_deposed {
            return None;
        }
        self.in_doubt.extend(&wanted);
        Some(wanted)
    }

    /// Whether a backup gets nothing, until it joins again.
    #[must_use]
    pub fn is_down(&self, peer: Peer) -> bool {
        !matches!(
            self.peers.get(&peer),
            Some(Standing::Joining { .. } | Standing::Following { .. })
        )
    }

    /// Whether each backup that the record may name has joined: all that the store had at its
    /// beginning is with each of them, and may be read.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let follows = |peer| matches!(self.peers.get(peer), Some(Standing::Following { .. }));
        self.named().iter().all(follows)
    }

    /// A backup that the record names and that has all batches up to this one: the one that is
    /// wanted, or any.
    #[must_use]
    pub fn heir(&self, lsn: u64, wanted: Option<Peer>) -> Option<Peer> {
        let has_all = |peer: &&Peer| {
            let standing = self.peers.get(peer);
            matches!(standing, Some(Standing::Following { delivered }) if *delivered >= lsn)
        };
        let is_wanted = |peer: &&Peer| wanted.is_none_or(|wanted| wanted == **peer);
        self.recorded.iter().filter(is_wanted).find(has_all).copied()
    }

    /// The backups that have all batches up to this one.
    #[must_use]
    pub fn backups_with(&self, lsn: u64) -> BTreeSet<Peer> {
        let has =
            |it: &Standing| matches!(it, Standing::Following { delivered } if *delivered >= lsn);
        self.peers.iter().filter(|(_, it)| has(it)).map(|(&peer, _)| peer).collect()
    }

    /// A backup is reached, and gets this offer. The caller holds what the offer names until the
    /// backup has joined.
    pub fn join(&mut self, peer: Peer, offer: Offer) {
        let standing = Standing::Joining { waiting: VecDeque::new(), bytes: 0, lsn: offer.lsn };
        self.peers.insert(peer, standing);
        self.send(peer, Message::Offer(offer));
    }

    /// The bytes that a backup lacked, in answer to [`Event::Fetch`].
    pub fn lacking(
        &mut self,
        peer: Peer,
        tables: Vec<(TableMeta, Vec<u8>)>,
        log: Vec<(u64, u64, Vec<u8>)>,
    ) {
        for (meta, bytes) in tables {
            self.send(peer, Message::Table { meta, bytes });
        }
        for (segment, offset, bytes) in log {
            self.send(peer, Message::Log { segment, offset, bytes, newest: None });
        }
        self.send(peer, Message::Complete);
    }

    /// A part of the log is being written.
    pub fn log(&mut self, pieces: &[(u64, u64, Vec<u8>)], newest: u64) {
        for (number, (segment, offset, bytes)) in pieces.iter().enumerate() {
            let newest = (number + 1 == pieces.len()).then_some(newest);
            let (segment, offset, bytes) = (*segment, *offset, bytes.clone());
            self.send_all(&Message::Log { segment, offset, bytes, newest });
        }
    }

    /// The local system has all batches up to this one.
    pub fn written(&mut self, lsn: u64) {
        self.local = self.local.max(lsn);
        self.advance();
    }

    /// The manifest has an edit.
    pub fn edit(&mut self, edit: &Edit, tables: Vec<(TableMeta, Vec<u8>)>) {
        for (meta, bytes) in tables {
            self.send_all(&Message::Table { meta, bytes });
        }
        self.send_all(&Message::Edit(edit.clone()));
    }

    /// A backup is not reached any more, or broke the protocol.
    pub fn down(&mut self, peer: Peer) {
        if let Some(standing) = self.peers.get_mut(&peer) {
            *standing = Standing::Down;
        }
        self.out.retain(|(to, _)| *to != peer);
        self.propose();
    }

    /// The record of the cluster names these backups now.
    pub fn record(&mut self, recorded: BTreeSet<Peer>) {
        self.recorded = recorded;
        self.in_doubt.clear();
        self.proposed = None;
        self.advance();
        self.propose();
    }

    /// The proposal was refused: the record is another one. The driver reads it and tells.
    pub fn refused(&mut self) {
        self.proposed = None;
    }

    /// A message of a backup.
    pub fn handle(&mut self, peer: Peer, envelope: Envelope) {
        if envelope.epoch > self.epoch {
            self.depose(envelope.epoch);
            return;
        }
        if envelope.epoch < self.epoch || self.is_deposed {
            return;
        }
        match envelope.message {
            Message::Want { tables, log } => {
                if matches!(self.peers.get(&peer), Some(Standing::Joining { .. })) {
                    self.events.push_back(Event::Fetch { peer, tables, log });
                }
            }
            Message::Joined { lsn } => self.joined(peer, lsn),
            Message::Delivered { lsn } => {
                if let Some(Standing::Following { delivered }) = self.peers.get_mut(&peer) {
                    *delivered = lsn.max(*delivered);
                    self.advance();
                    self.propose();
                }
            }
            // A backup says nothing else in this epoch.
            _ => self.down(peer),
        }
    }

    fn joined(&mut self, peer: Peer, has: u64) {
        let Some(Standing::Joining { waiting, lsn, .. }) = self.peers.get_mut(&peer) else {
            return;
        };
        if has != *lsn {
            self.down(peer);
            return;
        }
        let waiting = std::mem::take(waiting);
        // It counts from now on, and only then may the record name it.
        self.peers.insert(peer, Standing::Following { delivered: has });
        for message in waiting {
            self.send(peer, message);
        }
        self.propose();
    }

    fn depose(&mut self, epoch: Epoch) {
        if !self.is_deposed {
            self.is_deposed = true;
            self.out.clear();
            self.events.push_back(Event::Deposed(epoch));
        }
    }

    /// The newest batch that all that count have.
    fn advance(&mut self) {
        let is_named = |peer: &Peer| self.recorded.contains(peer) || self.in_doubt.contains(peer);
        let of = |(peer, standing): (&Peer, &Standing)| match standing {
            Standing::Following { delivered } => Some(*delivered),
            Standing::Down | Standing::Joining { .. } => is_named(peer).then_some(0),
        };
        let least = self.peers.iter().filter_map(of).min().unwrap_or(u64::MAX).min(self.local);
        if least > self.acknowledged && !self.is_deposed {
            self.acknowledged = least;
            self.events.push_back(Event::Acknowledged(least));
        }
    }

    /// Those that follow and have all that was acknowledged. What was acknowledged while a backup
    /// joined, it lacks at first.
    fn wanted(&self) -> BTreeSet<Peer> {
        let has_all = |peer: &Peer, standing: &Standing| match standing {
            Standing::Following { delivered } => {
                *delivered >= self.acknowledged || self.recorded.contains(peer)
            }
            Standing::Down | Standing::Joining { .. } => false,
        };
        let with_all = self.peers.iter().filter(|(peer, standing)| has_all(peer, standing));
        with_all.map(|(&peer, _)| peer).collect()
    }

    /// Asks for a change of the record, unless that was asked or it is so.
    fn propose(&mut self) {
        let wanted = self.wanted();
        if wanted != self.recorded && self.proposed.as_ref() != Some(&wanted) && !self.is_deposed {
            self.proposed = Some(wanted);
            self.events.push_back(Event::Propose);
        }
    }

    fn send_all(&mut self, message: &Message) {
        let peers: Vec<Peer> = self.peers.keys().copied().collect();
        for peer in peers {
            match self.peers.get_mut(&peer) {
                Some(Standing::Joining { waiting, bytes, .. })
                    if waiting.len() < WAITING_MAX && *bytes < WAITING_BYTES_MAX =>
                {
                    *bytes += message.bulk();
                    waiting.push_back(message.clone());
                }
                Some(Standing::Joining { .. }) => self.down(peer),
                Some(Standing::Following { .. }) => self.send(peer, message.clone()),
                Some(Standing::Down) | None => {}
            }
        }
    }

    fn send(&mut self, peer: Peer, message: Message) {
        if !self.is_deposed {
            self.out.push_back((peer, Envelope { epoch: self.epoch, message }));
        }
    }

    /// The next message to send. Changes after any other call.
    pub fn poll_transmit(&mut self) -> Option<(Peer, Envelope)> {
        self.out.pop_front()
    }

    /// The next event. Changes after any other call.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

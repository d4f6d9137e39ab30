//! The thread of control of a region: it reads and changes the record, leads, and steps down.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use weft_kv::cluster::{Follower, MemberEntry, Record, Step};
use weft_kv::disk::Disk;
use weft_kv::engine::{Options, open_on};
use weft_kv::format::Epoch;
use weft_kv::node::{Failover, Member, Region, View};
use weft_kv::replication::Shipper;
use weft_kv::replication::primary::Peer;
use weft_kv::store::{Store, StoreError};
use weft_session::SessionId;

use super::Clock;
use super::backup::Backup;
use super::coordination::{Coordination, NoRecord, Seen};
use super::court::Court;
use super::hand_over::{Cause, Handing};
use super::reign::Reign;
use super::shared::Shared;

/// Tries to change the record, which others change as well.
const TRIES: usize = 8;
/// The pause of a primary between two looks at the record.
const LOOK: Duration = Duration::from_millis(250);
/// The pause of a node that is about to become the primary, or not yet serves.
const SOON: Duration = Duration::from_millis(20);

/// Starts a link to a member. Returns what ends it; `None` if it is to be tried again.
pub(super) type StartLink = Box<dyn Fn(Peer, &MemberEntry, &Arc<Reign>) -> Option<EndLink> + Send>;
/// Ends a link, and comes back when it has ended.
pub(super) type EndLink = Box<dyn FnOnce() + Send>;

/// The primary's part: its reign and its links.
pub(super) struct Leading {
    pub reign: Arc<Reign>,
    links: BTreeMap<Peer, EndLink>,
    pub handing: Option<Handing>,
    /// Since when the home of the region is in sync, if it is another node.
    pub home_since: Option<Duration>,
}

/// The thread of control of a region.
pub(super) struct Control<S = SessionId> {
    pub(super) shared: Arc<Shared>,
    backup: Arc<Backup<S>>,
    disk: Arc<dyn Disk>,
    options: Options,
    coordination: Box<dyn Coordination>,
    pub(super) me: Peer,
    pub(super) lease: Duration,
    /// The record as it was read last.
    pub(super) record: Record,
    pub(super) leading: Option<Leading>,
    /// A change of the record has no answer: it may yet be carried out.
    is_in_doubt: bool,
    start_link: StartLink,
    pub(super) now: Clock,
}

impl<S: Copy + PartialEq> Control<S> {
    pub fn new(
        shared: Arc<Shared>,
        backup: Arc<Backup<S>>,
        (disk, options): (Arc<dyn Disk>, Options),
        coordination: Box<dyn Coordination>,
        (me, record): (Peer, &Record),
        start_link: StartLink,
        now: Clock,
    ) -> Self {
        let lease = Duration::from_millis(record.lease_ms);
        backup.decide(|follower| *follower = Follower::new(me, lease, now()));
        let record = record.clone();
        let (leading, is_in_doubt) = (None, false);
        Self {
            shared,
            backup,
            disk,
            options,
            coordination,
            me,
            lease,
            record,
            leading,
            is_in_doubt,
            start_link,
            now,
        }
    }

    /// Runs until the node ends.
    pub fn run(mut self) {
        while !self.shared.is_ending.load(Ordering::Acquire) {
            let pause = self.step();
            self.shared.control.wait(pause);
        }
        self.begin_hand_over(Failover::default(), Cause::Leaves);
        while self.hand_over() {
            thread::sleep(SOON);
        }
        self.step_down();
        self.backup.give_up();
    }

    /// One step of the node. Returns the pause before the next one.
    pub fn step(&mut self) -> Duration {
        let pause = if self.leading.is_some() { self.lead_on() } else { self.follow() };
        self.show();
        pause
    }

    /// Reads the record, and says what is wrong if it cannot.
    fn look(&mut self) -> Option<u64> {
        let seen = self.coordination.read();
        let trouble = match seen {
            Ok(Seen { record: Some(record), version }) => {
                self.record = record;
                return Some(version);
            }
            Ok(Seen { record: None, .. }) => "the record of the cluster is gone".to_owned(),
            Err(error) => error.to_string(),
        };
        self.tell(trouble);
        None
    }

    /// Tells once what is wrong; the status shows it.
    fn tell(&self, trouble: String) {
        let mut told = self.shared.trouble.lock();
        if told.as_ref() != Some(&trouble) {
            tracing::warn!("{trouble}");
            *told = Some(trouble);
        }
    }

    /// Changes the record as it is now. `Ok(false)` if the change does not fit it any more.
    pub(super) fn change(
        &mut self,
        change: impl Fn(&mut Record) -> bool,
    ) -> Result<bool, NoRecord> {
        for _ in 0..TRIES {
            let Some(version) = self.look() else { break };
            let mut record = self.record.clone();
            if !change(&mut record) {
                return Ok(false);
            }
            if record == self.record && !self.is_in_doubt {
                return Ok(true);
            }
            // The same record is written again while an earlier change has no answer: with another
            // version there, that one comes too late.
            let replaced = self.coordination.replace(&record, version);
            self.is_in_doubt = replaced.is_err();
            if replaced? {
                self.record = record;
                return Ok(true);
            }
        }
        Err(NoRecord("the record of the cluster cannot be changed".to_owned()))
    }

    /// One step of a node that is no primary. Returns the pause before the next one.
    fn follow(&mut self) -> Duration {
        let slow = (self.lease / 8).clamp(SOON, LOOK);
        if self.look().is_none() {
            return slow;
        }
        let Some(has) = self.backup.has() else {
            self.take_over();
            return slow;
        };
        let (record, me, now) = (self.record.clone(), self.me, self.now);
        let record_epoch = record.epoch;
        if let Some(why) = self.backup.trouble() {
            self.tell(why);
            self.backup.follow(record.epoch);
            return slow;
        }
        *self.shared.trouble.lock() = None;
        match self.backup.decide(|follower| follower.step(&record, has, now())) {
            Step::Follow(epoch) => {
                self.backup.follow(epoch);
                slow
            }
            Step::Wait if record.epoch == 0 => slow,
            Step::Wait => SOON,
            Step::Stand => {
                // From here on the old primary reaches nothing, and is given no lease.
                self.backup.close();
                let Some(has) = self.backup.has() else { return SOON };
                if let Ok(true) = self.change(|record| record.stand(me, record_epoch, has)) {
                    self.backup.decide(|follower| follower.stands(now()));
                }
                SOON
            }
            Step::Promote => {
                if let Err(error) = self.change(|record| record.promote(me)) {
                    tracing::warn!("{error}");
                }
                Duration::ZERO
            }
            Step::Lead(epoch) => {
                if let Err(error) = self.lead(epoch) {
                    self.tell(format!("this node cannot be the primary: {error}"));
                    self.take_over();
                    return LOOK;
                }
                Duration::ZERO
            }
        }
    }

    fn take_over(&self) {
        if let Err(error) = self.backup.take_over() {
            self.tell(format!("the store cannot be read: {error}"));
        }
    }

    /// Becomes the primary of an epoch.
    fn lead(&mut self, epoch: Epoch) -> Result<(), StoreError> {
        self.backup.give_up();
        let options = Options { epoch, ..self.options.clone() };
        let engine = open_on(Arc::clone(&self.disk), options)?;
        for text in &engine.report().discarded {
            eprintln!("weft: the recovery of this node: {text}");
        }
        let newest = engine.newest().0;
        let court = Court::new(
            epoch,
            newest,
            self.record.backups(),
            self.lease,
            Arc::clone(&self.shared.control),
            self.now,
        );
        let court = Arc::new(court);
        engine.set_shipper(Some(Arc::clone(&court) as Arc<dyn Shipper>));
        let before = self.shared.numbers.given();
        // Above all numbers that the front end has, if it has any.
        let base = if before == 0 { 0 } else { (before + 1).saturating_sub(newest) };
        let serves = AtomicBool::new(false);
        let reign = Arc::new(Reign { engine, court, base, before, serves });
        *self.shared.reign.write() = Some(Arc::clone(&reign));
        self.leading =
            Some(Leading { reign, links: BTreeMap::new(), handing: None, home_since: None });
        let region = self.record.region;
        tracing::info!("this node is the primary of region {region} in epoch {epoch}");
        self.link();
        Ok(())
    }

    /// Starts a link to each member that has none.
    fn link(&mut self) {
        let Some(leading) = &mut self.leading else { return };
        for (peer, member) in (0..).zip(&self.record.members) {
            if peer == self.me || leading.links.contains_key(&peer) {
                continue;
            }
            if let Some(link) = (self.start_link)(peer, member, &leading.reign) {
                leading.links.insert(peer, link);
            }
        }
    }

    /// One step of a primary. Returns the pause before the next one.
    fn lead_on(&mut self) -> Duration {
        let Some(leading) = &self.leading else { return SOON };
        let reign = Arc::clone(&leading.reign);
        let (epoch, me) = (reign.court.epoch, self.me);
        let is_seen = self.look().is_some();
        if is_seen {
            *self.shared.trouble.lock() = None;
        }
        if is_seen && (self.record.epoch, self.record.primary) != (epoch, Some(me)) {
            reign.court.end();
        }
        if reign.court.is_over() {
            drop(reign);
            self.step_down();
            return Duration::ZERO;
        }
        self.link();
        if let Some(backups) = reign.court.proposal() {
            self.propose(&reign, backups);
        }
        let wish = self.shared.failover.lock().take();
        if let Some(how) = wish {
            self.begin_hand_over(how, Cause::Asked);
        } else if reign.engine.failure().is_some() {
            self.begin_hand_over(Failover::default(), Cause::Leaves);
        } else {
            self.go_home();
        }
        if self.hand_over() {
            return SOON;
        }
        if !reign.serves.load(Ordering::Acquire) {
            if !reign.court.is_whole() || !reign.court.is_valid() {
                return SOON;
            }
            reign.serves.store(true, Ordering::Release);
        }
        LOOK
    }

    fn propose(&mut self, reign: &Reign, backups: BTreeSet<Peer>) {
        let (epoch, me) = (reign.court.epoch, self.me);
        match self.change(|record| record.name_backups(me, epoch, &backups)) {
            Ok(true) => {
                tracing::info!("in sync with this node: {backups:?}");
                reign.court.recorded(backups);
            }
            Ok(false) => reign.court.end(),
            Err(error) => {
                tracing::warn!("{error}");
                reign.court.in_doubt();
            }
        }
    }

    /// Is the primary no more.
    fn step_down(&mut self) {
        let Some(Leading { reign, links, .. }) = self.leading.take() else { return };
        reign.court.end();
        reign.serves.store(false, Ordering::Release);
        *self.shared.reign.write() = None;
        links.into_values().for_each(|end| end());
        let (region, epoch) = (self.record.region, reign.court.epoch);
        tracing::info!("this node is not the primary of region {region} in epoch {epoch} any more");
        // Commands that are carried out, and a copy that is written, keep the engine for a while.
        let mut reign = reign;
        let engine = loop {
            match Arc::try_unwrap(reign) {
                Ok(reign) => break reign.engine,
                Err(kept) => reign = kept,
            }
            thread::sleep(SOON);
        };
        engine.set_shipper(None);
        if self.shared.is_ending.load(Ordering::Acquire) {
            if let Err(error) = engine.close() {
                eprintln!("weft: the store could not be closed; nothing is lost: {error}");
            }
            return;
        }
        if let Some(why) = engine.failure() {
            self.backup.fail(why);
        }
        drop(engine);
        let (me, lease, now) = (self.me, self.lease, self.now);
        self.backup.decide(|follower| *follower = Follower::new(me, lease, now()));
        self.take_over();
    }

    /// Makes the view of the front end.
    pub fn show(&self) {
        let record = &self.record;
        let reign = self.leading.as_ref().map(|leading| &leading.reign);
        let serves = reign.is_some_and(|reign| reign.check().is_ok());
        let place = |peer: Peer| peer as usize;
        let primary = record.primary.filter(|peer| *peer != self.me || serves).map(place);
        let members = (0..).zip(&record.members).map(|(peer, member): (Peer, _)| Member {
            id: member.id.clone(),
            host: member.host.clone(),
            port: member.port,
            is_up: peer == self.me || record.in_sync.contains(&peer),
        });
        let (first, last) = record.slots();
        let region = Region {
            id: record.region.into(),
            first,
            last,
            epoch: record.epoch.into(),
            primary,
            in_sync: record.backups().into_iter().map(place).collect(),
        };
        let mut view = View {
            version: 0,
            is_cluster: true,
            myself: self.me as usize,
            members: members.collect(),
            regions: vec![region],
        };
        let mut shown = self.shared.view.write();
        view.version = shown.version;
        if **shown != view {
            view.version += 1;
            *shown = Arc::new(view);
        }
    }
}

//! A simulated node: the front end, and of each region the thread of control and the backup of a
//! real one, which are carried out step by step.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use weft_kv::cluster::MemberEntry;
use weft_kv::disk::Disk;
use weft_kv::disk::simulated::SimulatedDisk;
use weft_kv::engine::Options;
use weft_kv::node::{Durability, Failover, Node, Report, View};
use weft_kv::replication::primary::Peer;
use weft_kv::store::{Change, Lsn, Pair, Store, StoreError};
use weft_redis::{Clock, Server};

use super::super::Counters;
use super::super::backup::Backup;
use super::super::bell::Bell;
use super::super::control::{Control, EndLink, StartLink};
use super::super::court::Court;
use super::super::enter::{Entry, register};
use super::super::reads::{Readable, ReplicaStore};
use super::super::regions::{Regions, Round};
use super::super::shared::Shared;
use super::net::Link;
use super::record::{Cell, Way};
use super::{LEASE_MS, Line, NODES, Planted, now};
use crate::answers::{Answers, Commits, Waiting};

/// The clocks of the front end.
struct Clocks;

impl Clock for Clocks {
    fn wall(&self) -> Duration {
        now()
    }

    fn monotonic(&self) -> Duration {
        now()
    }
}

/// The node as its front end sees it: the real one, but for what is planted.
struct Front(Arc<Regions>, ReplicaStore, Option<Planted>);

impl Store for Front {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.0.get(key)
    }

    fn write(&self, batch: Vec<Change>) -> Result<Lsn, StoreError> {
        self.0.write(batch)
    }

    fn commit(&self, upto: Lsn) -> Result<(), StoreError> {
        self.0.commit(upto)
    }

    fn newest(&self) -> Lsn {
        self.0.newest()
    }

    fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        backward: bool,
        limit: usize,
    ) -> Result<Vec<Pair>, StoreError> {
        self.0.scan(from, to, backward, limit)
    }
}

impl Node for Front {
    fn view(&self) -> Arc<View> {
        self.0.view()
    }

    fn durability(&self) -> Durability {
        Durability::Replicated
    }

    fn lease_ms(&self) -> u64 {
        LEASE_MS
    }

    fn settled(&self) -> Lsn {
        match self.2 {
            Some(Planted::FailedCommitSettlesAll) => self.newest(),
            _ => self.0.settled(),
        }
    }

    fn replica(&self) -> Option<&dyn Store> {
        Some(&self.1)
    }

    fn report(&self) -> Report {
        Report::default()
    }

    fn failover(&self, _: Failover) -> Result<(), String> {
        Err("the simulation asks the thread of control".to_owned())
    }
}

/// A commit that waits for backups.
struct Committing {
    upto: Lsn,
    round: Round,
    /// Regions whose commits go on, with their batches.
    parts: Vec<(usize, Arc<Court>, u64)>,
}

/// The links of a primary, which its thread of control makes and ends.
pub(super) type Links = Arc<Mutex<BTreeMap<Peer, Link>>>;

/// A region at a node.
pub(super) struct Part {
    pub shared: Arc<Shared>,
    pub backup: Arc<Backup<Line>>,
    pub control: Control<Line>,
    pub control_at: Duration,
    pub links: Links,
    /// Messages for the writer of the backup.
    pub works: VecDeque<(Line, Vec<u8>)>,
    /// Sessions of primaries that are not ended.
    pub lent: BTreeSet<Line>,
}

/// The process of a node.
pub(super) struct Process {
    pub parts: Vec<Part>,
    regions: Arc<Regions>,
    server: Server,
    front: Arc<Front>,
    waiting: Waiting,
    commits: Commits,
    committing: Option<Committing>,
    /// A commit ended, and the front end did not look yet.
    is_over: bool,
    /// Commands that came, with their connections.
    pub inbox: VecDeque<(u64, Vec<String>)>,
    pub connections: BTreeMap<u64, Answers>,
    planted: Option<Planted>,
}

fn options() -> Options {
    Options {
        level0_bytes: 2_500,
        frozen_max: 2,
        growth: 2,
        table_bytes: 1_500,
        segment_bytes: 3_000,
        in_place_bytes: 60,
        cache_bytes: 40_000,
        threads: 0,
        boot: "boot".to_owned(),
        ..Options::default()
    }
}

impl Part {
    /// Comes into a region of so many, if its record is reached.
    fn start(
        me: usize,
        disk: &SimulatedDisk,
        way: Way,
        (region, regions): (u32, u32),
    ) -> Option<Self> {
        let disk: Arc<dyn Disk> = Arc::new(disk.clone());
        let bell = Arc::new(Bell::new().expect("a descriptor"));
        let (ours, counters) = (Arc::clone(&bell), Arc::<Counters>::default());
        let options = Options { region, ..options() };
        let backup =
            Backup::new("c".to_owned(), Arc::clone(&disk), options.clone(), ours, counters, now);
        let backup = Arc::new(backup.expect("the disk is well"));
        let (id, host) = (format!("{me:040}"), me.to_string());
        let (service, has) = (id.clone(), backup.has()?);
        let member = MemberEntry { id: id.clone(), host: host.clone(), port: 1, service, has };
        let entry = Entry { region, regions, replicas: NODES, lease_ms: LEASE_MS, member };
        let mut coordination = Box::new(way);
        let (peer, seen) = register(&mut *coordination, &entry).ok()?;
        let shared = Arc::new(Shared::new(View::alone(id, host, 1), bell));
        let links = Links::default();
        let control = Control::new(
            Arc::clone(&shared),
            Arc::clone(&backup),
            (disk, options),
            coordination,
            (peer, &seen),
            start_link(&links),
            now,
        );
        control.show();
        let (works, lent) = (VecDeque::new(), BTreeSet::new());
        Some(Self { shared, backup, control, control_at: now(), links, works, lent })
    }
}

impl Process {
    /// Starts a node, if the records are reached.
    pub fn start(
        me: usize,
        disks: &[SimulatedDisk],
        cells: &[Arc<Mutex<Cell>>],
        planted: Option<Planted>,
    ) -> Option<Self> {
        let regions = u32::try_from(cells.len()).expect("few");
        let mut parts = Vec::new();
        for (region, (disk, cell)) in (0..).zip(disks.iter().zip(cells)) {
            let way = Way { cell: Arc::clone(cell), node: me, planted };
            parts.push(Part::start(me, disk, way, (region, regions))?);
        }
        let shared = parts.iter().map(|part| Arc::clone(&part.shared)).collect();
        let regions = Arc::new(Regions::new(shared));
        let backups = parts.iter().map(|part| Arc::clone(&part.backup) as Arc<dyn Readable>);
        let replica = ReplicaStore::new(backups.collect());
        let front = Arc::new(Front(Arc::clone(&regions), replica, planted));
        let node = Arc::clone(&front) as Arc<dyn Node>;
        let waiting = Waiting::new(&*front);
        let commits = Commits::new(front.newest());
        let (known, parameters) =
            (weft_redis::Settings::default(), weft_redis::Parameters::default());
        Some(Self {
            parts,
            regions,
            server: Server::new(node, known, parameters, Box::new(Clocks)),
            front,
            waiting,
            commits,
            committing: None,
            is_over: false,
            inbox: VecDeque::new(),
            connections: BTreeMap::new(),
            planted,
        })
    }

    /// The thread of control of a region does a step.
    pub fn control(&mut self, region: usize) {
        let part = &mut self.parts[region];
        part.control_at = now() + part.control.step();
        // A reign that is over stays until the commit that goes on in it has ended.
        let is_over = |(_, court, _): &(usize, Arc<Court>, u64)| court.is_over();
        if self.committing.as_ref().is_some_and(|it| it.parts.iter().any(is_over)) {
            self.commit();
        }
    }

    /// A client connects, one that reads at replicas if it says so.
    pub fn connect(&mut self, at_replicas: bool) -> u64 {
        let id = self.server.open(weft_redis::Peer::default());
        self.connections.insert(id, Answers::default());
        if at_replicas {
            self.server.execute(id, &[&b"READONLY"[..]], &mut Vec::new());
        }
        id
    }

    /// A turn of the front end, as `turn` does it. Returns what is sent to which connection; none
    /// if the connection ends.
    pub fn turn(&mut self, commands: usize) -> Vec<(u64, Option<Vec<u8>>)> {
        self.server.begin_turn();
        let mut cut = BTreeSet::new();
        if std::mem::take(&mut self.is_over) {
            cut = self.waiting.settle(self.commits.result(), &*self.front);
            for id in &cut {
                self.connections.remove(id);
            }
        }
        for _ in 0..commands {
            let Some((id, words)) = self.inbox.pop_front() else { break };
            let Some(answers) = self.connections.get_mut(&id) else { continue };
            let words: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
            self.server.execute(id, &words, &mut answers.bytes);
            self.waiting.hold(id, answers, &*self.front);
        }
        if let Some(wanted) = self.waiting.wanted(&*self.front) {
            self.commits.want(wanted);
        }
        let connections = &mut self.connections;
        self.waiting.release(|id, safe| {
            let Some(answers) = connections.get_mut(&id) else { return false };
            answers.release(safe);
            answers.is_held()
        });
        let mut sent = Vec::new();
        for (id, answers) in connections {
            let bytes = answers.unsent().to_vec();
            if !bytes.is_empty() {
                answers.sent(bytes.len());
                answers.shrink();
                sent.push((*id, Some(bytes)));
            }
        }
        sent.extend(cut.into_iter().map(|id| (id, None)));
        sent
    }

    /// Keys that have ended go.
    pub fn tick(&mut self) {
        self.server.tick();
    }

    /// The thread that commits does a step.
    pub fn commit(&mut self) {
        if self.committing.is_none() {
            let Some(upto) = self.commits.next() else { return };
            let mut round = self.regions.begin(upto);
            let part = |part: super::super::regions::Part| {
                (part.region, Arc::clone(&part.commit.reign.court), part.commit.lsn.0)
            };
            let parts: Vec<_> = std::mem::take(&mut round.parts).into_iter().map(part).collect();
            let goes_on = !parts.is_empty();
            self.committing = Some(Committing { upto, round, parts });
            if goes_on {
                return;
            }
        }
        let Some(Committing { upto, mut round, parts }) = self.committing.take() else { return };
        let mut left = Vec::new();
        for (region, court, lsn) in parts {
            let outcome = match (court.outcome(lsn), self.planted) {
                (_, Some(Planted::AnswersBeforeBackups)) => Some(Ok(())),
                (outcome, _) => outcome,
            };
            match outcome {
                Some(result) => self.regions.end_part(&mut round, region, result),
                None => left.push((region, court, lsn)),
            }
        }
        if left.is_empty() {
            self.commits.finish(upto, self.regions.end(round));
            self.is_over = true;
        } else {
            self.committing = Some(Committing { upto, round, parts: left });
        }
    }

    /// The work behind of a primary.
    pub fn work(&self) {
        for reign in self.parts.iter().filter_map(|part| part.shared.reign().ok()) {
            reign.engine.work().expect("the disk is well");
        }
    }

    /// The epochs in which it serves as a primary.
    pub fn reigns(&self) -> Vec<u32> {
        let epoch = |part: &Part| Some(part.shared.serving().ok()?.court.epoch);
        self.parts.iter().filter_map(epoch).collect()
    }

    /// A machine whose backup catches up with this primary.
    pub fn catches_up(&self) -> Option<usize> {
        self.parts.iter().find_map(|part| {
            let links = part.links.lock().unwrap_or_else(PoisonError::into_inner);
            links.values().find_map(Link::catches_up)
        })
    }

    /// Whether it serves a region as the primary.
    pub fn serves(&self, region: usize) -> bool {
        let view = self.front.view();
        view.is_cluster && view.regions[region].primary == Some(view.myself)
    }
}

fn start_link(links: &Links) -> StartLink {
    let links = Arc::clone(links);
    Box::new(move |peer, member, reign| {
        let machine = member.host.parse().expect("its number");
        let link = Link::new(peer, machine, Arc::clone(reign));
        links.lock().unwrap_or_else(PoisonError::into_inner).insert(peer, link);
        let links = Arc::clone(&links);
        let end: EndLink = Box::new(move || {
            links.lock().unwrap_or_else(PoisonError::into_inner).remove(&peer);
        });
        Some(end)
    })
}

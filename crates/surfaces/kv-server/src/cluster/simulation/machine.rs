//! A simulated node: the front end, the thread of control and the backup of a real one, which are
//! carried out step by step.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use weft_kv::cluster::Has;
use weft_kv::disk::Disk;
use weft_kv::disk::simulated::SimulatedDisk;
use weft_kv::engine::Options;
use weft_kv::node::{Durability, Failover, Node, Report, View};
use weft_kv::replication::primary::Peer;
use weft_kv::store::{Change, Lsn, Pair, Store, StoreError};
use weft_open::Opening;
use weft_redis::{Clock, Server};

use super::super::backup::Backup;
use super::super::bell::Bell;
use super::super::control::{Control, EndLink, Identity, StartLink, register};
use super::super::court::Court;
use super::super::shared::Shared;
use super::super::{ClusterSettings, Counters};
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
struct Front(Arc<Shared>, Option<Planted>);

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
        Arc::clone(&self.0.view.read())
    }

    fn durability(&self) -> Durability {
        Durability::Replicated
    }

    fn lease_ms(&self) -> u64 {
        LEASE_MS
    }

    fn settled(&self) -> Lsn {
        match self.1 {
            Some(Planted::FailedCommitSettlesAll) => self.newest(),
            _ => Lsn(self.0.numbers.settled()),
        }
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
    court: Arc<Court>,
    lsn: u64,
}

/// The links of a primary, which its thread of control makes and ends.
pub(super) type Links = Arc<Mutex<BTreeMap<Peer, Link>>>;

/// The process of a node.
pub(super) struct Process {
    pub shared: Arc<Shared>,
    pub backup: Arc<Backup<Line>>,
    pub control: Control<Line>,
    pub control_at: Duration,
    pub links: Links,
    /// Messages for the writer of the backup.
    pub works: VecDeque<(Line, Vec<u8>)>,
    /// Sessions of primaries that are not ended.
    pub lent: BTreeSet<Line>,
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

impl Process {
    /// Starts a node, if the record is reached.
    pub fn start(
        me: usize,
        disk: &SimulatedDisk,
        cell: &Arc<Mutex<Cell>>,
        planted: Option<Planted>,
    ) -> Option<Self> {
        let disk: Arc<dyn Disk> = Arc::new(disk.clone());
        let bell = Arc::new(Bell::new().expect("a descriptor"));
        let counters = Arc::<Counters>::default();
        let (ours, theirs) = (Arc::clone(&bell), Arc::clone(&counters));
        let backup = Backup::new("c".to_owned(), Arc::clone(&disk), options(), ours, theirs, now);
        let backup = Arc::new(backup.expect("the disk is well"));
        let mut settings = ClusterSettings {
            coordination: Box::new(Way { cell: Arc::clone(cell), node: me, planted }),
            cluster: "c".to_owned(),
            replicas: NODES,
            lease_ms: LEASE_MS,
            opening: Opening::with("a simulation", &weft_options::Options::default()),
            durability: Durability::Replicated,
            address: ("h".to_owned(), 1),
        };
        let (id, host) = (format!("{me:040}"), me.to_string());
        let identity =
            Identity { id: id.clone(), host: host.clone(), port: 1, service: id.clone() };
        let has: Has = backup.has()?;
        let (peer, seen) = register(&mut settings, &identity, has).ok()?;
        let shared = Arc::new(Shared::new(View::alone(id, host, 1), bell, counters));
        let links = Links::default();
        let control = Control::new(
            Arc::clone(&shared),
            Arc::clone(&backup),
            (disk, options()),
            settings,
            (peer, &seen),
            start_link(&links),
            now,
        );
        control.show();
        let front = Arc::new(Front(Arc::clone(&shared), planted));
        let node = Arc::clone(&front) as Arc<dyn Node>;
        let waiting = Waiting::new(&*front);
        let commits = Commits::new(front.newest());
        let (known, parameters) =
            (weft_redis::Settings::default(), weft_redis::Parameters::default());
        Some(Self {
            shared,
            backup,
            control,
            control_at: now(),
            links,
            works: VecDeque::new(),
            lent: BTreeSet::new(),
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

    /// The thread of control does a step.
    pub fn control(&mut self) {
        self.control_at = now() + self.control.step();
        // A reign that is over stays until the commit that goes on in it has ended.
        if self.committing.as_ref().is_some_and(|it| it.court.is_over()) {
            self.commit();
        }
    }

    /// A client connects.
    pub fn connect(&mut self) -> u64 {
        let id = self.server.open(weft_redis::Peer::default());
        self.connections.insert(id, Answers::default());
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
        let Some(Committing { upto, court, lsn }) = &self.committing else {
            let Some(upto) = self.commits.next() else { return };
            match self.shared.begin_commit(upto) {
                Err(error) => self.committed(upto, Err(error)),
                Ok(commit) => match commit.reign.engine.write_out(commit.lsn) {
                    Ok(()) => {
                        let court = Arc::clone(&commit.reign.court);
                        self.committing = Some(Committing { upto, court, lsn: commit.lsn.0 });
                    }
                    Err(error) => {
                        self.shared.end_commit(upto, false);
                        self.committed(upto, Err(error));
                    }
                },
            }
            return;
        };
        let outcome = match (court.outcome(*lsn), self.planted) {
            (_, Some(Planted::AnswersBeforeBackups)) => Some(Ok(())),
            (outcome, _) => outcome,
        };
        if let Some(result) = outcome {
            let upto = *upto;
            self.shared.end_commit(upto, result.is_ok());
            self.committed(upto, result);
            self.committing = None;
        }
    }

    fn committed(&mut self, upto: Lsn, result: Result<(), StoreError>) {
        self.commits.finish(upto, result);
        self.is_over = true;
    }

    /// The work behind of a primary.
    pub fn work(&self) {
        if let Ok(reign) = self.shared.reign() {
            reign.engine.work().expect("the disk is well");
        }
    }

    /// The epoch in which it serves as the primary.
    pub fn reigns(&self) -> Option<u32> {
        Some(self.shared.serving().ok()?.court.epoch)
    }

    /// A machine whose backup catches up with this primary.
    pub fn catches_up(&self) -> Option<usize> {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.values().find_map(Link::catches_up)
    }

    /// Whether it serves as the primary.
    pub fn serves(&self) -> bool {
        let view = self.front.view();
        view.is_cluster && view.regions[0].primary == Some(view.myself)
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

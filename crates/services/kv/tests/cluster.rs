//! Leases and the choice of primaries, in virtual time: links are cut, nodes stop and go on, the
//! coordinator is away or answers late. Never may two nodes answer reads at a time.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weft_kv::cluster::{Follower, Has, Leases, MemberEntry, Record, Step};
use weft_kv::replication::primary::Peer;

const NODES: u32 = 3;
const LEASE: Duration = Duration::from_millis(1_000);
const STEP: Duration = Duration::from_millis(10);

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// The role of a node.
enum Role {
    Follower,
    Leader(Box<Leader>),
}

struct Leader {
    epoch: u32,
    leases: Leases,
    recorded: BTreeSet<Peer>,
    /// A change of the record that has no answer yet: the backups, and when the answer comes.
    in_doubt: Option<(BTreeSet<Peer>, bool, Duration)>,
    /// When which backup gave the lease, or the leader began.
    heard: BTreeMap<Peer, Duration>,
    serves: bool,
}

struct Node {
    role: Role,
    follower: Follower,
    /// Takes what a primary sends, of this one.
    session: Option<Peer>,
    follows: Option<u32>,
    epoch: u32,
    stopped_until: Duration,
    /// It does not reach the coordinator.
    blind_until: Duration,
}

/// A question for the lease, or the answer to it.
struct Letter {
    at: Duration,
    from: Peer,
    to: Peer,
    epoch: u32,
    asked: Duration,
    is_answer: bool,
}

struct World {
    random: ChaCha8Rng,
    /// How long followers wait.
    patience: Duration,
    now: Duration,
    record: Record,
    nodes: Vec<Node>,
    letters: Vec<Letter>,
    cut: BTreeSet<(Peer, Peer)>,
    reigns: u32,
    served: u32,
}

impl World {
    /// Followers stand after this time; a right one waits for the whole lease.
    fn new(seed: u64, patience: Duration) -> Self {
        let mut record = Record::new(NODES, 1_000);
        for number in 0..NODES {
            let (id, service) = (number.to_string(), String::new());
            let entry =
                MemberEntry { id, host: String::new(), port: 1, service, has: Has::default() };
            record.register(entry, NODES).unwrap();
        }
        let node = |me| Node {
            role: Role::Follower,
            follower: Follower::new(me, patience, Duration::ZERO),
            session: None,
            follows: None,
            epoch: 0,
            stopped_until: Duration::ZERO,
            blind_until: Duration::ZERO,
        };
        Self {
            random: ChaCha8Rng::seed_from_u64(seed),
            patience,
            now: Duration::ZERO,
            record,
            nodes: (0..NODES).map(node).collect(),
            letters: Vec::new(),
            cut: BTreeSet::new(),
            reigns: 0,
            served: 0,
        }
    }

    fn later(&mut self, most: u64) -> Duration {
        self.now + millis(self.random.random_range(1..most))
    }

    fn is_cut(&self, a: Peer, b: Peer) -> bool {
        self.cut.contains(&(a.min(b), a.max(b)))
    }

    fn follow(&mut self, me: Peer) {
        if self.nodes[me as usize].blind_until > self.now {
            return;
        }
        let has = Has { epoch: self.nodes[me as usize].epoch, lsn: 0 };
        let (now, record) = (self.now, self.record.clone());
        let node = &mut self.nodes[me as usize];
        match node.follower.step(&record, has, now) {
            Step::Follow(epoch) => node.follows = Some(epoch),
            Step::Wait => {}
            Step::Stand => {
                (node.session, node.follows) = (None, None);
                if self.record.stand(me, record.epoch, has) {
                    self.nodes[me as usize].follower.stands(now);
                }
            }
            Step::Promote => drop(self.record.promote(me)),
            Step::Lead(epoch) => {
                node.epoch = epoch;
                (node.session, node.follows) = (None, None);
                self.reigns += 1;
                let heard = (0..NODES).map(|peer| (peer, now)).collect();
                node.role = Role::Leader(Box::new(Leader {
                    epoch,
                    leases: Leases::new(LEASE),
                    recorded: record.backups(),
                    in_doubt: None,
                    heard,
                    serves: false,
                }));
            }
        }
    }

    /// The peers that a primary counts as its backups.
    fn counted(leader: &Leader) -> BTreeSet<Peer> {
        let in_doubt = leader.in_doubt.iter().flat_map(|doubt| &doubt.0);
        leader.recorded.iter().chain(in_doubt).copied().collect()
    }

    fn lead(&mut self, me: Peer) {
        let now = self.now;
        for peer in (0..NODES).filter(|peer| *peer != me) {
            let Role::Leader(leader) = &self.nodes[me as usize].role else { return };
            let epoch = leader.epoch;
            if self.is_cut(me, peer) || self.random.random_range(0..4) > 0 {
                continue;
            }
            let other = &mut self.nodes[peer as usize];
            let may = other.follows.is_some_and(|lowest| epoch >= lowest);
            if may && other.stopped_until <= now && other.session != Some(me) {
                other.session = Some(me);
                other.epoch = other.epoch.max(epoch);
            }
            let at = self.later(120);
            self.letters.push(Letter {
                at,
                from: me,
                to: peer,
                epoch,
                asked: now,
                is_answer: false,
            });
        }
        let looks = self.random.random_range(0..5) == 0;
        let delay = self.later(400);
        if self.nodes[me as usize].blind_until > now {
            return;
        }
        let Role::Leader(leader) = &mut self.nodes[me as usize].role else { return };
        if let Some((backups, well, at)) = &leader.in_doubt {
            if *at > now {
                return;
            }
            if !*well {
                self.step_down(me);
                return;
            }
            leader.recorded = backups.clone();
            leader.in_doubt = None;
        }
        let epoch = leader.epoch;
        let hears = |peer: &Peer| now < leader.heard[peer] + LEASE * 6 / 10;
        let wanted: BTreeSet<Peer> = (0..NODES).filter(|peer| *peer != me && hears(peer)).collect();
        if wanted != leader.recorded {
            // It is changed now, and the answer comes later.
            let well = self.record.name_backups(me, epoch, &wanted);
            leader.in_doubt = Some((wanted, well, delay));
        } else if looks && (self.record.epoch, self.record.primary) != (epoch, Some(me)) {
            self.step_down(me);
        } else {
            let follows = |peer: &Peer| leader.heard[peer] > Duration::ZERO;
            leader.serves |= leader.recorded.iter().all(follows);
        }
    }

    fn step_down(&mut self, me: Peer) {
        let node = &mut self.nodes[me as usize];
        node.role = Role::Follower;
        node.follower = Follower::new(me, self.patience, self.now);
    }

    fn deliver(&mut self) {
        let now = self.now;
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.letters).into_iter().partition(|letter| {
                letter.at <= now && self.nodes[letter.to as usize].stopped_until <= now
            });
        self.letters = later;
        for letter in due {
            let Letter { from, to, epoch, asked, is_answer, .. } = letter;
            if self.is_cut(from, to) {
                continue;
            }
            let node = &mut self.nodes[to as usize];
            match &mut node.role {
                Role::Leader(leader) if is_answer && leader.epoch == epoch => {
                    leader.leases.give(from, asked);
                    leader.heard.insert(from, now);
                }
                Role::Follower
                    if !is_answer && node.session == Some(from) && node.follower.give(now) =>
                {
                    let (at, from, to) = (self.later(120), to, from);
                    self.letters.push(Letter { at, from, to, epoch, asked, is_answer: true });
                }
                _ => {}
            }
        }
    }

    /// The nodes that would answer a read now.
    fn serving(&self) -> Vec<Peer> {
        let serves = |peer: &Peer| match &self.nodes[*peer as usize].role {
            Role::Leader(leader) => {
                leader.serves && self.now < leader.leases.until(&Self::counted(leader))
            }
            Role::Follower => false,
        };
        (0..NODES).filter(serves).collect()
    }

    /// Runs for a while. The number of nodes that served at a time at most.
    fn run(&mut self, steps: u32) -> usize {
        let mut most = 0;
        for _ in 0..steps {
            self.now += STEP;
            let (a, b) = (self.random.random_range(0..NODES), self.random.random_range(0..NODES));
            match self.random.random_range(0..250) {
                0 if a != b => drop(self.cut.insert((a.min(b), a.max(b)))),
                1 | 2 => self.cut.clear(),
                4 => self.nodes[a as usize].blind_until = self.later(3_000),
                3 => self.nodes[a as usize].stopped_until = self.later(3_000),
                _ => {}
            }
            self.deliver();
            for me in 0..NODES {
                let node = &self.nodes[me as usize];
                if node.stopped_until > self.now {
                    continue;
                }
                match node.role {
                    Role::Follower => self.follow(me),
                    Role::Leader(_) => self.lead(me),
                }
                assert!(self.record.is_sound(), "{:?}", self.record);
            }
            let serving = self.serving().len();
            self.served += u32::from(serving > 0);
            most = most.max(serving);
        }
        most
    }
}

#[test]
fn two_nodes_never_answer_reads_at_a_time() {
    let (mut reigns, mut served) = (0, 0);
    for seed in 0..60 {
        let mut world = World::new(seed, LEASE);
        assert!(world.run(6_000) < 2, "seed {seed}");
        reigns += world.reigns;
        served += world.served;
    }
    println!("{reigns} reigns, served in {served} steps");
    assert!(reigns > 200 && served > 60 * 6_000 / 4);
}

#[test]
fn followers_that_wait_less_than_the_lease_are_found_out() {
    let most = (0..60).map(|seed| World::new(seed, LEASE / 10).run(6_000)).max();
    assert_eq!(most, Some(2));
}

/// Between the decision to stand and the end of the session a question of the old primary may come.
#[test]
fn who_is_about_to_stand_gives_no_lease() {
    let mut record = Record::new(1, 400);
    for id in ["a", "b"] {
        let (id, host, service) = (id.to_owned(), String::new(), String::new());
        let entry = MemberEntry { id, host, port: 1, service, has: Has::default() };
        record.register(entry, 1).unwrap();
    }
    record.in_sync = [0, 1].into();
    let (has, lease) = (Has { epoch: 1, lsn: 0 }, millis(400));
    let mut follower = Follower::new(1, lease, Duration::ZERO);
    assert_eq!(follower.step(&record, has, millis(399)), Step::Follow(1));
    assert!(follower.give(millis(399)));
    assert_eq!(follower.step(&record, has, millis(799)), Step::Stand);
    assert!(!follower.give(millis(799)));
    // The primary is another one by now.
    record.epoch = 2;
    assert_eq!(follower.step(&record, has, millis(800)), Step::Follow(2));
    assert!(follower.give(millis(800)));
}

//! Collectives of groups on several hosts over a simulated fabric, which delays, reorders, is cut,
//! has little room, and in which PEs die. A seed determines each run: the hosts and how many PEs
//! each has, the members, the collectives and their lengths.
//!
//! Each member does what its plan says. As soon as it is through it writes new data to its source
//! and spoils its destination, as a program may. These must hold: each destination has the result,
//! in the order of the members where that matters; and where a PE dies, all others come to an end.
//!
//! `WEFT_SEEDS=from..to` runs other seeds.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use weft_fabric::{
    Access, Atomic, Audience, Blocking, Endpoint, EndpointOptions, LocalRange, NodeId, PATIENCE,
    Region, Transport,
};
use weft_pgas::collective::Step;
use weft_pgas::collective::plan::{self, Across, Action, Area, Place, Reduction};
use weft_pgas::far::driver::Quiet;
use weft_pgas::far::entry::Breach;
use weft_pgas::far::machine::{Goes, Memory, Refused};
use weft_pgas::far::{
    self, Driver, Far, INLINE_BYTES, LANDING_BYTES, Lands, News, Regions, Segment, WORKSPACE,
};
use weft_transport_sim::{Settings, SimEndpoint, SimRegion, SimWorld};

/// Bytes of an element.
const WORD: usize = 8;
/// Elements of a member: those that fit into an inline put, into questions, and into neither.
const LENGTHS: [usize; 8] = [1, 7, 16, 17, 65, 126, 127, 700];
const PES_MAX: usize = 24;
/// Elements of an area of a heap.
const AREA: usize = 2 * 700 * PES_MAX;
const HEAP_BYTES: usize = 2 * AREA * WORD;
/// Bytes of a get by a question at most.
const ASKED_BYTES: usize = 112;
const COLLECTIVES: u64 = 10;
const STEPS: u64 = 8;
/// An answer lands in the workspace from this number on.
const IN_WORKSPACE: usize = 1 << 40;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).expect("31 bits") % limit
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

/// The steps that PEs reached, as their own hosts see them.
type Steps = Rc<RefCell<Vec<u64>>>;

/// The memory of a PE.
struct Own {
    heap: SimRegion,
    landing: SimRegion,
    /// The steps that PEs of other hosts showed.
    shown: Steps,
}

impl Memory for Own {
    fn write(&mut self, place: far::Place, bytes: &[u8]) -> Result<(), Breach> {
        self.heap.write(place.offset, bytes).expect("plans name what is there");
        Ok(())
    }

    fn read(&mut self, place: far::Place, into: &mut [u8]) -> Result<(), Breach> {
        self.heap.read(place.offset, into).expect("plans name what is there");
        Ok(())
    }

    fn change(&mut self, _: far::Place, _: Atomic) -> Result<u64, Breach> {
        unreachable!("nobody changes words")
    }

    fn show(&mut self, of: usize, _: usize, bytes: &[u8]) -> Result<(), Breach> {
        let step = u64::from_le_bytes(bytes.try_into().expect("a step"));
        let shown = &mut self.shown.borrow_mut()[of];
        assert!(*shown < step, "steps grow");
        *shown = step;
        Ok(())
    }

    fn land(&mut self, at: usize, bytes: &[u8]) {
        // Bytes for the workspace have higher numbers than those for the heap.
        let (region, offset) = match at.checked_sub(IN_WORKSPACE) {
            Some(offset) => (&self.landing, WORKSPACE + offset),
            None => (&self.heap, at),
        };
        region.write(offset as u64, bytes).expect("it is there");
    }
}

/// A collective, the same at all members.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Broadcast { root: usize, to_root: bool },
    Fcollect,
    Collect,
    Alltoalls { sst: usize, dst: usize },
    Reduce { is_exact: bool, in_place: bool, part: usize, room: usize },
}

#[derive(Clone, Copy, Debug)]
struct Collective {
    number: u64,
    kind: Kind,
    count: usize,
}

/// The element of a member with a number, in a collective.
fn element(number: u64, member: usize, index: usize) -> u64 {
    (number * 1_000_003 + member as u64 * 1009 + index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Combines two elements. The order of operands matters unless it is exact.
fn combined(is_exact: bool, left: u64, right: u64) -> u64 {
    if is_exact { left.wrapping_add(right) } else { left.wrapping_mul(31).wrapping_add(right) }
}

impl Collective {
    fn random(random: &mut Random, number: u64, size: usize) -> Self {
        let count = random.of(&LENGTHS);
        let kind = match random.below(6) {
            0 => Kind::Broadcast { root: random.below(size), to_root: random.below(2) == 0 },
            1 => Kind::Fcollect,
            2 => Kind::Collect,
            3 => Kind::Alltoalls { sst: 1 + random.below(2), dst: 1 + random.below(2) },
            _ => Kind::Reduce {
                is_exact: random.below(2) == 0,
                in_place: random.below(2) == 0,
                part: random.of(&[1000, 64, 5]),
                room: random.of(&[1000, 100]),
            },
        };
        // One element after the other, each a question: few of them.
        let is_strided = matches!(kind, Kind::Alltoalls { sst, dst } if (sst, dst) != (1, 1));
        Self { number, kind, count: if is_strided { count.min(17) } else { count } }
    }

    /// How many elements a member of a collect has.
    fn count_of(&self, member: usize) -> usize {
        match self.kind {
            Kind::Collect => self.count * (member * 7 % 3) / 2,
            _ => self.count,
        }
    }

    fn strides(&self) -> (usize, usize) {
        match self.kind {
            Kind::Alltoalls { sst, dst } => (sst, dst),
            _ => (1, 1),
        }
    }

    fn plan(&self, across: &Across, me: usize) -> Vec<Action> {
        let ready = [Action::Meet(Step::Ready)];
        match self.kind {
            Kind::Broadcast { root, to_root } => {
                plan::broadcast(across, me, root, self.count, to_root)
            }
            Kind::Fcollect | Kind::Collect => {
                let mut first = 0;
                let block = |member| {
                    let start = first;
                    first += self.count_of(member);
                    start..first
                };
                let blocks: Vec<_> = (0..across.size()).map(block).collect();
                ready.into_iter().chain(plan::gather(across, me, &blocks)).collect()
            }
            Kind::Alltoalls { .. } => plan::exchange(across, me, self.count),
            Kind::Reduce { is_exact, in_place, part, room } => {
                let (elements, line) = (self.count, 8);
                let reduction = Reduction { elements, is_exact, in_place, line, part, room };
                plan::reduce(across, me, &reduction)
            }
        }
    }

    /// The elements that a member's destination must have, by number.
    fn expected(&self, me: usize, size: usize) -> Vec<(usize, u64)> {
        let of = |member: usize, index: usize| element(self.number, member, index);
        match self.kind {
            Kind::Broadcast { root, to_root } if me != root || to_root => {
                (0..self.count).map(|index| (index, of(root, index))).collect()
            }
            Kind::Broadcast { .. } => Vec::new(),
            Kind::Fcollect | Kind::Collect => {
                let all = (0..size)
                    .flat_map(|member| (0..self.count_of(member)).map(move |at| (member, at)));
                all.enumerate().map(|(at, (member, index))| (at, of(member, index))).collect()
            }
            Kind::Alltoalls { sst, dst } => (0..size * self.count)
                .map(|at| {
                    let sent = me * self.count + at % self.count;
                    (at * dst, of(at / self.count, sent * sst))
                })
                .collect(),
            Kind::Reduce { is_exact, .. } => (0..self.count)
                .map(|index| {
                    let all = (0..size).map(|member| of(member, index));
                    (index, all.reduce(|l, r| combined(is_exact, l, r)).expect("a member"))
                })
                .collect(),
        }
    }
}

/// A member of the group, or a PE that looks on.
struct Pe {
    number: usize,
    driver: Driver<SimEndpoint, Own>,
    /// Its number in the group.
    me: usize,
    collectives: Vec<Collective>,
    plan: std::vec::IntoIter<Action>,
    doing: Option<Action>,
    /// How much of an action was begun.
    done: usize,
    quiet: Option<Quiet>,
    put_to: Vec<usize>,
    shown: Steps,
    is_lost: bool,
    ended: bool,
}

/// The facts that all PEs of a run share.
struct Run {
    group: Vec<usize>,
    hosts: Vec<usize>,
    heaps: Vec<SimRegion>,
    landings: Vec<SimRegion>,
    /// The steps of all PEs, which those of their host see.
    steps: Steps,
}

fn bytes_of(region: &SimRegion, offset: usize, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count * WORD];
    region.read(offset as u64, &mut bytes).expect("it is there");
    bytes
}

fn words_of(region: &SimRegion, offset: usize, count: usize) -> Vec<u64> {
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("a word"));
    bytes_of(region, offset, count).chunks(WORD).map(word).collect()
}

fn heap(offset: usize) -> far::Place {
    far::Place { segment: Segment::Heap, offset: offset as u64 }
}

impl Pe {
    fn collective(&self) -> &Collective {
        self.collectives.last().expect("it is in one")
    }

    /// The offset of an element in a heap, or in the workspace.
    fn offset(&self, area: Area, first: usize) -> usize {
        let (sst, dst) = self.collective().strides();
        let in_place = matches!(self.collective().kind, Kind::Reduce { in_place: true, .. });
        match area {
            Area::Source => first * sst * WORD,
            Area::Dest if in_place => first * WORD,
            Area::Dest => (AREA + first * dst) * WORD,
            Area::Workspace => first * WORD,
        }
    }

    /// How many of some elements lie one behind the other.
    fn piece(&self, count: usize) -> usize {
        if self.collective().strides() == (1, 1) { count } else { 1 }
    }

    /// Begins the next collective with new data, or ends.
    fn begin(&mut self, run: &Run) {
        let Some(collective) = self.collectives.last().copied() else {
            self.ended = true;
            return;
        };
        let own = &run.heaps[self.number];
        let used = (collective.count * run.group.len() * 2).min(AREA);
        let words = (0..used).map(|index| element(collective.number, self.me, index));
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        own.write(0, &bytes).expect("it is there");
        own.write((AREA * WORD) as u64, &vec![0xaa; bytes.len()]).expect("it is there");
        let across = Across::of(run.host(self.number), run.members()).expect("several hosts");
        self.plan = collective.plan(&across, self.me).into_iter();
    }

    fn check(&mut self, run: &Run) {
        let own = &run.heaps[self.number];
        let collective = *self.collective();
        let used = (collective.count * run.group.len() * 2).min(AREA);
        let found = words_of(own, self.offset(Area::Dest, 0), used);
        for (at, value) in collective.expected(self.me, run.group.len()) {
            assert_eq!(found[at], value, "{collective:?}: element {at} at member {}", self.me);
        }
        self.collectives.pop();
    }

    /// Goes on as far as it can.
    fn go_on(&mut self, run: &Run, across: &Across, through: &mut usize) {
        while !self.ended && !self.is_lost {
            let Some(action) = self.doing.take().or_else(|| self.plan.next()) else {
                self.check(run);
                *through += 1;
                self.begin(run);
                continue;
            };
            match self.act(&action, run, across) {
                Ok(true) => self.done = 0,
                Ok(false) | Err(Refused::Busy) => {
                    self.doing = Some(action);
                    return;
                }
                Err(Refused::Down { .. }) => self.is_lost = true,
            }
        }
    }

    /// Whether an action is over.
    fn act(&mut self, action: &Action, run: &Run, across: &Across) -> Result<bool, Refused> {
        let own = &run.heaps[self.number];
        match *action {
            Action::Get { from, to, count } => return self.get(from, to, count, run),
            Action::Landed => {
                let quiet = self.quiet.take();
                let mut quiet = quiet.unwrap_or_else(|| self.driver.begin_landing());
                if !self.driver.is_over(&mut quiet)? {
                    self.quiet = Some(quiet);
                    return Ok(false);
                }
            }
            Action::Copy { from, to, count } => {
                assert!(across.is_near(from.member), "a far member is not read");
                let theirs = &run.heaps[run.group[from.member]];
                let piece = self.piece(count);
                for index in (0..count).step_by(piece) {
                    let from = self.offset(from.area, from.first + index);
                    let elements = bytes_of(theirs, from, piece);
                    let to = self.offset(Area::Dest, to + index);
                    own.write(to as u64, &elements).expect("it is there");
                }
            }
            Action::Combine { ref of, to, count } => {
                let Kind::Reduce { is_exact, .. } = self.collective().kind else {
                    unreachable!("reductions combine")
                };
                let operand = |place: &Place| {
                    let offset = self.offset(place.area, place.first);
                    if place.area == Area::Workspace {
                        words_of(run.landing(self), WORKSPACE + offset, count)
                    } else {
                        assert!(across.is_near(place.member), "a far member is not read");
                        words_of(&run.heaps[run.group[place.member]], offset, count)
                    }
                };
                let add = |left: Vec<u64>, right: Vec<u64>| {
                    let pairs = left.into_iter().zip(right);
                    pairs.map(|(left, right)| combined(is_exact, left, right)).collect()
                };
                let result: Vec<u64> = of.iter().map(operand).reduce(add).expect("an operand");
                let bytes: Vec<u8> = result.into_iter().flat_map(u64::to_le_bytes).collect();
                own.write(self.offset(Area::Dest, to) as u64, &bytes).expect("it is there");
            }
            Action::Put { member, first, count } => {
                let (pe, place) = (run.group[member], self.offset(Area::Dest, first));
                let bytes = bytes_of(own, place, count);
                self.driver.put(pe, heap(place), &bytes, bytes.len() > INLINE_BYTES)?;
                self.put_to.push(pe);
            }
            Action::Quiet => {
                let only = self.put_to.as_slice();
                let quiet = self.quiet.take();
                let mut quiet = quiet.unwrap_or_else(|| self.driver.begin_quiet(Some(only)));
                if !self.driver.is_over(&mut quiet)? {
                    self.quiet = Some(quiet);
                    return Ok(false);
                }
                self.put_to.clear();
            }
            Action::Meet(step) => return Ok(self.meet(step, run, across)),
        }
        Ok(true)
    }

    fn get(&mut self, from: Place, to: Place, count: usize, run: &Run) -> Result<bool, Refused> {
        let pe = run.group[from.member];
        assert_ne!(run.hosts[pe], run.hosts[self.number], "memory of the host is mapped");
        let piece = self.piece(count);
        while self.done < count {
            let first = self.done;
            let at = self.offset(from.area, from.first + first);
            let into = self.offset(to.area, to.first + first);
            let length = piece * WORD;
            if length > ASKED_BYTES {
                let lands = match to.area {
                    Area::Workspace => Lands::InWorkspace(into),
                    _ => Lands::At(heap(into)),
                };
                self.driver.get_straight(pe, heap(at), length, lands)?;
            } else {
                let bias = if to.area == Area::Workspace { IN_WORKSPACE } else { 0 };
                self.driver.read(pe, heap(at), length, Goes::To(bias + into))?;
            }
            self.done += piece;
        }
        Ok(true)
    }

    /// Shows a step once, and says whether those who meet there have reached it.
    fn meet(&mut self, step: Step, run: &Run, across: &Across) -> bool {
        let step_number = self.collective().number * STEPS + step as u64;
        let own = std::mem::replace(&mut run.steps.borrow_mut()[self.number], step_number);
        if own < step_number && !step.is_near() {
            for pe in &across.far {
                self.driver.show(*pe, 0, &step_number.to_le_bytes());
            }
        }
        let near = run.steps.borrow();
        let mut near = across.near().iter().map(|member| near[run.group[*member]]);
        let far = self.shown.borrow();
        let is_here = |reached: u64| reached >= step_number;
        near.all(is_here) && (step.is_near() || across.far.iter().all(|pe| is_here(far[*pe])))
    }
}

impl Run {
    /// The memory in which gets of a PE land.
    fn landing<'a>(&'a self, pe: &Pe) -> &'a SimRegion {
        &self.landings[pe.number]
    }

    fn host(&self, pe: usize) -> u32 {
        u32::try_from(self.hosts[pe]).expect("it is small")
    }

    /// The members by their numbers in the world, and their hosts.
    fn members(&self) -> impl Iterator<Item = (usize, u32)> {
        self.group.iter().map(|pe| (*pe, self.host(*pe)))
    }

    /// A run of a seed: the hosts, and a group whose members are on several of them.
    fn random(random: &mut Random) -> (Vec<usize>, Vec<usize>) {
        loop {
            let hosts = 2 + random.below(5);
            let sizes: Vec<usize> = (0..hosts).map(|_| 1 + random.below(5)).collect();
            let pes: usize = sizes.iter().sum::<usize>().min(PES_MAX);
            // Launchers place PEs host by host, or in turns.
            let in_turns = random.below(2) == 0;
            let by_host = sizes.iter().enumerate().flat_map(|(host, size)| vec![host; *size]);
            let mut places: Vec<usize> = by_host.take(pes).collect();
            if in_turns {
                places = (0..pes).map(|pe| pe % hosts).collect();
            }
            let (start, stride) = (random.below(pes), 1 + random.below(3));
            let mut group: Vec<usize> = (start..pes).step_by(stride).collect();
            if random.below(2) == 0 {
                group.reverse();
            }
            if group.iter().any(|pe| places[*pe] != places[group[0]]) {
                return (places, group);
            }
        }
    }
}

/// Opens all PEs, each connected to those of other hosts.
fn open(world: &SimWorld, hosts: Vec<usize>, group: Vec<usize>) -> (Vec<Pe>, Run) {
    let node = |host: usize| NodeId(u32::try_from(host).expect("it is small"));
    let mut ends = Vec::new();
    for host in &hosts {
        let mut end =
            world.transport(node(*host), 1000).open(&EndpointOptions::default()).expect("room");
        let region = end.register(HEAP_BYTES as u64).expect("memory");
        let landing = end.register(LANDING_BYTES as u64).expect("memory");
        let (whole, access) = (LocalRange::whole(&region), Access::READ | Access::WRITE);
        let key = end.grant_within(whole, Audience::Partition, access, PATIENCE).expect("a key");
        ends.push((end, region, landing, key));
    }
    let places: Vec<_> = ends.iter().map(|(end, .., key)| (end.address(), *key)).collect();
    let run = Run {
        heaps: ends.iter().map(|(_, region, ..)| region.clone()).collect(),
        landings: ends.iter().map(|(_, _, landing, _)| landing.clone()).collect(),
        steps: Rc::new(RefCell::new(vec![0; hosts.len()])),
        group,
        hosts,
    };
    let mut pes = Vec::new();
    for (number, (mut end, heap, landing, _)) in ends.into_iter().enumerate() {
        let far = |pe: usize| run.hosts[pe] != run.hosts[number];
        let connected = places.iter().enumerate().map(|(pe, (address, heap))| {
            far(pe).then(|| {
                let peer = end.connect_within(*address, PATIENCE).expect("it is there");
                Far { peer, heap: *heap, statics: None }
            })
        });
        let connected: Vec<_> = connected.collect();
        let shown = Rc::new(RefCell::new(vec![0; run.hosts.len()]));
        let memory = Own { heap: heap.clone(), landing: landing.clone(), shown: Rc::clone(&shown) };
        let regions = Regions { heap, statics: None, landing };
        let me = run.group.iter().position(|pe| *pe == number);
        pes.push(Pe {
            number,
            driver: Driver::new(end, memory, connected, regions),
            me: me.unwrap_or(usize::MAX),
            collectives: Vec::new(),
            plan: Vec::new().into_iter(),
            doing: None,
            done: 0,
            quiet: None,
            put_to: Vec::new(),
            shown,
            is_lost: false,
            ended: me.is_none(),
        });
    }
    (pes, run)
}

/// How often something happened in all runs.
#[derive(Debug, Default)]
struct Seen {
    collectives: usize,
    lost: usize,
    dead: usize,
}

/// Runs a seed. A member dies on odd ones.
fn run(seed: u64, seen: &mut Seen) {
    let settings = Settings {
        ordered: seed % 4 < 2,
        // Those that every transport carries, and those of libfabric's.
        message_bytes_max: if seed.is_multiple_of(3) { 120 } else { 1280 },
        mailbox_depth: if seed.is_multiple_of(3) { 4 } else { 256 },
        cut_down_after_ns: None,
        operations_max: if seed.is_multiple_of(5) { 8 } else { 1024 },
        ..Settings::seeded(seed)
    };
    let world = SimWorld::new(settings);
    let mut random = Random((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let (hosts, group) = Run::random(&mut random);
    let (mut pes, run) = open(&world, hosts, group);
    let mut collectives: Vec<_> = (1..=COLLECTIVES)
        .map(|number| Collective::random(&mut random, number, run.group.len()))
        .collect();
    collectives.reverse();
    let across: Vec<Option<Across>> =
        (0..pes.len()).map(|pe| Across::of(run.host(pe), run.members())).collect();
    for pe in pes.iter_mut().filter(|pe| !pe.ended) {
        pe.collectives.clone_from(&collectives);
        pe.begin(&run);
    }
    let victim = (seed % 2 == 1).then(|| run.group[random.below(run.group.len())]);
    let dies = 20 + random.below(300);
    let mut dead = BTreeSet::new();
    let mut round = 0;
    while pes.iter().any(|pe| !dead.contains(&pe.number) && !pe.ended && !pe.is_lost) {
        round += 1;
        assert!(round < 100_000, "somebody hangs");
        world.advance(1000);
        let node = |number: usize| NodeId(u32::try_from(number % 7).expect("it is small"));
        match round % 50 {
            10 => world.cut(node(round / 50), node(round / 50 + 1)),
            20 => world.heal(node(round / 50), node(round / 50 + 1)),
            _ => {}
        }
        if let Some(victim) = victim.filter(|_| round == dies && !pes.iter().all(|pe| pe.ended)) {
            dead.insert(victim);
            assert!(world.kill(pes[victim].driver.address()));
        }
        for pe in pes.iter_mut().filter(|pe| !dead.contains(&pe.number)) {
            // Some are slow.
            if random.below(4) == 0 {
                continue;
            }
            pe.driver.poll();
            while let Some(news) = pe.driver.news() {
                match news {
                    News::Down { pe: down, .. } => pe.is_lost |= run.group.contains(&down),
                    News::Broke { pe, breach } => panic!("PE {pe}: {breach}"),
                    News::Failed { pe, error } => panic!("PE {pe}: {error}"),
                }
            }
            // A PE of the own host that is gone is told by the launcher.
            let is_near = |other: &usize| run.hosts[*other] == run.hosts[pe.number];
            pe.is_lost |= dead.iter().any(is_near);
            if let Some(across) = &across[pe.number] {
                pe.go_on(&run, across, &mut seen.collectives);
            }
        }
    }
    seen.dead += dead.len();
    seen.lost += pes.iter().filter(|pe| pe.is_lost).count();
    assert!(!dead.is_empty() || pes.iter().all(|pe| pe.ended && !pe.is_lost), "nobody died");
}

fn seeds() -> std::ops::Range<u64> {
    let wanted = std::env::var("WEFT_SEEDS").unwrap_or_else(|_| "0..30".into());
    let (from, to) = wanted.split_once("..").expect("WEFT_SEEDS=from..to");
    from.parse().expect("a number")..to.parse().expect("a number")
}

#[test]
fn collectives_of_groups_on_several_hosts_have_their_results_whatever_a_seed_says() {
    let mut seen = Seen::default();
    for seed in seeds() {
        println!("seed {seed}");
        run(seed, &mut seen);
    }
    println!("{seen:?}");
    // A simulation in which something never happens proves nothing about it.
    if seeds().count() >= 30 {
        assert!(seen.collectives > 1000 && seen.lost > 20 && seen.dead > 5);
    }
}

//! PEs of several hosts over a simulated fabric that delays, reorders, is cut, has little room, and
//! in which PEs die. A seed determines each run.
//!
//! Each of 64 PEs does random operations on others. What must hold: every put lands, atomics add
//! up, no ticket is given twice, what was quieted is visible, a flag behind a fence is seen behind
//! its data, a dead PE ends what waits for it, and all living PEs come to their end.
//!
//! `WEFT_SEEDS=from..to` runs other seeds.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use weft_fabric::{
    Access, Atomic, Audience, Blocking, Endpoint, EndpointOptions, LocalRange, NodeId, PATIENCE,
    Region, Transport, Width,
};
use weft_pgas::far::driver::{Piece, Quiet, Remains};
use weft_pgas::far::entry::{Breach, DATA_BYTES};
use weft_pgas::far::machine::{Goes, Memory, Refused};
use weft_pgas::far::{Driver, Far, LANDING_BYTES, Lands, News, Place, Regions, Segment, WORKSPACE};
use weft_transport_sim::{Settings, SimEndpoint, SimRegion, SimWorld};

const PES: usize = 64;
const PES_OF_A_NODE: usize = 4;
const NODES: usize = PES / PES_OF_A_NODE;
/// Operations of each PE.
const OPERATIONS: usize = 40;
/// Words at the begin of a heap: tickets, and a sum.
const TICKETS: u64 = 0;
const SUM: u64 = 8;
/// Where each PE has a part of the heap of each other one: a flag, a small part and a large one.
const PARTS: u64 = 4096;
const PART_BYTES: u64 = 4096;
const SMALL: u64 = 8;
const SMALL_BYTES: usize = 200;
const LARGE: u64 = 1024;
const LARGE_BYTES: usize = 1500;
const HEAP_BYTES: u64 = PARTS + PES as u64 * PART_BYTES;
/// Where a step is shown.
const STEP: usize = 64;

/// How often something happened in all memories.
#[derive(Debug, Default)]
struct Seen {
    flags: usize,
    landed: usize,
    shown: usize,
    gets: usize,
    straight: usize,
    tickets: usize,
    ahead: usize,
    dead: usize,
}

/// The memory of a PE.
struct Own {
    heap: SimRegion,
    /// The last step that each PE showed.
    steps: Vec<u64>,
    landed: BTreeMap<usize, Vec<u8>>,
    seen: Rc<RefCell<Seen>>,
}

fn heap(offset: u64) -> Place {
    Place { segment: Segment::Heap, offset }
}

fn part(of: usize) -> u64 {
    PARTS + of as u64 * PART_BYTES
}

/// The bytes of a part with a number.
fn pattern(number: u64, bytes: usize) -> Vec<u8> {
    vec![u8::try_from(number % 251 + 1).expect("it is small"); bytes]
}

fn bytes_of(heap: &SimRegion, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    heap.read(offset, &mut bytes).expect("it is in the heap");
    bytes
}

fn word_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("it has 8 bytes"))
}

fn outside(place: Place, bytes: usize) -> Breach {
    Breach::Outside { segment: "heap", offset: place.offset, bytes }
}

impl Memory for Own {
    fn write(&mut self, place: Place, bytes: &[u8]) -> Result<(), Breach> {
        self.heap.write(place.offset, bytes).map_err(|_| outside(place, bytes.len()))?;
        let is_flag = place.offset >= PARTS && (place.offset - PARTS).is_multiple_of(PART_BYTES);
        if is_flag {
            // The low half is a number, the high one says which part lies before the fence.
            let flag = word_of(bytes);
            let (offset, length) =
                if flag >> 32 == 0 { (SMALL, SMALL_BYTES) } else { (LARGE, LARGE_BYTES) };
            let found = bytes_of(&self.heap, place.offset + offset, length);
            assert_eq!(found, pattern(flag & 0xffff_ffff, length), "a flag overtook its data");
            self.seen.borrow_mut().flags += 1;
        }
        Ok(())
    }

    fn read(&mut self, place: Place, into: &mut [u8]) -> Result<(), Breach> {
        self.heap.read(place.offset, into).map_err(|_| outside(place, 0))
    }

    fn change(&mut self, place: Place, atomic: Atomic) -> Result<u64, Breach> {
        assert_eq!(atomic.width, Width::Bits64, "no other is used here");
        let former = self.heap.load(place.offset).map_err(|_| outside(place, 8))?;
        self.heap.store(place.offset, atomic.apply(former)).map_err(|_| outside(place, 8))?;
        Ok(former)
    }

    fn show(&mut self, of: usize, offset: usize, bytes: &[u8]) -> Result<(), Breach> {
        assert_eq!(offset, STEP);
        assert_eq!(word_of(bytes), self.steps[of] + 1, "steps are shown once, in order");
        self.steps[of] += 1;
        self.seen.borrow_mut().shown += 1;
        Ok(())
    }

    fn land(&mut self, at: usize, bytes: &[u8]) {
        assert!(self.landed.insert(at, bytes.to_vec()).is_none(), "an answer came twice");
        self.seen.borrow_mut().landed += 1;
    }
}

/// The data with a number that a PE sends ahead, and the place of its call.
fn ahead(number: u64) -> (Place, Vec<u8>) {
    let bytes = usize::try_from(number * 37 % 300).expect("it is small");
    (heap(SMALL + 8 * (number % 2)), pattern(number, bytes))
}

/// Bytes that must be at a place of a PE.
type Visible = (usize, u64, Vec<u8>);

/// The event that a PE waits for.
enum Doing {
    Nothing,
    Quiet(Quiet, Vec<Visible>),
    Ticket(u32),
    Get(Piece, Vec<u8>),
    /// Gets that land by themselves, one behind the other.
    Straight(Quiet, Vec<u8>),
    Read(u32, Vec<u8>),
    Ended,
}

/// A part that a PE put.
#[derive(Clone, Copy, Default)]
struct Put {
    number: u64,
    is_quieted: bool,
}

struct Pe {
    number: usize,
    driver: Driver<SimEndpoint, Own>,
    landing: SimRegion,
    doing: Doing,
    operations: usize,
    /// It waits for its last quiet.
    is_last: bool,
    random: u64,
    /// The small and the large part at each PE.
    puts: BTreeMap<usize, [Put; 2]>,
    tickets: Vec<u64>,
    /// The values that it added to the sum of each PE.
    added: BTreeMap<usize, u64>,
    landings: usize,
    steps: u64,
    /// Data that it sent ahead to the next node, and pieces that it took of the node before.
    ahead: u64,
    taken: (u64, usize),
    down: BTreeSet<usize>,
}

/// Lets time pass for a PE that finds no room.
type Pass<'a> = dyn FnMut() + 'a;

impl Pe {
    fn below(&mut self, limit: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        usize::try_from(self.random >> 33).expect("31 bits") % limit
    }

    fn some_far(&mut self) -> usize {
        loop {
            let pe = self.below(PES);
            if pe / PES_OF_A_NODE != self.number / PES_OF_A_NODE {
                return pe;
            }
        }
    }

    /// Repeats a call while there is no room. `None` when the PE is down.
    fn begin<R>(
        &mut self,
        pass: &mut Pass<'_>,
        mut call: impl FnMut(&mut Driver<SimEndpoint, Own>) -> Result<R, Refused>,
    ) -> Option<R> {
        for _ in 0..100_000 {
            match call(&mut self.driver) {
                Ok(result) => return Some(result),
                Err(Refused::Down { pe }) => {
                    self.down.insert(pe);
                    return None;
                }
                Err(Refused::Busy) => {
                    self.driver.poll();
                    pass();
                }
            }
        }
        panic!("PE {} found no room", self.number);
    }

    /// Puts the next number into a part, with a flag behind a fence if it is `fenced`.
    fn put(&mut self, pass: &mut Pass<'_>, fenced: bool) {
        let pe = self.some_far();
        let which = usize::from(self.below(3) == 0);
        let (offset, length) = [(SMALL, SMALL_BYTES), (LARGE, LARGE_BYTES)][which];
        let last = &mut self.puts.entry(pe).or_default()[which];
        if !last.is_quieted && last.number > 0 {
            // The one before may come later: puts have no order.
            return;
        }
        *last = Put { number: last.number + 1, is_quieted: false };
        let (number, urgent) = (last.number, self.below(2) == 0);
        let bytes = pattern(number, length);
        let place = heap(part(self.number) + offset);
        // Small ones go by messages, large ones by the fabric.
        let mut at = 0;
        for half in bytes.chunks(if which == 0 { 100 } else { length }) {
            let there = place.plus(at);
            self.begin(pass, |driver| driver.put(pe, there, half, urgent));
            at += half.len();
        }
        if fenced {
            self.driver.fence();
            let flag = (number | (which as u64) << 32).to_le_bytes();
            let place = heap(part(self.number));
            self.begin(pass, |driver| driver.put(pe, place, &flag, urgent));
            // Nothing may change the part before the flag is there.
            self.quiet(Some(&[pe]));
        }
    }

    fn quiet(&mut self, only: Option<&[usize]>) {
        let mut visible = Vec::new();
        let is_meant = |pe: &usize| only.is_none_or(|only| only.contains(pe));
        for (pe, puts) in self.puts.iter_mut().filter(|(pe, _)| is_meant(pe)) {
            let parts = [(SMALL, SMALL_BYTES), (LARGE, LARGE_BYTES)];
            for (put, (offset, length)) in puts.iter_mut().zip(parts) {
                put.is_quieted = true;
                if put.number > 0 {
                    let offset = part(self.number) + offset;
                    visible.push((*pe, offset, pattern(put.number, length)));
                }
            }
        }
        self.doing = Doing::Quiet(self.driver.begin_quiet(only), visible);
    }

    fn start(&mut self, pass: &mut Pass<'_>) {
        if self.operations == 0 {
            self.is_last = true;
            return self.quiet(None);
        }
        self.operations -= 1;
        let pe = self.some_far();
        match self.below(10) {
            0 => self.put(pass, false),
            1 | 2 => self.put(pass, true),
            3 => self.quiet(None),
            4 => {
                let by = self.below(1000) as u64;
                let add = Atomic::fetch_add(by).without_result();
                let urgent = by.is_multiple_of(2);
                let begun = self.begin(pass, |driver| driver.change(pe, heap(SUM), add, urgent));
                if begun.is_some() {
                    *self.added.entry(pe).or_default() += by;
                }
            }
            5 => {
                // All want those of one PE, whose neighbours go to another one.
                let of = if self.number < PES_OF_A_NODE { PES - 1 } else { 0 };
                let (place, add) = (heap(TICKETS), Atomic::fetch_add(1));
                let fetch = self.begin(pass, |it| it.fetch(of, place, add, Goes::ToCaller));
                if let Some(id) = fetch {
                    self.doing = Doing::Ticket(id);
                }
            }
            6 => {
                let (read, goes) = (Atomic::read(Width::Bits64), Goes::To(self.landings));
                let fetch = self.begin(pass, |driver| driver.fetch(pe, heap(SUM), read, goes));
                self.landings += usize::from(fetch.is_some());
            }
            7 => self.get_back(pass),
            8 => {
                let next = (self.number + PES_OF_A_NODE) % PES;
                let (place, bytes) = ahead(self.ahead + 1);
                let sent = self.begin(pass, |driver| driver.send_eager(next, place, &bytes));
                self.ahead += u64::from(sent.is_some());
            }
            _ => {
                self.steps += 1;
                let next = (self.number + PES_OF_A_NODE) % PES;
                self.driver.show(next, STEP, &self.steps.to_le_bytes());
            }
        }
    }

    /// Gets a part that this PE put and quieted.
    fn get_back(&mut self, pass: &mut Pass<'_>) {
        let Some((pe, puts)) = self.puts.iter().next_back().map(|(pe, puts)| (*pe, *puts)) else {
            return;
        };
        let me = self.number;
        for (which, put) in puts.iter().enumerate().filter(|(_, put)| put.is_quieted) {
            if put.number == 0 || !matches!(self.doing, Doing::Nothing) {
                continue;
            }
            let place = heap(part(me) + LARGE);
            if which == 1 && self.below(2) == 0 {
                let half = LARGE_BYTES / 2;
                for at in [0, half] {
                    let (there, lands) = (place.plus(at), Lands::InWorkspace(at));
                    self.begin(pass, |driver| driver.get_straight(pe, there, half, lands));
                }
                let landing = self.driver.begin_landing();
                self.doing = Doing::Straight(landing, pattern(put.number, LARGE_BYTES));
            } else if which == 1 {
                let get = self.begin(pass, |driver| driver.get(pe, place, LARGE_BYTES));
                if let Some(piece) = get {
                    self.doing = Doing::Get(piece, pattern(put.number, LARGE_BYTES));
                }
            } else {
                let place = heap(part(me) + SMALL);
                let read = self.begin(pass, |it| it.read(pe, place, 100, Goes::ToCaller));
                if let Some(id) = read {
                    self.doing = Doing::Read(id, pattern(put.number, 100));
                }
            }
        }
    }

    /// Takes what the PE of the node before sent ahead: each number once, in order, piece by piece.
    fn take_ahead(&mut self, seen: &RefCell<Seen>) {
        let before = (self.number + PES - PES_OF_A_NODE) % PES;
        loop {
            let (number, done) = self.taken;
            let (place, bytes) = ahead(number + 1);
            let Ok(Some(piece)) = self.driver.take_eager(before, place) else { return };
            let end = bytes.len().min(done + DATA_BYTES);
            assert_eq!(piece, bytes[done..end], "PE {} of {before}", self.number);
            seen.borrow_mut().ahead += 1;
            self.taken = if end == bytes.len() { (number + 1, 0) } else { (number, end) };
        }
    }

    /// Goes on, if what it waits for is there.
    fn go_on(&mut self, heaps: &[SimRegion], pass: &mut Pass<'_>, seen: &RefCell<Seen>) {
        while let Some(news) = self.driver.news() {
            match news {
                News::Down { pe, .. } => drop(self.down.insert(pe)),
                News::Broke { pe, breach } => panic!("PE {pe}: {breach}"),
                News::Failed { pe, error } => panic!("PE {pe}: {error}"),
            }
        }
        match std::mem::replace(&mut self.doing, Doing::Nothing) {
            Doing::Nothing => self.start(pass),
            Doing::Ended => self.doing = Doing::Ended,
            Doing::Quiet(mut quiet, visible) => {
                match self.driver.is_over(&mut quiet) {
                    Ok(true) => {}
                    Err(Refused::Down { pe }) => drop(self.down.insert(pe)),
                    Ok(false) | Err(Refused::Busy) => {
                        self.doing = Doing::Quiet(quiet, visible);
                        return;
                    }
                }
                for (pe, offset, bytes) in visible {
                    let is_there = bytes_of(&heaps[pe], offset, bytes.len()) == bytes;
                    assert!(is_there || self.down.contains(&pe), "{} at {pe}", self.number);
                }
                if self.is_last {
                    self.doing = Doing::Ended;
                }
            }
            Doing::Ticket(id) => match self.driver.take(id) {
                Ok(Some(answer)) => {
                    seen.borrow_mut().tickets += 1;
                    self.tickets.push(answer.word());
                }
                Ok(None) => self.doing = Doing::Ticket(id),
                Err(_) => {}
            },
            Doing::Read(id, expected) => match self.driver.take(id) {
                Ok(Some(answer)) => assert_eq!(answer.bytes(), expected),
                Ok(None) => self.doing = Doing::Read(id, expected),
                Err(_) => {}
            },
            Doing::Straight(mut landing, expected) => match self.driver.is_over(&mut landing) {
                Ok(true) => {
                    let found = bytes_of(&self.landing, WORKSPACE as u64, expected.len());
                    assert!(found == expected || !self.down.is_empty(), "{}", self.number);
                    seen.borrow_mut().straight += 1;
                }
                Ok(false) | Err(Refused::Busy) => self.doing = Doing::Straight(landing, expected),
                Err(Refused::Down { .. }) => {}
            },
            Doing::Get(piece, expected) => {
                let mut take = |landing: &SimRegion, offset: usize, length: usize| {
                    assert_eq!(bytes_of(landing, offset as u64, length), expected);
                    seen.borrow_mut().gets += 1;
                };
                match self.driver.landed(piece, &mut take) {
                    Ok(Remains::Piece(piece)) => self.doing = Doing::Get(piece, expected),
                    Ok(Remains::Nothing) | Err(_) => {}
                }
            }
        }
    }
}

/// Opens all PEs, each connected to those of other nodes.
fn open(world: &SimWorld, seed: u64, seen: &Rc<RefCell<Seen>>) -> (Vec<Pe>, Vec<SimRegion>) {
    let node = |pe: usize| NodeId(u32::try_from(pe / PES_OF_A_NODE).expect("it is small"));
    let mut ends = Vec::new();
    for pe in 0..PES {
        let transport = world.transport(node(pe), 1000);
        let mut end = transport.open(&EndpointOptions::default()).expect("room");
        let region = end.register(HEAP_BYTES).expect("memory");
        let (whole, access) = (LocalRange::whole(&region), Access::READ | Access::WRITE);
        let key = end.grant_within(whole, Audience::Partition, access, PATIENCE).expect("a key");
        ends.push((end, region, key));
    }
    let places: Vec<_> = ends.iter().map(|(end, _, key)| (end.address(), *key)).collect();
    let heaps = ends.iter().map(|(_, region, _)| region.clone()).collect();
    let pes = ends.into_iter().enumerate().map(|(number, (mut end, region, _))| {
        let mut far = vec![None; PES];
        for (pe, (address, heap)) in places.iter().enumerate() {
            if node(pe) != node(number) {
                let peer = end.connect_within(*address, PATIENCE).expect("it is there");
                far[pe] = Some(Far { peer, heap: *heap, statics: None });
            }
        }
        let landing = end.register(LANDING_BYTES as u64).expect("memory");
        let (steps, seen) = (vec![0; PES], Rc::clone(seen));
        let (heap, landed) = (region.clone(), landing.clone());
        let regions = Regions { heap, statics: None, landing };
        let own = Own { heap: region, steps, landed: BTreeMap::new(), seen };
        Pe {
            number,
            driver: Driver::new(end, own, far, regions),
            landing: landed,
            doing: Doing::Nothing,
            operations: OPERATIONS,
            is_last: false,
            random: (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ ((number as u64 + 1) << 20),
            puts: BTreeMap::new(),
            tickets: Vec::new(),
            added: BTreeMap::new(),
            landings: 0,
            steps: 0,
            ahead: 0,
            taken: (0, 0),
            down: BTreeSet::new(),
        }
    });
    (pes.collect(), heaps)
}

/// The nodes whose link is cut in a round.
fn ends_of_cut(round: usize) -> (NodeId, NodeId) {
    let node = |number: usize| NodeId(u32::try_from(number % NODES).expect("it is small"));
    (node(round / 50), node(round / 50 + 5))
}

/// Cuts and mends links, and slows programs down.
fn disturb(world: &SimWorld, round: usize, pes: &[Pe]) {
    let (turn, (one, other)) = (round / 50, ends_of_cut(round));
    let slow = pes[turn % PES].driver.address();
    match round % 50 {
        10 => world.cut(one, other),
        20 => world.heal(one, other),
        30 => drop(world.slow_down(slow, 5000)),
        45 => drop(world.resume(slow)),
        _ => {}
    }
}

/// Runs a seed. Some PEs die on odd ones.
fn run(seed: u64, seen: &Rc<RefCell<Seen>>) {
    let settings = Settings {
        ordered: seed % 4 < 2,
        // Those that every transport carries, and those of libfabric's.
        message_bytes_max: if (seed % 4).is_multiple_of(3) { 120 } else { 1280 },
        mailbox_depth: if seed.is_multiple_of(3) { 4 } else { 256 },
        cut_down_after_ns: None,
        operations_max: if seed.is_multiple_of(5) { 8 } else { 1024 },
        ..Settings::seeded(seed)
    };
    let world = SimWorld::new(settings);
    let (mut pes, heaps) = open(&world, seed, seen);
    let mut dead = BTreeSet::new();
    let mut round = 0;
    while pes.iter().any(|pe| !dead.contains(&pe.number) && !matches!(pe.doing, Doing::Ended)) {
        round += 1;
        assert!(round < 100_000, "somebody hangs");
        world.advance(2000);
        disturb(&world, round, &pes);
        if seed % 2 == 1 && round % 40 == 7 && dead.len() < 5 {
            // The first and the last PE have the tickets.
            let victim = 1 + (round * 7) % (PES - 2);
            if dead.insert(victim) {
                assert!(world.kill(pes[victim].driver.address()));
            }
        }
        for at in (0..PES).filter(|at| !dead.contains(at)) {
            let (before, rest) = pes.split_at_mut(at);
            let Some((pe, after)) = rest.split_first_mut() else { continue };
            // The others handle what comes while a PE waits for room, as their threads do.
            let mut pass = || {
                // It may wait for what the cut holds.
                let (one, other) = ends_of_cut(round);
                world.heal(one, other);
                world.advance(1000);
                let others = before.iter_mut().chain(after.iter_mut());
                for other in others.filter(|other| !dead.contains(&other.number)) {
                    other.driver.poll();
                }
            };
            pe.driver.poll();
            pe.take_ahead(seen);
            pe.go_on(&heaps, &mut pass, seen);
        }
    }
    seen.borrow_mut().dead += dead.len();
    let (one, other) = ends_of_cut(round);
    world.heal(one, other);
    // The steps and answers that are still under way come, too.
    for _ in 0..300 {
        world.advance(10_000);
        for pe in pes.iter_mut().filter(|pe| !dead.contains(&pe.number)) {
            pe.driver.hurry();
            pe.driver.poll();
            pe.take_ahead(seen);
        }
    }
    check(&mut pes, &heaps, &dead);
}

/// The promises that must hold at the end of a run.
fn check(pes: &mut [Pe], heaps: &[SimRegion], dead: &BTreeSet<usize>) {
    for pe in pes.iter_mut().filter(|pe| !dead.contains(&pe.number)) {
        let (number, asked) = (pe.number, pe.landings);
        let landed = pe.driver.memory().landed.len();
        assert!(landed == asked || (landed < asked && !dead.is_empty()), "PE {number}");
    }
    // No ticket is given twice, whoever died.
    for giver in [0, PES - 1] {
        let is_of = |pe: &&Pe| (pe.number < PES_OF_A_NODE) == (giver != 0);
        let of_all = pes.iter().filter(is_of).flat_map(|pe| pe.tickets.iter().copied());
        let mut tickets: Vec<u64> = of_all.collect();
        let count = tickets.len();
        tickets.sort_unstable();
        tickets.dedup();
        assert_eq!(tickets.len(), count, "a ticket was given twice");
        if dead.is_empty() {
            assert_eq!(heaps[giver].load(TICKETS), Ok(count as u64), "each was given");
        }
    }
    if !dead.is_empty() {
        return;
    }
    assert!(pes.iter().all(|pe| pe.down.is_empty()), "nobody died");
    for (pe, heap) in heaps.iter().enumerate() {
        let added: u64 = pes.iter().filter_map(|other| other.added.get(&pe)).sum();
        assert_eq!(heap.load(SUM), Ok(added), "the sum of PE {pe}");
    }
    for pe in &*pes {
        let next = &pes[(pe.number + PES_OF_A_NODE) % PES];
        assert_eq!(next.taken, (pe.ahead, 0), "all that PE {} sent ahead", pe.number);
    }
    for pe in pes {
        for (to, puts) in &pe.puts {
            let parts = [(SMALL, SMALL_BYTES), (LARGE, LARGE_BYTES)];
            for (put, (offset, length)) in puts.iter().zip(parts) {
                let found = bytes_of(&heaps[*to], part(pe.number) + offset, length);
                let untouched = put.number == 0 && found == vec![0; length];
                assert!(untouched || found == pattern(put.number, length), "{} {to}", pe.number);
            }
        }
    }
}

fn seeds() -> std::ops::Range<u64> {
    let wanted = std::env::var("WEFT_SEEDS").unwrap_or_else(|_| "0..6".into());
    let (from, to) = wanted.split_once("..").expect("WEFT_SEEDS=from..to");
    from.parse().expect("a number")..to.parse().expect("a number")
}

#[test]
fn sixty_four_pes_keep_the_promises_whatever_a_seed_says() {
    let seen = Rc::default();
    for seed in seeds() {
        println!("seed {seed}");
        run(seed, &seen);
    }
    let seen = seen.borrow();
    println!("{seen:?}");
    // A simulation in which something never happens proves nothing about it.
    if seeds().count() >= 6 {
        assert!(seen.flags > 1000 && seen.landed > 500 && seen.shown > 500);
        assert!(seen.ahead > 1000);
        assert!(seen.gets > 25 && seen.straight > 25 && seen.tickets > 500 && seen.dead > 5);
    }
}

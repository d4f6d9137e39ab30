//! Two programs with a connection. Each has a thread that reads and a thread that writes.
//!
//! # Invariants
//! - A sleeper is woken by an event alone: bytes, an end or a reset on TCP, or the ring of a lane.
//!   So a forgotten wakeup shows as threads that sleep for ever.
//! - Between any two operations on the lane the other threads may run.

use std::cell::{Cell, RefCell};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weft_fabric::{Carry, Endpoint, Standing, WaitFor, Wake};
use weft_lane::Carrier;
use weft_socket::{Common, Origin, Peer, Phase, ReceiveSide, SendSide, SharedPhase, Side, closed};
use weft_transport_sim::SimWorld;

use super::events;
use super::lane::{End, Hooked};
use super::lanes::LANES;
use super::opening::Lanes;
use super::plan::{Ending, Plan};
use super::reader::Reader;
use super::tcp::Pipe;
use super::writer::Writer;

/// Whether a program still has the connection, and how it ended it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gone {
    No,
    /// The program closed after it had read everything.
    Orderly,
    /// The program closed with unread data, or aborted.
    Abruptly,
    Killed,
}

/// The end of one program.
#[derive(Debug)]
pub struct Host {
    pub side: Side,
    pub phase: SharedPhase,
    /// Number of lanes that the end had before.
    pub lanes_before: Cell<usize>,
    /// The end left the lane to forget it, or followed a peer that did.
    pub giving_back: Cell<bool>,
    /// The receiving direction crossed to TCP, so the sending direction follows a peer that left.
    pub follows: Cell<bool>,
    pub send: RefCell<SendSide>,
    pub receive: RefCell<ReceiveSide>,
    pub common: Common,
    /// The reader requested a resend of the bytes that lay on the lane.
    pub has_requested_resend: Cell<bool>,
    /// The reader, and the writer, saw that the kernel has told of the end of the peer.
    pub has_heard: [Cell<bool>; 2],
    pub gone: Cell<Gone>,
    /// Number of bytes that writes accepted, that were handed to a write, and that were read.
    pub accepted: Cell<u64>,
    pub offered: Cell<u64>,
    pub got: Cell<u64>,
}

impl Host {
    fn new(side: Side) -> Self {
        let phase = SharedPhase::default();
        phase.set(Phase::Fresh);
        Self {
            side,
            phase,
            lanes_before: Cell::new(0),
            giving_back: Cell::new(false),
            follows: Cell::new(false),
            send: RefCell::default(),
            receive: RefCell::default(),
            common: Common::default(),
            has_requested_resend: Cell::new(false),
            has_heard: Default::default(),
            gone: Cell::new(Gone::No),
            accepted: Cell::new(0),
            offered: Cell::new(0),
            got: Cell::new(0),
        }
    }

    pub fn has_lane(&self) -> bool {
        self.phase.get() == Phase::Laned
    }

    pub fn is_gone(&self) -> bool {
        self.gone.get() != Gone::No
    }
}

/// A thread of a program.
#[derive(Debug)]
pub enum Thread {
    Reader(Reader),
    Writer(Writer),
}

/// When a thread can go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ready {
    Now,
    /// Soon: the thread sleeps in short slices.
    Soon,
    /// Not before something arrives on TCP.
    No,
    Over,
}

/// The connection of two programs, and everything around it.
pub struct Connection<E: Endpoint> {
    pub plan: Plan,
    pub hosts: [Host; 2],
    /// The bytes that each host sends over TCP.
    pub pipes: [RefCell<Pipe>; 2],
    pub steps: Cell<u64>,
    pub sim: SimWorld,
    pub events: events::State,
    lanes: Lanes<E>,
    threads: [RefCell<Thread>; 4],
    random: RefCell<ChaCha8Rng>,
    depth: Cell<u32>,
    moved_at: Cell<u64>,
    /// Times that bytes or an end moved.
    moves: Cell<u64>,
}

/// So many steps in which no byte moved count as a deadlock.
const IDLE_STEPS_MAX: u64 = 100_000;

/// The threads that can go on now, and those that sleep in short slices.
pub struct Runnable {
    pub now: Vec<usize>,
    pub soon: Vec<usize>,
}

impl<E: Endpoint> Connection<E> {
    /// A connection that gets these lanes, one after the other.
    pub fn new(plan: Plan, sim: &SimWorld, lanes: Lanes<E>) -> Self {
        let pipe = || RefCell::new(Pipe::new(plan.tcp_bytes));
        let reader = |host| RefCell::new(Thread::Reader(Reader::new(host)));
        let writer = |host| RefCell::new(Thread::Writer(Writer::new(host, plan.totals[host])));
        Self {
            hosts: [Host::new(Side::Accepted), Host::new(Side::Connected)],
            pipes: [pipe(), pipe()],
            steps: Cell::new(0),
            events: events::State::default(),
            lanes,
            threads: [reader(0), writer(0), reader(1), writer(1)],
            random: RefCell::new(ChaCha8Rng::seed_from_u64(plan.seed ^ 0x5eed)),
            depth: Cell::new(0),
            moved_at: Cell::new(0),
            moves: Cell::new(0),
            plan,
            sim: sim.clone(),
        }
    }

    /// Lets everything happen that is due, and finds the threads that can go on. `None` when both
    /// programs have ended.
    pub fn look_around(&self) -> Option<Runnable> {
        self.happen();
        self.happen_in_network();
        (0..2).for_each(|number| self.drive(number));
        if self.hosts.iter().all(Host::is_gone) {
            return None;
        }
        let ready: Vec<Ready> = (0..4).map(|thread| self.ready(thread)).collect();
        let of = |wanted| (0..4).filter(|t| ready[*t] == wanted).collect::<Vec<_>>();
        let idle = self.steps.get() - self.moved_at.get();
        assert!(idle < IDLE_STEPS_MAX, "nothing moves: {}", self.describe());
        Some(Runnable { now: of(Ready::Now), soon: of(Ready::Soon) })
    }

    /// Lets a thread that can go on take a step. False if none can, or both programs have ended.
    pub fn turn(&self) -> bool {
        let Some(Runnable { now, soon }) = self.look_around() else { return false };
        if !soon.is_empty() && self.chance(32) {
            self.step(soon[0]);
        } else if !now.is_empty() {
            self.step(now[self.pick(now.len())]);
        } else {
            return false;
        }
        true
    }

    /// True when both programs have ended.
    pub fn is_over(&self) -> bool {
        self.hosts.iter().all(Host::is_gone)
    }

    /// Times that bytes or an end moved.
    pub fn moves(&self) -> u64 {
        self.moves.get()
    }

    /// The end that has lost its lane, if its peer's process lives.
    pub fn lost(&self) -> bool {
        let lives = !self.is_killed(0) && !self.is_killed(1);
        let is_lost = |number| match self.end(number) {
            End::Memory(_) => false,
            End::Network(lane) => lane.standing() == Standing::Lost,
        };
        lives && (0..2).any(|number| self.hosts[number].has_lane() && is_lost(number))
    }

    /// True when a program may end early, so that not all bytes arrive.
    pub fn ends_early(&self) -> bool {
        self.plan.ending.is_some() || self.is_killed(0) || self.is_killed(1)
    }

    /// The next time at which something arrives.
    pub fn next_arrival(&self) -> Option<u64> {
        let now = self.sim.now();
        let on_tcp = self.pipes.iter().filter_map(|pipe| pipe.borrow().next(now));
        on_tcp.chain(self.next_of_network()).min()
    }

    /// True when a thread waits, and neither of the programs has ended.
    pub fn has_sleepers(&self) -> bool {
        (0..4).any(|thread| self.ready(thread) != Ready::Over)
    }

    pub fn describe(&self) -> String {
        format!("{:#?}\n{:#?}\n{:#?}", self.plan, self.hosts, self.threads)
    }

    /// Lets other threads run while a thread is in the middle of a call.
    pub fn meanwhile(&self) {
        if self.depth.get() > 2 || !self.chance(self.plan.interleave_every) {
            return;
        }
        match self.plan.ending {
            Some((at, host, Ending::Kill)) if self.steps.get() >= at => self.kill(host),
            Some((at, host, Ending::NodeDies)) if self.steps.get() >= at => self.node_dies(host),
            _ => {}
        }
        // A burst of steps stands for a thread that lost the processor.
        let steps = [1, 1, 4, 16][self.pick(4)];
        for _ in 0..steps {
            let thread = self.pick(4);
            if self.ready(thread) == Ready::Now {
                self.step(thread);
            }
        }
    }

    fn ready(&self, thread: usize) -> Ready {
        match self.threads[thread].try_borrow().as_deref() {
            Ok(_) if self.hosts[thread / 2].is_gone() => Ready::Over,
            Ok(Thread::Reader(reader)) => reader.ready(self),
            Ok(Thread::Writer(writer)) => writer.ready(self),
            Err(_) => Ready::No,
        }
    }

    /// Lets a thread take a step.
    pub fn step(&self, thread: usize) {
        let Ok(mut state) = self.threads[thread].try_borrow_mut() else { return };
        self.steps.set(self.steps.get() + 1);
        self.depth.set(self.depth.get() + 1);
        self.follow(thread / 2);
        match &mut *state {
            Thread::Reader(reader) => reader.step(self),
            Thread::Writer(writer) => writer.step(self),
        }
        self.depth.set(self.depth.get() - 1);
    }

    /// Applies the plan's early end, and closes for programs whose threads are through.
    fn happen(&self) {
        for host in 0..2 {
            let over = |thread| self.ready(thread) == Ready::Over;
            if over(2 * host) && over(2 * host + 1) && !self.hosts[host].is_gone() {
                self.close(host, false);
            }
        }
        let Some((at, host, ending)) = self.plan.ending else { return };
        if self.steps.get() < at || self.hosts[host].is_gone() {
            return;
        }
        match ending {
            Ending::Close => self.close(host, false),
            Ending::Abort => self.close(host, true),
            Ending::Kill => self.kill(host),
            Ending::NodeDies => self.node_dies(host),
        }
    }

    /// Closes the last descriptor of a host.
    fn close(&self, number: usize, abort: bool) {
        let host = &self.hosts[number];
        let mut receive = host.receive.borrow_mut();
        let lane = self.lane(number);
        // The descriptor is the last one, so no other thread may be writing.
        let Ok(mut send) = host.send.try_borrow_mut() else { return };
        let mut receiving = self.receiving(number, &mut receive, &lane);
        let mut sending = self.sending(number, &mut send, &lane);
        // The kernel would answer a wakeup that comes after the close with a reset. A peer that
        // reads TCP would get that reset, so closing waits for wakeups that are on their way.
        let waits = !abort
            && host.has_lane()
            && !sending.state.on_lane()
            && !self.plan.mistakes.close_before_wakeups;
        if waits
            && !receiving.drain_all()
            && self.hosts[1 - number].gone.get() != Gone::Killed
            && self.next_arrival().is_some()
        {
            return;
        }
        if host.has_lane() {
            // The kernel would answer a record that lies unread with a reset.
            receiving.look_for_record();
        }
        let on_lane = host.has_lane() && receiving.origin() == Origin::Lane;
        let unread = if on_lane {
            receiving.state.has_data(&lane)
        } else {
            self.pipes[1 - number].borrow().has_bytes(u64::MAX)
        };
        if self.is_killed(number) {
            // It died in the middle of this call, and closes nothing any more.
            return;
        }
        host.gone.set(if unread || abort { Gone::Abruptly } else { Gone::Orderly });
        if host.has_lane() {
            let how = if unread || abort { closed::RESET } else { closed::ORDERLY };
            sending.close(how, receiving.state.taken());
        }
        if on_lane {
            // With bytes unread the kernel would send a reset instead of an end.
            receiving.drain_all();
        }
        if self.is_killed(number) {
            return;
        }
        self.decline(number);
        // The peer may have left the lane since the look, and have sent data over TCP. A close
        // answers these with a reset, as without a lane. Wakeups are no data.
        let has_unread = host.got.get() < self.hosts[1 - number].accepted.get();
        let may_have_data = !on_lane || self.plan.network.is_some() || has_unread;
        if self.close_socket(number, abort) && may_have_data {
            // Data came meanwhile, so the kernel sent a reset. Across a network they may have come
            // before the word that says that they go over TCP.
            host.gone.set(Gone::Abruptly);
        }
    }

    /// Kills a program. The kernel closes its socket.
    pub fn kill(&self, number: usize) {
        if !self.hosts[number].is_gone() {
            self.hosts[number].gone.set(Gone::Killed);
            self.end_process(number);
            self.close_socket(number, false);
        }
    }

    /// Ends the endpoint of a process, if it has one. Shared memory stays as it is.
    pub fn end_process(&self, number: usize) {
        if let Some(carrier) = self.carrier(number) {
            self.sim.kill(carrier.with_endpoint(|endpoint| endpoint.address()));
        }
    }

    /// A host closes its end of a lane.
    pub fn close_lane(&self, number: usize, lane: usize) {
        if let Lanes::Network(ends) = &self.lanes {
            ends.lanes[lane][number].finish();
        }
    }

    /// A host closes the lane that it has or was offered, and wants no more.
    pub fn decline(&self, number: usize) {
        (self.hosts[number].lanes_before.get()..LANES).for_each(|n| self.close_lane(number, n));
    }

    /// True if the process of the host was killed.
    pub fn is_killed(&self, number: usize) -> bool {
        self.hosts[number].gone.get() == Gone::Killed
    }

    /// Closes the host's socket. True if bytes were left unread.
    fn close_socket(&self, number: usize, abort: bool) -> bool {
        let unread = self.pipes[1 - number].borrow_mut().close();
        let arrives = self.arrival();
        let mut pipe = self.pipes[number].borrow_mut();
        if unread || abort {
            pipe.abort(arrives)
        } else {
            pipe.finish(arrives)
        }
        self.moved();
        unread
    }

    /// Checks the conditions that must hold at the end.
    pub fn judge(&self) {
        for (number, host) in self.hosts.iter().enumerate() {
            let other = &self.hosts[1 - number];
            assert!(host.got.get() <= other.offered.get(), "more than was sent");
            if !self.ends_early() {
                assert_eq!(host.got.get(), self.plan.totals[1 - number], "{}", self.describe());
                assert_eq!(host.gone.get(), Gone::Orderly, "{}", self.describe());
            }
        }
    }

    /// Checks that an end may be reported to the program of host `number`.
    pub fn check_end(&self, number: usize) {
        let (host, other) = (&self.hosts[number], &self.hosts[1 - number]);
        let whole = match other.gone.get() {
            Gone::Killed => host.got.get() >= other.accepted.get(),
            _ => host.got.get() == other.accepted.get(),
        };
        assert!(whole, "host {number}: an end before all data: {}", self.describe());
    }

    /// Checks that a reset may be reported to the program of host `number`.
    pub fn check_reset(&self, number: usize, reading: bool) {
        let other = &self.hosts[1 - number];
        // An end that requested a resend has bytes unread, which come to a closed socket. Over a
        // network the reset can arrive before the word that makes the kernel's end of file final.
        let has_unread = self.plan.network.is_some() && other.has_requested_resend.get();
        let fits = match other.gone.get() {
            Gone::No => false,
            Gone::Orderly => !reading || has_unread,
            Gone::Abruptly | Gone::Killed => true,
        };
        assert!(fits, "host {number}: a reset (reading: {reading}): {}", self.describe());
    }

    /// Rings a peer that waits for the room that a read made. False if the sending direction is
    /// locked.
    pub fn ring_for_room(&self, number: usize) -> bool {
        let host = &self.hosts[number];
        let lane = self.lane(number);
        let Ok(mut send) = host.send.try_borrow_mut() else { return false };
        let mut sending = self.sending(number, &mut send, &lane);
        if !self.plan.mistakes.wakeup_before_switch {
            sending.ring_for_room();
        } else if lane.must_ring(WaitFor::Room) {
            sending.ring();
        }
        true
    }

    /// True if the sending direction of a host is on TCP again.
    pub fn is_back(&self, number: usize) -> bool {
        self.hosts[number].send.try_borrow().is_ok_and(|send| !send.on_lane())
    }

    /// True if the peer of a host leaves the lane, so that it will ring no more.
    pub fn is_left(&self, number: usize) -> bool {
        let host = &self.hosts[number];
        host.has_lane()
            && match self.end(number) {
                End::Memory(lane) => !SendSide::peer_can_ring(lane),
                End::Network(lane) => !SendSide::peer_can_ring(lane),
            }
    }

    /// Stores the state of the peer that the kernel reports to the thread that waits for `what`,
    /// and that looks now.
    pub fn set_peer(&self, number: usize, what: WaitFor, even_before_data: bool) {
        self.note_heard(number, what);
        let pipe = self.pipes[1 - number].borrow();
        let host = &self.hosts[number];
        if pipe.is_over(self.now()) && (even_before_data || !pipe.has_bytes(self.now())) {
            let reset = pipe.is_reset(self.now());
            host.common.set_peer(if reset { Peer::Reset } else { Peer::Ended });
        }
    }

    pub fn lane(&self, number: usize) -> Hooked<'_, E> {
        Hooked { end: self.end(number), connection: self, number }
    }

    /// The end of a host, without the hook.
    fn end(&self, number: usize) -> End<'_, E> {
        let lanes_before = self.hosts[number].lanes_before.get();
        match &self.lanes {
            Lanes::Memory(lanes) if number == 0 => End::Memory(&lanes[lanes_before].0),
            Lanes::Memory(lanes) => End::Memory(&lanes[lanes_before].1),
            Lanes::Network(ends) => End::Network(&ends.lanes[lanes_before][number]),
        }
    }

    /// The carrier of a host, if the lanes go over a network.
    pub fn carrier(&self, number: usize) -> Option<&Carrier<E>> {
        match &self.lanes {
            Lanes::Memory(_) => None,
            Lanes::Network(ends) => Some(&ends.carriers[number]),
        }
    }

    pub fn now(&self) -> u64 {
        self.sim.now()
    }

    /// The time at which bytes that are sent now arrive.
    pub fn arrival(&self) -> u64 {
        let latency = self.plan.network.map_or(0, |network| network.tcp_latency_ns);
        self.now() + latency + self.below(self.plan.tcp_jitter_ns)
    }

    pub fn moved(&self) {
        self.moves.set(self.moves.get() + 1);
        self.moved_at.set(self.steps.get());
    }

    pub fn below(&self, end: u64) -> u64 {
        self.random.borrow_mut().random_range(0..end.max(1))
    }

    /// A random number below `end`.
    pub fn pick(&self, end: usize) -> usize {
        usize::try_from(self.below(end as u64)).expect("below a usize")
    }

    /// True with a probability of 1 in `every`.
    pub fn chance(&self, every: u64) -> bool {
        self.below(every) == 0
    }

    /// A random size, usually small, at most 200 KiB.
    pub fn size(&self) -> usize {
        let largest = [1, 16, 130, 600, 5_000, 40_000, 200 << 10][self.pick(7)];
        self.pick(largest + 1)
    }
}

/// Byte `index` of the bytes that host `number` sends. It never has the value of a wakeup.
pub fn pattern(number: usize, index: u64) -> u8 {
    let mixed = (index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    u8::try_from((mixed ^ number as u64) % 255).expect("it fits") + 1
}

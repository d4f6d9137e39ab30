//! The endpoint of this process, which carries its lanes over endpoints, and the thread that drives
//! it.
//!
//! A thread of the library drives the endpoint. A program that computes, or sleeps elsewhere, does
//! not look at its connections. Its peers fill the endpoint's notification rings all the same, ask
//! it for lanes and end theirs; until somebody takes that in, they cannot even go back to TCP. The
//! kernel does this for TCP. The other threads use the endpoint beside it, under the lock of
//! [`weft_lane::Carrier`], and need the driving thread when they sleep.
//!
//! # How two ends come to a lane
//! The accepting end offers the daemon an *address* in the place of a lane's memory: sealed memory
//! with the address of its endpoint and a random number, by which the other end asks that endpoint
//! for a lane. When a lane is there, the driving thread moves the connection to it, or a call on
//! the connection does, and says so in the lane.
//!
//! # Invariants
//! - Locks are taken while signal handlers are deferred ([`Held`]), so that no handler waits for
//!   its own thread.
//! - The endpoint belongs to one process: a forked child leaves everything here alone.

mod address;
mod asleep;
mod driver;
mod opening;

use std::collections::BTreeMap;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::event::EventfdFlags;
use weft_fabric::{Blocking, Endpoint, EndpointAddress, Watchable};
use weft_lane::{Carrier, EndpointLane, LaneNumber, Layout, Settings};
use weft_sync::signals;

use crate::deferral::Held;
use crate::guard::{ForkLock, LocalLock, Rank};
use crate::{bells, log, process, sys};

pub use address::Address;
pub use asleep::{Asleep, falls_asleep};
use driver::drive;
use opening::Own;

/// How long [`leave`] waits. A peer that is awake has followed in a fraction of that; one that is
/// stopped is waited for as long as when a descriptor is passed.
const LEAVE_WITHIN_NS: u64 = 2_000_000_000;

static PATH: OnceLock<PathBuf> = OnceLock::new();
static CALLS: OnceLock<Calls> = OnceLock::new();
static STATE: LocalLock<State> = LocalLock::new(
    Rank::Carrier,
    State {
        driver: None,
        stage: Stage::Serves,
        makings: Vec::new(),
        lanes: BTreeMap::new(),
        left: Vec::new(),
    },
);
/// True while this process has an endpoint, until its descriptors are closed: read without the
/// lock.
static IS_THERE: AtomicBool = AtomicBool::new(false);

struct State {
    driver: Option<Driver>,
    stage: Stage,
    /// Lanes that are being made.
    makings: Vec<Making>,
    /// The connections that have a lane: place and descriptor.
    lanes: BTreeMap<LaneNumber, (u32, RawFd)>,
    /// Lanes that this end left, as long as the peer's end is there: at most as many as the carrier
    /// has.
    left: Vec<FarLane>,
}

/// Whether lanes are made over the endpoint.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// They are. The endpoint is opened when the first one is wanted.
    Serves,
    /// None is made any more. The driving thread is asked to have all connections leave theirs.
    Asked,
    /// A thread takes them back to TCP.
    Leaves,
    /// The endpoint ends with the last lane, and none is opened any more.
    Ends,
    /// A child of a process that used libfabric: it has no endpoint, and opens none.
    Barren,
}

struct Driver {
    carrier: Carrier<Own>,
    address: EndpointAddress,
    /// Readable when something arrives, while the endpoint is armed.
    descriptor: RawFd,
    alarm: Arc<OwnedFd>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// The functions that the driving thread calls.
pub struct Calls {
    /// Something arrived on the lane of the connection at this place, to which this descriptor led.
    pub arrived: fn(u32, RawFd),
    /// The same, called by a thread that sleeps for that connection, and will look at it.
    pub arrived_here: fn(u32),
    /// A lane for a connection is there, or there will be none: [`look`] finds it. Called again and
    /// again until something has looked.
    pub settled: fn(Waiting),
    /// Goes on with connections whose bytes wait for the kernel.
    pub go_on: fn(),
    /// Takes all connections that have a lane back to TCP for good, as far as their peers follow.
    pub leave: fn(),
}

/// A connection that waits for a lane.
#[derive(Clone, Copy)]
pub struct Waiting {
    /// The daemon's number for it.
    pub token: u64,
    /// Its place in the arenas.
    pub place: u32,
    /// A descriptor that leads to it.
    pub fd: RawFd,
}

/// A lane on its way to a connection.
struct Making {
    /// The number by which the peer asks for it.
    number: u64,
    connection: Waiting,
    state: MakingState,
}

enum MakingState {
    /// The peer has not asked yet.
    Expected,
    UnderWay,
    Ready(EndpointLane<Own>),
    Failed,
}

/// The state of a lane that a connection waits for.
pub enum Look {
    /// None is on its way.
    Nothing,
    /// It is not there yet.
    NotYet,
    /// Here it is.
    Ready(FarLane),
    /// There will be none.
    Failed,
}

/// A lane over the endpoint of this process.
pub struct FarLane(ManuallyDrop<EndpointLane<Own>>);

impl Deref for FarLane {
    type Target = EndpointLane<Own>;

    #[inline]
    fn deref(&self) -> &EndpointLane<Own> {
        &self.0
    }
}

impl fmt::Debug for FarLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Drop for FarLane {
    fn drop(&mut self) {
        let _held = Held::new();
        if let Some(mut state) = STATE.lock() {
            state.lanes.remove(&self.0.number());
        }
        // SAFETY: the value is dropped here alone, and not used after.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

impl FarLane {
    /// Tells the driving thread that this lane is that of the connection at `place`, to which `fd`
    /// leads: it wakes the threads that sleep for that one. Called before a word of the lane is
    /// armed.
    pub fn belongs_to(&self, place: u32, fd: RawFd) {
        let _held = Held::new();
        if let Some(mut state) = STATE.lock() {
            state.lanes.insert(self.number(), (place, fd));
        }
    }
}

/// Sets the path of the daemon's socket, and what the driving thread calls.
pub fn configure(path: PathBuf, calls: Calls) {
    let _ = PATH.set(path);
    let _ = CALLS.set(calls);
}

/// The accepting end of a connection expects a lane. Returns the address for the other end; `None`
/// without an endpoint.
pub fn expect(connection: Waiting) -> Option<OwnedFd> {
    let _held = Held::new();
    let mut state = STATE.lock()?;
    let address = started(&mut state, connection.fd)?.address;
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).ok()?;
    let number = u64::from_ne_bytes(random);
    let memory = Address { address, number }.write()?;
    state.makings.retain(|making| making.connection.token != connection.token);
    state.makings.push(Making { number, connection, state: MakingState::Expected });
    Some(memory)
}

/// The connecting end asks the endpoint at `address` for a lane. False if it cannot.
pub fn ask(connection: Waiting, address: Address) -> bool {
    let _held = Held::new();
    let carrier = {
        let Some(mut state) = STATE.lock() else { return false };
        let Some(driver) = started(&mut state, connection.fd) else { return false };
        let carrier = driver.carrier.clone();
        state.makings.retain(|making| making.connection.token != connection.token);
        let (number, under_way) = (address.number, MakingState::UnderWay);
        state.makings.push(Making { number, connection, state: under_way });
        carrier
    };
    let patience = Duration::from_millis(process::settings().options.daemon_answer_ms());
    let begun = match carrier.with_endpoint(|it| it.connect_within(address.address, patience)) {
        Ok(peer) => carrier.open(peer, address.number).map(drop).map_err(|e| e.to_string()),
        Err(error) => Err(error.to_string()),
    };
    if let Err(error) = begun {
        log::debug!("no lane over the endpoint: {error}");
        forget(connection.token);
        return false;
    }
    true
}

impl Making {
    const fn is_settled(&self) -> bool {
        matches!(self.state, MakingState::Ready(_) | MakingState::Failed)
    }
}

/// Looks for the lane of a connection. Never waits.
pub fn look(token: u64) -> Look {
    if !IS_THERE.load(Ordering::Relaxed) {
        return Look::Nothing;
    }
    let _held = Held::new();
    let Some(mut state) = STATE.lock() else { return Look::NotYet };
    let Some(at) = state.makings.iter().position(|making| making.connection.token == token) else {
        return Look::Nothing;
    };
    if !state.makings[at].is_settled() {
        return Look::NotYet;
    }
    let Making { connection: Waiting { place, fd, .. }, state: made, .. } =
        state.makings.swap_remove(at);
    match made {
        MakingState::Ready(lane) => {
            // The endpoint does not end before this lane.
            state.lanes.insert(lane.number(), (place, fd));
            Look::Ready(FarLane(ManuallyDrop::new(lane)))
        }
        _ => Look::Failed,
    }
}

/// The connection wants no lane any more.
pub fn forget(token: u64) {
    if !IS_THERE.load(Ordering::Relaxed) {
        return;
    }
    let _held = Held::new();
    let Some(mut state) = STATE.lock() else { return };
    let gone: Vec<Making> =
        state.makings.extract_if(.., |making| making.connection.token == token).collect();
    // A lane that is dropped tells its peer, under the lock of the carrier.
    drop(state);
    drop(gone);
}

/// Keeps a lane that this end left, until its peer has left it, too.
pub fn keep_for_peer(lane: FarLane) {
    let _held = Held::new();
    if let Some(mut state) = STATE.lock() {
        state.lanes.remove(&lane.number());
        state.left.push(lane);
    }
}

/// True while this process has an endpoint, until its descriptors are closed.
pub fn is_there() -> bool {
    IS_THERE.load(Ordering::Acquire)
}

/// Waits until an endpoint that ends has closed its descriptors, for 1 s at most.
pub fn await_closed() {
    const WITHIN_NS: u64 = 1_000_000_000;
    let is_closing = || {
        let _held = Held::new();
        is_there() && STATE.lock().is_some_and(|state| state.driver.is_none())
    };
    let start = sys::now_ns();
    while is_closing() && sys::now_ns() - start < WITHIN_NS {
        rustix::thread::sched_yield();
    }
}

/// Calls `look` with each descriptor of the endpoint, its lanes, and the thread that drives it.
pub fn each_descriptor(mut look: impl FnMut(RawFd)) {
    if !is_there() {
        return;
    }
    let _held = Held::new();
    let carrier = {
        let Some(state) = STATE.lock() else { return };
        let Some(driver) = state.driver.as_ref() else { return };
        look(driver.alarm.as_raw_fd());
        driver.carrier.clone()
    };
    let mut look = |file: BorrowedFd<'_>| look(file.as_raw_fd());
    carrier.look_at_endpoint(|endpoint, _| endpoint.each_descriptor(&mut look));
}

fn carrier() -> Option<Carrier<Own>> {
    if !IS_THERE.load(Ordering::Relaxed) {
        return None;
    }
    let _held = Held::new();
    Some(STATE.lock()?.driver.as_ref()?.carrier.clone())
}

/// No connection has a lane, and none will: ends the driving thread and closes the endpoint.
pub fn stop() {
    let _held = Held::new();
    let Some(mut state) = STATE.lock() else { return };
    state.stage = Stage::Ends;
    let (driver, makings) = (state.driver.take(), std::mem::take(&mut state.makings));
    let left = std::mem::take(&mut state.left);
    IS_THERE.store(false, Ordering::Relaxed);
    drop(state);
    drop((makings, left));
    if let Some(Driver { alarm, thread, .. }) = driver {
        bells::ring_one(&*alarm);
        let _ = thread.map(std::thread::JoinHandle::join);
    }
}

/// Has all connections leave their lanes, and ends the endpoint with the last one. No lane is made
/// from here on. Waits until they have left, for [`LEAVE_WITHIN_NS`] at most: a connection whose
/// peer does not follow stays on its lane.
///
/// May be called in any signal handler. The one that called it may hold a lock of the library or of
/// the allocator, so others do the work.
pub fn leave() {
    if !process::settings().between_hosts || !asks_to_leave() {
        return;
    }
    let start = sys::now_ns();
    while is_leaving() && sys::now_ns() - start < LEAVE_WITHIN_NS {
        let pause = rustix::thread::Timespec { tv_sec: 0, tv_nsec: 100_000 };
        let _ = rustix::thread::nanosleep(&pause);
    }
}

/// Drops the lanes that this end left, although their peers have not: an endpoint that ends waits
/// for them no more. Such a peer finds its lane ended when it next looks.
pub fn forsake_peers() {
    let _held = Held::new();
    let left = STATE.lock().map(|mut state| {
        if let Some(driver) = &state.driver {
            bells::ring_one(&*driver.alarm);
        }
        std::mem::take(&mut state.left)
    });
    drop(left);
}

/// False if there is nothing to wait for.
fn asks_to_leave() -> bool {
    let _held = Held::new();
    let Some(mut state) = STATE.lock() else { return false };
    match (state.stage, &state.driver) {
        (Stage::Serves, Some(driver)) => {
            bells::ring_one(&*driver.alarm);
            state.stage = Stage::Asked;
            true
        }
        (Stage::Serves, None) => {
            state.stage = Stage::Ends;
            false
        }
        (Stage::Asked | Stage::Leaves, _) => true,
        (Stage::Ends | Stage::Barren, _) => false,
    }
}

fn is_leaving() -> bool {
    let _held = Held::new();
    let stage = STATE.lock().map(|state| state.stage);
    matches!(stage, Some(Stage::Asked | Stage::Leaves))
}

/// The lock of this module, for fork.
pub fn lock() -> &'static dyn ForkLock {
    &STATE
}

/// In a forked child: the endpoint and its lanes are the parent's. Another thread of the parent may
/// have held their lock, so nothing of them is touched.
pub fn forked() {
    IS_THERE.store(false, Ordering::Relaxed);
    process::forget_own_threads();
    if let Some(mut state) = STATE.lock() {
        let driver = state.driver.take();
        // libfabric does not survive a fork: nothing of it may be used in the child, nor anew.
        let is_barren = driver.is_some() || state.stage == Stage::Barren;
        std::mem::forget(driver);
        std::mem::forget(std::mem::take(&mut state.makings));
        std::mem::forget(std::mem::take(&mut state.left));
        state.lanes.clear();
        state.stage = if is_barren { Stage::Barren } else { Stage::Serves };
    }
}

/// In a child by clone(2): the endpoint is the parent's. No lock is taken, since a thread of the
/// parent may have held it.
pub fn cloned() {
    IS_THERE.store(false, Ordering::Relaxed);
}

/// The endpoint of this process, which is opened if need be for a connection to which `fd` leads.
fn started(state: &mut State, fd: RawFd) -> Option<&Driver> {
    if state.stage != Stage::Serves {
        return None;
    }
    if state.driver.is_none() {
        match start(fd) {
            Ok(driver) => state.driver = Some(driver),
            Err(error) => {
                log::warn_user!("no endpoint: {error}; connections stay on TCP");
                state.stage = Stage::Ends;
            }
        }
        IS_THERE.store(state.driver.is_some(), Ordering::Relaxed);
    }
    state.driver.as_ref()
}

fn start(fd: RawFd) -> Result<Driver, String> {
    let endpoint = opening::open(PATH.get().ok_or("no daemon")?, fd)?;
    let options = &process::settings().options;
    let (address, descriptor) = (endpoint.address(), endpoint.descriptor().as_raw_fd());
    let slots = u32::try_from(options.shm_ring_slots()).map_err(|e| e.to_string())?;
    let sink_bytes = u32::try_from(options.socket_sink_bytes()).map_err(|e| e.to_string())?;
    let layout = Layout { slots, sink_bytes };
    // A poll takes what has come. What comes later makes the provider's descriptor readable.
    let settings = Settings { layout, lanes_max: lanes_max(), arming_lasts: true };
    let carrier = Carrier::new(endpoint, settings);
    let alarm = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let alarm = Arc::new(sys::high(alarm.map_err(|e| e.to_string())?));
    let rings = Arc::clone(&alarm);
    carrier.set_alarm(Box::new(move || bells::ring_one(&*rings)));
    let driving = (carrier.clone(), Arc::clone(&alarm));
    let thread = signals::without(|| {
        let builder = std::thread::Builder::new().name("weft".to_owned()).stack_size(256 << 10);
        builder.spawn(move || {
            // This thread closes descriptors of the library alone.
            let _held = Held::new();
            drive(&driving.0, &driving.1);
            drop(driving);
            IS_THERE.store(false, Ordering::Release);
            process::own_thread_ends();
        })
    });
    let thread = Some(thread.map_err(|e| e.to_string())?);
    process::has_own_thread();
    log::debug!("this process has the endpoint {address}");
    Ok(Driver { carrier, address, descriptor, alarm, thread })
}

/// The most lanes of the endpoint: those of the process, and as many that are being made or ended.
fn lanes_max() -> u32 {
    process::settings().lanes_max.saturating_mul(2).clamp(1, 1 << 16)
}

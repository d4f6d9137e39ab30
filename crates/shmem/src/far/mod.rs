//! PEs of other hosts: the endpoint of this PE, who looks at it, and how calls wait.
//!
//! The program's threads look at the endpoint while they wait in a call. A thread of the library
//! looks when they do not, so that a PE that computes is reached. It sleeps on the endpoint while
//! nothing comes, and keeps away from it while the program looks.
//!
//! # Invariants
//! - The endpoint has one user at a time, who holds the lock, and never waits while holding it.
//! - A PE that is gone without having ended its library ends this one: the launcher does, or this
//!   library after [`GRACE`].

pub mod opening;
mod thread;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use weft_fabric::{Addressable, Armed, Atomic, DownReason, Endpoint, Watchable};
use weft_open::FarEndpoint;
use weft_pgas::control;
use weft_pgas::far::driver::{Quiet, Remains};
use weft_pgas::far::entry::DATA_BYTES;
use weft_pgas::far::machine::{Goes, Refused};
use weft_pgas::far::own::Own;
use weft_pgas::far::{
    Driver, Far, INLINE_BYTES, Lands, News, PIECE_BYTES, Place, Regions, Remote, WORKSPACE,
    WORKSPACE_BYTES,
};
use weft_pgas::fault::{Fault, raise};
use weft_pgas::space;
use weft_sync::{AdaptiveWait, OwnTime, Step, contention};

/// How long the launcher has to end the job when a PE is gone, before the library does.
const GRACE: Duration = Duration::from_secs(3);
/// How long the last words of a PE are waited for at its end.
const SETTLE_WITHIN: Duration = Duration::from_secs(2);
/// Polls of a call before it lets others run.
const POLLS: u32 = 100;
const POLLS_CROWDED: u32 = 15;
const SPINS: u32 = 16;
const YIELDS: u32 = 50;
/// Looks at the card in a poll. A message is seen earlier by that, and a store of a PE of the
/// own host later: a look takes 0.3 us.
const LOOKS: u32 = 4;
/// Bytes of a get that goes by questions: their answers fill a message, as those of a put do.
const ASKED_BYTES: usize = INLINE_BYTES;
/// Longest sleep of a call before it looks by itself.
const NAP: Duration = Duration::from_millis(1);

/// The endpoint of a PE.
pub type Port = FarEndpoint;

/// The endpoint with what goes over it.
struct Desk {
    driver: Driver<Port, Own>,
    /// Bytes of a put: those of the program may change while they are read.
    scratch: Vec<u8>,
    /// PEs that are gone without having ended their library.
    lost: Option<Lost>,
}

/// A PE that is gone.
struct Lost {
    pe: usize,
    reason: String,
    since: Instant,
    /// The launcher, too, may have been stopped with this process.
    time: OwnTime,
}

/// The way to PEs of other hosts.
pub struct Station {
    desk: Mutex<Desk>,
    /// The address of the workspace of collectives.
    workspace: usize,
    /// How often a thread of the program has looked.
    looks: AtomicU64,
    /// The library's thread sleeps until something comes.
    thread_sleeps: AtomicBool,
    /// It was called in this sleep.
    is_called: AtomicBool,
    /// Readable when that thread has to look.
    called: OwnedFd,
    /// Readable when something came.
    arrived: OwnedFd,
}

static STATION: OnceLock<Station> = OnceLock::new();

/// The way to PEs of other hosts, if there is one.
pub fn station() -> Option<&'static Station> {
    STATION.get()
}

/// Begins to serve PEs of other hosts, all of which are connected. The space is open.
///
/// # Errors
/// The system has no descriptor or thread left.
pub fn begin(
    mut endpoint: Port,
    far: Vec<Option<Far>>,
    regions: Regions<opening::PortRegion>,
) -> Result<(), String> {
    endpoint.look_often(LOOKS);
    let system = |error: rustix::io::Errno| format!("the way to other hosts: {error}");
    let called = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(system)?;
    let arrived = endpoint.descriptor().try_clone_to_owned().map_err(|error| error.to_string())?;
    // SAFETY: the space is open. Questions name memory of the program's calls, for which the
    // specification wants it to stay until the quiet.
    let own = unsafe { Own::new() };
    let workspace = regions.landing.base().as_ptr().wrapping_add(WORKSPACE).expose_provenance();
    let driver = Driver::new(endpoint, own, far, regions);
    let desk = Desk { driver, scratch: Vec::with_capacity(PIECE_BYTES), lost: None };
    let station = STATION.get_or_init(|| Station {
        desk: Mutex::new(desk),
        workspace,
        looks: AtomicU64::new(0),
        thread_sleeps: AtomicBool::new(false),
        is_called: AtomicBool::new(false),
        called,
        arrived,
    });
    weft_pgas::far::install(station);
    thread::start(station)
}

impl Desk {
    /// Handles what came. Whether anything did.
    fn look(&mut self) -> bool {
        let before = self.driver.endpoint().reports();
        let events = self.driver.poll();
        // A peer that asks whether its puts are there makes no event.
        let came = events > 0 || self.driver.endpoint().reports() != before;
        while let Some(news) = self.driver.news() {
            self.hear(news);
        }
        let is_over = |lost: &mut Lost| lost.time.at(lost.since.elapsed()) > GRACE;
        if let Some(Lost { pe, reason, .. }) = self.lost.take_if(is_over) {
            raise("the library", &Fault::Lost { pe, reason });
        }
        came
    }

    /// Has a PE that waits in a call go on looking, as the fabric begins to move its memory. Where
    /// the provider does that without a report, such a PE fell asleep, and each access woke it.
    fn knock(&mut self, pe: usize) {
        if let Some(peer) = self.driver.idle_peer(pe) {
            self.driver.endpoint().knock(peer);
        }
    }

    /// A PE is not reached. The launcher may know more, and is given time to say it.
    fn lose(&mut self, pe: usize, reason: String) {
        let (since, time) = (Instant::now(), OwnTime::new(GRACE / 4));
        self.lost.get_or_insert(Lost { pe, reason, since, time });
    }

    fn hear(&mut self, news: News) {
        let call = "the library";
        match news {
            News::Down { pe, .. } if control::has_ended(pe) => {}
            News::Down { pe, reason } => self.lose(pe, reason_of(reason).to_owned()),
            News::Broke { pe, breach } => {
                raise(call, &Fault::Broke { pe, breach: breach.to_string() });
            }
            // The keys of a PE that was killed may go before its end is told.
            News::Failed { pe, .. } if control::has_ended(pe) => {}
            News::Failed { pe, error } => self.lose(pe, error.to_string()),
        }
    }
}

fn reason_of(reason: DownReason) -> &'static str {
    match reason {
        DownReason::Ended => "its process has ended",
        DownReason::Unreachable => "nothing was heard of it for long",
        DownReason::Misbehaved => "it broke the rules of the fabric",
        DownReason::Disconnected => "it has closed its endpoint",
    }
}

impl Station {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The desk for a thread of the program.
    fn at_desk(&self) -> MutexGuard<'_, Desk> {
        self.looks.fetch_add(1, Relaxed);
        self.desk()
    }

    /// Has the library's thread look soon, if it sleeps.
    fn call_thread(&self) {
        if self.thread_sleeps.load(SeqCst) && !self.is_called.swap(true, SeqCst) {
            // A full counter wakes as well.
            let _ = rustix::io::write(&self.called, &1_u64.to_ne_bytes());
        }
    }

    /// Tries until something is begun or came.
    fn until<R>(
        &self,
        call: &str,
        mut attempt: impl FnMut(&mut Desk) -> Result<Option<R>, Refused>,
    ) -> R {
        if let Ok(Some(result)) = attempt(&mut self.at_desk()) {
            return result;
        }
        let enough = if contention::is_contended() { POLLS_CROWDED } else { POLLS };
        let mut wait = AdaptiveWait::new(SPINS, YIELDS);
        let mut polls = 0;
        loop {
            let came = {
                let mut desk = self.at_desk();
                let came = desk.look();
                match attempt(&mut desk) {
                    Ok(Some(result)) => return result,
                    Ok(None) | Err(Refused::Busy) => came,
                    Err(Refused::Down { pe }) => {
                        drop(desk);
                        if control::has_ended(pe) {
                            raise(call, &Fault::Deserted { pe });
                        }
                        // The launcher ends the job, or a look at what is lost.
                        std::thread::sleep(NAP);
                        false
                    }
                }
            };
            polls = if came { 0 } else { polls + 1 };
            if polls > enough {
                match wait.step() {
                    Step::Spin => {}
                    Step::Yield => wait.give_way(),
                    Step::Sleep => self.sleep(NAP),
                }
            }
        }
    }

    fn wait_quiet(&self, call: &str, mut quiet: Quiet) {
        self.until(call, |desk| Ok(desk.driver.is_over(&mut quiet)?.then_some(())));
    }

    /// Where bytes for an address land by themselves, if they do.
    fn lands(&self, address: usize, bytes: usize) -> Option<Lands> {
        let offset = address.wrapping_sub(self.workspace);
        if offset < WORKSPACE_BYTES && bytes <= WORKSPACE_BYTES - offset {
            return Some(Lands::InWorkspace(offset));
        }
        space::place_of_bytes(address, bytes).map(Lands::At)
    }

    /// Begins gets whose bytes land by themselves.
    fn get_straight(&self, call: &str, (pe, place): (usize, Place), lands: Lands, bytes: usize) {
        self.at_desk().knock(pe);
        for done in (0..bytes).step_by(PIECE_BYTES) {
            let (count, place) = (PIECE_BYTES.min(bytes - done), place.plus(done));
            let lands = match lands {
                Lands::At(place) => Lands::At(place.plus(done)),
                Lands::InWorkspace(offset) => Lands::InWorkspace(offset + done),
            };
            self.until(call, |desk| desk.driver.get_straight(pe, place, count, lands).map(Some));
        }
        self.call_thread();
    }

    /// Waits until PEs of other hosts have what was said to them, for a limited time.
    pub fn settle(&self) {
        let end = Instant::now() + SETTLE_WITHIN;
        let mut desk = self.at_desk();
        desk.driver.hurry();
        let mut quiet = desk.driver.begin_last_quiet();
        // Nobody needs the bytes of a PE that is gone.
        while matches!(desk.driver.is_over(&mut quiet), Ok(false)) && Instant::now() < end {
            drop(desk);
            self.sleep(NAP);
            desk = self.at_desk();
            desk.driver.poll();
        }
    }
}

/// Sleeps until a descriptor is readable, at most for a time.
fn sleep_on(files: &[&OwnedFd], time: Duration) {
    let mut files: Vec<PollFd<'_>> =
        files.iter().map(|file| PollFd::new(file, PollFlags::IN)).collect();
    // A signal may end it early.
    let _ = poll(&mut files, Timespec::try_from(time).ok().as_ref());
}

impl Station {
    /// Gets bytes by questions to the PE. A get of the fabric is served without a word, so a PE
    /// that waits for something else sleeps meanwhile; it answers questions at once.
    ///
    /// # Safety
    /// As [`Remote::get`].
    unsafe fn ask(
        &self,
        call: &str,
        (pe, place): (usize, Place),
        into: *mut u8,
        bytes: usize,
        waits: bool,
    ) {
        let mut done = 0;
        let last = if waits { bytes - bytes.min(DATA_BYTES) } else { bytes };
        // Answers come in the order of their questions: the last one ends the wait for all.
        while done < last {
            let count = DATA_BYTES.min(last - done);
            let goes = Goes::To(into.wrapping_add(done).expose_provenance());
            let place = place.plus(done);
            self.until(call, |desk| desk.driver.read(pe, place, count, goes).map(Some));
            done += count;
        }
        if !waits {
            return self.call_thread();
        }
        let (place, count) = (place.plus(last), bytes - last);
        let read = |desk: &mut Desk| desk.driver.read(pe, place, count, Goes::ToCaller);
        let id = self.until(call, |desk| read(desk).map(Some));
        let answer = self.until(call, |desk| desk.driver.take(id));
        // SAFETY: the caller promises the room, and the answer has so many bytes.
        unsafe {
            let (from, count) = (answer.bytes().as_ptr(), answer.bytes().len());
            std::ptr::copy_nonoverlapping(from, into.add(last), count);
        }
    }
}

impl Remote for Station {
    unsafe fn put(
        &self,
        call: &str,
        (pe, place): (usize, Place),
        from: *const u8,
        bytes: usize,
        urgent: bool,
    ) {
        if bytes > INLINE_BYTES {
            self.at_desk().knock(pe);
        }
        let mut done = 0;
        while done < bytes {
            let count = if bytes <= INLINE_BYTES { bytes } else { PIECE_BYTES.min(bytes - done) };
            self.until(call, |desk| {
                let Desk { driver, scratch, .. } = desk;
                scratch.clear();
                scratch.reserve(count);
                // SAFETY: the caller promises the bytes; the buffer has room for them, and they are
                // there then.
                unsafe {
                    std::ptr::copy_nonoverlapping(from.add(done), scratch.as_mut_ptr(), count);
                    scratch.set_len(count);
                }
                driver.put(pe, place.plus(done), scratch, urgent).map(Some)
            });
            done += count;
        }
        if !urgent {
            self.call_thread();
        }
    }

    unsafe fn get(
        &self,
        call: &str,
        (pe, place): (usize, Place),
        into: *mut u8,
        bytes: usize,
        waits: bool,
    ) {
        // Those that nobody waits for come by themselves where that takes no more than a question.
        if !waits
            && bytes > DATA_BYTES
            && let Some(lands) = self.lands(into.addr(), bytes)
        {
            return self.get_straight(call, (pe, place), lands, bytes);
        }
        if bytes <= ASKED_BYTES {
            // SAFETY: the caller's promises.
            return unsafe { self.ask(call, (pe, place), into, bytes, waits) };
        }
        self.at_desk().knock(pe);
        let mut pieces = std::collections::VecDeque::new();
        let (mut asked, mut done) = (0, 0);
        while done < bytes {
            self.until(call, |desk| {
                while asked < bytes {
                    let count = PIECE_BYTES.min(bytes - asked);
                    match desk.driver.get(pe, place.plus(asked), count) {
                        Ok(piece) => {
                            pieces.push_back(piece);
                            asked += count;
                        }
                        Err(Refused::Busy) if !pieces.is_empty() => break,
                        Err(error) => return Err(error),
                    }
                }
                let Some(piece) = pieces.pop_front() else { return Ok(None) };
                let mut take = |region: &opening::PortRegion, offset: usize, length: usize| {
                    // SAFETY: the landing has the piece; the caller promises the room.
                    unsafe {
                        let from = region.base().as_ptr().add(offset);
                        std::ptr::copy_nonoverlapping(from, into.add(done), length);
                    }
                    done += length;
                };
                match desk.driver.landed(piece, &mut take)? {
                    Remains::Nothing => Ok(Some(())),
                    Remains::Piece(piece) => {
                        pieces.push_front(piece);
                        Ok(None)
                    }
                }
            });
        }
    }

    fn landed(&self, call: &str) {
        let landing = self.at_desk().driver.begin_landing();
        self.wait_quiet(call, landing);
    }

    fn workspace(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.workspace)
    }

    fn change(&self, call: &str, (pe, place): (usize, Place), atomic: Atomic) {
        self.until(call, |desk| desk.driver.change(pe, place, atomic, true).map(Some));
    }

    fn fetch(&self, call: &str, (pe, place): (usize, Place), atomic: Atomic) -> u64 {
        let fetch = |desk: &mut Desk| desk.driver.fetch(pe, place, atomic, Goes::ToCaller);
        let id = self.until(call, |desk| fetch(desk).map(Some));
        self.until(call, |desk| desk.driver.take(id)).word()
    }

    unsafe fn fetch_later(
        &self,
        call: &str,
        (pe, place): (usize, Place),
        atomic: Atomic,
        into: *mut u8,
    ) {
        let goes = Goes::To(into.expose_provenance());
        self.until(call, |desk| desk.driver.fetch(pe, place, atomic, goes).map(Some));
        self.call_thread();
    }

    fn send_eager(&self, call: &str, (pe, place): (usize, Place), bytes: &[u8]) {
        self.until(call, |desk| desk.driver.send_eager(pe, place, bytes).map(Some));
    }

    fn take_eager(&self, call: &str, (pe, place): (usize, Place), into: &mut [u8]) {
        let wanted = into.len();
        let mut left = into;
        loop {
            let piece = self.until(call, |desk| {
                let piece = desk.driver.take_eager(pe, place)?;
                // Its end is told behind all that it sent.
                if piece.is_none() && control::has_ended(pe) {
                    raise(call, &Fault::Deserted { pe });
                }
                Ok(piece)
            });
            if piece.len() != left.len().min(DATA_BYTES) {
                let theirs = "the collective with more or fewer bytes".to_owned();
                let mine = format!("{call} with {wanted} bytes of each");
                raise(call, &Fault::Mismatch { pe, theirs, me: space::me(), mine });
            }
            let (to, behind) = left.split_at_mut(piece.len());
            to.copy_from_slice(&piece);
            if behind.is_empty() {
                return;
            }
            left = behind;
        }
    }

    fn show(&self, to: &mut dyn Iterator<Item = usize>, offset: usize, bytes: &[u8]) {
        let mut desk = self.at_desk();
        for pe in to {
            desk.driver.show(pe, offset, bytes);
        }
    }

    fn fence(&self) {
        self.at_desk().driver.fence();
    }

    fn quiet(&self, call: &str, only: Option<&[usize]>) {
        let quiet = self.at_desk().driver.begin_quiet(only);
        self.wait_quiet(call, quiet);
    }

    fn poll(&self) -> bool {
        self.at_desk().look()
    }

    fn sleep(&self, at_most: Duration) {
        let armed = {
            let mut desk = self.at_desk();
            desk.driver.hurry();
            desk.driver.endpoint().arm()
        };
        match armed {
            Armed::Busy => {}
            Armed::Sleep => sleep_on(&[&self.arrived], at_most),
            Armed::PollWithin(time) => std::thread::sleep(at_most.min(time)),
        }
    }
}

//! The connected programs: their credentials, the lines to them, and the log lines about them.
//!
//! # Invariants
//! - Sending never blocks: a program that does not take its replies loses its line.
//! - The thread of a program's user ([`crate::intake`]) holds the last reference to the line,
//!   because closing it may wait for that user. Senders therefore lock the table while they send.
//! - A program keeps its place until every service that it asked knows that the program is gone.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rustix::io::Errno;
use weft_channel::{Channel, Credentials};
use weft_wire::control::{Control, InvalidMessage};
use weft_wire::stats::Stats;

use crate::complaints::Complaints;
use crate::evidence::out_of_descriptors;
use crate::kernel;
use crate::ledger::{Ledger, Live};
use crate::networks::{Networks, Origin};
use crate::quota::{Lease, Pool, Quota};
use crate::service::{Outgoing, Peer, ProcessId};
use crate::status::{ProcessStatus, Status};
use crate::watching::{Page, on_tcp, streams, work};

/// Programs that may be connected at once.
const PROGRAMS_MAX: usize = 8192;
/// Descriptors that the daemon holds for each program: its channel and its process.
const PROGRAM_DESCRIPTORS: usize = 2;

/// The line to a program: its channel and its leases.
pub struct Line {
    channel: Channel,
    peer: Peer,
    /// The lease for one of the [`PROGRAMS_MAX`] places.
    place: Arc<Lease>,
    _descriptors: Lease,
    /// Whether the line was hung up; its packets are ignored.
    is_closed: AtomicBool,
    /// One bit for each service that the program asked.
    asked: AtomicU64,
}

impl Line {
    /// The program at the other end.
    pub const fn peer(&self) -> Peer {
        self.peer
    }

    /// The channel on which its packets arrive.
    pub const fn channel(&self) -> &Channel {
        &self.channel
    }

    /// The lease for the program's place.
    pub const fn place(&self) -> &Arc<Lease> {
        &self.place
    }

    /// Whether the line was hung up.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Records that the program asked service number `service`.
    pub fn asks(&self, service: usize) {
        self.asked.fetch_or(1 << service, Ordering::Relaxed);
    }

    /// Whether the program asked service number `service`.
    pub fn has_asked(&self, service: usize) -> bool {
        self.asked.load(Ordering::Relaxed) & 1 << service != 0
    }

    fn hang_up(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        // The thread of the user then finds the end of the channel.
        self.channel.hang_up();
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

struct Program {
    line: Arc<Line>,
    name: Option<String>,
    /// Its counters.
    page: Option<Arc<Page>>,
}

impl Program {
    /// Its status without its counts, and its counters; `None` while it has no name.
    fn status(&self) -> Option<(ProcessStatus, Option<Arc<Page>>)> {
        let Peer { pid, uid, .. } = self.line.peer;
        let name = self.name.clone()?;
        let status = ProcessStatus { pid, uid, name, ..ProcessStatus::default() };
        Some((status, self.page.clone()))
    }
}

/// The status of a program with what it counted.
fn counted(process: ProcessStatus, stats: Option<&Stats>) -> ProcessStatus {
    let on_tcp = stats.map(on_tcp).unwrap_or_default();
    let work = stats.map(work).unwrap_or_default();
    ProcessStatus { streams: stats.map(streams), on_tcp, work, ..process }
}

/// The time, in milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The table of connected programs.
pub struct Programs {
    table: Mutex<HashMap<ProcessId, Program>>,
    places: Arc<Pool>,
    descriptors: Arc<Pool>,
    quota: Quota,
    networks: Arc<Networks>,
    complaints: Mutex<Complaints>,
    ledger: Mutex<Ledger>,
    next: AtomicU64,
}

impl Programs {
    /// An empty table, for a daemon that may hold `descriptors_max` descriptors of programs.
    pub fn new(quota: Quota, descriptors_max: usize, networks: Arc<Networks>) -> Arc<Self> {
        Arc::new(Self {
            table: Mutex::default(),
            places: Pool::new(PROGRAMS_MAX, quota),
            descriptors: Pool::new(descriptors_max, quota),
            quota,
            networks,
            complaints: Mutex::default(),
            ledger: Mutex::default(),
            next: AtomicU64::new(0),
        })
    }

    /// The descriptors that the daemon may hold for programs.
    pub const fn descriptors(&self) -> &Arc<Pool> {
        &self.descriptors
    }

    /// Adds a program that connected. A program that may not join, or beyond its user's allowance,
    /// gets a refusal; then the result is `None`.
    pub fn admit(&self, channel: Channel, credentials: Credentials) -> Option<Arc<Line>> {
        let Credentials { pid, uid } = credentials;
        let admitted = self.networks.admit(&channel, uid);
        // A container's root may have the number of the daemon's own.
        let origin = *admitted.as_ref().unwrap_or(&Origin::Away);
        let peer = Peer {
            process: ProcessId(self.next.fetch_add(1, Ordering::Relaxed)),
            pid,
            uid,
            is_numbered_here: kernel::shares_process_numbers(pid),
            may_command: origin == Origin::Home && self.quota.may_all(uid),
            origin,
            site: self.networks.site(&channel),
        };
        match admitted.and_then(|_| self.leases(uid)) {
            Ok((place, descriptors)) => {
                let line = Arc::new(Line {
                    channel,
                    peer,
                    place: Arc::new(place),
                    _descriptors: descriptors,
                    is_closed: AtomicBool::new(false),
                    asked: AtomicU64::new(0),
                });
                let program = Program { line: Arc::clone(&line), name: None, page: None };
                self.lock().insert(peer.process, program);
                Some(line)
            }
            Err(reason) => {
                self.complain(peer, "a program is refused", &reason);
                // The program may have gone already.
                let _ = channel.send(&Control::Refused { token: 0, reason }.emit(), &[]);
                channel.close_without_waiting();
                None
            }
        }
    }

    fn leases(&self, user: u32) -> Result<(Lease, Lease), String> {
        let place = self.places.lease(user, 1).ok_or_else(|| {
            format!(
                "user {user} has {} programs at this daemon, the most that one user may have \
                 (daemon.user_share)",
                self.places.of(user)
            )
        })?;
        let descriptors = self.descriptors.lease(user, PROGRAM_DESCRIPTORS);
        let descriptors = descriptors.ok_or_else(|| out_of_descriptors(user, &self.descriptors))?;
        Ok((place, descriptors))
    }

    /// The places that programs share.
    pub const fn places(&self) -> &Arc<Pool> {
        &self.places
    }

    /// Sets the name of a program, and the page of its counters.
    pub fn greet(&self, process: ProcessId, name: String, page: Option<Page>) {
        if let Some(program) = self.lock().get_mut(&process) {
            program.name = Some(name);
            program.page = page.map(Arc::new);
        }
    }

    /// Removes a program that is gone, and keeps what it counted; its line may be closed after
    /// this.
    pub fn forget(&self, process: ProcessId) {
        let Some(program) = self.lock().remove(&process) else { return };
        if let Some((status, page)) = program.status() {
            let stats = page.and_then(|page| page.read());
            let status = counted(status, stats.as_ref());
            self.ledger().close(status, stats.as_ref(), now_ms());
        }
    }

    /// Sends packets in order and without blocking. Returns the programs that do not take their
    /// packets and lost their lines.
    #[must_use]
    pub fn send(&self, packets: &[Outgoing]) -> Vec<(Peer, Errno)> {
        let mut unresponsive = Vec::new();
        if packets.is_empty() {
            return unresponsive;
        }
        let table = self.lock();
        for Outgoing { to, bytes, descriptors, wakeup } in packets {
            let Some(line) = table.get(to).map(|program| &program.line) else { continue };
            if line.is_closed() {
                continue;
            }
            let beside: Vec<_> = descriptors.iter().map(|beside| beside.as_fd()).collect();
            if let Err(errno) = line.channel.send(bytes, &beside) {
                line.hang_up();
                unresponsive.push((line.peer, errno));
            }
            if let Some(wakeup) = wakeup {
                wakeup.ring_broker();
            }
        }
        unresponsive
    }

    /// Hangs up the line to a program; its thread notices.
    pub fn hang_up(&self, process: ProcessId) {
        if let Some(program) = self.lock().get(&process) {
            program.line.hang_up();
        }
    }

    /// Tells a program that its message was not valid, and hangs up the line to it.
    pub fn reject(&self, peer: Peer, error: &InvalidMessage) {
        let refused = Control::Refused { token: 0, reason: error.to_string() };
        // A failure does not matter: the line is hung up anyway.
        let _ = self.send(&[Outgoing::plain(peer.process, refused.emit())]);
        self.hang_up(peer.process);
        let what = "closing a program that sent an invalid message";
        self.complain(peer, what, &error.to_string());
    }

    /// Logs what a user's program did, unless there are enough lines about that user.
    pub fn complain(&self, peer: Peer, what: &str, why: &str) {
        self.complain_of(Credentials { pid: peer.pid, uid: peer.uid }, what, why);
    }

    /// As [`Programs::complain`], for a program that was not admitted.
    pub fn complain_of(&self, credentials: Credentials, what: &str, why: &str) {
        let Credentials { pid, uid } = credentials;
        let mut complaints = self.complaints.lock().unwrap_or_else(PoisonError::into_inner);
        let left_out = complaints.about(uid, Instant::now());
        drop(complaints);
        if let Some(left_out) = left_out {
            tracing::warn!(pid, uid, left_out, "{what}: {why}");
        }
    }

    /// The programs that have given their name, and so got a greeting.
    pub fn greeted(&self) -> Vec<ProcessId> {
        let table = self.lock();
        let named = table.iter().filter(|(_, program)| program.name.is_some());
        named.map(|(process, _)| *process).collect()
    }

    /// Adds the programs that have given their name to a status whose endpoints are known, and the
    /// sums of what all counted.
    pub fn report(&self, status: &mut Status) {
        let table = self.lock();
        let mut named: Vec<_> = table.values().filter_map(Program::status).collect();
        drop(table);
        named.sort_by_key(|(process, _)| process.pid);
        let read = |(process, page): (ProcessStatus, Option<Arc<Page>>)| {
            let stats = page.and_then(|page| page.read());
            Live { process: counted(process, stats.as_ref()), stats }
        };
        let live: Vec<_> = named.into_iter().map(read).collect();
        self.ledger().total(&live, status);
        status.processes = live.into_iter().map(|live| live.process).collect();
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ProcessId, Program>> {
        // No code panics while it holds the lock.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

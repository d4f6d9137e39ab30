//! What the threads of the daemon share: the node, the lines to its programs, what was logged.
//!
//! # Invariants
//! - Under the lock nothing waits for a program: what it showed was examined before, and replies
//!   are sent without blocking. A program that does not take its replies loses its line.
//! - Replies leave in the order in which the node made them, whichever thread it worked for.
//! - The last reference to a channel is its user's thread's ([`crate::intake`]), since closing it
//!   may wait for that user.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags};
use weft_channel::{Channel, Credentials, Packet};
use weft_ether::Reach;
use weft_fabric::NodeId;
use weft_wire::control::{Advice, Control, InvalidMessage};

use crate::complaints::Complaints;
use crate::ether::Devices;
use crate::evidence::{Evidence, examine};
use crate::node::{Node, Outgoing, ProcessId, Verdict, reply};

/// How old a status may be that anybody gets; root and the daemon's own user get one made for them.
const STATUS_EVERY: Duration = Duration::from_secs(1);

struct Inner {
    node: Node,
    lines: HashMap<ProcessId, Arc<Channel>>,
}

/// The shared state.
pub struct Hub {
    inner: Mutex<Inner>,
    devices: Option<Devices>,
    complaints: Mutex<Complaints>,
    /// The last status, and when it was made.
    report: Mutex<Option<(Instant, Arc<OwnedFd>)>>,
    next: AtomicU64,
}

/// Whoever panicked while holding it left whole tables: each is changed by one call.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    /// The state of a daemon that begins.
    pub fn new(node: Node, devices: Option<Devices>) -> Self {
        Self {
            inner: Mutex::new(Inner { node, lines: HashMap::new() }),
            devices,
            complaints: Mutex::new(Complaints::default()),
            report: Mutex::new(None),
            next: AtomicU64::new(0),
        }
    }

    /// A program connected. One too many is told so and not admitted.
    pub fn admit(&self, channel: &Arc<Channel>, credentials: Credentials) -> Option<ProcessId> {
        let process = ProcessId(self.next.fetch_add(1, Ordering::Relaxed));
        let mut inner = lock(&self.inner);
        match inner.node.connected(process, credentials) {
            Ok(()) => {
                inner.lines.insert(process, Arc::clone(channel));
                Some(process)
            }
            Err(reason) => {
                drop(inner);
                self.complain(credentials, "a program is refused", &reason);
                // It may have gone already.
                let _ = channel.send(&Control::Refused { token: 0, reason }.emit(), &[]);
                None
            }
        }
    }

    /// Says in the log what a user's program did, unless enough was said about that user.
    pub fn complain(&self, credentials: Credentials, what: &str, why: &str) {
        let Credentials { pid, uid } = credentials;
        if let Some(left_out) = lock(&self.complaints).about(uid, Instant::now()) {
            tracing::warn!(pid, uid, left_out, "{what}: {why}");
        }
    }

    /// Handles a packet of `process`, on the thread of its user.
    pub fn handle(&self, process: ProcessId, packet: Packet) -> Verdict {
        let evidence = match examine(packet, self.devices.as_ref()) {
            Ok(evidence) => evidence,
            Err(error) => return self.reject(process, &error),
        };
        match &evidence {
            Evidence::Control(Control::Status) => {
                self.tell_status(process);
                return Verdict::Continue;
            }
            Evidence::Control(Control::Reach { node, reach }) => {
                self.set_reach(process, NodeId(*node), Reach::of_bits(*reach));
                return Verdict::Continue;
            }
            Evidence::Offer(offered) => {
                let suspect = lock(&self.inner).node.suspect(offered.tuple);
                // Reads /proc, so without the lock.
                if let Some(suspect) = suspect.filter(|suspect| suspect.is_leftover()) {
                    lock(&self.inner).node.forget(&suspect);
                }
            }
            Evidence::Refused { reason, .. } => {
                let credentials = lock(&self.inner).node.credentials(process);
                self.complain(credentials, "what a program offers is refused", reason);
            }
            _ => {}
        }
        let mut out = Vec::new();
        let mut inner = lock(&self.inner);
        let handled = inner.node.handle(process, evidence, &mut out);
        self.send(inner, out);
        handled.unwrap_or_else(|error| self.reject(process, &error))
    }

    fn reject(&self, process: ProcessId, error: &InvalidMessage) -> Verdict {
        let inner = lock(&self.inner);
        let credentials = inner.node.credentials(process);
        let mut out = Vec::new();
        reply(&mut out, process, &Control::Refused { token: 0, reason: error.to_string() });
        self.send(inner, out);
        let what = "closing a program that sent an invalid message";
        self.complain(credentials, what, &error.to_string());
        Verdict::Close
    }

    /// The process that connected ended.
    pub fn ended(&self, process: ProcessId) {
        let mut out = Vec::new();
        let mut inner = lock(&self.inner);
        inner.node.ended(process, &mut out);
        self.send(inner, out);
    }

    /// A program is gone; its channel may be closed after this.
    pub fn gone(&self, process: ProcessId) {
        let mut out = Vec::new();
        let mut inner = lock(&self.inner);
        inner.lines.remove(&process);
        inner.node.gone(process, &mut out);
        self.send(inner, out);
    }

    /// When [`Hub::handle_timeout`] is due; changes after it was called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        lock(&self.inner).node.poll_timeout()
    }

    /// Does what is due.
    pub fn handle_timeout(&self, now: Instant) {
        let mut out = Vec::new();
        let mut inner = lock(&self.inner);
        inner.node.handle_timeout(now, &mut out);
        self.send(inner, out);
    }

    /// From now on programs are told this.
    pub fn set_advice(&self, advice: Advice) {
        lock(&self.inner).node.set_advice(advice);
    }

    /// Sends with the lock held, so that nothing overtakes.
    fn send(&self, mut inner: MutexGuard<'_, Inner>, out: Vec<Outgoing>) {
        let mut deaf = Vec::new();
        for Outgoing { to, bytes, descriptors, bell } in out {
            let Some(line) = inner.lines.get(&to) else { continue };
            let beside: Vec<_> = descriptors.iter().map(|descriptor| descriptor.as_fd()).collect();
            if let Err(errno) = line.send(&bytes, &beside) {
                // Its thread finds the end, and tells the node.
                line.hang_up();
                inner.lines.remove(&to);
                deaf.push((inner.node.credentials(to), errno));
            }
            if let Some(bell) = bell {
                bell.ring_broker();
            }
        }
        drop(inner);
        for (credentials, errno) in deaf {
            let what = "closing a program that does not take its replies";
            self.complain(credentials, what, &errno.to_string());
        }
    }

    fn answer(&self, process: ProcessId, control: &Control) {
        let mut out = Vec::new();
        reply(&mut out, process, control);
        self.send(lock(&self.inner), out);
    }

    fn tell_status(&self, process: ProcessId) {
        match self.status(process) {
            Ok(file) => {
                let bytes = Control::StatusReply.emit();
                let out = Outgoing { to: process, bytes, descriptors: vec![file], bell: None };
                self.send(lock(&self.inner), vec![out]);
            }
            Err(errno) => {
                let reason = format!("no memory for the status: {errno}");
                self.answer(process, &Control::Refused { token: 0, reason });
            }
        }
    }

    /// The state as JSON, in a file that its readers cannot change.
    fn status(&self, process: ProcessId) -> rustix::io::Result<Arc<OwnedFd>> {
        let mut report = lock(&self.report);
        let now = Instant::now();
        let is_trusted = lock(&self.inner).node.may_command(process);
        if let Some((made, file)) = &*report
            && !is_trusted
            && now.duration_since(*made) < STATUS_EVERY
        {
            return Ok(Arc::clone(file));
        }
        // The node is locked for the tables alone, not while lanes and devices are asked.
        let census = lock(&self.inner).node.census();
        let mut status = census.counted();
        status.devices = self.devices.as_ref().map(Devices::status).unwrap_or_default();
        let file = Arc::new(written(&serde_json::to_vec(&status).unwrap_or_default())?);
        *report = Some((now, Arc::clone(&file)));
        Ok(file)
    }

    fn set_reach(&self, process: ProcessId, node: NodeId, reach: Reach) {
        let may = lock(&self.inner).node.may_command(process);
        let done = match &self.devices {
            _ if !may => Err("only root and the daemon's own user may cut links".to_owned()),
            None => Err("it serves no devices".to_owned()),
            Some(devices) => devices.set_reach(node, reach),
        };
        match done {
            Ok(()) => self.answer(process, &Control::Done),
            Err(reason) => self.answer(process, &Control::Refused { token: 0, reason }),
        }
    }
}

/// A sealed file of memory that holds `text`.
fn written(text: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("weft-status", flags)?;
    let mut done = 0;
    while done < text.len() {
        done += rustix::io::pwrite(&file, &text[done..], done as u64)?;
    }
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file)
}

//! The channel from this process to the node daemon.
//!
//! The channel is opened at the first offer and has a number far above those that programs use.
//! Before each use it is compared with what was opened, since a program may close all descriptors
//! it does not know. If the channel or the daemon is gone, it is opened again, at most once a
//! second. When anything fails, the connection stays on TCP. A daemon that is late is not gone: the
//! offer is pending, and calls do not wait for the daemon in the next second.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use weft_channel::{Channel, ConnectError, Packet};
use weft_memory::CopyMode;
use weft_unread::Put;
use weft_wire::control::{Advice, Control, CopyAdvice, End, Partner, PutFate, PutWay};
use weft_wire::stats::TcpReason;

use crate::guard::{ForkLock, LocalLock, Rank};
use crate::table::{self, Entry};
use crate::{carrier, log, process, stats, sys};

static PATH: OnceLock<PathBuf> = OnceLock::new();
static STATE: LocalLock<State> = LocalLock::new(Rank::Control, State::new());

const RETRY_NS: u64 = 1_000_000_000;
/// How often a program that accepts checks whether the daemon is still there.
const LOOK_NS: u64 = 50_000_000;
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);
/// How many answers for other connections are kept until those ask.
const ANSWERS_MAX: usize = 1024;

/// How long the daemon may take to bring a lane that a relative uses, in milliseconds: without it
/// the connection cannot be used.
const JOIN_MS: u32 = 10_000;

/// Tokens begin at 1, so no offer has this one.
const NOBODY: u64 = 0;

struct State {
    channel: Option<OpenChannel>,
    retry_at_ns: u64,
    advice: Advice,
    answers: Vec<(u64, Memory)>,
    /// Offers of accepting ends whose peer waits for a lane.
    wanted: Vec<(u64, Wanted)>,
    /// Offers to which the daemon's last answer was that the other end has not come.
    pending: Vec<u64>,
    /// Those of them to which the daemon has not answered at all.
    unanswered: Vec<u64>,
    /// Offers that were pending and failed, and why, until their connections ask.
    lost: Vec<(u64, TcpReason)>,
    /// Until then no call waits for an answer: the daemon was late.
    late_until_ns: u64,
    warned: bool,
    /// The user of the daemon; 0 for root, and when it is unknown.
    daemon: u32,
}

/// The open channel, and the inode of its socket.
struct OpenChannel {
    channel: Channel,
    inode: u64,
}

impl State {
    const fn new() -> Self {
        Self {
            channel: None,
            retry_at_ns: 0,
            advice: Advice::NONE,
            answers: Vec::new(),
            wanted: Vec::new(),
            pending: Vec::new(),
            unanswered: Vec::new(),
            lost: Vec::new(),
            late_until_ns: 0,
            warned: false,
            daemon: 0,
        }
    }

    /// The answer for `token` has not come in time, and may come later.
    fn answers_later(&mut self, token: u64) {
        self.late_until_ns = sys::now_ns() + RETRY_NS;
        self.pending.push(token);
        self.unanswered.push(token);
    }

    /// Called with each answer. True if it is one that was late.
    fn was_late(&mut self, token: u64) -> bool {
        let place = self.unanswered.iter().position(|unanswered| *unanswered == token);
        place.map(|place| self.unanswered.swap_remove(place)).is_some()
    }

    fn forget(&mut self, token: u64) {
        self.answers.retain(|(answered, _)| *answered != token);
        self.wanted.retain(|(wanted, _)| *wanted != token);
        self.pending.retain(|pending| *pending != token);
        self.unanswered.retain(|unanswered| *unanswered != token);
        self.lost.retain(|(lost, _)| *lost != token);
    }
}

/// The memory of a lane, and the process at its other end if the lane may be kept.
pub struct Memory {
    pub lane: OwnedFd,
    pub partner: Option<Partner>,
}

/// The way to the lane for which the other end waits.
#[derive(Clone, Copy)]
pub enum Wanted {
    /// This end makes it in memory; the partner is as in [`Memory`].
    Memory(Option<Partner>),
    /// The other end is on another host, and needs the address of this process's endpoint.
    Address,
}

/// The daemon's answer to an offer.
pub enum Answer {
    /// The other end has come. Here is its lane.
    Matched(Memory),
    /// The other end has come and waits for the lane that this end makes.
    Wanted(Wanted),
    /// The other end has not come, or the daemon is late. `listening` when it may still come.
    Pending {
        /// A program under weft listens at the address.
        listening: bool,
    },
    /// The connection stays on TCP.
    Refused(TcpReason),
}

/// Sets the path of the daemon's socket.
pub fn set_path(path: String) {
    let _ = PATH.set(PathBuf::from(path));
}

/// The lock of this module, for fork.
pub fn lock() -> &'static dyn ForkLock {
    &STATE
}

/// In a forked child: the channel and its answers are the parent's.
pub fn forked() {
    if let Some(mut state) = STATE.lock() {
        drop_channel(&mut state);
        state.answers.clear();
        state.wanted.clear();
        state.pending.clear();
        state.unanswered.clear();
        state.lost.clear();
        (state.retry_at_ns, state.late_until_ns) = (0, 0);
    }
}

/// True when `fd` is the channel, which the program must not close.
pub fn is_channel(fd: RawFd) -> bool {
    CHANNEL_FD.load(Ordering::Relaxed) == fd
}

static WAS_THERE: AtomicBool = AtomicBool::new(false);
static CHANNEL_FD: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(-1);

/// How to copy into lanes: the fastest way that the daemon measured.
pub fn copy_mode() -> CopyMode {
    let advice = STATE.lock().map_or(Advice::NONE, |state| state.advice);
    match advice.copy {
        CopyAdvice::Plain => CopyMode::Plain,
        CopyAdvice::NonTemporal => CopyMode::NonTemporal,
    }
}

/// The offer of an end.
fn offer(token: u64, end: End, socket: RawFd) -> Control {
    let between_hosts = process::settings().offers_between_hosts;
    Control::Offer { token, end, descriptor: socket.unsigned_abs(), between_hosts }
}

/// Offers the accepting end of a connection with a lane. The daemon does not answer.
pub fn offer_accepted(token: u64, socket: RawFd, lane: BorrowedFd<'_>) -> Result<(), TcpReason> {
    let mut state = STATE.lock().ok_or(TcpReason::Other)?;
    let channel = connected(&mut state)?;
    let offer = offer(token, End::Accepted, socket);
    let sent = channel.send(&offer.emit(), &[sys::borrow(socket), lane]);
    sent.map_err(|errno| lost(&mut state, errno))
}

/// Offers the accepting end of a connection without a lane. The daemon answers [`Answer::Wanted`]
/// at once, or [`Offered::Wanted`] later, when the other end has come.
pub fn expect(token: u64, socket: RawFd) -> Answer {
    ask(token, &offer(token, End::Accepted, socket), socket)
}

/// Offers the connecting end of a connection and waits for the daemon's answer.
pub fn offer_connected(token: u64, socket: RawFd) -> Answer {
    ask(token, &offer(token, End::Connected, socket), socket)
}

/// Asks for the memory of a lane that another process of this end brought.
pub fn join(token: u64, socket: RawFd) -> Option<OwnedFd> {
    if let Offered::Matched(memory) = matched(token) {
        return Some(memory.lane);
    }
    match ask_within(token, &Control::Join { token }, socket, JOIN_MS) {
        Answer::Matched(memory) => Some(memory.lane),
        Answer::Wanted(_) | Answer::Pending { .. } | Answer::Refused(_) => None,
    }
}

/// True when the daemon serves Ethernet devices, or programs in other network namespaces: a
/// connection to another host's address may then end on this host.
pub fn carries_networks() -> bool {
    let Some(mut state) = STATE.lock() else { return false };
    if connected(&mut state).is_err() {
        return false;
    }
    // The daemon tells when the first such program joins.
    while !state.advice.networks
        && let Some(packet) = next_packet(&mut state)
    {
        take_packet(&mut state, packet, NOBODY);
    }
    state.advice.networks
}

/// The user whom the daemon serves; `None` when it serves all.
pub fn only_user() -> Option<u32> {
    STATE.lock().map(|state| state.daemon).filter(|daemon| *daemon != 0)
}

fn ask(token: u64, question: &Control, socket: RawFd) -> Answer {
    let is_late = STATE.lock().is_some_and(|state| sys::now_ns() < state.late_until_ns);
    ask_within(token, question, socket, if is_late { 0 } else { answer_ms() })
}

/// The same, with another wait than [`answer_ms`].
fn ask_within(token: u64, question: &Control, socket: RawFd, within: u32) -> Answer {
    let Some(mut state) = STATE.lock() else { return Answer::Refused(TcpReason::Other) };
    if let Err(reason) = say(&mut state, question, socket) {
        return Answer::Refused(reason);
    }
    let start = sys::now_ns();
    loop {
        let Some(held) = &state.channel else { return Answer::Refused(TcpReason::DaemonLost) };
        let past = (sys::now_ns() - start) / 1_000_000;
        let left = u64::from(within).saturating_sub(past);
        match held.channel.receive_within(u32::try_from(left).unwrap_or(within)) {
            Ok(Some(packet)) => {
                if let Some(answer) = take_packet(&mut state, packet, token) {
                    return answer;
                }
            }
            Err(Errno::TIMEDOUT) => {
                log::debug!("the daemon is late");
                state.answers_later(token);
                return Answer::Pending { listening: true };
            }
            other => {
                let errno = other.err().unwrap_or(Errno::PIPE);
                return Answer::Refused(lost(&mut state, errno));
            }
        }
    }
}

/// Sends a question with a socket. A daemon that is gone is found out here, and where another one
/// has its place, as after an upgrade, that one is asked.
fn say(state: &mut State, question: &Control, socket: RawFd) -> Result<(), TcpReason> {
    let send = |channel: &Channel| channel.send(&question.emit(), &[sys::borrow(socket)]);
    if let Err(errno) = send(connected(state)?) {
        let reason = lost(state, errno);
        let again = connected(state).map_err(|now| match now {
            TcpReason::NoDaemon => reason,
            other => other,
        })?;
        send(again).map_err(|errno| lost(state, errno))?;
    }
    Ok(())
}

/// Handles a packet of the daemon. Returns the answer for `token`, if it is one; an answer for
/// another offer is kept.
fn take_packet(state: &mut State, packet: Packet, token: u64) -> Option<Answer> {
    let lost = packet.descriptors_lost;
    match Control::parse(&packet.bytes) {
        Ok(Control::Matched { token: answered, partner }) => {
            state.was_late(answered);
            let lane = packet.descriptors.into_iter().next();
            let memory = lane.map(|lane| Memory { lane, partner });
            match memory {
                Some(memory) if answered == token => Some(Answer::Matched(memory)),
                Some(Memory { lane, partner }) if state.answers.len() < ANSWERS_MAX => {
                    // The connection may not ask for long, and the program may want the number.
                    let lane = sys::high(lane);
                    let takes = sys::is_below_limit(lane.as_raw_fd());
                    if !takes || state.answers.len() < most_below_limit() {
                        state.answers.push((answered, Memory { lane, partner }));
                    }
                    None
                }
                None if answered == token && lost => {
                    Some(Answer::Refused(TcpReason::OutOfDescriptors))
                }
                _ => None,
            }
        }
        Ok(Control::Wanted { token: wanted, partner }) => {
            state.was_late(wanted);
            wants(state, wanted, Wanted::Memory(partner), token)
        }
        Ok(Control::WantedBetweenHosts { token: wanted }) => {
            state.was_late(wanted);
            wants(state, wanted, Wanted::Address, token)
        }
        Ok(Control::Pending { token: late, listening }) if state.was_late(late) => {
            if !listening {
                state.lost.push((late, TcpReason::PeerNotWeft));
            }
            None
        }
        Ok(Control::Refused { token: late, .. }) if state.was_late(late) => {
            state.lost.push((late, TcpReason::DaemonRefused));
            None
        }
        Ok(Control::Pending { token: answered, listening }) if answered == token => {
            state.pending.push(token);
            Some(Answer::Pending { listening })
        }
        Ok(Control::Refused { token: answered, reason }) if answered == token => {
            log::debug!("the daemon refused a connection: {reason}");
            Some(Answer::Refused(TcpReason::DaemonRefused))
        }
        Ok(Control::Welcome { advice, .. }) => {
            state.advice = advice;
            None
        }
        _ => None,
    }
}

/// How many answers may have numbers that the program could get. Connections whose lanes are
/// dropped stay on TCP.
fn most_below_limit() -> usize {
    const SHARE: u64 = 64;
    let soft = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(soft / SHARE).unwrap_or(ANSWERS_MAX)
}

/// The other end of the offer `wanted` waits for a lane. Returns the answer for `token`.
fn wants(state: &mut State, wanted: u64, how: Wanted, token: u64) -> Option<Answer> {
    if wanted == token {
        return Some(Answer::Wanted(how));
    }
    // Only an offer that is pending is recorded. A token that nobody asks for would stay in the
    // list.
    let is_known = state.wanted.iter().any(|(known, _)| *known == wanted);
    if state.pending.contains(&wanted) && !is_known {
        state.wanted.push((wanted, how));
    }
    None
}

/// The state of an offer that was pending.
pub enum Offered {
    /// The other end has come. Here is its lane.
    Matched(Memory),
    /// The other end has come and waits for a lane; as in [`Answer::Wanted`].
    Wanted(Wanted),
    /// The other end has not come.
    Pending,
    /// The daemon that had the offer is gone, or its answer came late and was no.
    Lost(TcpReason),
}

/// Looks for the answer to an offer that was pending. Never waits.
pub fn matched(token: u64) -> Offered {
    let Some(mut state) = STATE.lock() else { return Offered::Lost(TcpReason::Other) };
    if let Some(place) = state.answers.iter().position(|(answered, _)| *answered == token) {
        state.pending.retain(|pending| *pending != token);
        return Offered::Matched(state.answers.swap_remove(place).1);
    }
    while let Some(packet) = next_packet(&mut state) {
        let answer = match take_packet(&mut state, packet, token) {
            Some(Answer::Matched(memory)) => Offered::Matched(memory),
            Some(Answer::Wanted(how)) => Offered::Wanted(how),
            Some(Answer::Pending { .. } | Answer::Refused(_)) | None => continue,
        };
        state.pending.retain(|pending| *pending != token);
        return answer;
    }
    if let Some(place) = state.wanted.iter().position(|(wanted, _)| *wanted == token) {
        let (_, how) = state.wanted.swap_remove(place);
        state.pending.retain(|pending| *pending != token);
        return Offered::Wanted(how);
    }
    // A forked child inherits a pending offer without an entry here: its parent gets the answer.
    match state.lost.iter().position(|(lost, _)| *lost == token) {
        Some(place) => Offered::Lost(state.lost.swap_remove(place).1),
        None => Offered::Pending,
    }
}

/// The next packet in the channel, if one has arrived.
fn next_packet(state: &mut State) -> Option<Packet> {
    let errno = match checked(state)?.receive() {
        Ok(Some(packet)) => return Some(packet),
        Ok(None) => Errno::PIPE,
        Err(errno) => errno,
    };
    if errno != Errno::AGAIN {
        lost(state, errno);
    }
    None
}

/// The offers that were pending and whose answer has come, for [`matched`].
pub fn answered() -> Vec<u64> {
    let Some(mut state) = STATE.lock() else { return Vec::new() };
    if state.pending.is_empty() {
        return Vec::new();
    }
    while let Some(packet) = next_packet(&mut state) {
        take_packet(&mut state, packet, NOBODY);
    }
    let with_memory = state.answers.iter().map(|(answered, _)| *answered);
    with_memory.chain(state.wanted.iter().map(|(wanted, _)| *wanted)).collect()
}

/// True when this process offered `token` and no answer has come.
pub fn is_pending(token: u64) -> bool {
    STATE.lock().is_some_and(|state| state.pending.contains(&token))
}

/// True when this process offered `token` and the daemon has not answered at all.
pub fn is_unanswered(token: u64) -> bool {
    STATE.lock().is_some_and(|state| state.unanswered.contains(&token))
}

/// Tells the daemon that a connection is closed or stays on TCP. The daemon does not answer.
pub fn withdraw(token: u64) {
    carrier::forget(token);
    let Some(mut state) = STATE.lock() else { return };
    if let Some(channel) = checked(&mut state) {
        let _ = channel.send(&Control::Withdraw { token }.emit(), &[]);
    }
    state.forget(token);
}

/// Tells the daemon that this process will accept the connections of `socket` through weft. Waits
/// until the daemon has closed its descriptor: otherwise a listener that the program closes at once
/// would stay open.
pub fn listening(token: u64, socket: RawFd) {
    ask(token, &Control::Listening { token }, socket);
    if let Some(mut state) = STATE.lock() {
        // The daemon sends no second answer.
        state.forget(token);
    }
}

/// Asks the daemon to put `bytes` into the kernel's connection of `socket`.
pub fn put_unread(token: u64, socket: RawFd, way: PutWay, bytes: &[u8]) -> Put {
    /// How long the daemon may take to begin. It looks through all descriptors of the host, and the
    /// caller waits as long for a peer that does not look.
    const BEGINS_NS: u64 = 1_000_000_000;
    /// How long it may take then.
    const BEGUN_NS: u64 = 10_000_000_000;
    let Some(mut state) = STATE.lock() else { return Put::Nothing };
    let Some(memory) = sealed(bytes) else { return Put::Nothing };
    let Ok(channel) = connected(&mut state) else { return Put::Nothing };
    let question = Control::PutUnread { token, way }.emit();
    if let Err(errno) = channel.send(&question, &[sys::borrow(socket), memory.as_fd()]) {
        lost(&mut state, errno);
        return Put::Nothing;
    }
    let mut until = sys::now_ns() + BEGINS_NS;
    let mut waits_for_begun = false;
    loop {
        let left = until.saturating_sub(sys::now_ns()).div_ceil(1_000_000);
        let packet =
            state.channel.as_ref().ok_or(Errno::PIPE).and_then(|held| {
                held.channel.receive_within(u32::try_from(left).unwrap_or(u32::MAX))
            });
        match packet {
            Ok(Some(packet)) => match Control::parse(&packet.bytes) {
                Ok(Control::WasPut { token: answered, fate }) if answered == token => {
                    return match fate {
                        PutFate::Nothing => Put::Nothing,
                        PutFate::All => Put::All,
                        PutFate::Reset => Put::Reset,
                    };
                }
                _ => {
                    take_packet(&mut state, packet, NOBODY);
                }
            },
            Err(Errno::TIMEDOUT) if withdraws(&memory) => return Put::Nothing,
            Err(Errno::TIMEDOUT) if !waits_for_begun => {
                waits_for_begun = true;
                until = sys::now_ns() + BEGUN_NS;
            }
            other => {
                lost(&mut state, other.err().unwrap_or(Errno::PIPE));
                if withdraws(&memory) {
                    return Put::Nothing;
                }
                // Nobody knows what lies in the kernel's connection.
                let _ = rustix::net::connect_unspec(sys::borrow(socket));
                return Put::Reset;
            }
        }
    }
}

/// A memory with `bytes`, as the daemon takes it.
fn sealed(bytes: &[u8]) -> Option<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create("weft-unread", flags).ok()?;
    let mut done = 0;
    while done < bytes.len() {
        done += rustix::io::pwrite(&memory, &bytes[done..], done as u64).ok()?;
    }
    rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW).ok()?;
    Some(memory)
}

/// Keeps the daemon from a memory of [`put_unread`]. False if it has begun.
fn withdraws(memory: &OwnedFd) -> bool {
    let _ = rustix::fs::fcntl_add_seals(memory, SealFlags::SEAL);
    rustix::fs::fcntl_get_seals(memory).is_ok_and(|seals| !seals.contains(SealFlags::WRITE))
}

/// The channel, if it is open and its number still leads to the socket that was opened.
fn checked(state: &mut State) -> Option<&Channel> {
    let ours = state.channel.as_ref().is_some_and(|held| {
        rustix::fs::fstat(&held.channel).is_ok_and(|status| status.st_ino == held.inode)
    });
    if !ours {
        drop_channel(state);
        return None;
    }
    state.channel.as_ref().map(|held| &held.channel)
}

/// The channel, which is opened if need be.
fn connected(state: &mut State) -> Result<&Channel, TcpReason> {
    if !process::settings().options.socket_enable() {
        return Err(TcpReason::Disabled);
    }
    if checked(state).is_none() {
        let now = sys::now_ns();
        if now < state.retry_at_ns {
            return Err(TcpReason::NoDaemon);
        }
        state.retry_at_ns = now + RETRY_NS;
        open(state)?;
    }
    state.channel.as_ref().map(|held| &held.channel).ok_or(TcpReason::NoDaemon)
}

/// How long the daemon may take to answer before a connection stays on TCP, in milliseconds.
fn answer_ms() -> u32 {
    u32::try_from(process::settings().options.daemon_answer_ms()).unwrap_or(u32::MAX)
}

fn open(state: &mut State) -> Result<(), TcpReason> {
    let path = PATH.get().ok_or(TcpReason::NoDaemon)?;
    let channel = Channel::connect(path).map_err(|error| {
        let path = path.display();
        match error {
            ConnectError::Os { errno } => {
                warn_once(state, format_args!("no daemon answers at {path} ({errno})"));
                let out = errno == Errno::MFILE;
                if out { TcpReason::OutOfDescriptors } else { TcpReason::NoDaemon }
            }
            distrust => {
                warn_once(state, format_args!("the daemon at {path} is not used: {distrust}"));
                TcpReason::DaemonNotTrusted
            }
        }
    })?;
    state.daemon = channel.peer().map_or(0, |daemon| daemon.uid);
    let channel = move_to_high_number(channel);
    let hello = Control::Hello { pid: process::pid(), name: process::name() };
    // The daemon watches the counters of this process from here on. Without them it does not.
    let counters = stats::page_for_daemon();
    let shown: Vec<_> = counters.iter().map(AsFd::as_fd).collect();
    let sent = match channel.send(&hello.emit(), &shown) {
        // A daemon that refuses a program sends why and closes the channel.
        Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
        // The kernel carries no descriptor just now; the daemon watches no counters then.
        Err(_) if !shown.is_empty() => channel.ask(&hello.emit()),
        sent => sent,
    };
    let greeted = sent.and_then(|()| channel.receive_within(answer_ms()));
    let welcome = match greeted {
        Ok(Some(packet)) => Some(Control::parse(&packet.bytes)),
        Err(Errno::TIMEDOUT) => None,
        _ => return Err(TcpReason::NoDaemon),
    };
    match welcome.transpose() {
        Ok(Some(Control::Welcome { advice, .. })) => state.advice = advice,
        // A daemon that is late. Until its advice comes it is asked about all connections.
        Ok(None) => {
            state.late_until_ns = sys::now_ns() + RETRY_NS;
            state.advice.networks = true;
        }
        Ok(Some(Control::Refused { reason, .. })) => {
            warn_once(state, format_args!("the daemon refuses this program: {reason}"));
            return Err(TcpReason::DaemonRefused);
        }
        Ok(_) => return Err(TcpReason::DaemonRefused),
        Err(error) => {
            warn_once(state, format_args!("{error}"));
            return Err(TcpReason::DaemonRefused);
        }
    }
    let inode = rustix::fs::fstat(&channel).map_err(|_| TcpReason::Other)?.st_ino;
    CHANNEL_FD.store(channel.as_fd().as_raw_fd(), Ordering::Relaxed);
    announce_listeners(&channel);
    state.channel = Some(OpenChannel { channel, inode });
    // One that is gone soon, as by an upgrade, may have a successor by then.
    state.retry_at_ns = 0;
    WAS_THERE.store(true, Ordering::Relaxed);
    Ok(())
}

/// True if a daemon answered this process before.
pub fn was_there() -> bool {
    WAS_THERE.load(Ordering::Relaxed)
}

/// A daemon that was restarted does not know the listeners of this process.
fn announce_listeners(channel: &Channel) {
    for (fd, entry) in table::walk(0, u32::MAX) {
        if entry == Entry::Listener {
            let token = table::listener_token(fd);
            let _ = channel.send(&Control::Listening { token }.emit(), &[sys::borrow(fd)]);
        }
    }
}

/// Opens the channel again if the daemon was restarted. Checks at most once in [`LOOK_NS`].
pub fn keep_open() {
    let now = sys::now_ns();
    if now.wrapping_sub(LOOKED_AT.load(Ordering::Relaxed)) < LOOK_NS {
        return;
    }
    LOOKED_AT.store(now, Ordering::Relaxed);
    let Some(mut state) = STATE.lock() else { return };
    let gone = state.channel.as_ref().is_some_and(|held| {
        let mut one = [PollFd::new(&held.channel, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut one, Some(&now)), Ok(1)) && !one[0].revents().is_empty()
    });
    if gone {
        drop_channel(&mut state);
    }
    if state.channel.is_none() {
        let _ = connected(&mut state);
    }
}

fn warn_once(state: &mut State, what: std::fmt::Arguments<'_>) {
    if !state.warned {
        state.warned = true;
        log::warn_user!("{what}; connections stay on TCP");
    }
}

/// Moves the channel to a high number, so that programs find the next free number as expected.
fn move_to_high_number(channel: Channel) -> Channel {
    Channel::new(sys::high(channel.into_socket()))
}

fn lost(state: &mut State, errno: Errno) -> TcpReason {
    log::debug!("the channel to the daemon failed: {errno}");
    drop_channel(state);
    TcpReason::DaemonLost
}

fn drop_channel(state: &mut State) {
    CHANNEL_FD.store(-1, Ordering::Relaxed);
    let Some(OpenChannel { channel, inode }) = state.channel.take() else { return };
    let State { pending, unanswered, lost, wanted, .. } = state;
    wanted.clear();
    unanswered.clear();
    lost.extend(pending.drain(..).map(|token| (token, TcpReason::DaemonLost)));
    let ours = rustix::fs::fstat(&channel).is_ok_and(|status| status.st_ino == inode);
    let number = channel.into_socket().into_raw_fd();
    if ours {
        // SAFETY: the number was owned by the channel, which gave it up, and still leads to that
        // socket.
        drop(unsafe { OwnedFd::from_raw_fd(number) });
    }
}

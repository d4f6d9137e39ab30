//! This process's channel to the node daemon.
//!
//! Opened at the first offer, kept under a number far from those that programs use, checked to be
//! still ours before each use (a program may close all descriptors it does not know), opened again
//! when it or the daemon is gone, at most once a second. Whatever goes wrong, the connection stays
//! on TCP.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use weft_channel::{Channel, ConnectError, Packet};
use weft_memory::CopyMode;
use weft_wire::control::{Advice, Control, CopyAdvice, End};
use weft_wire::stats::TcpReason;

use crate::guard::{ForkLock, LocalLock};
use crate::table::{self, Entry};
use crate::{connection, log, process, sys};

static PATH: OnceLock<PathBuf> = OnceLock::new();
static STATE: LocalLock<State> = LocalLock::new(State::new());

const RETRY_NS: u64 = 1_000_000_000;
/// How often a program that accepts looks whether the daemon is there still.
const LOOK_NS: u64 = 50_000_000;
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);
/// Answers for other offers that are kept until their connections ask.
const ANSWERS_MAX: usize = 1024;

struct State {
    channel: Option<Held>,
    retry_at_ns: u64,
    advice: Advice,
    answers: Vec<(u64, Memory)>,
    /// Offers of accepting ends whose other end waits for a lane.
    wanted: Vec<(u64, u32)>,
    /// Offers that the daemon at the other end of the channel knows of and has not answered.
    pending: Vec<u64>,
    /// Offers whose daemon is gone, until their connections ask.
    lost: Vec<u64>,
    told: bool,
    /// The user of the daemon.
    daemon: u32,
}

/// A channel and what identifies its socket.
struct Held {
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
            lost: Vec::new(),
            told: false,
            daemon: 0,
        }
    }
}

/// The memory of a lane, and the process at its other end if it is of this user, else 0.
pub struct Memory {
    pub lane: OwnedFd,
    pub process: u32,
}

/// The daemon's answer to an offer.
pub enum Answer {
    /// The lane is there.
    Matched(Memory),
    /// The other end, this process or 0 as in [`Memory`], waits for the lane that this one is to
    /// make.
    Wanted(u32),
    /// The other end has not come; `listening` when it may.
    Pending {
        /// A program under weft listens there.
        listening: bool,
    },
    /// The connection stays on TCP.
    Refused(TcpReason),
}

/// Where the daemon is.
pub fn set_path(path: String) {
    let _ = PATH.set(PathBuf::from(path));
}

/// The lock of this module, for fork.
pub fn lock() -> &'static dyn ForkLock {
    &STATE
}

/// In a forked child: the parent's channel is not ours to use, nor its answers.
pub fn forked() {
    if let Some(mut state) = STATE.lock() {
        drop_channel(&mut state);
        state.answers.clear();
        state.wanted.clear();
        state.pending.clear();
        state.lost.clear();
        state.retry_at_ns = 0;
    }
}

/// True when `fd` is the channel: the program must not close what it does not know.
pub fn is_channel(fd: RawFd) -> bool {
    CHANNEL_FD.load(Ordering::Relaxed) == fd
}

static CHANNEL_FD: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(-1);

/// How to copy into lanes, as the daemon measured.
pub fn copy_mode() -> CopyMode {
    let advice = STATE.lock().map_or(Advice::NONE, |state| state.advice);
    match advice.copy {
        CopyAdvice::Plain => CopyMode::Plain,
        CopyAdvice::NonTemporal => CopyMode::NonTemporal,
    }
}

/// Offers the accepting end of a connection with its lane; no answer comes.
pub fn offer_accepted(token: u64, socket: RawFd, lane: BorrowedFd<'_>) -> Result<(), TcpReason> {
    let mut state = STATE.lock().ok_or(TcpReason::Other)?;
    let channel = connected(&mut state)?;
    let offer = Control::Offer { token, end: End::Accepted, descriptor: socket.unsigned_abs() };
    let sent = channel.send(&offer.emit(), &[sys::borrow(socket), lane]);
    sent.map_err(|errno| lost(&mut state, errno))
}

/// Says that the accepting end of a connection is under weft, and asks to be told when the other
/// end is there ([`Offered::Wanted`]).
pub fn expect(token: u64, socket: RawFd) -> Answer {
    let offer = Control::Offer { token, end: End::Accepted, descriptor: socket.unsigned_abs() };
    ask(token, &offer, socket)
}

/// Offers the connecting end and waits for the daemon's answer.
pub fn offer_connected(token: u64, socket: RawFd) -> Answer {
    let offer = Control::Offer { token, end: End::Connected, descriptor: socket.unsigned_abs() };
    ask(token, &offer, socket)
}

/// Asks for the memory of a lane whose end this process inherited without it.
pub fn join(token: u64, socket: RawFd) -> Option<OwnedFd> {
    match ask(token, &Control::Join { token }, socket) {
        Answer::Matched(memory) => Some(memory.lane),
        Answer::Wanted(_) | Answer::Pending { .. } | Answer::Refused(_) => None,
    }
}

/// Whether a connection to another address may end on this host.
pub fn carries_networks() -> bool {
    let Some(mut state) = STATE.lock() else { return false };
    connected(&mut state).is_ok() && state.advice.networks
}

/// The only user whom the daemon serves; nothing when it serves all.
pub fn only_user() -> Option<u32> {
    STATE.lock().map(|state| state.daemon).filter(|daemon| *daemon != 0)
}

fn ask(token: u64, question: &Control, socket: RawFd) -> Answer {
    let Some(mut state) = STATE.lock() else { return Answer::Refused(TcpReason::Other) };
    let channel = match connected(&mut state) {
        Ok(channel) => channel,
        Err(reason) => return Answer::Refused(reason),
    };
    if let Err(errno) = channel.send(&question.emit(), &[sys::borrow(socket)]) {
        return Answer::Refused(lost(&mut state, errno));
    }
    let within = answer_ms();
    let deadline = sys::now_ns() + u64::from(within) * 1_000_000;
    loop {
        let Some(held) = &state.channel else { return Answer::Refused(TcpReason::DaemonLost) };
        let packet = match held.channel.receive_within(within) {
            Ok(Some(packet)) => packet,
            Ok(None) => return Answer::Refused(lost(&mut state, Errno::PIPE)),
            Err(errno) => return Answer::Refused(lost(&mut state, errno)),
        };
        match sort(&mut state, packet, token) {
            Some(answer) => return answer,
            None if sys::now_ns() > deadline => {
                return Answer::Refused(lost(&mut state, Errno::TIMEDOUT));
            }
            None => {}
        }
    }
}

/// The answer for `token`, if `packet` is that; keeps what is for others.
fn sort(state: &mut State, packet: Packet, token: u64) -> Option<Answer> {
    let lost = packet.descriptors_lost;
    match Control::parse(&packet.bytes) {
        Ok(Control::Matched { token: answered, process }) => {
            let lane = packet.descriptors.into_iter().next();
            let memory = lane.map(|lane| Memory { lane, process });
            match memory {
                Some(memory) if answered == token => Some(Answer::Matched(memory)),
                Some(memory) if state.answers.len() < ANSWERS_MAX => {
                    state.answers.push((answered, memory));
                    None
                }
                None if answered == token && lost => {
                    Some(Answer::Refused(TcpReason::OutOfDescriptors))
                }
                _ => None,
            }
        }
        Ok(Control::Wanted { token: answered, process }) if answered == token => {
            Some(Answer::Wanted(process))
        }
        Ok(Control::Wanted { token: wanted, process }) => {
            // Only a pending offer is recorded: another would use up a place in the list.
            let is_known = state.wanted.iter().any(|(known, _)| *known == wanted);
            if state.pending.contains(&wanted) && !is_known {
                state.wanted.push((wanted, process));
            }
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

/// The present state of an offer that was pending.
pub enum Offered {
    /// The other end has come; the lane is there.
    Matched(Memory),
    /// The other end has come, and waits for the lane; as in [`Answer::Wanted`].
    Wanted(u32),
    /// It has not come yet.
    Pending,
    /// The daemon that knew of the offer is gone.
    Lost(TcpReason),
}

/// Looks after an offer that was pending; never waits.
pub fn matched(token: u64) -> Offered {
    let Some(mut state) = STATE.lock() else { return Offered::Lost(TcpReason::Other) };
    if let Some(place) = state.answers.iter().position(|(answered, _)| *answered == token) {
        state.pending.retain(|pending| *pending != token);
        return Offered::Matched(state.answers.swap_remove(place).1);
    }
    while let Some(packet) = next_packet(&mut state) {
        let answer = match sort(&mut state, packet, token) {
            Some(Answer::Matched(memory)) => Offered::Matched(memory),
            Some(Answer::Wanted(process)) => Offered::Wanted(process),
            Some(Answer::Pending { .. } | Answer::Refused(_)) | None => continue,
        };
        state.pending.retain(|pending| *pending != token);
        return answer;
    }
    if let Some(place) = state.wanted.iter().position(|(wanted, _)| *wanted == token) {
        let (_, process) = state.wanted.swap_remove(place);
        state.pending.retain(|pending| *pending != token);
        return Offered::Wanted(process);
    }
    // An offer that a forked child inherited is pending for its parent, and in neither list here.
    match state.lost.iter().position(|lost| *lost == token) {
        Some(place) => {
            state.lost.swap_remove(place);
            Offered::Lost(TcpReason::DaemonLost)
        }
        None => Offered::Pending,
    }
}

/// The next packet that lies in the channel.
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

/// The offers that were pending and are answered by now, for [`matched`].
pub fn answered() -> Vec<u64> {
    /// No token: those begin at 1.
    const NOBODY: u64 = 0;
    let Some(mut state) = STATE.lock() else { return Vec::new() };
    if state.pending.is_empty() {
        return Vec::new();
    }
    while let Some(packet) = next_packet(&mut state) {
        sort(&mut state, packet, NOBODY);
    }
    let with_memory = state.answers.iter().map(|(answered, _)| *answered);
    with_memory.chain(state.wanted.iter().map(|(wanted, _)| *wanted)).collect()
}

/// True when this process offered it and looks after the answer.
pub fn is_pending(token: u64) -> bool {
    STATE.lock().is_some_and(|state| state.pending.contains(&token))
}

/// The connection is closed or stays on TCP; said once, answered never.
pub fn withdraw(token: u64) {
    let Some(mut state) = STATE.lock() else { return };
    if let Some(channel) = checked(&mut state) {
        let _ = channel.send(&Control::Withdraw { token }.emit(), &[]);
    }
    state.answers.retain(|(answered, _)| *answered != token);
    state.wanted.retain(|(wanted, _)| *wanted != token);
    state.pending.retain(|pending| *pending != token);
    state.lost.retain(|lost| *lost != token);
}

/// `socket` listens, and its connections will be accepted through weft. Waits until the daemon has
/// let go of the descriptor: a listener that is closed at once must not live on in a packet.
pub fn listening(token: u64, socket: RawFd) {
    ask(token, &Control::Listening { token }, socket);
    if let Some(mut state) = STATE.lock() {
        // No answer comes after this one.
        state.pending.retain(|pending| *pending != token);
    }
}

/// The channel if it is open and still ours.
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

/// The channel, opened if need be.
fn connected(state: &mut State) -> Result<&Channel, TcpReason> {
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

/// How long the daemon may take for an answer before connections go on without it.
fn answer_ms() -> u32 {
    u32::try_from(process::settings().options.daemon_answer_ms()).unwrap_or(u32::MAX)
}

fn open(state: &mut State) -> Result<(), TcpReason> {
    let path = PATH.get().ok_or(TcpReason::NoDaemon)?;
    let channel = Channel::connect(path).map_err(|error| {
        let path = path.display();
        match error {
            ConnectError::Os { errno } => {
                tell_once(state, format_args!("no daemon answers at {path} ({errno})"));
                let out = errno == Errno::MFILE;
                if out { TcpReason::OutOfDescriptors } else { TcpReason::NoDaemon }
            }
            distrust => {
                tell_once(state, format_args!("the daemon at {path} is not used: {distrust}"));
                TcpReason::DaemonNotTrusted
            }
        }
    })?;
    state.daemon = channel.peer().map_or(0, |daemon| daemon.uid);
    let channel = out_of_the_way(channel);
    let hello = Control::Hello { pid: process::pid(), name: process::name() };
    let greeted =
        channel.send(&hello.emit(), &[]).and_then(|()| channel.receive_within(answer_ms()));
    let welcome = match greeted {
        Ok(Some(packet)) => Control::parse(&packet.bytes),
        _ => return Err(TcpReason::NoDaemon),
    };
    match welcome {
        Ok(Control::Welcome { advice, .. }) => state.advice = advice,
        Ok(Control::Refused { reason, .. }) => {
            tell_once(state, format_args!("the daemon refuses this program: {reason}"));
            return Err(TcpReason::DaemonRefused);
        }
        Ok(_) => return Err(TcpReason::DaemonRefused),
        Err(error) => {
            tell_once(state, format_args!("{error}"));
            return Err(TcpReason::DaemonRefused);
        }
    }
    let inode = rustix::fs::fstat(&channel).map_err(|_| TcpReason::Other)?.st_ino;
    CHANNEL_FD.store(channel.as_fd().as_raw_fd(), Ordering::Relaxed);
    announce_listeners(&channel);
    state.channel = Some(Held { channel, inode });
    Ok(())
}

/// A daemon that was started anew knows nothing of what listens here.
fn announce_listeners(channel: &Channel) {
    for (fd, entry) in table::walk(0, u32::MAX) {
        if entry == Entry::Listener {
            let token = connection::listener_token(fd);
            let _ = channel.send(&Control::Listening { token }.emit(), &[sys::borrow(fd)]);
        }
    }
}

/// Opens the channel again if the daemon was started anew since it was last used. Looks at most
/// once in [`LOOK_NS`].
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

fn tell_once(state: &mut State, what: std::fmt::Arguments<'_>) {
    if !state.told {
        state.told = true;
        log::warn_user!("{what}; connections stay on TCP");
    }
}

/// Moves the channel to a high number, where programs do not expect to find the next free one.
fn out_of_the_way(channel: Channel) -> Channel {
    match rustix::io::fcntl_dupfd_cloexec(&channel, high_number()) {
        Ok(moved) => Channel::new(moved),
        Err(_) => channel,
    }
}

/// Where descriptors of the library's own begin.
pub fn high_number() -> RawFd {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(1024);
    RawFd::try_from(limit.min(1 << 20).saturating_sub(64)).unwrap_or(0)
}

fn lost(state: &mut State, errno: Errno) -> TcpReason {
    log::debug!("the daemon is lost: {errno}");
    drop_channel(state);
    TcpReason::DaemonLost
}

fn drop_channel(state: &mut State) {
    CHANNEL_FD.store(-1, Ordering::Relaxed);
    let Some(Held { channel, inode }) = state.channel.take() else { return };
    let State { pending, lost, wanted, .. } = state;
    wanted.clear();
    lost.append(pending);
    let ours = rustix::fs::fstat(&channel).is_ok_and(|status| status.st_ino == inode);
    let number = channel.into_socket().into_raw_fd();
    if ours {
        // SAFETY: the number was just given up by its owner and still is that socket.
        drop(unsafe { OwnedFd::from_raw_fd(number) });
    }
}

//! A store that is a LUN of another server, over the fabric.
//!
//! One thread has the session. Those who read and write send it commands and wait for their ends.
//! Invariant: a session that has ended is not begun again, since nobody could say which writes that
//! were not flushed the target has: the store is offline from then on.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use parking_lot::Mutex;
use weft_block::iser::{Answered, BLOCK_BYTES, Done, Initiator};
use weft_block::scsi::{BLOCK_BYTES as SECTOR, Port, WRITE_SAME_BLOCKS_MAX};
use weft_block::store::{Extent, Store, StoreError};
use weft_fabric::{Blocking, Endpoint};
use weft_open::{AnyEndpoint, Driver, Opening, ServicePlace, Waiter, Woken, now};
use weft_session::{Options, RequestError, Sessions};

use crate::fabric::service_name;
use crate::mailbox::Mailbox;

/// The port of a place that names none: that of iSCSI.
pub const PORT: u16 = 3260;
/// A target on another host may have to load a library before it is reached.
const REACHED_WITHIN: Duration = Duration::from_secs(15);
/// A target that says nothing for so long has ended.
const SILENCE: Duration = Duration::from_secs(30);
/// A command without an answer ends the session after this.
const ANSWERED_WITHIN: Duration = Duration::from_secs(60);
/// The thread looks at its limits of time so often.
const TICK: Duration = Duration::from_secs(1);
/// A command is sent again when it was told of a change: so often at most.
const ATTENTIONS_MAX: usize = 8;
/// Extents that are asked for at a time.
const EXTENTS_MAX: usize = 256;
const NAME: &str = "iqn.2026-11.org.weft:initiator";
const CHECK_CONDITION: u8 = 2;

/// A LUN of a server, as `weft://HOST[:PORT]/IQN/N`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RemoteLun {
    /// The host: its name, number or address in the fabric; `localhost` is this one.
    pub host: String,
    /// The port that the server listens at.
    pub port: u16,
    /// The name of the target.
    pub target: String,
    /// The number of the LUN.
    pub lun: u64,
}

impl FromStr for RemoteLun {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let form = || format!("{text:?} is no LUN; use weft://HOST[:PORT]/IQN/N");
        let rest = text.strip_prefix("weft://").with_context(form)?;
        let (place, unit) = rest.split_once('/').with_context(form)?;
        let (target, lun) = unit.rsplit_once('/').with_context(form)?;
        let lun = lun.parse().with_context(form)?;
        ensure!(weft_block::iscsi::is_name(target), "{target:?} is no iSCSI name: {}", form());
        let (host, port) = match place.rsplit_once(':') {
            // An address of IPv6 stands in brackets.
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().with_context(form)?),
            _ => (place, PORT),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        ensure!(!host.is_empty(), "{}", form());
        Ok(Self { host, port, target: target.to_owned(), lun })
    }
}

impl fmt::Display for RemoteLun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port, target, lun } = self;
        match host.contains(':') {
            true => write!(f, "weft://[{host}]:{port}/{target}/{lun}"),
            false => write!(f, "weft://{host}:{port}/{target}/{lun}"),
        }
    }
}

impl RemoteLun {
    fn is_here(&self) -> bool {
        let address: Option<std::net::IpAddr> = self.host.parse().ok();
        self.host == "localhost" || address.is_some_and(|address| address.is_loopback())
    }

    fn service(&self) -> anyhow::Result<ServicePlace> {
        let name = service_name(self.port);
        let text = if self.is_here() { name } else { format!("{name}@{}", self.host) };
        Ok(ServicePlace::parse(&text, "")?)
    }
}

/// The call that is made when a session ends, with the reason.
pub type WhenOver = Box<dyn FnOnce(&str) + Send>;

/// The end of a command: its number among those of a call, and what became of it.
type Ended = (usize, Result<Answered, StoreError>);

struct Command {
    command: [u8; 16],
    data: Vec<u8>,
    data_in: u32,
    number: usize,
    ended: Sender<Ended>,
}

enum Message {
    Run(Command),
    Stop,
}

/// The state that the thread of the session and its callers share.
struct Far {
    mailbox: Mailbox<Message>,
    /// Whether the session is over. Held while a message is sent, so that none is left behind.
    is_over: Mutex<bool>,
}

/// A LUN of another server. It ends its session when it is dropped.
pub struct RemoteStore {
    far: Arc<Far>,
    bytes: u64,
    is_read_only: bool,
    is_thin: bool,
    /// Held by a write that changes a part of a sector.
    parts: Mutex<()>,
}

impl fmt::Debug for RemoteStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "RemoteStore({} bytes)", self.bytes)
    }
}

/// A command with its data, or with the bytes that it gets at most.
struct Piece<'a> {
    command: [u8; 16],
    data: &'a [u8],
    data_in: u32,
}

impl Piece<'_> {
    const fn of(command: [u8; 16], data_in: u32) -> Self {
        Self { command, data: &[], data_in }
    }
}

impl RemoteStore {
    /// Opens a session with a LUN. `when_over` is called when it ends but by a drop.
    ///
    /// # Errors
    /// The service is not found, refuses, or the LUN is none that can be used.
    pub fn open(opening: &Opening, at: &RemoteLun, when_over: WhenOver) -> anyhow::Result<Self> {
        let initiator = connect(opening, at).with_context(|| format!("{at} is not reached"))?;
        let far = Arc::new(Far { mailbox: Mailbox::new()?, is_over: Mutex::new(false) });
        let thread = Thread {
            initiator,
            far: Arc::clone(&far),
            waiting: VecDeque::new(),
            open: HashMap::new(),
            is_late: false,
        };
        let name = at.to_string();
        std::thread::Builder::new()
            .name("weft-block-far".to_owned())
            .spawn(move || thread.run(&name, when_over))?;
        let parts = Mutex::new(());
        let mut own = Self { far, bytes: 0, is_read_only: false, is_thin: false, parts };
        own.ask_properties().with_context(|| format!("{at} cannot be used"))?;
        Ok(own)
    }

    fn ask_properties(&mut self) -> anyhow::Result<()> {
        // READ CAPACITY (16), and MODE SENSE (6) for a medium that is protected.
        let mut capacity = [0; 16];
        (capacity[0], capacity[1], capacity[13]) = (0x9e, 0x10, 32);
        let mut mode = [0; 16];
        (mode[0], mode[2], mode[4]) = (0x1a, 0x3f, 255);
        let answers = self.run(&[Piece::of(capacity, 32), Piece::of(mode, 255)]);
        let answers = answers.map_err(|(error, _)| error)?;
        let sizes: &[u8; 32] = answers[0].data.as_slice().try_into().context("it has no size")?;
        let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|byte| sizes[at + byte]));
        let last = u64::from(word(0)) << 32 | u64::from(word(4));
        ensure!(word(8) == SECTOR, "it has blocks of {} bytes, not of {SECTOR}", word(8));
        let bytes = last.checked_add(1).and_then(|blocks| blocks.checked_mul(SECTOR.into()));
        self.bytes = bytes.context("it is too large")?;
        self.is_thin = sizes[14] & 0x80 != 0;
        self.is_read_only = answers[1].data.get(2).is_some_and(|byte| byte & 0x80 != 0);
        Ok(())
    }

    /// Runs commands at the same time. An error has the sense key of the command that failed.
    fn run(&self, pieces: &[Piece<'_>]) -> Result<Vec<Answered>, (StoreError, u8)> {
        let mut answers: Vec<Option<Answered>> = pieces.iter().map(|_| None).collect();
        for _ in 0..ATTENTIONS_MAX {
            let (sender, receiver) = channel();
            for (number, piece) in pieces.iter().enumerate() {
                if answers[number].is_none() {
                    self.send(number, piece, &sender).map_err(|error| (error, 0))?;
                }
            }
            drop(sender);
            self.take(&receiver, &mut answers)?;
            if answers.iter().all(Option::is_some) {
                return Ok(answers.into_iter().flatten().collect());
            }
        }
        Err((StoreError::Offline, UNIT_ATTENTION))
    }

    fn send(
        &self,
        number: usize,
        piece: &Piece<'_>,
        ended: &Sender<Ended>,
    ) -> Result<(), StoreError> {
        let Piece { command, data, data_in } = *piece;
        let (data, ended) = (data.to_vec(), ended.clone());
        let is_over = self.far.is_over.lock();
        if *is_over {
            return Err(StoreError::Offline);
        }
        self.far.mailbox.send(Message::Run(Command { command, data, data_in, number, ended }));
        Ok(())
    }

    /// Takes the ends of all that was sent; those that were told of a change have none yet.
    fn take(
        &self,
        ends: &Receiver<Ended>,
        answers: &mut [Option<Answered>],
    ) -> Result<(), (StoreError, u8)> {
        let mut failed = Ok(());
        let mut left = answers.iter().filter(|answer| answer.is_none()).count();
        while left > 0 {
            // Nobody sends any more: the session is over.
            let Ok((number, result)) = ends.recv() else { return Err((StoreError::Offline, 0)) };
            left -= 1;
            match result.map(|answered| (sense_key(&answered), answered)) {
                Err(error) => failed = Err((error, 0)),
                Ok((None, answered)) if answered.status == 0 => answers[number] = Some(answered),
                Ok((Some(UNIT_ATTENTION), _)) => {}
                Ok((key, answered)) => failed = Err((error_of(&answered), key.unwrap_or(0))),
            }
        }
        failed
    }
}

const UNIT_ATTENTION: u8 = 6;

fn sense_key(answered: &Answered) -> Option<u8> {
    (answered.status == CHECK_CONDITION).then(|| answered.sense.get(2).map_or(0, |byte| byte & 15))
}

/// The error of a store that a status and its sense data stand for. Fixed format: a new session
/// has it.
fn error_of(answered: &Answered) -> StoreError {
    let code = answered.sense.get(12..14).map_or((0, 0), |code| (code[0], code[1]));
    match (sense_key(answered), code) {
        (Some(7), (0x27, 0x07)) => StoreError::NoSpace,
        (Some(7), _) => StoreError::ReadOnly,
        (Some(3), (0x11, _)) => StoreError::Unreadable,
        (Some(3), _) => StoreError::Unwritable,
        _ => StoreError::Offline,
    }
}

/// A command with a block and a number of blocks as those of 16 bytes have them.
fn ranged(opcode: u8, flags: u8, at: u64, blocks: u32) -> [u8; 16] {
    let mut command = [0; 16];
    (command[0], command[1]) = (opcode, flags);
    command[2..10].copy_from_slice(&(at / u64::from(SECTOR)).to_be_bytes());
    command[10..14].copy_from_slice(&blocks.to_be_bytes());
    command
}

/// Places and lengths of parts that one command moves.
fn parts(at: u64, length: usize) -> impl Iterator<Item = (u64, usize, u32)> {
    let step = BLOCK_BYTES as usize;
    (0..length).step_by(step).map(move |from| {
        let length = step.min(length - from);
        let blocks = u32::try_from(length).expect("a block of the session") / SECTOR;
        (at + from as u64, length, blocks)
    })
}

impl Store for RemoteStore {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn is_thin(&self) -> bool {
        self.is_thin
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), StoreError> {
        let (start, end) = whole_sectors(at, into.len());
        if (start, end) == (at, at + into.len() as u64) {
            return self.read_sectors(at, into);
        }
        let mut whole = vec![0; length_of(start, end)];
        self.read_sectors(start, &mut whole)?;
        let skip = length_of(start, at);
        into.copy_from_slice(&whole[skip..skip + into.len()]);
        Ok(())
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), StoreError> {
        let (start, end) = whole_sectors(at, from.len());
        if (start, end) == (at, at + from.len() as u64) {
            return self.write_sectors(at, from);
        }
        // The other bytes of the first and the last sector are kept: one such write at a time.
        let _alone = self.parts.lock();
        let sector = SECTOR as usize;
        let mut whole = vec![0; length_of(start, end)];
        self.read_sectors(start, &mut whole[..sector])?;
        if whole.len() > sector {
            let last = whole.len() - sector;
            self.read_sectors(end - u64::from(SECTOR), &mut whole[last..])?;
        }
        let skip = length_of(start, at);
        whole[skip..skip + from.len()].copy_from_slice(from);
        self.write_sectors(start, &whole)
    }

    fn flush(&self) -> Result<(), StoreError> {
        let mut command = [0; 16];
        command[0] = 0x35;
        self.run(&[Piece::of(command, 0)]).map(drop).map_err(|(error, _)| error)
    }

    fn zero(&self, at: u64, length: u64, may_unmap: bool) -> Result<(), StoreError> {
        let (size, end) = (u64::from(SECTOR), at + length);
        let (first, last) = (at.next_multiple_of(size), end / size * size);
        if first >= last {
            return self.write(at, &vec![0; length_of(at, end)]);
        }
        // Parts of sectors, before and behind the whole ones.
        self.write(at, &vec![0; length_of(at, first)])?;
        self.write(last, &vec![0; length_of(last, end)])?;
        // NDOB: zeros without data.
        let flags = 1 | if may_unmap && self.is_thin { 8 } else { 0 };
        let mut from = first;
        while from < last {
            let blocks = ((last - from) / size).min(WRITE_SAME_BLOCKS_MAX);
            let count = u32::try_from(blocks).expect("at most 32,768");
            let command = ranged(0x93, flags, from, count);
            self.run(&[Piece::of(command, 0)]).map_err(|(error, _)| error)?;
            from += blocks * size;
        }
        Ok(())
    }

    fn extents(&self, at: u64, length: u64, count: usize) -> Result<Vec<Extent>, StoreError> {
        let whole = vec![Extent { length, is_hole: false }];
        if !self.is_thin || length == 0 {
            return Ok(whole);
        }
        let room = 8 + 16 * u32::try_from(count.clamp(1, EXTENTS_MAX)).expect("at most 256");
        let mut command = ranged(0x9e, 0x12, at, 0);
        command[10..14].copy_from_slice(&room.to_be_bytes());
        let answers = self.run(&[Piece::of(command, room)]).map_err(|(error, _)| error)?;
        // The first one begins with its whole sector.
        let mut skip = at % u64::from(SECTOR);
        let (mut all, mut left) = (Vec::new(), length);
        for row in answers[0].data.get(8..).unwrap_or_default().chunks_exact(16) {
            let blocks = u32::from_be_bytes(std::array::from_fn(|byte| row[8 + byte]));
            let length = (u64::from(blocks) * u64::from(SECTOR)).saturating_sub(skip).min(left);
            skip = 0;
            if length > 0 {
                all.push(Extent { length, is_hole: row[12] & 15 == 1 });
            }
            left -= length;
        }
        Ok(if all.is_empty() { whole } else { all })
    }
}

/// The begin and the end of the whole sectors that a range of bytes touches.
fn whole_sectors(at: u64, length: usize) -> (u64, u64) {
    let size = u64::from(SECTOR);
    (at / size * size, (at + length as u64).next_multiple_of(size))
}

fn length_of(start: u64, end: u64) -> usize {
    usize::try_from(end - start).expect("a range of one call fits the memory")
}

impl RemoteStore {
    fn read_sectors(&self, at: u64, into: &mut [u8]) -> Result<(), StoreError> {
        let pieces: Vec<_> = parts(at, into.len())
            .map(|(at, length, blocks)| {
                let length = u32::try_from(length).expect("a block of the session");
                Piece::of(ranged(0x88, 0, at, blocks), length)
            })
            .collect();
        let answers = self.run(&pieces).map_err(|(error, _)| error)?;
        for (answer, into) in answers.iter().zip(into.chunks_mut(BLOCK_BYTES as usize)) {
            if answer.data.len() != into.len() {
                return Err(StoreError::Unreadable);
            }
            into.copy_from_slice(&answer.data);
        }
        Ok(())
    }

    fn write_sectors(&self, at: u64, from: &[u8]) -> Result<(), StoreError> {
        let data = from.chunks(BLOCK_BYTES as usize);
        let pieces: Vec<_> = parts(at, from.len())
            .zip(data)
            .map(|((at, _, blocks), data)| {
                let command = ranged(0x8a, 0, at, blocks);
                Piece { command, data, data_in: 0 }
            })
            .collect();
        self.run(&pieces).map(drop).map_err(|(error, _)| error)
    }
}

impl Drop for RemoteStore {
    fn drop(&mut self) {
        self.far.mailbox.send(Message::Stop);
    }
}

/// Opens a session with a LUN.
fn connect(opening: &Opening, at: &RemoteLun) -> anyhow::Result<Initiator<AnyEndpoint>> {
    let opening = opening.clone().driven_by(Driver::Owner).finding(&at.service()?)?;
    let mut endpoint = opening.open()?;
    let host = endpoint.host().context("the address of the service is not known")?;
    let is_here = host.node == endpoint.address().node;
    ensure!(is_here || !at.is_here(), "no server of this host has port {}", at.port);
    let peer = endpoint.connect_within(host, REACHED_WITHIN)?;
    let bytes = Initiator::<AnyEndpoint>::REGION_BYTES;
    let regions = (endpoint.register(bytes)?, endpoint.register(bytes)?);
    let options = Options { silence: Some(SILENCE), ..Options::default() };
    let sessions = Sessions::new(endpoint, options);
    let mut random = [0; 5];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let [a, b, c, d, e] = random;
    let port = Port { name: NAME.to_owned(), isid: [0x80, a, b, c, d, e] };
    let unit = (at.target.as_str(), at.lun);
    let mut initiator = Initiator::connect(sessions, peer, unit, &port, regions, now())?;
    let (mut waiter, mut was_moved) = (Waiter::default(), false);
    // It ends by itself when nobody answers.
    loop {
        let due = initiator.sessions().timeout().map(|due| due.saturating_sub(now()));
        waiter.wait(initiator.sessions(), &[], Some(due.map_or(TICK, |due| due.min(TICK))));
        initiator.poll(now(), |_| {});
        if initiator.is_open() {
            return Ok(initiator);
        }
        match (initiator.moved_to(), initiator.end()) {
            (Some(address), _) if !was_moved => {
                was_moved = true;
                let endpoint = initiator.sessions().endpoint();
                let peer = endpoint.connect_within(address, REACHED_WITHIN)?;
                initiator.ask_again(peer, now())?;
            }
            (_, Some(end)) => bail!("{end}"),
            _ => {}
        }
    }
}

/// A session with a LUN, for a program that runs one command at a time on its own thread.
#[derive(Debug)]
pub struct Session {
    initiator: Initiator<AnyEndpoint>,
    waiter: Waiter,
}

impl Session {
    /// Opens a session with a LUN.
    ///
    /// # Errors
    /// The service is not found, or refuses.
    pub fn open(opening: &Opening, at: &RemoteLun) -> anyhow::Result<Self> {
        let initiator = connect(opening, at).with_context(|| format!("{at} is not reached"))?;
        Ok(Self { initiator, waiter: Waiter::default() })
    }

    /// Runs a command with its data, or one that gets at most `data_in` bytes, to its end.
    ///
    /// # Errors
    /// The session has ended, or the command had no answer in time.
    pub fn command(
        &mut self,
        command: &[u8; 16],
        data: &[u8],
        data_in: u32,
    ) -> anyhow::Result<Answered> {
        let until = Some(now() + ANSWERED_WITHIN);
        let mut sent = None;
        loop {
            if sent.is_none() {
                match self.initiator.submit(command, data, data_in, until) {
                    Ok(tag) => sent = Some(tag),
                    // A block is on its way back.
                    Err(RequestError::WouldBlock) if self.initiator.end().is_none() => {}
                    Err(error) => return Err(error.into()),
                }
            }
            self.waiter.wait(self.initiator.sessions(), &[], Some(TICK));
            let mut ended = None;
            self.initiator.poll(now(), |done| {
                if Some(done.tag) == sent {
                    ended = Some(done.result);
                }
            });
            if let Some(result) = ended {
                return Ok(result?);
            }
        }
    }
}

/// The thread that has the session.
struct Thread {
    initiator: Initiator<AnyEndpoint>,
    far: Arc<Far>,
    /// Commands that wait for room, in order.
    waiting: VecDeque<Command>,
    /// Commands that the target has, by tag.
    open: HashMap<u32, (usize, Sender<Ended>)>,
    is_late: bool,
}

impl Thread {
    fn run(mut self, name: &str, when_over: WhenOver) {
        let far = Arc::clone(&self.far);
        let mut waiter = Waiter::default();
        let why = loop {
            let due = self.initiator.sessions().timeout().map(|due| due.saturating_sub(now()));
            let within = due.map_or(TICK, |due| due.min(TICK));
            let beside = [std::os::fd::AsFd::as_fd(&far.mailbox)];
            let woken = waiter.wait(self.initiator.sessions(), &beside, Some(within));
            self.take_ends();
            for message in far.mailbox.take(woken == Woken::Beside(0)) {
                match message {
                    Message::Run(command) => self.waiting.push_back(command),
                    Message::Stop => return self.leave(),
                }
            }
            self.submit();
            if self.is_late {
                break "a command had no answer for too long".to_owned();
            }
            if let Some(end) = self.initiator.end() {
                break end.to_string();
            }
        };
        *far.is_over.lock() = true;
        // The senders of all commands are dropped, which tells those who wait.
        drop(far.mailbox.take(true));
        self.waiting.clear();
        self.open.clear();
        tracing::error!("{name}: {why}");
        when_over(&why);
        self.leave();
    }

    /// Ends the session, and lets the other end hear of it.
    fn leave(mut self) {
        *self.far.is_over.lock() = true;
        if self.initiator.end().is_none() {
            self.initiator.close();
            let until = now() + TICK;
            let mut waiter = Waiter::default();
            while self.initiator.end().is_none() && now() < until {
                waiter.wait(self.initiator.sessions(), &[], Some(TICK));
                self.initiator.poll(now(), |_| {});
            }
        }
    }

    fn take_ends(&mut self) {
        let mut all = Vec::new();
        self.initiator.poll(now(), |done| all.push(done));
        for Done { tag, result } in all {
            self.is_late |= result == Err(RequestError::Late);
            let Some((number, ended)) = self.open.remove(&tag) else { continue };
            // The one who waited may have given up.
            let _ = ended.send((number, result.map_err(|_| StoreError::Offline)));
        }
    }

    fn submit(&mut self) {
        while let Some(first) = self.waiting.pop_front() {
            let until = Some(now() + ANSWERED_WITHIN);
            match self.initiator.submit(&first.command, &first.data, first.data_in, until) {
                Ok(tag) => drop(self.open.insert(tag, (first.number, first.ended))),
                Err(RequestError::WouldBlock) => return self.waiting.push_front(first),
                Err(_) => drop(first.ended.send((first.number, Err(StoreError::Offline)))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_are_printed() {
        for (text, host, port) in [
            ("weft://store/iqn.2026-11.example:a/0", "store", PORT),
            ("weft://10.0.0.2:99/iqn.2026-11.example:a/0", "10.0.0.2", 99),
            ("weft://[::1]:99/iqn.2026-11.example:a/0", "::1", 99),
            ("weft://[fe80::2]/iqn.2026-11.example:a/0", "fe80::2", PORT),
        ] {
            let at: RemoteLun = text.parse().expect(text);
            assert_eq!((at.host.as_str(), at.port, at.lun), (host, port, 0), "{text}");
            assert_eq!(at.to_string().parse::<RemoteLun>().ok(), Some(at), "{text}");
        }
        for text in ["weft://h/0", "weft:///iqn.a/0", "weft://h:x/iqn.a/0", "weft://h/IQN/0", "h"] {
            assert!(text.parse::<RemoteLun>().is_err(), "{text}");
        }
    }

    #[test]
    fn errors_of_a_target_are_those_of_its_store() {
        for error in [
            StoreError::Unreadable,
            StoreError::Unwritable,
            StoreError::NoSpace,
            StoreError::ReadOnly,
            StoreError::Offline,
        ] {
            let sense = weft_block::scsi::Sense::of_store(error).encode(false);
            let answered = Answered { status: CHECK_CONDITION, sense, data: Vec::new() };
            assert_eq!(error_of(&answered), error);
        }
    }
}

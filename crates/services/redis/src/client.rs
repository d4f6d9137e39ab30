//! A connection, as the server knows it.

use std::time::Duration;

use weft_kv::store::Lsn;
use weft_resp::Protocol;

/// Whether replies are sent (`CLIENT REPLY`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum ReplyMode {
    /// They are.
    #[default]
    On,
    /// They are not.
    Off,
    /// That of the next command is not.
    SkipNext,
    /// That of this command is not.
    Skip,
}

/// The commands of a transaction, until EXEC.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub commands: Vec<Vec<Vec<u8>>>,
    /// Bytes of all their words.
    pub bytes: usize,
    /// Whether one was refused: EXEC carries out nothing.
    pub is_broken: bool,
}

/// A WAIT without an answer yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// The newest batch before it.
    pub upto: Lsn,
    /// Replicas that it waits for.
    pub replicas: usize,
    /// Until when; for ever if there is no end.
    pub until: Option<Duration>,
}

/// A key that EXEC depends on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Watch {
    pub key: Vec<u8>,
    /// Whether it was over when the watch began.
    pub had_ended: bool,
}

/// How a connection came about; the driver says it.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// The other end, as `HOST:PORT`.
    pub address: String,
    /// This end, as `HOST:PORT`.
    pub local_address: String,
    /// The number of the descriptor.
    pub descriptor: i32,
}

/// Bytes that the driver holds for a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Bytes that were read and not carried out.
    pub input: usize,
    /// Bytes of answers that were not sent.
    pub output: usize,
    /// Memory of both.
    pub memory: usize,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Client {
    pub id: u64,
    pub peer: Peer,
    pub held: Held,
    pub name: Vec<u8>,
    pub library: Vec<u8>,
    pub library_version: Vec<u8>,
    pub protocol: Protocol,
    pub is_trusted: bool,
    pub queue: Option<Queue>,
    pub wait: Option<Wait>,
    pub watches: Vec<Watch>,
    /// Whether a watched key changed.
    pub is_dirty: bool,
    pub may_read_replica: bool,
    pub reply_mode: ReplyMode,
    pub is_spared: bool,
    /// Whether the connection ends after what was answered.
    pub is_closing: bool,
    pub began: Duration,
    pub used: Duration,
    pub last_command: &'static str,
}

impl Client {
    pub(crate) fn new(id: u64, peer: Peer, is_trusted: bool, now: Duration) -> Self {
        Self {
            id,
            peer,
            held: Held::default(),
            name: Vec::new(),
            library: Vec::new(),
            library_version: Vec::new(),
            protocol: Protocol::Resp2,
            is_trusted,
            queue: None,
            wait: None,
            watches: Vec::new(),
            is_dirty: false,
            may_read_replica: false,
            reply_mode: ReplyMode::On,
            is_spared: false,
            is_closing: false,
            began: now,
            used: now,
            last_command: "NULL",
        }
    }

    /// Memory that the connection takes here and at the driver.
    pub(crate) fn memory(&self) -> usize {
        let queue = self.queue.as_ref().map_or(0, |queue| queue.bytes);
        let watches: usize = self.watches.iter().map(|watch| watch.key.len() + 64).sum();
        self.held.memory + queue + watches + size_of::<Self>()
    }

    /// The line of CLIENT LIST.
    pub(crate) fn line(&self, now: Duration) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let multi = self.queue.as_ref();
        let mut flags = String::new();
        for (is_set, flag) in [
            (self.may_read_replica, 'r'),
            (multi.is_some(), 'x'),
            (self.is_dirty, 'd'),
            (self.is_closing, 'c'),
            (self.is_spared, 'e'),
        ] {
            flags.extend(is_set.then_some(flag));
        }
        if flags.is_empty() {
            flags.push('N');
        }
        format!(
            "id={} addr={} laddr={} fd={} name={} age={} idle={} flags={flags} db=0 sub=0 psub=0 \
             ssub=0 multi={} qbuf={} qbuf-free=0 argv-mem=0 multi-mem={} rbs=0 rbp=0 obl={} oll=0 \
             omem=0 tot-mem={} events=r cmd={} user=default redir=-1 resp={} lib-name={} \
             lib-ver={}",
            self.id,
            self.peer.address,
            self.peer.local_address,
            self.peer.descriptor,
            text(&self.name),
            now.saturating_sub(self.began).as_secs(),
            now.saturating_sub(self.used).as_secs(),
            multi.map_or(-1, |queue| i64::try_from(queue.commands.len()).unwrap_or(i64::MAX)),
            self.held.input,
            multi.map_or(0, |queue| queue.bytes),
            self.held.output,
            self.memory(),
            self.last_command,
            if self.protocol == Protocol::Resp3 { 3 } else { 2 },
            text(&self.library),
            text(&self.library_version),
        )
    }
}

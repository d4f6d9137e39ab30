//! The server without I/O: clients, transactions, and what all commands share.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use weft_kv::node::{Node, View};
use weft_kv::store::StoreError;
use weft_resp::{Limits, Protocol, Reply};

use crate::background;
use crate::call::Call;
use crate::client::{Client, Held, Peer, Queue, ReplyMode};
use crate::commands::shown;
use crate::configuration::Parameters;
use crate::fault::{self, Done, Fault, NAME_TOO_LONG};
use crate::layout;
use crate::slot::slot;
use crate::slots::Slots;
use crate::table::{self, Entry, Run};
use crate::transaction::{Ids, Transaction};

/// Most bytes of the commands of one transaction.
const QUEUE_MAX: usize = 64 << 20;

/// The version of Redis whose replies these are.
pub const REDIS_VERSION: &str = "7.0.15";

/// Clocks, which the driver owns.
pub trait Clock: Send {
    /// Since 1970.
    fn wall(&self) -> Duration;
    /// Since any moment, never back.
    fn monotonic(&self) -> Duration;
}

/// Facts that do not change while the server runs.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The password that clients say; none needed if absent.
    pub password: Option<Vec<u8>>,
    /// Seed of the numbers of collections: from the operating system's random source.
    pub seed: u64,
    /// The port that clients connect to.
    pub port: u16,
    /// The addresses that the server listens at.
    pub bind: String,
    /// The directory of the data.
    pub directory: String,
    /// The number of the process.
    pub process: u32,
    /// 40 hexadecimal digits, other ones for each start.
    pub run_id: String,
    /// The name and release of the operating system.
    pub system: String,
}

/// Numbers that the driver measures.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gauges {
    /// Memory of the process.
    pub resident_bytes: u64,
    /// Processor time of the process in its own code.
    pub user: Duration,
    /// Processor time of the process in the kernel.
    pub system: Duration,
    /// Bytes read from clients.
    pub input_bytes: u64,
    /// Bytes sent to clients.
    pub output_bytes: u64,
    /// Connections since the start.
    pub connections: u64,
    /// Connections that were refused.
    pub refused: u64,
    /// Connections that ended because clients took too much memory.
    pub evicted: u64,
}

/// Counters of commands.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub commands: u64,
    pub errors: u64,
    pub hits: u64,
    pub misses: u64,
    pub expired: u64,
}

/// The counts of commands since the start, for those who watch the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Commands that were carried out or refused.
    pub commands: u64,
    /// Those that were answered with an error.
    pub errors: u64,
    /// Keys that were read and found.
    pub hits: u64,
    /// Keys that were read and not found.
    pub misses: u64,
}

/// A slow command.
#[derive(Debug)]
pub(crate) struct Slow {
    pub number: u64,
    pub at: Duration,
    pub took: Duration,
    pub words: Vec<Vec<u8>>,
    pub address: String,
    pub name: Vec<u8>,
}

/// Whether the connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It does.
    Go,
    /// It does when [`Server::waited`] says so; no command of it is carried out before.
    Wait,
    /// It ends after what was answered.
    Close,
}

/// The server.
pub struct Server {
    pub(crate) node: Arc<dyn Node>,
    pub(crate) view: Arc<View>,
    pub(crate) settings: Settings,
    /// The parameters in force.
    pub parameters: Parameters,
    /// The numbers that the driver measured last.
    pub gauges: Gauges,
    pub(crate) clock: Box<dyn Clock>,
    pub(crate) began: Duration,
    pub(crate) clients: BTreeMap<u64, Client>,
    next_client: u64,
    pub(crate) commands: HashMap<&'static str, &'static Entry>,
    pub(crate) slots: Slots,
    pub(crate) ids: Ids,
    pub(crate) place: background::Place,
    watched: BTreeMap<Vec<u8>, BTreeSet<u64>>,
    pub(crate) counters: Counters,
    pub(crate) slow: VecDeque<Slow>,
    pub(crate) slow_count: u64,
    /// Connections that a command ended.
    killed: Vec<u64>,
    /// The commands of an EXEC are carried out: none waits.
    pub(crate) is_in_exec: bool,
    pub(crate) is_ending: bool,
}

impl Server {
    /// A server over a node.
    #[must_use]
    pub fn new(
        node: Arc<dyn Node>,
        settings: Settings,
        parameters: Parameters,
        clock: Box<dyn Clock>,
    ) -> Self {
        let mut it = Self {
            view: node.view(),
            node,
            ids: Ids(settings.seed),
            settings,
            parameters,
            gauges: Gauges::default(),
            began: clock.monotonic(),
            clock,
            clients: BTreeMap::new(),
            next_client: 1,
            commands: table::all().map(|entry| (entry.name, entry)).collect(),
            slots: Slots::new(),
            place: background::Place::default(),
            watched: BTreeMap::new(),
            counters: Counters::default(),
            slow: VecDeque::new(),
            slow_count: 0,
            killed: Vec::new(),
            is_in_exec: false,
            is_ending: false,
        };
        it.slots.follow(&it.view);
        it
    }

    /// A connection began. Its number is never used again.
    pub fn open(&mut self, peer: Peer) -> u64 {
        let id = self.next_client;
        self.next_client += 1;
        let is_trusted = self.settings.password.is_none();
        let client = Client::new(id, peer, is_trusted, self.clock.monotonic());
        self.clients.insert(id, client);
        id
    }

    /// A connection ended.
    pub fn close(&mut self, client: u64) {
        self.unwatch(client);
        self.clients.remove(&client);
    }

    /// How much a client may send.
    #[must_use]
    pub fn limits(&self, client: u64) -> Limits {
        Limits {
            bulk: self.parameters.bulk_max,
            request: self.parameters.input_max.max(self.parameters.bulk_max + (1 << 20)),
            is_trusted: self.clients.get(&client).is_some_and(|it| it.is_trusted),
        }
    }

    /// Takes note of the bytes that the driver holds for a client.
    pub fn note(&mut self, client: u64, held: Held) {
        if let Some(it) = self.clients.get_mut(&client) {
            it.held = held;
        }
    }

    /// Connections that are idle for longer than the parameter `timeout` says.
    #[must_use]
    pub fn idle(&self) -> Vec<u64> {
        let now = self.clock.monotonic();
        let limit = Duration::from_secs(self.parameters.timeout);
        let is_idle = |it: &&Client| now.saturating_sub(it.used) > limit;
        let all = self.clients.values().filter(|_| !limit.is_zero());
        all.filter(is_idle).map(|it| it.id).collect()
    }

    /// The client that takes most memory, when all together take more than they may.
    #[must_use]
    pub fn greediest(&self) -> Option<u64> {
        let sum: usize = self.clients.values().map(Client::memory).sum();
        let most = self.clients.values().filter(|it| !it.is_spared).max_by_key(|it| it.memory());
        most.filter(|_| sum > self.parameters.memory_max).map(|it| it.id)
    }

    /// Looks at the cluster again: once for each turn of the driver.
    pub fn begin_turn(&mut self) {
        self.view = self.node.view();
        self.slots.follow(&self.view);
    }

    /// Connections that commands ended since the last call.
    pub fn take_killed(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.killed)
    }

    /// The counts of commands since the start.
    #[must_use]
    pub const fn totals(&self) -> Totals {
        let Counters { commands, errors, hits, misses, .. } = self.counters;
        Totals { commands, errors, hits, misses }
    }

    /// Whether SHUTDOWN was said.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// Removes keys that have ended, and what removed keys left. Says whether there is more to do
    /// at once.
    pub fn tick(&mut self) -> bool {
        self.begin_turn();
        background::step(self)
    }

    /// Carries out a command and appends its answer.
    pub fn execute(&mut self, client: u64, words: &[&[u8]], out: &mut Vec<u8>) -> Verdict {
        let start = out.len();
        let began = self.clock.monotonic();
        self.counters.commands += 1;
        let Some(it) = self.clients.get_mut(&client) else { return Verdict::Close };
        it.used = began;
        let mut reply = Reply::new(out, it.protocol, self.parameters.output_max);
        let mut name = "";
        let done = self.admit(client, words).and_then(|entry| {
            name = entry.name;
            self.run_or_queue(entry, client, words, &mut reply)
        });
        if let Err(fault) = done {
            reply.truncate(start);
            let text = self.redirected(&fault, words).unwrap_or_else(|| text_of(&fault));
            reply.error(&text);
            self.counters.errors += 1;
        }
        let is_over = reply.is_over();
        self.note_slow(client, name, words, began);
        let Some(it) = self.clients.get_mut(&client) else { return Verdict::Close };
        match it.reply_mode {
            ReplyMode::On => {}
            ReplyMode::Off => out.truncate(start),
            ReplyMode::SkipNext => {
                out.truncate(start);
                it.reply_mode = ReplyMode::Skip;
            }
            ReplyMode::Skip => {
                out.truncate(start);
                it.reply_mode = ReplyMode::On;
            }
        }
        match (is_over || it.is_closing, it.wait) {
            (true, _) => Verdict::Close,
            (false, Some(_)) => Verdict::Wait,
            (false, None) => Verdict::Go,
        }
    }

    /// Whether a client whose last command waits for replicas goes on; its answer is appended then.
    /// To be asked when a commit ended, and with each tick.
    pub fn waited(&mut self, client: u64, out: &mut Vec<u8>) -> bool {
        let is_primary = self.is_primary();
        let now = self.clock.monotonic();
        let Some(it) = self.clients.get_mut(&client) else { return true };
        let Some(wait) = it.wait else { return true };
        let count = self.node.replicas_with(wait.upto);
        let is_late = wait.until.is_some_and(|until| until <= now);
        if is_primary && count < wait.replicas && !is_late {
            return false;
        }
        it.wait = None;
        let mut reply = Reply::new(out, it.protocol, self.parameters.output_max);
        if is_primary {
            reply.size(count);
        } else {
            reply.error(
                "UNBLOCKED force unblock from blocking operation, instance state changed (master \
                 -> replica?)",
            );
        }
        true
    }

    /// The command, if it may be carried out. A refusal breaks a transaction.
    fn admit(&mut self, client: u64, words: &[&[u8]]) -> Result<&'static Entry, Fault> {
        let admitted = self.admissible(client, words);
        let is_exec = matches!(admitted, Ok(entry) if entry.name == "exec");
        let queue = self.clients.get_mut(&client).and_then(|it| it.queue.as_mut());
        if let (Some(queue), true) = (queue, admitted.is_err() && !is_exec) {
            queue.is_broken = true;
        }
        admitted
    }

    fn admissible(&self, client: u64, words: &[&[u8]]) -> Result<&'static Entry, Fault> {
        let entry = self.entry(words)?;
        let it = self.clients.get(&client).ok_or("ERR the connection is over")?;
        if !it.is_trusted && !entry.has("no_auth") {
            return Err("NOAUTH Authentication required.".into());
        }
        if it.queue.is_some() && entry.has("no_multi") {
            return Err("ERR Command not allowed inside a transaction".into());
        }
        let keys = entry.keys_of(words);
        if keys.clone().any(|key| key.len() > layout::KEY_MAX) {
            return Err(NAME_TOO_LONG);
        }
        if self.view.is_cluster && entry.name != "exec" {
            self.route(keys, entry.has("readonly") && it.may_read_replica)?;
        }
        Ok(entry)
    }

    /// The entry of the table for a request.
    pub(crate) fn entry(&self, words: &[&[u8]]) -> Result<&'static Entry, Fault> {
        let unknown = || -> Fault {
            let mut rest = String::new();
            for word in &words[1..] {
                if rest.len() >= 128 {
                    break;
                }
                let word = &word[..word.len().min(128 - rest.len())];
                rest += &format!("'{}' ", String::from_utf8_lossy(word));
            }
            let name = shown(words[0]);
            format!("ERR unknown command '{name}', with args beginning with: {rest}").into()
        };
        let entry = *self.find(&[words[0]]).ok_or_else(unknown)?;
        let has_inner = matches!(entry.run, Run::Container) || entry.name == "command";
        let entry = match words.get(1) {
            Some(second) if has_inner => *self.find(&words[..2]).ok_or_else(|| {
                let (name, second) = (entry.name.to_ascii_uppercase(), shown(second));
                Fault::from(format!("ERR unknown subcommand '{second}'. Try {name} HELP."))
            })?,
            _ => entry,
        };
        let count = i32::try_from(words.len()).unwrap_or(i32::MAX);
        let fits = if entry.arity < 0 { count >= -entry.arity } else { count == entry.arity };
        if !fits || matches!(entry.run, Run::Container) {
            let name = entry.name;
            return Err(format!("ERR wrong number of arguments for '{name}' command").into());
        }
        Ok(entry)
    }

    fn find(&self, words: &[&[u8]]) -> Option<&&'static Entry> {
        let mut name = [0_u8; 64];
        let mut length = 0;
        for (place, word) in words.iter().enumerate() {
            if place > 0 {
                *name.get_mut(length)? = b'|';
                length += 1;
            }
            let part = name.get_mut(length..length + word.len())?;
            part.copy_from_slice(word);
            length += word.len();
        }
        name[..length].make_ascii_lowercase();
        self.commands.get(std::str::from_utf8(&name[..length]).ok()?)
    }

    /// Whether this node serves the keys, which lie in one slot.
    fn route<'k>(
        &self,
        keys: impl Iterator<Item = &'k [u8]>,
        may_be_replica: bool,
    ) -> Result<(), Fault> {
        let mut slots = keys.map(slot);
        let Some(slot) = slots.next() else { return Ok(()) };
        if slots.any(|other| other != slot) {
            return Err("CROSSSLOT Keys in request don't hash to the same slot".into());
        }
        self.route_slot(slot, may_be_replica)
    }

    fn route_slot(&self, slot: u16, may_be_replica: bool) -> Result<(), Fault> {
        let view = &self.view;
        let region = view.region(slot);
        match region.and_then(|region| Some((region, region.primary?))) {
            None => Err("CLUSTERDOWN Hash slot not served".into()),
            Some((_, primary)) if primary == view.myself => Ok(()),
            Some((region, _)) if may_be_replica && region.in_sync.contains(&view.myself) => Ok(()),
            Some((_, primary)) => match view.members.get(primary) {
                Some(node) => Err(format!("MOVED {slot} {}:{}", node.host, node.port).into()),
                None => Err("CLUSTERDOWN Hash slot not served".into()),
            },
        }
    }

    fn run_or_queue(
        &mut self,
        entry: &'static Entry,
        client: u64,
        words: &[&[u8]],
        reply: &mut Reply<'_>,
    ) -> Done {
        let Some(it) = self.clients.get_mut(&client) else { return Ok(()) };
        it.last_command = entry.name;
        let is_of_transactions =
            ["exec", "discard", "multi", "watch", "quit", "reset"].contains(&entry.name);
        if let (Some(queue), false) = (&mut it.queue, is_of_transactions) {
            let bytes: usize = words.iter().map(|word| word.len() + 32).sum();
            if queue.bytes + bytes > QUEUE_MAX {
                queue.is_broken = true;
                return Err("ERR the commands of the transaction are too long together".into());
            }
            queue.bytes += bytes;
            queue.commands.push(words.iter().map(|word| word.to_vec()).collect());
            reply.simple("QUEUED");
            return Ok(());
        }
        self.run(entry, client, words, reply)
    }

    fn run(
        &mut self,
        entry: &'static Entry,
        client: u64,
        words: &[&[u8]],
        reply: &mut Reply<'_>,
    ) -> Done {
        match entry.run {
            Run::Data(run) if self.reads_replica(entry, client, words) => {
                self.read_replica(|tx| run(tx, words, reply))
            }
            Run::Data(run) => self.transact(|tx| run(tx, words, reply)),
            Run::Server(run) => run(&mut Call { server: self, client, words, reply }),
            Run::Container => Err("ERR a subcommand is missing".into()),
        }
    }

    /// Whether a command reads a region that this node backs up.
    fn reads_replica(&self, entry: &Entry, client: u64, words: &[&[u8]]) -> bool {
        let may = self.clients.get(&client).is_some_and(|it| it.may_read_replica);
        let view = &self.view;
        let is_other = |key: &[u8]| {
            view.region(slot(key)).is_some_and(|region| region.primary != Some(view.myself))
        };
        view.is_cluster
            && may
            && entry.has("readonly")
            && entry.keys_of(words).next().is_some_and(is_other)
    }

    /// Reads data of a region that this node backs up.
    fn read_replica<T>(
        &mut self,
        run: impl FnOnce(&mut Transaction<'_>) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let node = &*self.node;
        let store = node.replica().unwrap_or(node);
        let now = millis(self.clock.wall());
        let mut tx = Transaction::new(store, &self.view, &mut self.slots, &mut self.ids, now);
        let result = run(&mut tx)?;
        self.counters.hits += tx.hits;
        self.counters.misses += tx.misses;
        Ok(result)
    }

    /// Reads and changes data as one batch.
    pub(crate) fn transact<T>(
        &mut self,
        run: impl FnOnce(&mut Transaction<'_>) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let node = &*self.node;
        let now = millis(self.clock.wall());
        let mut tx = Transaction::new(node, &self.view, &mut self.slots, &mut self.ids, now);
        tx.text_max = self.parameters.bulk_max;
        let result = run(&mut tx)?;
        self.counters.hits += tx.hits;
        self.counters.misses += tx.misses;
        let ended = tx.end();
        self.ended(ended)?;
        Ok(result)
    }

    fn ended(&mut self, ended: Result<crate::transaction::Ended, StoreError>) -> Done {
        match ended {
            Ok(ended) => {
                self.tell_watchers(&ended.touched, ended.is_flushed);
                Ok(())
            }
            Err(error) => {
                // It may have happened: what is known of slots may be wrong.
                self.slots = Slots::new();
                self.slots.follow(&self.view);
                Err(error.into())
            }
        }
    }

    /// The commands of a transaction, as one batch.
    pub(crate) fn execute_all(
        &mut self,
        client: u64,
        commands: &[Vec<Vec<u8>>],
        reply: &mut Reply<'_>,
    ) -> Done {
        let mut entries = Vec::with_capacity(commands.len());
        for command in commands {
            let words: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
            let entry = self.entry(&words)?;
            entries.push((entry, words));
        }
        if self.view.is_cluster {
            let keys = entries.iter().flat_map(|(entry, words)| entry.keys_of(words));
            self.route(keys, false)?;
        }
        // Commands about the server get the rest of it meanwhile.
        let mut slots = std::mem::replace(&mut self.slots, Slots::nothing());
        let mut ids = Ids(self.ids.next());
        let (node, view) = (Arc::clone(&self.node), Arc::clone(&self.view));
        let now = millis(self.clock.wall());
        let mut tx = Transaction::new(&*node, &view, &mut slots, &mut ids, now);
        tx.text_max = self.parameters.bulk_max;
        reply.array(entries.len());
        self.is_in_exec = true;
        for (entry, words) in entries {
            tx.begin();
            let start = reply.length();
            let done = match entry.run {
                Run::Data(run) => run(&mut tx, &words, reply),
                _ => self.run(entry, client, &words, reply),
            };
            if let Err(fault) = done {
                tx.take_back();
                reply.truncate(start);
                reply.error(&text_of(&fault));
                self.counters.errors += 1;
            }
        }
        self.is_in_exec = false;
        self.counters.hits += tx.hits;
        self.counters.misses += tx.misses;
        let ended = tx.end();
        self.slots = slots;
        self.ended(ended)
    }

    /// Where a command has to go that the store does not serve any more.
    fn redirected(&mut self, fault: &Fault, words: &[&[u8]]) -> Option<String> {
        let Fault::Store(StoreError::NotServed(_)) = fault else { return None };
        self.begin_turn();
        let key = self.entry(words).ok()?.keys_of(words).next()?;
        match self.route_slot(slot(key), false) {
            Err(Fault::Text(text)) => Some(text.into_owned()),
            _ => None,
        }
    }

    fn note_slow(&mut self, client: u64, name: &str, words: &[&[u8]], began: Duration) {
        let took = self.clock.monotonic().saturating_sub(began);
        let Ok(from) = u128::try_from(self.parameters.slow_from) else { return };
        // Passwords are not kept.
        if took.as_micros() < from || matches!(name, "" | "auth" | "hello" | "exec") {
            return;
        }
        let Some(it) = self.clients.get(&client) else { return };
        let shorten = |word: &&[u8]| word[..word.len().min(128)].to_vec();
        self.slow.push_front(Slow {
            number: self.slow_count,
            at: self.clock.wall(),
            took,
            words: words.iter().take(32).map(shorten).collect(),
            address: it.peer.address.clone(),
            name: it.name.clone(),
        });
        self.slow_count += 1;
        self.slow.truncate(self.parameters.slow_max);
    }

    /// Ends a connection; the own one after the answer.
    pub(crate) fn kill(&mut self, client: u64, by: u64) {
        if let Some(it) = self.clients.get_mut(&client) {
            it.is_closing = true;
            if client != by {
                self.killed.push(client);
            }
        }
    }

    pub(crate) fn watch(&mut self, client: u64, key: &[u8]) -> Done {
        let had_ended = self.has_ended(key)?;
        let Some(it) = self.clients.get_mut(&client) else { return Ok(()) };
        if it.watches.iter().all(|watch| watch.key != key) {
            it.watches.push(crate::client::Watch { key: key.to_vec(), had_ended });
            self.watched.entry(key.to_vec()).or_default().insert(client);
        }
        Ok(())
    }

    /// Whether a key has ended and is still there.
    fn has_ended(&mut self, key: &[u8]) -> Result<bool, Fault> {
        self.transact(|tx| {
            let head = tx.raw(key)?;
            Ok(head.is_some_and(|head| tx.has_ended(head.expires)))
        })
    }

    pub(crate) fn unwatch(&mut self, client: u64) {
        let Some(it) = self.clients.get_mut(&client) else { return };
        it.is_dirty = false;
        for watch in std::mem::take(&mut it.watches) {
            if let Some(clients) = self.watched.get_mut(&watch.key) {
                clients.remove(&client);
                if clients.is_empty() {
                    self.watched.remove(&watch.key);
                }
            }
        }
    }

    /// Whether a watched key of a client changed or ended.
    pub(crate) fn watches_are_broken(&mut self, client: u64) -> Result<bool, Fault> {
        let Some(it) = self.clients.get(&client) else { return Ok(true) };
        if it.is_dirty {
            return Ok(true);
        }
        let live: Vec<Vec<u8>> =
            it.watches.iter().filter(|it| !it.had_ended).map(|it| it.key.clone()).collect();
        for key in live {
            if self.has_ended(&key)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn tell_watchers(&mut self, touched: &[Vec<u8>], is_flushed: bool) {
        if self.watched.is_empty() {
            return;
        }
        let dirty: BTreeSet<u64> = if is_flushed {
            self.watched.values().flatten().copied().collect()
        } else {
            touched.iter().filter_map(|key| self.watched.get(key)).flatten().copied().collect()
        };
        for client in dirty {
            if let Some(it) = self.clients.get_mut(&client) {
                it.is_dirty = true;
            }
        }
    }

    /// Whether this node is the primary of something.
    pub(crate) fn is_primary(&self) -> bool {
        self.view.regions.iter().any(|region| region.primary == Some(self.view.myself))
    }

    pub(crate) fn client(&mut self, client: u64) -> Result<&mut Client, Fault> {
        self.clients.get_mut(&client).ok_or_else(|| "ERR the connection is over".into())
    }

    pub(crate) fn begin_queue(&mut self, client: u64) -> Done {
        let it = self.client(client)?;
        if it.queue.is_some() {
            return Err("ERR MULTI calls can not be nested".into());
        }
        it.queue = Some(Queue::default());
        Ok(())
    }

    /// The protocol of a client.
    #[must_use]
    pub fn protocol(&self, client: u64) -> Protocol {
        self.clients.get(&client).map_or(Protocol::Resp2, |it| it.protocol)
    }
}

/// The text that a client is told of a fault.
fn text_of(fault: &Fault) -> String {
    match fault {
        Fault::Text(text) => text.clone().into_owned(),
        Fault::Store(error) => fault::of_store(error),
    }
}

/// Milliseconds of a time.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Entry {
    pub(crate) fn has(&self, flag: &str) -> bool {
        self.flags.split(' ').any(|it| it == flag)
    }

    /// The keys among the words of a request.
    pub(crate) fn keys_of<'w>(
        &self,
        words: &'w [&'w [u8]],
    ) -> impl Iterator<Item = &'w [u8]> + Clone + use<'w> {
        let (first, last, step) = self.keys;
        let count = i32::try_from(words.len()).unwrap_or(i32::MAX);
        let last = if last < 0 { count + last } else { last.min(count - 1) };
        let places = (first..=last).step_by(usize::try_from(step).unwrap_or(1).max(1));
        places
            .filter(move |_| first > 0)
            .filter_map(|place| words.get(usize::try_from(place).ok()?).copied())
    }
}

//! Clients of the simulated cluster: each writes and reads keys, one command after the other.

use std::time::Duration;

use rand::RngExt;
use weft_e2e::linear::{Action, Operation};
use weft_resp::Value;

use super::machine::Process;
use super::{CLIENTS, KEYS, LEASE, NODES, Planted, World, millis, now, world};

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_millis(1_500);

/// Clients that reach a node that is isolated, as do those that read at replicas. The others reach
/// the other nodes alone.
pub(super) const ISOLATED_CLIENTS: usize = 2;

/// A client.
#[derive(Default)]
pub(super) struct Client {
    /// The node, and the number of the connection there.
    connection: Option<(usize, u64)>,
    /// The node that a redirection named.
    wanted: Option<usize>,
    pending: Option<Pending>,
    next: Duration,
}

/// A command without an answer yet.
struct Pending {
    key: usize,
    start: Duration,
    sent: Duration,
    /// The value that is written; a read if there is none.
    writes: Option<u64>,
}

impl World {
    /// The connection of a client ends: to this node, or to any. What it wrote may have happened.
    pub(super) fn hang_up(&mut self, client: usize, node: Option<usize>) {
        let it = &mut self.clients[client];
        if node.is_some_and(|node| it.connection.is_none_or(|(to, _)| to != node)) {
            return;
        }
        it.connection = None;
        if self.random.random_bool(0.5) {
            it.wanted = None;
        }
        if let Some(Pending { key, start, writes: Some(value), .. }) = it.pending.take() {
            let action = Action::Write(value);
            self.histories[key].push(Operation { start, end: None, action });
            self.totals.unanswered += 1;
        }
    }

    /// A client does a step.
    pub(super) fn client(&mut self, number: usize) {
        if self.clients[number].pending.as_ref().is_some_and(|it| now() > it.sent + PATIENCE) {
            self.hang_up(number, None);
        }
        let it = &self.clients[number];
        let rests = self.reads_only.is_some_and(|key| key.is_none() || number > 0);
        if it.pending.is_some() || it.next > now() || rests {
            return;
        }
        let node = it.wanted.unwrap_or_else(|| self.random.random_range(0..NODES as usize));
        let at_replicas = number + self.swarm.replica_readers >= CLIENTS;
        let is_far = number >= ISOLATED_CLIENTS && !at_replicas;
        if self.isolated_until[node] > world() && is_far {
            self.clients[number].wanted = None;
            return;
        }
        let next = now() + millis(self.random.random_range(0..self.swarm.pause));
        self.clients[number].next = next;
        let Some(process) = &mut self.machines[node].process else {
            self.clients[number].wanted = None;
            return;
        };
        let connection = match self.clients[number].connection {
            Some((to, id)) if to == node && process.connections.contains_key(&id) => id,
            _ => process.connect(at_replicas),
        };
        self.clients[number].connection = Some((node, connection));
        let key = self.reads_only.flatten().unwrap_or(self.random.random_range(0..KEYS));
        let start = self.event();
        let is_write =
            number >= self.swarm.readers && self.random.random_range(0..100) < self.swarm.writes;
        let is_write = is_write && self.reads_only.is_none() && !at_replicas;
        let value = self.events;
        let writes = is_write.then_some(value);
        let Some(process) = &mut self.machines[node].process else { return };
        let name = format!("key{key}");
        process.inbox.push_back((
            connection,
            match writes {
                Some(value) => vec!["SET".to_owned(), name, value.to_string()],
                None => vec!["GET".to_owned(), name],
            },
        ));
        self.clients[number].pending = Some(Pending { key, start, sent: now(), writes });
    }

    /// The front end of a node does a turn, and clients get answers.
    pub(super) fn turn(&mut self, node: usize) {
        let commands = self.random.random_range(1..4);
        let Some(process) = &mut self.machines[node].process else { return };
        for (connection, bytes) in process.turn(commands) {
            let to = Some((node, connection));
            let Some(client) = self.clients.iter().position(|it| it.connection == to) else {
                continue;
            };
            match bytes {
                None => {
                    self.hang_up(client, Some(node));
                    self.falls_soon(node, 150);
                }
                Some(bytes) => self.answered(client, &bytes),
            }
        }
    }

    fn answered(&mut self, client: usize, bytes: &[u8]) {
        let decoded = Value::decode(bytes).expect("a reply");
        let (answer, _) = decoded.expect("a whole reply");
        let Some(Pending { key, mut start, sent, writes }) = self.clients[client].pending.take()
        else {
            return;
        };
        let end = Some(self.event());
        let at_replicas = client + self.swarm.replica_readers >= CLIENTS;
        let action = match (answer, writes) {
            (Value::Simple(_), Some(value)) => Action::Write(value),
            (Value::Bulk(text), None) => {
                Action::Read(std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok()))
            }
            (Value::Null, None) => Action::Read(None),
            // These promise that it did not happen.
            (Value::Error(text), _) if text.starts_with("MOVED") => {
                let host = text.split(' ').nth(2).and_then(|it| it.split(':').next());
                let host = host.and_then(|host| host.parse().ok());
                self.clients[client].wanted = host.filter(|_| !at_replicas);
                return;
            }
            (Value::Error(text), _) if text.starts_with("CLUSTERDOWN") => {
                self.clients[client].wanted = None;
                return;
            }
            (answer, _) => panic!("{answer:?}"),
        };
        let (node, _) = self.clients[client].connection.expect("it asked");
        self.clients[client].wanted = Some(node).filter(|_| !at_replicas);
        self.totals.answered += 1;
        if at_replicas && self.planted != Some(Planted::ReplicasCountAsPrimaries) {
            // Clocks run up to 4.5 percent too slow.
            start = self.at(sent.saturating_sub(LEASE * 21 / 20));
        }
        if at_replicas {
            let leads = |it: &Process| !it.reigns().is_empty();
            let is_replica = !self.machines[node].process.as_ref().is_some_and(leads);
            self.totals.of_replicas += u64::from(is_replica);
        }
        self.histories[key].push(Operation { start, end, action });
    }

    /// Clients send no commands any more; the first one reads each key once.
    pub(super) fn read_all(&mut self) {
        self.reads_only = Some(None);
        while self.clients.iter().any(|it| it.pending.is_some()) {
            self.step();
        }
        for key in 0..KEYS {
            self.reads_only = Some(Some(key));
            let (count, end) = (self.histories[key].len(), now() + millis(20_000));
            while self.histories[key].len() == count {
                self.step();
                assert!(now() < end, "the key cannot be read");
            }
        }
    }
}

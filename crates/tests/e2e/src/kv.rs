//! Clients of a cluster of `weft kv`, which note what they saw, and what tests ask its nodes.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use serde_json::Value as Json;
use weft_resp::Value;

use crate::linear::{Action, Operation, is_linearizable};
use crate::process;
use crate::redis::{Client, Random};

/// A busy machine does not reach it.
pub const LIMIT: Duration = Duration::from_secs(60);
/// Clients, and the keys that they share.
const CLIENTS: u64 = 5;
const KEYS: usize = 12;

/// A connection to a node.
///
/// # Errors
/// When nothing listens.
pub fn connect(port: u16) -> io::Result<Client> {
    let mut client = Client::connect(port)?;
    client.set_patience(Duration::from_secs(20))?;
    Ok(client)
}

/// The status that a node tells.
///
/// # Errors
/// When it tells none.
pub fn status_of(port: u16) -> io::Result<Json> {
    match connect(port)?.ask("WEFT STATUS")? {
        Value::Bulk(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::other),
        other => Err(io::Error::other(format!("{other:?}"))),
    }
}

/// Waits until something is there.
pub fn await_some<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "not there: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Reads a key at any node that serves it. An answer that promises that nothing was done is no
/// answer yet: a primary without time on a busy machine loses its lease.
pub fn get(ports: &[u16], key: &str) -> Value {
    await_some("a read", || {
        ports.iter().find_map(|&port| {
            let answer = connect(port).ok()?.ask(&format!("GET {key}")).ok()?;
            let is_refused =
                |text: &str| text.starts_with("MOVED") || text.starts_with("CLUSTERDOWN");
            (!matches!(&answer, Value::Error(text) if is_refused(text))).then_some(answer)
        })
    })
}

/// The process of a node.
pub fn pid_of(port: u16) -> Pid {
    let info = connect(port).and_then(|mut it| it.ask("INFO server")).expect("an answer");
    let Value::Bulk(info) = info else { panic!("{info:?}") };
    let info = String::from_utf8(info).expect("text");
    let line = info.lines().find_map(|line| line.strip_prefix("process_id:")).expect("a line");
    Pid::from_raw(line.trim().parse().expect("a number")).expect("not 0")
}

/// Clients that read and write some keys until they are told to end.
pub struct Load {
    /// The names of its keys begin so.
    prefix: String,
    ends: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    /// The longest time without an answered write, in milliseconds, and when the last one came.
    gap: Arc<Mutex<(Duration, Instant)>>,
    clients: Vec<JoinHandle<BTreeMap<usize, Vec<Operation>>>>,
}

impl Load {
    /// Starts some clients of these nodes.
    pub fn start(ports: &[u16]) -> Self {
        Self::of(ports, CLIENTS, "key")
    }

    /// Starts so many clients, whose keys have names that begin so.
    pub fn of(ports: &[u16], clients: u64, prefix: &str) -> Self {
        let (ends, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let gap = Arc::new(Mutex::new((Duration::ZERO, Instant::now())));
        let begun = Instant::now();
        let client = |number| {
            let (ends, answered, gap) =
                (Arc::clone(&ends), Arc::clone(&answered), Arc::clone(&gap));
            let (ports, prefix) = (ports.to_vec(), prefix.to_owned());
            thread::spawn(move || {
                let (client, history) = (None, BTreeMap::new());
                let mut user = User { number, prefix, ports, begun, client, history };
                let mut random = Random(number);
                while !ends.load(Ordering::Relaxed) {
                    if user.step(&mut random) {
                        answered.fetch_add(1, Ordering::Relaxed);
                        let mut gap = gap.lock().expect("nobody panics");
                        *gap = (gap.0.max(gap.1.elapsed()), Instant::now());
                    }
                    // The checker looks at all of it.
                    thread::sleep(Duration::from_millis(2));
                }
                user.history
            })
        };
        let clients = (1..=clients).map(client).collect();
        Self { prefix: prefix.to_owned(), ends, answered, gap, clients }
    }

    /// Waits until so many more writes are answered.
    pub fn await_writes(&self, count: u64) {
        let wanted = self.answered.load(Ordering::Relaxed) + count;
        let is_there = || (self.answered.load(Ordering::Relaxed) >= wanted).then_some(());
        await_some("writes", is_there);
    }

    /// The longest time without an answered write since the last call.
    pub fn gap(&self) -> Duration {
        std::mem::take(&mut self.gap.lock().expect("nobody panics").0)
    }

    /// Ends the clients, reads all keys once more, and checks all.
    pub fn check(self, ports: &[u16]) -> usize {
        self.ends.store(true, Ordering::Relaxed);
        let mut histories: BTreeMap<usize, Vec<Operation>> = BTreeMap::new();
        let begun = Instant::now();
        for client in self.clients {
            for (key, history) in client.join().expect("a client ends well") {
                histories.entry(key).or_default().extend(history);
            }
        }
        let last = histories.values().flatten().filter_map(|it| it.end).max().unwrap_or_default();
        for (key, history) in &mut histories {
            let value = match get(ports, &format!("{}{key}", self.prefix)) {
                Value::Bulk(text) => std::str::from_utf8(&text).ok().and_then(|it| it.parse().ok()),
                _ => None,
            };
            let start = last + begun.elapsed();
            let end = Some(start + Duration::from_millis(1));
            history.push(Operation { start, end, action: Action::Read(value) });
            assert!(is_linearizable(history), "key{key}: {history:?}");
        }
        histories.values().map(Vec::len).sum()
    }
}

struct User {
    number: u64,
    prefix: String,
    ports: Vec<u16>,
    begun: Instant,
    client: Option<(u16, Client)>,
    history: BTreeMap<usize, Vec<Operation>>,
}

impl User {
    /// One operation. True if it is a write that was answered.
    fn step(&mut self, random: &mut Random) -> bool {
        let (port, mut client) = match self.client.take() {
            Some(client) => client,
            None => {
                let port = self.ports[random.below(self.ports.len())];
                let Ok(client) = connect(port) else { return false };
                (port, client)
            }
        };
        let key = random.below(KEYS);
        let history = self.history.entry(key).or_default();
        // No two writes have the same value.
        let micros = u64::try_from(self.begun.elapsed().as_micros()).expect("some minutes");
        let value = self.number << 40 | micros;
        let is_write = random.below(2) == 0;
        let start = self.begun.elapsed();
        let answer = if is_write {
            client.ask(&format!("SET {}{key} {value}", self.prefix))
        } else {
            client.ask(&format!("GET {}{key}", self.prefix))
        };
        let end = Some(self.begun.elapsed());
        let wrote = Action::Write(value);
        match answer {
            Ok(Value::Simple(_)) => history.push(Operation { start, end, action: wrote }),
            Ok(Value::Error(text)) => {
                let (code, rest) = text.split_once(' ').unwrap_or_default();
                match code {
                    "MOVED" => {
                        let to = rest.rsplit(':').next().and_then(|it| it.parse().ok());
                        let to: u16 = to.expect("a port");
                        self.client = connect(to).ok().map(|client| (to, client));
                    }
                    // These promise that it did not happen.
                    "CLUSTERDOWN" => {}
                    _ => panic!("{text}"),
                }
                return false;
            }
            Ok(found) => {
                let value = match found {
                    Value::Bulk(text) => {
                        Some(std::str::from_utf8(&text).expect("text").parse().expect("a number"))
                    }
                    _ => None,
                };
                history.push(Operation { start, end, action: Action::Read(value) });
            }
            // A write may have happened.
            Err(_) => {
                if is_write {
                    history.push(Operation { start, end: None, action: wrote });
                }
                return false;
            }
        }
        self.client = Some((port, client));
        is_write
    }
}

/// A port with two free ones behind it.
pub fn three_ports() -> u16 {
    await_some("three free ports", || {
        let first = process::free_port();
        let is_free = |port| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok();
        (first < 65_000 && is_free(first + 1) && is_free(first + 2)).then_some(first)
    })
}

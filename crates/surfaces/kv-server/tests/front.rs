//! Answers and commits: what a client sees when a commit fails. The commits of the node wait until
//! the test says how they end.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]
#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use weft_kv::node::{Durability, Failover, Node, Report, View};
use weft_kv::store::{Change, Lsn, Pair, Store, StoreError};
use weft_kv_server::{Settings, listen, serve};
use weft_redis::memory::Memory;

/// A busy machine does not reach it.
const LIMIT: Duration = Duration::from_secs(60);
/// Nothing comes for so long: the right answer is none, so a slow machine does no harm.
const SILENCE: Duration = Duration::from_millis(300);

/// The end of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// All is safe.
    Well,
    /// All that was given is lost, and its writers are told.
    Lost,
    /// All up to this number is lost; what is newer is not decided.
    LostUpTo(u64),
}

#[derive(Default)]
struct Commits {
    /// Commits that began.
    begun: u64,
    ends: Vec<End>,
}

/// A node whose pairs are in memory.
#[derive(Default)]
struct Slow {
    memory: Memory,
    settled: AtomicU64,
    replicas: AtomicU64,
    commits: Mutex<Commits>,
    changed: Condvar,
}

impl Slow {
    /// Waits until so many commits have begun.
    fn await_commits(&self, count: u64) {
        let commits = self.commits.lock().unwrap();
        let waits = |commits: &mut Commits| commits.begun < count;
        let (_commits, late) = self.changed.wait_timeout_while(commits, LIMIT, waits).unwrap();
        assert!(!late.timed_out(), "no commit");
    }

    /// Ends a commit that waits, or the next one.
    fn end(&self, end: End) {
        self.commits.lock().unwrap().ends.push(end);
        self.changed.notify_all();
    }
}

impl Store for Slow {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.memory.get(key)
    }

    fn write(&self, batch: Vec<Change>) -> Result<Lsn, StoreError> {
        self.memory.write(batch)
    }

    fn commit(&self, upto: Lsn) -> Result<(), StoreError> {
        let mut commits = self.commits.lock().unwrap();
        commits.begun += 1;
        self.changed.notify_all();
        let waits = |commits: &mut Commits| commits.ends.is_empty();
        let (mut commits, late) = self.changed.wait_timeout_while(commits, LIMIT, waits).unwrap();
        assert!(!late.timed_out(), "the test ends no commit");
        let (settled, is_well) = match commits.ends.remove(0) {
            End::Well => (upto, true),
            End::Lost => (self.newest(), false),
            End::LostUpTo(lsn) => (Lsn(lsn), false),
        };
        self.settled.fetch_max(settled.0, Ordering::SeqCst);
        if is_well { Ok(()) } else { Err(StoreError::Unknown("the test says so".to_owned())) }
    }

    fn newest(&self) -> Lsn {
        self.memory.newest()
    }

    fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        backward: bool,
        limit: usize,
    ) -> Result<Vec<Pair>, StoreError> {
        self.memory.scan(from, to, backward, limit)
    }
}

impl Node for Slow {
    fn view(&self) -> Arc<View> {
        self.memory.view()
    }

    fn durability(&self) -> Durability {
        Durability::Replicated
    }

    fn lease_ms(&self) -> u64 {
        0
    }

    fn settled(&self) -> Lsn {
        Lsn(self.settled.load(Ordering::SeqCst))
    }

    fn replicas_with(&self, _: Lsn) -> usize {
        usize::try_from(self.replicas.load(Ordering::SeqCst)).unwrap()
    }

    fn report(&self) -> Report {
        Report::default()
    }

    fn failover(&self, _: Failover) -> Result<(), String> {
        Err("there is no other node".to_owned())
    }
}

struct Client(TcpStream);

impl Client {
    fn new(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Self(stream)
    }

    fn send(&mut self, line: &str) {
        self.0.write_all(format!("{line}\r\n").as_bytes()).unwrap();
    }

    fn reads(&mut self, expected: &str) {
        let mut bytes = vec![0; expected.len()];
        self.0.read_exact(&mut bytes).unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes), expected);
    }

    /// The connection ends, and no byte comes before.
    fn is_cut(&mut self) {
        let mut bytes = Vec::new();
        match self.0.read_to_end(&mut bytes) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
        assert_eq!(String::from_utf8_lossy(&bytes), "");
    }

    fn hears_nothing(&mut self) {
        self.0.set_read_timeout(Some(SILENCE)).unwrap();
        let error = self.0.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        self.0.set_read_timeout(Some(LIMIT)).unwrap();
    }
}

/// Serves a node while a test runs.
fn with_server(test: impl FnOnce(&Slow, &dyn Fn() -> Client)) {
    let listener = listen(&[SocketAddr::from((Ipv4Addr::LOCALHOST, 0))]).unwrap();
    let address = listener.addresses()[0];
    let node = Arc::new(Slow::default());
    let theirs = Arc::clone(&node) as Arc<dyn Node>;
    let server = thread::spawn(move || serve(listener, theirs, Settings::default()));
    test(&node, &|| Client::new(address));
    Client::new(address).send("SHUTDOWN");
    server.join().unwrap().unwrap();
}

#[test]
fn a_client_whose_commit_failed_gets_no_answer() {
    with_server(|node, connect| {
        let (mut one, mut two, mut three) = (connect(), connect(), connect());
        one.send("SET a b");
        node.await_commits(1);
        // It is taken while the commit runs, and reads what may be lost.
        two.send("GET a");
        three.send("PING");
        three.hears_nothing();
        node.end(End::Lost);
        one.is_cut();
        two.is_cut();
        three.is_cut();
        let mut four = connect();
        four.send("SET a c");
        // One for the read that was cut may come before.
        node.end(End::Well);
        node.end(End::Well);
        four.reads("+OK\r\n");
    });
}

#[test]
fn what_was_not_committed_is_not_read_after_a_commit_of_earlier_batches_failed() {
    with_server(|node, connect| {
        let mut one = connect();
        one.send("SET a b");
        node.await_commits(1);
        // The batches of a reign that ended are lost; this one is of the next reign.
        node.end(End::LostUpTo(0));
        one.is_cut();
        let mut two = connect();
        two.send("GET a");
        two.hears_nothing();
        node.await_commits(2);
        node.end(End::Well);
        two.reads("$1\r\nb\r\n");
    });
}

#[test]
fn wait_answers_with_the_replicas_that_have_all_writes() {
    with_server(|node, connect| {
        let (mut one, mut two, mut other) = (connect(), connect(), connect());
        one.send("SET a b");
        node.await_commits(1);
        // Commands behind it wait, too.
        one.send("WAIT 2 0");
        one.send("PING");
        node.end(End::Well);
        one.reads("+OK\r\n");
        one.hears_nothing();
        other.send("PING");
        other.reads("+PONG\r\n");
        node.replicas.store(1, Ordering::SeqCst);
        two.send("WAIT 2 10");
        two.reads(":1\r\n");
        node.replicas.store(2, Ordering::SeqCst);
        one.reads(":2\r\n+PONG\r\n");
        // In a transaction it does not wait.
        two.send("MULTI");
        two.send("WAIT 3 0");
        two.send("EXEC");
        two.reads("+OK\r\n+QUEUED\r\n*1\r\n:2\r\n");
        // A client that goes away is forgotten.
        two.send("WAIT 3 0");
        two.0.shutdown(std::net::Shutdown::Write).unwrap();
        two.is_cut();
    });
}

//! The server over pairs in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use weft_kv::node::{Member, Region, View};
use weft_kv::store::StoreError;
use weft_resp::Value;

use crate::memory::Memory;
use crate::{Clock, Parameters, Peer, Server, Settings, Verdict};

#[derive(Clone, Default)]
struct Hands(Arc<AtomicU64>);

impl Clock for Hands {
    fn wall(&self) -> Duration {
        Duration::from_millis(1_000_000_000 + self.0.load(Ordering::Relaxed))
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

struct World {
    memory: Arc<Memory>,
    clock: Hands,
    server: Server,
    client: u64,
    starts: u64,
}

impl World {
    fn new() -> Self {
        Self::with(Settings { seed: 7, ..Settings::default() })
    }

    fn with(settings: Settings) -> Self {
        let (memory, clock) = (Arc::new(Memory::default()), Hands::default());
        let node = Arc::clone(&memory);
        let parameters = Parameters::default();
        let mut server = Server::new(node, settings, parameters, Box::new(clock.clone()));
        let client = server.open(Peer::default());
        Self { memory, clock, server, client, starts: 100 }
    }

    /// The same pairs with a new process.
    fn again(&mut self) {
        // As the driver does: no process has the seed of another one.
        self.starts += 1;
        let settings = Settings { seed: self.starts, ..Settings::default() };
        let node = Arc::clone(&self.memory);
        let parameters = Parameters::default();
        self.server = Server::new(node, settings, parameters, Box::new(self.clock.clone()));
        self.client = self.server.open(Peer::default());
    }

    fn of(&mut self, client: u64, line: &str) -> Value {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.words(client, &words).0
    }

    fn words(&mut self, client: u64, words: &[&[u8]]) -> (Value, Verdict) {
        let mut out = Vec::new();
        let verdict = self.server.execute(client, words, &mut out);
        let value = Value::decode(&out).expect("a reply").map_or(Value::Null, |(value, _)| value);
        (value, verdict)
    }

    fn ask(&mut self, line: &str) -> Value {
        self.of(self.client, line)
    }

    fn text(&mut self, line: &str) -> String {
        match self.ask(line) {
            Value::Simple(text) | Value::Error(text) => text,
            Value::Integer(number) => number.to_string(),
            Value::Bulk(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Value::Null => "null".to_owned(),
            other => format!("{other:?}"),
        }
    }

    fn pass(&self, ms: u64) {
        self.clock.0.fetch_add(ms, Ordering::Relaxed);
    }

    /// Lets the background do all that there is to do.
    fn settle(&mut self) {
        while self.server.tick() {}
    }
}

#[test]
fn keys_that_end_are_gone_for_commands_at_once_and_from_the_store_soon() {
    let mut world = World::new();
    assert_eq!(world.text("SET a 1 PX 100"), "OK");
    assert_eq!(world.text("HSET h f 1"), "1");
    assert_eq!(world.text("PEXPIRE h 100"), "1");
    assert_eq!(world.text("SET b 2"), "OK");
    assert_eq!(world.text("DBSIZE"), "3");
    world.settle();
    world.pass(99);
    assert_eq!(world.text("PTTL a"), "1");
    world.pass(1);
    assert_eq!(world.text("GET a"), "null");
    assert_eq!(world.text("DBSIZE"), "1", "before the background came by");
    assert_eq!(world.text("EXISTS a h b"), "1");
    assert_eq!(world.text("HGET h f"), "null");
    world.settle();
    assert_eq!(world.text("DBSIZE"), "1");
    // The head of b and its slot's record, and the records of the other two slots.
    assert_eq!(world.memory.pairs(), 4);
}

#[test]
fn a_key_that_ended_comes_back_as_a_new_one() {
    let mut world = World::new();
    world.text("HSET h old 1");
    world.text("PEXPIRE h 10");
    world.pass(10);
    assert_eq!(world.text("HSET h new 1"), "1");
    assert_eq!(world.text("HLEN h"), "1");
    assert_eq!(world.text("TTL h"), "-1");
    assert_eq!(world.text("DBSIZE"), "1");
    world.settle();
    assert_eq!(world.text("HGET h new"), "1");
}

#[test]
fn removed_and_flushed_collections_leave_nothing() {
    let mut world = World::new();
    for place in 0..300 {
        world.text(&format!("HSET big f{place} {place}"));
        world.text(&format!("ZADD sorted {place} m{place}"));
    }
    assert_eq!(world.text("DEL big"), "1");
    assert_eq!(world.text("HSET big f1 again"), "1");
    assert_eq!(world.text("HLEN big"), "1");
    world.text("SET gone 1 EX 1000");
    assert_eq!(world.text("FLUSHALL"), "OK");
    assert_eq!(world.text("DBSIZE"), "0");
    assert_eq!(world.text("GET gone"), "null");
    assert_eq!(world.text("SET gone 2 EX 1000"), "OK");
    world.settle();
    assert_eq!(world.text("GET gone"), "2");
    assert_eq!(world.text("TTL gone"), "1000");
    // The key, its expiry, and the records of three slots.
    assert_eq!(world.memory.pairs(), 5);
    world.again();
    assert_eq!(world.text("GET gone"), "2");
    assert_eq!(world.text("DBSIZE"), "1");
}

#[test]
fn a_transaction_is_one_batch() {
    let mut world = World::new();
    for line in ["MULTI", "SET a 1", "INCR a", "INCR b", "HSET a f 1", "GET a"] {
        world.text(line);
    }
    let before = world.memory.newest_batch();
    let Value::Array(answers) = world.ask("EXEC") else { panic!("no array") };
    assert_eq!(world.memory.newest_batch().0, before.0 + 1);
    assert_eq!(answers[1], Value::Integer(2));
    assert!(matches!(&answers[3], Value::Error(text) if text.starts_with("WRONGTYPE")));
    assert_eq!(answers[4], Value::Bulk(b"2".to_vec()));
    assert_eq!(world.text("EXEC"), "ERR EXEC without MULTI");
    // One that was refused when it was queued breaks all.
    for line in ["MULTI", "SET a 9", "NOSUCH"] {
        world.text(line);
    }
    let text = "EXECABORT Transaction discarded because of previous errors.";
    assert_eq!(world.text("EXEC"), text);
    assert_eq!(world.text("GET a"), "2");
    let before = world.memory.newest_batch();
    assert_eq!(world.text("MSET x 1 y 2 z 3"), "OK");
    assert_eq!(world.memory.newest_batch().0, before.0 + 1);
}

#[test]
fn watched_keys_that_change_or_end_make_exec_do_nothing() {
    let mut world = World::new();
    let other = world.server.open(Peer::default());
    let changes = ["SET a 2", "DEL a", "FLUSHALL", "APPEND a x", "RENAME a b", "PEXPIRE a 1000"];
    for change in changes {
        world.text("SET a 1");
        world.text("WATCH a");
        world.of(other, change);
        world.text("MULTI");
        world.text("SET done 1");
        assert_eq!(world.ask("EXEC"), Value::Null, "{change}");
    }
    world.text("SET a 1 PX 50");
    world.text("WATCH a");
    world.pass(50);
    world.text("MULTI");
    assert_eq!(world.ask("EXEC"), Value::Null);
    // A key that did not change does not count, and neither do watches of before.
    world.text("SET a 1");
    world.text("WATCH a");
    world.of(other, "GET a");
    world.of(other, "SET b 1");
    world.text("MULTI");
    assert_eq!(world.ask("EXEC"), Value::Array(Vec::new()));
}

#[test]
fn a_store_that_refuses_changes_nothing_and_says_so() {
    let mut world = World::new();
    world.text("SET a 1");
    world.memory.refuse(Some(StoreError::Full("the log".to_owned())));
    for line in ["SET a 2", "DEL a", "HSET h f 1", "FLUSHALL"] {
        assert!(world.text(line).starts_with("MISCONF "), "{line}");
    }
    world.text("MULTI");
    world.text("SET a 2");
    assert!(world.text("EXEC").starts_with("MISCONF "));
    assert_eq!(world.text("GET a"), "1");
    assert_eq!(world.text("DBSIZE"), "1");
    world.memory.refuse(None);
    assert_eq!(world.text("SET b 1"), "OK");
    assert_eq!(world.text("DBSIZE"), "2");
}

fn cluster(myself: usize, primary: Option<usize>) -> View {
    let member = |place: u16| Member {
        id: place.to_string().repeat(40),
        host: "10.0.0.1".to_owned(),
        port: 7000 + place,
        is_up: true,
    };
    let region = |first, last, primary| Region {
        id: u64::from(first),
        first,
        last,
        epoch: 3,
        primary,
        in_sync: vec![0, 1],
    };
    View {
        version: 9,
        is_cluster: true,
        myself,
        members: (0..3).map(member).collect(),
        regions: vec![region(0, 8_191, primary), region(8_192, 16_383, Some(2))],
    }
}

#[test]
fn a_node_of_a_cluster_serves_its_slots_and_names_the_others() {
    let mut world = World::new();
    world.memory.set_view(cluster(0, Some(0)));
    world.server.begin_turn();
    // b is in slot 3300, foo in 12182.
    assert_eq!(world.text("SET b 1"), "OK");
    assert_eq!(world.text("GET foo"), "MOVED 12182 10.0.0.1:7002");
    let crossed = "CROSSSLOT Keys in request don't hash to the same slot";
    assert_eq!(world.text("MGET b foo"), crossed);
    assert_eq!(world.text("MSET {b}1 1 {b}2 2"), "OK");
    world.text("MULTI");
    assert_eq!(world.text("GET foo"), "MOVED 12182 10.0.0.1:7002");
    let text = "EXECABORT Transaction discarded because of previous errors.";
    assert_eq!(world.text("EXEC"), text);
    assert_eq!(world.text("SELECT 1"), "ERR SELECT is not allowed in cluster mode");
    world.text("MULTI");
    assert_eq!(world.text("WAIT 5 0"), "QUEUED");
    // Backups that have all writes: none here, and a transaction does not wait for them.
    assert_eq!(world.text("EXEC"), "Array([Integer(0)])");
    let Value::Array(slots) = world.ask("CLUSTER SLOTS") else { panic!("no array") };
    assert_eq!(slots.len(), 2);
    // The first node, which leads the first region, is not named as a replica of the second.
    let named = |region: &Value| match region {
        Value::Array(parts) => parts[2..].iter().map(|node| format!("{node:?}")).collect(),
        _ => Vec::new(),
    };
    let [first, second] = [named(&slots[0]), named(&slots[1])];
    assert!(first[0].contains("7000") && first[1].contains("7001"), "{first:?}");
    assert!(second[0].contains("7002") && second[1].contains("7001"), "{second:?}");
    assert_eq!((first.len(), second.len()), (2, 2));
    let nodes = world.text("CLUSTER NODES");
    assert!(nodes.contains("myself,master - 0 0 3 connected 0-8191\n"), "{nodes}");
    assert!(nodes.contains(&format!("slave {} 0 0 3 connected\n", "0".repeat(40))), "{nodes}");
    assert!(world.text("CLUSTER INFO").contains("cluster_state:ok"));
    // The lease is lost between the look and the write.
    world.memory.set_view(cluster(0, Some(1)));
    world.memory.refuse(Some(StoreError::NotServed("the lease is over".to_owned())));
    assert_eq!(world.text("SET b 1"), "MOVED 3300 10.0.0.1:7001");
    world.memory.set_view(cluster(0, None));
    world.server.begin_turn();
    assert_eq!(world.text("GET b"), "CLUSTERDOWN Hash slot not served");
}

#[test]
fn a_backup_reads_after_readonly_alone() {
    let mut world = World::new();
    world.memory.set_view(cluster(1, Some(0)));
    world.server.begin_turn();
    assert_eq!(world.text("GET b"), "MOVED 3300 10.0.0.1:7000");
    assert_eq!(world.text("READONLY"), "OK");
    assert_eq!(world.text("GET b"), "null");
    assert_eq!(world.text("SET b 1"), "MOVED 3300 10.0.0.1:7000");
    assert_eq!(world.text("READWRITE"), "OK");
    assert_eq!(world.text("GET b"), "MOVED 3300 10.0.0.1:7000");
    assert!(world.text("INFO replication").contains("role:slave"));
    assert!(world.text("WAIT 0 0").starts_with("ERR WAIT cannot be used with replica"));
}

#[test]
fn a_password_is_needed_if_there_is_one() {
    let settings = Settings { password: Some(b"secret".to_vec()), ..Settings::default() };
    let mut world = World::with(settings);
    assert!(!world.server.limits(world.client).is_trusted);
    assert_eq!(world.text("GET a"), "NOAUTH Authentication required.");
    assert!(world.text("HELLO 3").starts_with("NOAUTH HELLO must be called"));
    assert!(world.text("AUTH secres").starts_with("WRONGPASS"));
    assert!(world.text("AUTH other secret").starts_with("WRONGPASS"));
    assert!(matches!(world.ask("HELLO 3 AUTH default secret SETNAME x"), Value::Map(_)));
    assert_eq!(world.text("CLIENT GETNAME"), "x");
    assert_eq!(world.text("SET a 1"), "OK");
    assert_eq!(world.text("RESET"), "RESET");
    assert_eq!(world.text("GET a"), "NOAUTH Authentication required.");
}

#[test]
fn answers_are_left_out_when_a_client_wants_none() {
    let mut world = World::new();
    let mut out = Vec::new();
    let mut run = |line: &str, out: &mut Vec<u8>| {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        world.server.execute(world.client, &words, out);
    };
    run("CLIENT REPLY OFF", &mut out);
    run("PING", &mut out);
    run("CLIENT REPLY ON", &mut out);
    run("CLIENT REPLY SKIP", &mut out);
    run("PING", &mut out);
    run("ECHO a", &mut out);
    assert_eq!(out, b"+OK\r\n$1\r\na\r\n");
}

#[test]
fn an_answer_above_the_limit_ends_the_connection() {
    let mut world = World::new();
    world.server.parameters.output_max = 1 << 20;
    let long = vec![b'x'; 600 << 10];
    world.words(world.client, &[b"SET", b"a", &long]);
    let mut out = Vec::new();
    let verdict = world.server.execute(world.client, &[b"MGET", b"a", b"a"], &mut out);
    assert_eq!(verdict, Verdict::Close);
    assert!(out.len() <= 1 << 20);
}

#[test]
fn names_and_strings_have_limits() {
    let mut world = World::new();
    let long = vec![b'k'; 4_001];
    let client = world.client;
    let refused = |(value, _): (Value, Verdict)| matches!(value, Value::Error(_));
    assert!(refused(world.words(client, &[b"SET", &long, b"1"])));
    assert!(refused(world.words(client, &[b"HSET", b"h", &long, b"1"])));
    assert!(refused(world.words(client, &[b"ZADD", b"z", b"1", &long])));
    assert!(!refused(world.words(client, &[b"SET", &long[..4_000], b"1"])));
    let text = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";
    assert_eq!(world.text("SETRANGE s 50331648 x"), text);
    assert_eq!(world.text("EXISTS h z"), "0");
}

/// All keys by SCAN, with something done between its calls.
fn scan_all(world: &mut World, count: usize, mut between: impl FnMut(&mut World)) -> Vec<Vec<u8>> {
    let mut cursor = "0".to_owned();
    let mut found = Vec::new();
    loop {
        let Value::Array(parts) = world.ask(&format!("SCAN {cursor} COUNT {count}")) else {
            panic!("no array")
        };
        let [Value::Bulk(next), Value::Array(keys)] = &parts[..] else { panic!("{parts:?}") };
        for key in keys {
            let Value::Bulk(key) = key else { panic!("{key:?}") };
            found.push(key.clone());
        }
        cursor = String::from_utf8_lossy(next).into_owned();
        if cursor == "0" {
            return found;
        }
        between(world);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn scan_passes_each_key_that_stays_exactly_once(
        stay in prop::collection::btree_set("[a-e]{1,3}", 1..60),
        come in prop::collection::vec("[f-h]{1,3}", 0..60),
        count in 1_usize..20,
        tag in prop::bool::ANY,
    ) {
        let name = |key: &str| if tag { format!("{{t}}{key}") } else { key.to_owned() };
        let mut world = World::new();
        for key in &stay {
            world.text(&format!("SET {} 1", name(key)));
        }
        let mut others = come.iter();
        let found = scan_all(&mut world, count, |world| {
            if let Some(key) = others.next() {
                world.text(&format!("SET {} 1", name(key)));
            }
            if let Some(key) = others.next() {
                world.text(&format!("DEL {}", name(key)));
            }
        });
        let expected: BTreeSet<Vec<u8>> = stay.iter().map(|key| name(key).into_bytes()).collect();
        let stayed: Vec<_> = found.into_iter().filter(|key| expected.contains(key)).collect();
        prop_assert_eq!(stayed.len(), expected.len());
        prop_assert_eq!(stayed.into_iter().collect::<BTreeSet<_>>(), expected);
    }

    #[test]
    fn sizes_and_values_are_those_of_a_model_also_after_a_restart(
        steps in prop::collection::vec((0_u8..9, 0_u8..6, 0_u8..6), 1..120),
    ) {
        let mut world = World::new();
        let mut model: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
        for (what, key, field) in steps {
            let (key, other) = (format!("k{key}"), format!("k{field}"));
            match what {
                0..4 => {
                    world.text(&format!("HSET {key} f{field} {what}"));
                    model.entry(key).or_default().insert(format!("f{field}"), what.to_string());
                }
                4 => {
                    world.text(&format!("HDEL {key} f{field}"));
                    if let Some(fields) = model.get_mut(&key) {
                        fields.remove(&format!("f{field}"));
                        if fields.is_empty() {
                            model.remove(&key);
                        }
                    }
                }
                5 => {
                    world.text(&format!("DEL {key}"));
                    model.remove(&key);
                }
                6 => {
                    world.text(&format!("RENAME {key} {other}"));
                    if let Some(fields) = model.remove(&key) {
                        model.insert(other, fields);
                    }
                }
                7 => {
                    world.text(&format!("COPY {key} {other} REPLACE"));
                    if let (Some(fields), true) = (model.get(&key).cloned(), key != other) {
                        model.insert(other, fields);
                    }
                }
                _ => world.again(),
            }
            let size = model.len().to_string();
            prop_assert_eq!(world.text("DBSIZE"), size);
        }
        world.settle();
        for (key, fields) in &model {
            prop_assert_eq!(world.text(&format!("HLEN {key}")), fields.len().to_string());
            for (field, value) in fields {
                prop_assert_eq!(&world.text(&format!("HGET {key} {field}")), value);
            }
        }
        // Heads, fields and records of six slots at most: nothing else is left.
        let pairs: usize = model.values().map(|fields| 1 + fields.len()).sum();
        prop_assert!(world.memory.pairs() <= pairs + 6, "{} {pairs}", world.memory.pairs());
    }
}

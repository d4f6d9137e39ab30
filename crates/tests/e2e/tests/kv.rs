//! `weft kv serve`: clients of Redis, replies beside those of Redis, kills, and hostile clients.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::collections::BTreeMap;
use std::fs;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use weft_e2e::redis::{self, Client, Random, comparable, request};
use weft_e2e::{Case, Node, Outcome, Running, process, program, suite};
use weft_resp::Value;

/// A busy machine does not reach it.
const LIMIT: Duration = Duration::from_secs(30);
/// Clients that wait longer are held up.
const HELD_UP: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    suite::main(vec![
        Case::new("programs_of_redis_work_and_the_server_ends_when_asked", programs),
        Case::new("what_cannot_be_served_is_refused_in_one_line", refusals),
        Case::new("a_password_is_asked_for", password),
        Case::new("a_benchmark_with_backups_says_all_and_can_be_served", bench),
        Case::new("replies_are_those_of_redis", || compare(2_000)),
        Case::new("many_replies_are_those_of_redis", || compare(100_000))
            .within(Duration::from_secs(900))
            .long("100,000 commands take minutes"),
        Case::new("nothing_that_was_answered_is_lost_by_kill_9", || kills(4)),
        Case::new("many_kills_lose_nothing", || kills(200))
            .within(Duration::from_secs(1_800))
            .long("200 kills take minutes"),
        Case::new("hostile_clients_hold_up_nobody", || hostile(1_000)),
        Case::new("ten_thousand_idle_clients_hold_up_nobody", || hostile(10_000))
            .within(Duration::from_secs(300))
            .long("10,000 connections"),
        Case::new("it_starts_with_256_descriptors_and_goes_on_when_none_is_left", descriptors),
    ])
}

/// A server with its data in the directory of the node.
fn serve(node: &Node, port: u16, options: &[&str]) -> Running {
    let data = node.directory().join("data");
    let mut command = node.weft(["kv", "serve", "--port", &port.to_string(), "--data"]);
    command.arg(data).args(options);
    let mut server = node.start(command);
    server.await_port(port);
    server
}

fn connect(port: u16) -> Client {
    Client::connect(port).expect("the server listens")
}

fn text(value: &str) -> Value {
    Value::Bulk(value.as_bytes().to_vec())
}

fn ok() -> Value {
    Value::Simple("OK".to_owned())
}

fn programs() -> Outcome {
    let (cli, benchmark) = (program::find("redis-cli")?, program::find("redis-benchmark")?);
    let node = Node::without_daemon();
    let port = process::free_port();
    let server = serve(&node, port, &[]);
    let run = |program: &std::path::Path, arguments: &[&str]| {
        let mut command = node.plain(program);
        command.args(["-p", &port.to_string()]).args(arguments);
        node.start(command).wait(LIMIT).success().stdout
    };
    assert_eq!(run(&cli, &["SET", "a", "b"]), "OK\n");
    assert_eq!(run(&cli, &["GET", "a"]), "b\n");
    assert!(run(&cli, &["-3", "HELLO"]).contains("version"), "HELLO of RESP3");
    assert!(run(&cli, &["INFO", "server"]).contains("redis_version:7.0"));
    for options in [&["-P", "1"], &["-P", "16"]] {
        let csv = run(
            &benchmark,
            &[&["-t", "set,get,incr,mset,hset", "-n", "2000", "-c", "20", "--csv"][..], options]
                .concat(),
        );
        for test in ["\"SET\"", "\"GET\"", "\"INCR\"", "\"HSET\"", "\"MSET (10 keys)\""] {
            assert!(csv.contains(test), "{csv}");
        }
    }
    let mut command = node.weft(["kv", "admin", "status", "--json", "--addr"]);
    command.arg(format!("127.0.0.1:{port}"));
    let told = node.start(command).wait(LIMIT).success().stdout;
    let status: serde_json::Value = serde_json::from_str(&told).expect("one object");
    assert_eq!(status["role"], "primary");
    assert_eq!(status["regions"][0]["slots"], serde_json::json!([0, 16_383]));
    let copy = node.directory().join("copy");
    let mut command = node.weft(["kv", "admin", "backup", "--addr"]);
    command.arg(format!("127.0.0.1:{port}")).arg("--to").arg(&copy);
    let _ = node.start(command).wait(LIMIT).success();
    server.signal(Signal::TERM);
    assert_eq!(server.wait(LIMIT).code(), 0);
    let mut command = node.weft(["kv", "serve", "--port", &port.to_string(), "--data"]);
    command.arg(&copy);
    let mut copy = node.start(command);
    copy.await_port(port);
    assert_eq!(connect(port).ask("GET a").expect("an answer"), text("b"), "from the copy");
    copy.signal(Signal::TERM);
    assert_eq!(copy.wait(LIMIT).code(), 0);
    // The data and the identity are there again.
    let server = serve(&node, port, &["--durability", "durable"]);
    let mut client = connect(port);
    assert_eq!(client.ask("GET a").expect("an answer"), text("b"));
    let id = client.ask("CLUSTER MYID").expect("an answer");
    assert!(matches!(&id, Value::Bulk(id) if id.len() == 40), "{id:?}");
    assert_eq!(client.ask("SET c d").expect("an answer"), ok());
    client.send(&request(&["SHUTDOWN"])).expect("sent");
    assert_eq!(server.wait(LIMIT).code(), 0);
    let _server = serve(&node, port, &[]);
    let mut client = connect(port);
    assert_eq!(client.ask("GET c").expect("an answer"), text("d"));
    assert_eq!(client.ask("CLUSTER MYID").expect("an answer"), id);
    Ok(())
}

fn refusals() -> Outcome {
    let node = Node::without_daemon();
    let port = process::free_port();
    let _server = serve(&node, port, &[]);
    let other = process::free_port().to_string();
    let file = node.directory().join("file");
    fs::write(&file, "").expect("a file");
    let empty = file.display().to_string();
    let data = node.directory().join("data").display().to_string();
    let fresh = node.directory().join("fresh").display().to_string();
    for (arguments, why) in [
        (vec!["--data", &data, "--port", &other], "in use"),
        (vec!["--data", &fresh, "--port", &port.to_string()], "Address already in use"),
        (vec!["--data", &empty, "--port", &other], "cannot be made"),
        (vec!["--data", &fresh, "--port", &other, "--bind", "192.0.2.1"], "cannot be listened at"),
        (vec!["--data", &fresh, "--port", &other, "--password-file", &empty], "is empty"),
    ] {
        let mut command = node.weft(["kv", "serve"]);
        command.args(arguments);
        let ended = node.start(command).wait(LIMIT);
        assert_eq!(ended.code(), 1, "{}", ended.report());
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.report());
        assert!(ended.stderr.contains(why), "{why}: {}", ended.report());
    }
    Ok(())
}

fn password() -> Outcome {
    let node = Node::without_daemon();
    let port = process::free_port();
    let file = node.directory().join("password");
    fs::write(&file, "secret\n").expect("a file");
    let file = file.display().to_string();
    let _server = serve(&node, port, &["--password-file", &file]);
    let mut client = connect(port);
    let no = Value::Error("NOAUTH Authentication required.".to_owned());
    assert_eq!(client.ask("GET a").expect("an answer"), no);
    assert_eq!(client.ask("AUTH secret").expect("an answer"), ok());
    assert_eq!(client.ask("GET a").expect("an answer"), Value::Null);
    let mut stranger = connect(port);
    stranger.send(b"*1\r\n$20000\r\n").expect("sent");
    let told = stranger.read().expect("an answer");
    let text = "ERR Protocol error: unauthenticated bulk length".to_owned();
    assert_eq!(told, Value::Error(text));
    assert!(stranger.read().is_err(), "the connection ends");
    let mut command = node.weft(["kv", "admin", "status", "--addr"]);
    command.args([&format!("127.0.0.1:{port}"), "--password-file", &file]);
    let _ = node.start(command).wait(LIMIT).success();
    Ok(())
}

/// The same commands to Redis and to weft, by two connections each.
fn compare(steps: usize) -> Outcome {
    let program = program::find("redis-server")?;
    let node = Node::without_daemon();
    let (port, other) = (process::free_port(), process::free_port());
    let _server = serve(&node, port, &[]);
    let mut command = node.plain(program);
    command.args(["--port", &other.to_string(), "--bind", "127.0.0.1", "--save", ""]);
    command.args(["--appendonly", "no", "--databases", "1", "--dir"]).arg(node.directory());
    let mut peer = node.start(command);
    peer.await_port(other);
    let seed = std::env::var("WEFT_E2E_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut random = Random(seed);
    let mut clients = [[connect(other), connect(port)], [connect(other), connect(port)]];
    // The commands of a transaction, whose answers come together.
    let mut queue: Vec<Vec<Vec<String>>> = vec![Vec::new(); 2];
    for step in 0..steps {
        let words = redis::command(&mut random);
        let pair = usize::from(random.below(8) == 0);
        let [theirs, ours] = &mut clients[pair];
        let theirs = theirs.words(&words).expect("redis answers");
        let ours = ours.words(&words).expect("weft answers");
        let queued = Value::Simple("QUEUED".to_owned());
        let queue = &mut queue[pair];
        let [theirs, ours] = [theirs, ours].map(|answer| match (words[0].as_str(), answer) {
            ("EXEC", Value::Array(answers)) => Value::Array(
                answers.into_iter().zip(&*queue).map(|(one, it)| comparable(it, one)).collect(),
            ),
            (_, answer) => comparable(&words, answer),
        });
        match words[0].as_str() {
            "EXEC" | "DISCARD" => queue.clear(),
            _ if ours == queued => queue.push(words.clone()),
            _ => {}
        }
        assert_eq!(ours, theirs, "weft and redis, seed {seed}, step {step}: {words:?}");
    }
    Ok(())
}

type State = BTreeMap<String, String>;

/// A change, as the commands that make it, and what it makes of a state.
struct Step {
    commands: Vec<Vec<String>>,
    changes: Vec<(String, Option<String>)>,
}

fn step(random: &mut Random, number: usize) -> Step {
    let own = |line: String| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let (one, two) = (format!("k{}", random.below(40)), format!("k{}", random.below(40)));
    let (first, second) = (format!("{number}a"), format!("{number}b"));
    let set = |key: &String, value: &String| (key.clone(), Some(value.clone()));
    match random.below(8) {
        0 => Step { commands: vec![own(format!("DEL {one}"))], changes: vec![(one, None)] },
        1 => Step {
            changes: vec![set(&one, &first), set(&two, &second)],
            commands: vec![own(format!("MSET {one} {first} {two} {second}"))],
        },
        2 => Step {
            changes: vec![set(&one, &first), set(&two, &second)],
            commands: vec![
                own("MULTI".to_owned()),
                own(format!("SET {one} {first}")),
                own(format!("SET {two} {second}")),
                own("EXEC".to_owned()),
            ],
        },
        3 => Step {
            changes: vec![set(&format!("h/{one}"), &first)],
            commands: vec![own(format!("HSET h {one} {first}"))],
        },
        4 => Step {
            changes: vec![set(&one, &first.repeat(500))],
            commands: vec![own(format!("SET {one} {}", first.repeat(500)))],
        },
        _ => Step {
            changes: vec![set(&one, &first)],
            commands: vec![own(format!("SET {one} {first}"))],
        },
    }
}

fn apply(state: &mut State, step: &Step) {
    for (key, value) in &step.changes {
        match value {
            Some(value) => state.insert(key.clone(), value.clone()),
            None => state.remove(key),
        };
    }
}

/// All that the server has.
fn read_back(client: &mut Client) -> State {
    let mut state = State::new();
    let string = |value: &Value| match value {
        Value::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => panic!("{other:?}"),
    };
    for number in 0..40 {
        let value = client.ask(&format!("GET k{number}")).expect("an answer");
        if value != Value::Null {
            state.insert(format!("k{number}"), string(&value));
        }
    }
    let Value::Array(flat) = client.ask("HGETALL h").expect("an answer") else { panic!("no hash") };
    for [field, value] in flat.as_chunks::<2>().0 {
        state.insert(format!("h/{}", string(field)), string(value));
    }
    state
}

/// Kills the server while a client sends, and compares: what is there after it is what all
/// answered changes and some of the next ones make, each one whole.
fn kills(count: usize) -> Outcome {
    let node = Node::without_daemon();
    let port = process::free_port();
    let mut random = Random(7);
    let mut state = State::new();
    let mut number = 0;
    for round in 0..count {
        let server = serve(&node, port, &[]);
        let mut client = connect(port);
        assert_eq!(read_back(&mut client), state, "round {round}: before");
        let wait = Duration::from_millis(20 + u64::try_from(random.below(250)).unwrap_or(0));
        let end = Instant::now() + wait;
        let killer = thread::spawn(move || {
            thread::sleep(wait);
            server.signal(Signal::KILL);
            server.wait(LIMIT)
        });
        let (mut sent, mut answered) = (Vec::new(), 0);
        'sending: loop {
            let begin = sent.len();
            let mut bytes = Vec::new();
            for _ in 0..=random.below(64) {
                number += 1;
                let step = step(&mut random, number);
                step.commands.iter().for_each(|words| bytes.extend(request(words)));
                sent.push(step);
            }
            if client.send(&bytes).is_err() {
                break;
            }
            for step in &sent[begin..] {
                for _ in &step.commands {
                    match client.read() {
                        Ok(Value::Error(text)) => panic!("{text}"),
                        Ok(_) => {}
                        Err(_) => break 'sending,
                    }
                }
                answered += 1;
            }
            assert!(Instant::now() < end + LIMIT, "the server was not killed");
        }
        killer.join().expect("it ended");
        let server = serve(&node, port, &[]);
        let mut client = connect(port);
        let found = read_back(&mut client);
        let keys = found.keys().filter(|key| !key.starts_with("h/")).count();
        let keys = keys + usize::from(found.len() > keys);
        let size = client.ask("DBSIZE").expect("an answer");
        assert_eq!(size, Value::Integer(i64::try_from(keys).expect("few")), "round {round}");
        sent[..answered].iter().for_each(|step| apply(&mut state, step));
        let mut rest = sent[answered..].iter();
        while state != found {
            let Some(step) = rest.next() else {
                panic!("round {round}: {answered} answered, {} sent: {found:?}", sent.len());
            };
            apply(&mut state, step);
        }
        assert!(round > 0 || answered > 0, "nothing was answered before the kill");
        server.signal(Signal::KILL);
        let _ = server.wait(LIMIT);
    }
    Ok(())
}

/// Memory of a process, in KiB.
fn resident(pid: u32) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("it has memory");
    line.split_ascii_whitespace().nth(1).and_then(|it| it.parse().ok()).expect("a number")
}

fn descriptors_of(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").count()
}

/// The longest that a client waited while something ran.
fn longest_wait(port: u16, run: impl FnOnce()) -> Duration {
    let (end, is_over) = std::sync::mpsc::channel::<()>();
    let watcher = thread::spawn(move || {
        let mut client = connect(port);
        let mut longest = Duration::ZERO;
        loop {
            let start = Instant::now();
            assert_eq!(client.ask("SET watcher 1").expect("an answer"), ok());
            longest = longest.max(start.elapsed());
            if is_over.recv_timeout(Duration::from_millis(20)).is_ok() {
                return longest;
            }
        }
    });
    run();
    end.send(()).expect("it waits");
    watcher.join().expect("it is answered")
}

fn bench() -> Outcome {
    let node = Node::without_daemon();
    for kind in ["send-index", "build-index"] {
        let data = node.directory().join(kind);
        let mut command = node.weft(["kv", "bench", "--data"]);
        command.arg(&data).args(["--workload", "load-a,run-a", "--records", "4000"]);
        command.args(["--operations", "500", "--threads", "4", "--level0-bytes", "50000"]);
        command.args(["--replicas", "2", "--replication", kind, "--json"]);
        let ended = node.start(command).wait(LIMIT);
        assert_eq!(ended.code(), 0, "{}", ended.report());
        let told: serde_json::Value =
            serde_json::from_str(ended.stdout.lines().last().unwrap_or_default())
                .expect("one object");
        let phases = told["phases"].as_array().map_or(&[][..], Vec::as_slice);
        assert_eq!(phases.len(), 2, "{told}");
        for (phase, name) in phases.iter().zip(["load-a", "run-a"]) {
            assert_eq!(phase["workload"], name);
            let network = phase["network_amplification"].as_f64().unwrap_or(0.0);
            assert!(network > 0.3, "{kind} {phase}");
        }
        let read = phases[0]["backup_compaction_read_bytes"].as_u64();
        assert_eq!(read == Some(0), kind == "send-index", "{kind} {read:?}");
        for directory in [data.clone(), data.join("backup-1")] {
            let mut command = node.weft(["kv", "admin", "check", "--data"]);
            command.arg(directory);
            let checked = node.start(command).wait(LIMIT);
            assert_eq!(checked.code(), 0, "{}", checked.report());
        }
    }
    Ok(())
}

fn hostile(idle: usize) -> Outcome {
    let node = Node::without_daemon();
    let port = process::free_port();
    let server = serve(&node, port, &[]);
    let mut client = connect(port);
    client.words(&[b"SET".to_vec(), b"big".to_vec(), vec![b'x'; 1 << 20]]).expect("an answer");
    let waits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let _ = rustix::process::setrlimit(
        rustix::process::Resource::Nofile,
        rustix::process::Rlimit { current: waits.maximum, maximum: waits.maximum },
    );
    let (memory, descriptors) = (resident(server.pid()), descriptors_of(server.pid()));
    let longest = longest_wait(port, || {
        // Bytes that are no request.
        for bytes in [&b"*1\r\n$99999999999\r\n"[..], b"*99999999\r\n", b"*1\r\nx\r\n", b"\"\r\n"] {
            let mut client = connect(port);
            client.send(bytes).expect("sent");
            let told = client.read().expect("an answer");
            let is_refusal =
                matches!(&told, Value::Error(text) if text.starts_with("ERR Protocol error"));
            assert!(is_refusal, "{told:?}");
            assert!(client.read().is_err(), "the connection ends");
        }
        // A request that is announced and does not come, 100,000 commands whose answers are not
        // read, and answers of 200 MiB that are not read.
        let mut kept = Vec::new();
        for _ in 0..20 {
            let mut client = connect(port);
            client.send(b"*2\r\n$3\r\nGET\r\n$40000000\r\nabc").expect("sent");
            kept.push(client);
        }
        let mut client = connect(port);
        client.send(&request(&["INCR", "n"]).repeat(100_000)).expect("sent");
        kept.push(client);
        let mut client = connect(port);
        client.send(&request(&["GET", "big"]).repeat(200)).expect("sent");
        kept.push(client);
        kept.extend((0..idle).map(|_| connect(port)));
        thread::sleep(Duration::from_millis(500));
        let held = resident(server.pid());
        assert!(held < memory + 100_000 + idle * 20, "{memory} KiB became {held} KiB");
    });
    assert!(longest < HELD_UP, "a client waited for {longest:?}");
    let start = Instant::now();
    while descriptors_of(server.pid()) > descriptors + 2 || resident(server.pid()) > memory + 40_000
    {
        let now = (descriptors_of(server.pid()), resident(server.pid()));
        let before = (descriptors, memory);
        assert!(start.elapsed() < LIMIT, "descriptors and KiB: {before:?} became {now:?}");
        thread::sleep(Duration::from_millis(50));
    }
    // One that sends all of a long pipeline before it reads gets all answers, in order.
    let mut client = connect(port);
    assert!(matches!(client.ask("SET n 0"), Ok(Value::Simple(_))));
    client.send(&request(&["INCR", "n"]).repeat(100_000)).expect("sent");
    for number in 1..=100_000 {
        assert_eq!(client.read().expect("an answer"), Value::Integer(number));
    }
    Ok(())
}

fn descriptors() -> Outcome {
    let node = Node::without_daemon();
    for (limit, clients) in [("ulimit -Sn 256", 600), ("ulimit -n 256", 400)] {
        let port = process::free_port();
        let data = node.directory().join(limit.replace(' ', ""));
        let mut command = node.plain("sh");
        let script = format!("{limit} && exec \"$@\"");
        command.args(["-c", &script, "sh"]).arg(program::weft());
        command.args(["kv", "serve", "--port", &port.to_string(), "--data"]).arg(&data);
        let mut server = node.start(command);
        server.await_port(port);
        let mut first = connect(port);
        let mut others: Vec<Client> = (0..clients).map(|_| connect(port)).collect();
        let served = others
            .iter_mut()
            .map(|client| client.ask("PING"))
            .filter(|answer| matches!(answer, Ok(Value::Simple(text)) if text == "PONG"))
            .count();
        let is_raised = limit.contains("-Sn");
        assert_eq!(served == clients, is_raised, "{limit}: {served}");
        assert!(served > 50, "{limit}: {served}");
        assert_eq!(first.ask("SET a 1").expect("an answer"), ok(), "{limit}");
        drop(others);
        let start = Instant::now();
        while !matches!(
            Client::connect(port).and_then(|mut it| it.ask("PING")),
            Ok(Value::Simple(_))
        ) {
            assert!(start.elapsed() < LIMIT, "{limit}: no client is served again");
            thread::sleep(Duration::from_millis(50));
        }
        server.signal(Signal::TERM);
        assert_eq!(server.wait(LIMIT).code(), 0);
    }
    Ok(())
}

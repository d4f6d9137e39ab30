//! Daemons that join a fabric. Each has its own directory, control socket and port, and so stands
//! for a host.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use weft_e2e::host::key;
use weft_e2e::{Case, Host, Node, Outcome, suite};
use weft_membership::{FabricKeys, OwnIdentity, Role, Session, Tls, Versions};

/// A busy machine does not reach it.
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    suite::main(vec![
        Case::new("hosts_join_and_one_that_was_killed_comes_back", killed),
        Case::new("without_the_first_daemon_the_others_go_on_and_a_new_one_waits", first_is_away),
        Case::new("what_does_not_fit_is_refused_with_the_reason_at_both_ends", misfits),
        Case::new("another_release_is_refused_with_both_versions_at_both_ends", other_release),
        Case::new("an_expelled_host_stays_out", expelled),
        Case::new("keys_are_rotated_while_the_fabric_runs", rotated),
        Case::new("the_first_daemon_manages_and_routes_stay_while_it_is_away", managed),
    ])
}

fn assert_mesh(hosts: &[&Host]) {
    for host in hosts {
        for other in hosts {
            let state = if host.name == other.name { "self" } else { "up" };
            host.await_state(other.name, state);
        }
    }
}

fn killed() -> Outcome {
    let keeper = Node::without_daemon();
    let key = key(&keeper, "key");
    let mut a = Host::new("a", &key, &[]);
    let seed = a.address.clone();
    let mut b = Host::new("b", &key, &[&seed]);
    let mut c = Host::new("c", &key, &[&seed]);
    [&mut a, &mut b, &mut c].into_iter().for_each(Host::start);
    assert_mesh(&[&a, &b, &c]);
    assert_eq!(a.await_state("a", "self").0, Some(0));
    assert_eq!(c.await_state("b", "up").0, Some(1));
    b.kill();
    a.await_state("b", "down");
    c.await_state("b", "down");
    b.start();
    assert_mesh(&[&a, &b, &c]);
    assert_eq!(c.await_state("b", "up").0, Some(1), "a number is kept");
    Ok(())
}

fn first_is_away() -> Outcome {
    let keeper = Node::without_daemon();
    let key = key(&keeper, "key");
    let mut a = Host::new("a", &key, &[]);
    let mut b = Host::new("b", &key, &[&a.address]);
    let mut c = Host::new("c", &key, &[&a.address]);
    [&mut a, &mut b, &mut c].into_iter().for_each(Host::start);
    assert_mesh(&[&a, &b, &c]);
    a.kill();
    b.await_state("a", "down");
    // Those that were admitted find each other again.
    c.kill();
    c.start();
    assert_mesh(&[&b, &c]);
    // One that was not is told of the first daemon by the one that it asks, and waits.
    let mut d = Host::new("d", &key, &[&b.address]);
    d.start();
    assert!(d.log().contains("serving this host alone"), "{}", d.log());
    let (number, reason) = d.await_state("d", "joining");
    assert_eq!(number, None);
    assert!(reason.contains("first daemon") && reason.contains(&a.address), "{reason}");
    a.start();
    assert_mesh(&[&a, &b, &c, &d]);
    assert_eq!(b.await_state("d", "up").0, Some(3));
    Ok(())
}

fn misfits() -> Outcome {
    let keeper = Node::without_daemon();
    let right = key(&keeper, "key");
    let wrong = key(&keeper, "other.key");
    let mut a = Host::new("a", &right, &[]);
    a.start();
    let mut b = Host::new("b", &wrong, &[&a.address]);
    b.start();
    let (_, reason) = b.await_state("b", "refused");
    assert!(reason.contains("different fabric keys"), "{reason}");
    assert!(a.log().contains("different fabric keys"), "{}", a.log());
    let mut c = Host::new("c", &right, &[&a.address]);
    c.arguments.push("--fabric-name=another".to_owned());
    c.start();
    let (_, reason) = c.await_state("c", "refused");
    assert!(reason.contains("is called \"weft\""), "{reason}");
    assert!(a.log().contains("is called \"another\""), "{}", a.log());
    // An address that answers and is no weft.
    let ssh = TcpListener::bind("127.0.0.1:0").expect("a port");
    let place = ssh.local_addr().expect("bound").to_string();
    thread::spawn(move || {
        for mut stream in ssh.incoming().flatten() {
            let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n");
            let _ = stream.read(&mut [0; 512]);
        }
    });
    let mut d = Host::new("d", &right, &[&place]);
    d.start();
    let start = Instant::now();
    loop {
        let (state, _, reason) = d.state_of("d").expect("it is there");
        if reason.contains("is no weft daemon") {
            assert_eq!(state, "joining");
            let told = d.fabric();
            assert_eq!(told["nodes"].as_array().expect("a list").len(), 1, "{told:#}");
            assert_eq!(told["seeds"][0]["address"], *place, "{told:#}");
            let told = told["seeds"][0]["reason"].as_str().expect("a text").to_owned();
            assert!(told.contains("is no weft daemon"), "{told}");
            break;
        }
        assert!(start.elapsed() < LIMIT, "{reason}");
        thread::sleep(Duration::from_millis(20));
    }
    // One that hangs up at once.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let place = silent.local_addr().expect("bound").to_string();
    thread::spawn(move || silent.incoming().for_each(drop));
    let mut f = Host::new("f", &right, &[&place]);
    f.start();
    let start = Instant::now();
    while !f.state_of("f").expect("it is there").2.contains("without a greeting") {
        assert!(start.elapsed() < LIMIT, "{:#}", f.fabric());
        thread::sleep(Duration::from_millis(20));
    }
    // A key that others can read.
    std::fs::set_permissions(&right, PermissionsExt::from_mode(0o644)).expect("our own");
    let e = Host::new("e", &right, &[&a.address]);
    let ended = e.node.start(e.command()).wait(LIMIT);
    assert!(!ended.status.success() && ended.stderr.contains("chmod 600"), "{}", ended.report());
    Ok(())
}

/// A daemon of another release, as far as its greeting. Returns the words that it would log.
fn greet(mut stream: TcpStream, role: Role, key: &str) -> String {
    let own = OwnIdentity::generate().expect("random bytes");
    let tls = Tls::new(&own).expect("TLS takes the key");
    let keys = Arc::new(FabricKeys::parse(key).expect("a key"));
    let versions = Versions { lowest: 7, highest: 9, release: "4.0.0".to_owned() };
    let mut session = Session::new(&tls, role, own.identity(), keys, versions).expect("TLS");
    stream.set_read_timeout(Some(LIMIT)).expect("a limit");
    let mut space = [0; 4096];
    loop {
        // The other end may be gone, and has said why.
        let _ = stream.write_all(&session.take_output());
        let length = stream.read(&mut space).expect("its greeting comes");
        assert!(length > 0, "it ends without a word");
        if let Err(fault) = session.receive(&space[..length], &mut Vec::new()) {
            let _ = stream.write_all(&session.take_output());
            return fault.to_string();
        }
    }
}

fn other_release() -> Outcome {
    let keeper = Node::without_daemon();
    let file = key(&keeper, "key");
    let key = std::fs::read_to_string(&file).expect("our own");
    let (there, here) =
        ("release 4.0.0, versions 7 to 9 there", format!("{} here", Versions::own()));
    let mut a = Host::new("a", &file, &[]);
    a.start();
    let stream = TcpStream::connect(&a.address).expect("it listens");
    let told = greet(stream, Role::Dialer, &key);
    assert!(told.contains(&format!("{} there", Versions::own())), "{told}");
    let start = Instant::now();
    while !a.log().contains(there) {
        assert!(start.elapsed() < LIMIT, "{}", a.log());
        thread::sleep(Duration::from_millis(20));
    }
    assert!(a.log().contains(&here), "{}", a.log());
    // The other way round: a host asks it for admission.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let place = listener.local_addr().expect("bound").to_string();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = greet(stream, Role::Listener, &key);
        }
    });
    let mut b = Host::new("b", &file, &[&place]);
    b.start();
    let (_, reason) = b.await_state("b", "refused");
    assert!(reason.contains(there) && reason.contains(&here), "{reason}");
    Ok(())
}

fn expelled() -> Outcome {
    let keeper = Node::without_daemon();
    let key = key(&keeper, "key");
    let mut a = Host::new("a", &key, &[]);
    let mut b = Host::new("b", &key, &[&a.address]);
    [&mut a, &mut b].into_iter().for_each(Host::start);
    assert_mesh(&[&a, &b]);
    let expel = |host: &Host| host.node.start(host.node.weft(["fabric", "expel", "1"])).wait(LIMIT);
    let refused = expel(&b);
    assert!(refused.stderr.contains("only the first daemon"), "{}", refused.report());
    let _ = expel(&a).success();
    a.await_state("b", "refused");
    b.kill();
    b.start();
    let (_, reason) = b.await_state("a", "refused");
    assert!(reason.contains("expelled"), "{reason}");
    assert_eq!(a.await_state("b", "refused").1, "it was expelled");
    Ok(())
}

/// The procedure of docs/hosts.md: the file of one host after the other is changed, and its daemon
/// started anew. At each moment all see each other.
fn rotated() -> Outcome {
    let keeper = Node::without_daemon();
    let [old, new] = ["old", "new"].map(|name| key(&keeper, name));
    let [old_key, new_key] = [&old, &new].map(|path| std::fs::read_to_string(path).expect("ours"));
    let files = ["a", "b", "c"].map(|name| {
        let file = keeper.directory().join(format!("{name}.key"));
        std::fs::copy(&old, &file).expect("copied with its mode");
        file
    });
    let mut a = Host::new("a", &files[0], &[]);
    let mut b = Host::new("b", &files[1], &[&a.address]);
    let mut c = Host::new("c", &files[2], &[&a.address]);
    [&mut a, &mut b, &mut c].into_iter().for_each(Host::start);
    let mut hosts = [a, b, c];
    let steps = [format!("{old_key}{new_key}"), format!("{new_key}{old_key}"), new_key.clone()];
    for step in &steps {
        for (place, file) in files.iter().enumerate() {
            std::fs::write(file, step).expect("ours");
            hosts[place].kill();
            hosts[place].start();
            let [a, b, c] = &hosts;
            assert_mesh(&[a, b, c]);
        }
    }
    // The old key is worth nothing any more.
    let mut late = Host::new("late", &old, &[&hosts[0].address]);
    late.start();
    let (_, reason) = late.await_state("late", "refused");
    assert!(reason.contains("different fabric keys"), "{reason}");
    Ok(())
}

fn managed() -> Outcome {
    let keeper = Node::without_daemon();
    let key = key(&keeper, "key");
    let mut a = Host::new("a", &key, &[]);
    let seed = a.address.clone();
    let mut b = Host::new("b", &key, &[&seed]);
    let mut c = Host::new("c", &key, &[&seed]);
    [&mut a, &mut b, &mut c].into_iter().for_each(Host::start);
    assert_mesh(&[&a, &b, &c]);
    let is = |standing: &'static str| {
        move |manager: &serde_json::Value| manager["standing"] == standing && manager["seat"] == 0
    };
    let term = |manager: &serde_json::Value| manager["term"].as_u64().expect("a number");
    // All three have the tables when the manager rules over them.
    let start = Instant::now();
    while a.network()["links"].as_array().is_none_or(|links| links.len() < 3)
        || a.network()["managers"][0]["standing"] != "ruling"
        || c.network()["nodes"][2]["version"].is_null()
    {
        assert!(start.elapsed() < LIMIT, "{}", a.network());
        thread::sleep(Duration::from_millis(20));
    }
    let told = a.network()["nodes"].clone();
    for (number, (name, state)) in [("a", "self"), ("b", "up"), ("c", "up")].iter().enumerate() {
        let node = &told[number];
        assert_eq!(
            (node["name"].as_str(), node["number"].as_u64()),
            (Some(*name), Some(number as u64))
        );
        assert_eq!(node["host"]["state"], *state, "{told}");
        assert!(node["host"]["address"].is_string() && node["host"]["transport"].is_string());
    }
    assert_eq!(a.trace("c", "b").len(), 1);
    let first = term(&b.await_manager(is("elsewhere")));
    let refused = b.node.start(b.node.weft(["fabric", "fail", "a-b"])).wait(LIMIT);
    assert!(refused.stderr.contains("has no lab"), "{}", refused.stderr);
    a.kill();
    b.await_manager(is("away"));
    assert_eq!(b.trace("b", "c").len(), 1, "routes stay");
    a.start();
    let again = b.await_manager(|manager| is("elsewhere")(manager) && term(manager) > first);
    assert_eq!(term(&again), term(&a.await_manager(is("ruling"))));
    Ok(())
}

//! Daemons that join by etcd. Each has its own directory, control socket and port, and so stands
//! for a host.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weft_e2e::etcd::certificates;
use weft_e2e::host::key;
use weft_e2e::{Case, Etcd, Host, Namespace, Node, Outcome, Skip, suite};

/// A busy machine does not reach it.
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    suite::main(vec![
        Case::new("hosts_join_while_most_of_etcd_lives_and_go_on_when_it_does_not", members_die),
        Case::new("a_host_with_a_member_of_etcd_dies_and_comes_back", host_dies)
            .long("a host is silent until the others give it up"),
        Case::new("etcd_with_certificates_and_users_is_joined_by_those_who_have_them", secured),
        Case::new("content_of_others_is_told_and_harms_nobody", garbage),
        Case::new("one_host_manages_and_another_takes_over_when_it_is_killed", managers),
    ])
}

/// A host that joins by this etcd.
fn host(name: &'static str, key: &Path, etcd: &Etcd) -> Host {
    let mut host = Host::new(name, key, &[]);
    host.arguments.push(format!("--fabric-etcd={}", etcd.urls()));
    host
}

fn assert_mesh(hosts: &[&Host]) {
    for host in hosts {
        for other in hosts {
            let state = if host.name == other.name { "self" } else { "up" };
            host.await_state(other.name, state);
        }
    }
}

/// Waits until etcd is `state` at a host. Returns the reason.
fn await_etcd(host: &Host, state: &str) -> String {
    let start = Instant::now();
    loop {
        let told = host.fabric()["etcd"].clone();
        if told["state"] == state {
            return told["reason"].as_str().expect("a text").to_owned();
        }
        assert!(start.elapsed() < LIMIT, "etcd is not {state} at {}: {told}", host.name);
        thread::sleep(Duration::from_millis(20));
    }
}

fn members_die() -> Outcome {
    let mut etcd = Etcd::start(3, "http", Vec::new())?;
    let keeper = Node::without_daemon();
    let key = key(&keeper, "key");
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| host(name, &key, &etcd));
    [&mut a, &mut b, &mut c].into_iter().for_each(Host::start);
    assert_mesh(&[&a, &b, &c]);
    // Without one member all goes on, though it is the one that is asked first.
    etcd.kill_member(0);
    let mut d = host("d", &key, &etcd);
    d.start();
    assert_mesh(&[&a, &b, &c, &d]);
    assert_eq!(b.await_state("d", "up").0, Some(3));
    // Without two, nobody joins. Those who have joined find each other again.
    etcd.kill_member(1);
    let told = await_etcd(&a, "away");
    assert!(told.contains("no answer") || told.contains("refused"), "{told}");
    let mut e = host("e", &key, &etcd);
    e.start();
    assert!(e.log().contains("serving this host alone"), "{}", e.log());
    let (number, reason) = e.await_state("e", "joining");
    assert_eq!(number, None);
    assert!(reason.contains("etcd"), "{reason}");
    b.kill();
    b.start();
    assert_mesh(&[&a, &b, &c, &d]);
    for command in [vec!["fabric", "nodes"], vec!["status"]] {
        let text = a.node.start(a.node.weft(&command)).wait(LIMIT).success().stdout;
        let told = text.lines().find(|line| line.trim_start().starts_with("etcd"));
        assert!(told.is_some_and(|told| told.contains("away; nobody new joins")), "{text}");
    }
    assert!(a.log().contains("etcd cannot be used: nobody new joins"), "{}", a.log());
    // Back again.
    etcd.start_member(1)?;
    assert_mesh(&[&a, &b, &c, &d, &e]);
    assert_eq!(a.await_state("e", "up").0, Some(4));
    await_etcd(&a, "up");
    // An expulsion is told when etcd has it, also by a daemon that did not found the fabric.
    etcd.start_member(0)?;
    let expel = |number| b.node.start(b.node.weft(["fabric", "expel", number])).wait(LIMIT);
    let _ = expel("4").success();
    let content = etcd.content();
    let table = content.iter().find(|(key, _)| key == "/weft/weft/table");
    let table: Value = serde_json::from_str(&table.expect("it is there").1).expect("JSON");
    assert_eq!(table["members"][4]["is_expelled"], true, "{table}");
    assert_eq!(b.state_of("e").expect("it is there").0, "refused");
    // Etcd goes away under one that waits.
    etcd.kill_member(0);
    etcd.kill_member(2);
    let refused = expel("3");
    let is_told = refused.stderr.contains("etcd has not taken the expulsion of node 3");
    assert!(!refused.status.success() && is_told, "{}", refused.report());
    Ok(())
}

/// Three hosts, each with a network of its own and a member of etcd. One loses its power.
fn host_dies() -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Err(Skip("network namespaces need root".to_owned()));
    }
    weft_e2e::program::find("ip")?;
    let (_switch, networks) = Namespace::switched(4);
    let address = |number: usize| format!("10.9.0.{}", number + 1);
    let members = networks[..3].iter().enumerate();
    let members = members.map(|(at, network)| (network.again(), address(at))).collect();
    let mut etcd = Etcd::inside(members)?;
    let keeper = Node::without_daemon();
    let key = key(&keeper, "key");
    let host = |number: usize, name| {
        let (network, place) = (networks[number].again(), format!("{}:7700", address(number)));
        let mut host = Host::inside(network, &place, name, &key, &[]);
        host.arguments.push(format!("--fabric-etcd={}", etcd.urls()));
        host
    };
    let (mut a, mut b, mut c, mut d) = (host(0, "a"), host(1, "b"), host(2, "c"), host(3, "d"));
    [&mut a, &mut b, &mut c].into_iter().for_each(Host::start);
    assert_mesh(&[&a, &b, &c]);
    let number = a.await_state("a", "self").0;
    // The first in the list of endpoints, which all ask first.
    networks[0].ip("link set cable down");
    etcd.kill_member(0);
    a.kill();
    for host in [&b, &c] {
        host.await_state("a", "down");
    }
    assert_mesh(&[&b, &c]);
    d.start();
    assert_mesh(&[&b, &c, &d]);
    networks[0].ip("link set cable up");
    etcd.start_member(0)?;
    a.start();
    assert_mesh(&[&a, &b, &c, &d]);
    assert_eq!(d.await_state("a", "up").0, number, "a number is kept");
    Ok(())
}

fn secured() -> Outcome {
    let keeper = Node::without_daemon();
    certificates(&keeper, &["server", "client"])?;
    let file = |name: &str| keeper.directory().join(name).display().to_string();
    let arguments =
        [("cert-file", "server.pem"), ("key-file", "server.key"), ("trusted-ca-file", "ca.pem")];
    let mut arguments: Vec<String> =
        arguments.map(|(flag, name)| format!("--{flag}={}", file(name))).into();
    arguments.push("--client-cert-auth".to_owned());
    let etcd = Etcd::start(1, "https", arguments)?;
    let key = key(&keeper, "key");
    let mut a = host("a", &key, &etcd);
    let certificate = |name: &str| {
        ["cert", "key"].map(|what| {
            let path = file(&format!("{name}.{}", if what == "cert" { "pem" } else { "key" }));
            format!("--fabric-etcd-{what}={path}")
        })
    };
    let ca = format!("--fabric-etcd-ca={}", file("ca.pem"));
    a.arguments.extend(certificate("client"));
    a.arguments.push(ca.clone());
    a.start();
    assert_eq!(a.await_state("a", "self").0, Some(0));
    // Without a certificate it is not let in.
    let mut b = host("b", &key, &etcd);
    b.arguments.push(ca);
    b.start();
    assert!(b.await_state("b", "joining").1.contains("waits for etcd"));
    let told = await_etcd(&b, "away");
    assert!(told.contains("certificate"), "{told}");

    // Users and passwords.
    let etcd = Etcd::start(1, "http", Vec::new())?;
    etcd.call("auth/user/add", &json!({ "name": "root", "password": "right" }), None);
    etcd.call("auth/user/grant", &json!({ "user": "root", "role": "root" }), None);
    etcd.call("auth/enable", &json!({}), None);
    let with_password = |name: &'static str, password: &str| {
        let path = keeper.directory().join(password);
        std::fs::write(&path, format!("{password}\n")).expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, mode).expect("our own");
        let mut host = host(name, &key, &etcd);
        host.arguments.push("--fabric-etcd-user=root".to_owned());
        host.arguments.push(format!("--fabric-etcd-password={}", path.display()));
        host.start();
        host
    };
    let c = with_password("c", "right");
    assert_eq!(c.await_state("c", "self").0, Some(0));
    let d = with_password("d", "wrong");
    let told = await_etcd(&d, "away");
    assert!(told.contains("invalid user ID or password"), "{told}");
    Ok(())
}

fn garbage() -> Outcome {
    let etcd = Etcd::start(1, "http", Vec::new())?;
    let keeper = Node::without_daemon();
    let key = key(&keeper, "key");
    for (name, value) in [("table", "garbage"), ("present/x", "y"), ("present/7", "z")] {
        etcd.put(&format!("/weft/weft/{name}"), value);
    }
    let mut a = host("a", &key, &etcd);
    a.start();
    let told = await_etcd(&a, "away");
    assert!(told.contains("/weft/weft/table holds no table of nodes"), "{told}");
    assert!(a.await_state("a", "joining").1.contains("holds no table"));
    etcd.call("kv/deleterange", &json!({ "key": "L3dlZnQvd2VmdC90YWJsZQ==" }), None);
    assert_eq!(a.await_state("a", "self").0, Some(0));
    // Another fabric's hosts do not mix with this one's under one name: their key differs.
    let mut stranger = host("stranger", &weft_e2e::host::key(&keeper, "other.key"), &etcd);
    stranger.start();
    let (_, reason) = stranger.await_state("a", "refused");
    assert!(reason.contains("different fabric keys"), "{reason}");
    // Nothing secret is there.
    let secret = std::fs::read_to_string(&key).expect("our own");
    let secret = secret.split(' ').nth(1).expect("a key").trim().to_owned();
    let content = etcd.content();
    assert!(content.iter().any(|(key, _)| key == "/weft/weft/present/0"), "{content:?}");
    assert!(content.iter().all(|(_, value)| !value.contains(&secret)), "{content:?}");
    Ok(())
}

fn managers() -> Outcome {
    let etcd = Etcd::start(1, "http", Vec::new())?;
    let keeper = Node::without_daemon();
    let key = key(&keeper, "key");
    let mut hosts = ["a", "b", "c"].map(|name| host(name, &key, &etcd));
    hosts.iter_mut().for_each(Host::start);
    assert_mesh(&hosts.each_ref());
    let rules = |host: &Host| host.network()["managers"][0]["standing"] == "ruling";
    // Waits until one of these manages, and sees that no two ever do.
    let ruler = |hosts: &[Host], but: Option<usize>| {
        let start = Instant::now();
        loop {
            let all: Vec<_> = (0..hosts.len())
                .filter(|place| Some(*place) != but && rules(&hosts[*place]))
                .collect();
            // They are asked one after the other. Two that manage at once would go on.
            assert!(all.len() < 2 || !all.iter().all(|place| rules(&hosts[*place])), "{all:?}");
            if let [one] = all[..] {
                return one;
            }
            assert!(start.elapsed() < LIMIT, "nobody manages");
            thread::sleep(Duration::from_millis(50));
        }
    };
    let first = ruler(&hosts, None);
    let term = |manager: &serde_json::Value| manager["term"].as_u64().expect("a number");
    let before = term(&hosts[first].network()["managers"][0]);
    let others: Vec<_> = (0..3).filter(|place| *place != first).collect();
    let [one, other] = others[..] else { panic!("there are three") };
    for place in [one, other] {
        hosts[place].await_manager(|manager| term(manager) == before);
    }
    assert_eq!(hosts[first].trace(hosts[one].name, hosts[other].name).len(), 1);
    hosts[first].kill();
    // Routes stay meanwhile.
    assert_eq!(hosts[one].trace(hosts[one].name, hosts[other].name).len(), 1);
    let second = ruler(&hosts, Some(first));
    let third = if second == one { other } else { one };
    let after = term(&hosts[second].network()["managers"][0]);
    assert!(after > before, "the term {after} follows {before}");
    hosts[third].await_manager(|manager| term(manager) == after);
    // One that comes back obeys.
    hosts[first].start();
    hosts[first]
        .await_manager(|manager| term(manager) == after && manager["standing"] == "elsewhere");
    assert!(rules(&hosts[second]));
    Ok(())
}

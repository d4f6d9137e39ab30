//! The library for C programs, `libweft` with `weft.h`: examples, mistakes, deaths, the binary
//! interface.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use rustix::process::Signal;
use weft_e2e::c_program::{Installed, Linked, example};
use weft_e2e::{Case, Node, Outcome, Skip, program, suite};

const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    suite::main(vec![
        Case::new("messages_and_a_killed_end", messages),
        Case::new("memory", memory),
        Case::new("memory_under_valgrind", memory_under_valgrind),
        Case::new("a_loop_in_cpp", event_loop),
        Case::new("functions", || to_its_end("c_functions.c")),
        Case::new("mistakes", || to_its_end("c_bad_input.c")),
        Case::new("a_killed_peer", a_killed_peer),
        Case::new("without_a_daemon", without_a_daemon),
        Case::new("the_library_inside_a_program", inside),
        Case::new("standards", standards),
        Case::new("symbols", symbols),
    ])
}

/// No daemon is there before: the library starts one.
fn messages() -> Outcome {
    let node = Node::without_daemon();
    let ping_pong = Installed::by_weft(&node)?.compiled(&example("ping_pong.c"), Linked::Shared)?;
    let command = |arguments: &[&str]| {
        let mut command = node.plain(&ping_pong);
        command.args(arguments);
        command
    };
    let mut service = node.start(command(&["serve"]));
    service.await_output("serving\n");
    let ended = node.start(command(&["c-ping", "1000"])).wait(LIMIT).success();
    assert!(ended.stdout.starts_with("1000 round trips with "), "{}", ended.report());
    service.await_output("a client has ended\n");
    // A client that is killed, then the service.
    let endless = ["c-ping", "1000000000"];
    let client = node.start(command(&endless));
    node.await_status("the client is there", |status| endpoints(status) == 2);
    client.signal(Signal::KILL);
    let _ = client.wait(LIMIT);
    service.await_output("a client has ended\na client has ended\n");
    let client = node.start(command(&endless));
    node.await_status("the client is there", |status| endpoints(status) == 2);
    service.signal(Signal::KILL);
    let _ = service.wait(LIMIT);
    let ended = client.wait(LIMIT);
    let is_told = ["the service has ended", "the peer is down"]
        .iter()
        .any(|words| ended.stderr.contains(words));
    assert!(is_told && ended.code() > 0, "{}", ended.report());
    let late = node.start(command(&[])).wait(LIMIT);
    assert!(late.stderr.contains("nobody offers a service c-ping"), "{}", late.report());
    Ok(())
}

fn endpoints(status: &serde_json::Value) -> usize {
    status["endpoints"].as_array().map_or(0, Vec::len)
}

fn memory() -> Outcome {
    let node = Node::new();
    let memory = Installed::links(&node).compiled(&example("memory.c"), Linked::Shared)?;
    memory_by(&node, || node.plain(&memory))
}

fn memory_under_valgrind() -> Outcome {
    let valgrind = program::find("valgrind")?;
    let node = Node::new();
    let memory = Installed::links(&node).compiled(&example("memory.c"), Linked::Shared)?;
    memory_by(&node, || {
        let mut command = node.plain(&valgrind);
        command.args(["-q", "--error-exitcode=99", "--leak-check=full"]).arg(&memory);
        command
    })
}

fn memory_by(node: &Node, program: impl Fn() -> Command) -> Outcome {
    let mut own = program();
    own.arg("own");
    let mut owner = node.start(own);
    owner.await_output("waiting\n");
    let user = node.start(program()).wait(LIMIT).success();
    let owner = owner.wait(LIMIT).success();
    assert_eq!(
        owner.stdout,
        "waiting\nwritten by another program; 27 bytes at 4096, with the number 42\n\
         the counter is 7\n",
        "{}",
        owner.report()
    );
    let words =
        ["the counter was 2000\n", "read back: written by another program\n", "refused: 27 bytes"];
    assert!(words.iter().all(|words| user.stdout.contains(words)), "{}", user.report());
    Ok(())
}

fn event_loop() -> Outcome {
    let node = Node::new();
    let program = Installed::links(&node).compiled(&example("event_loop.cpp"), Linked::Shared)?;
    let mut serve = node.plain(&program);
    serve.arg("serve");
    let mut service = node.start(serve);
    service.await_output("serving\n");
    let ended = node.start(node.plain(&program)).wait(LIMIT).success();
    assert_eq!(ended.stdout, "20 ticks came back\n");
    let mut endless = node.plain(&program);
    endless.args(["c-loop", "1000000000"]);
    let client = node.start(endless);
    node.await_status("the client is there", |status| endpoints(status) == 2);
    service.signal(Signal::KILL);
    let ended = client.wait(LIMIT);
    let is_told = ["the service has ended", "the peer is down"]
        .iter()
        .any(|words| ended.stderr.contains(words));
    assert!(is_told && ended.code() == 1, "{}", ended.report());
    Ok(())
}

fn to_its_end(name: &str) -> Outcome {
    let node = Node::new();
    let source = program::script(name);
    let program = Installed::links(&node).compiled(&source, Linked::Shared)?;
    let ended = node.start(node.plain(&program)).wait(LIMIT).success();
    assert!(ended.stdout.ends_with("all of it\n"), "{}", ended.report());
    Ok(())
}

fn a_killed_peer() -> Outcome {
    let node = Node::new();
    let source = program::script("c_death.c");
    let program = Installed::links(&node).compiled(&source, Linked::Shared)?;
    let role = |role: &str| {
        let mut command = node.plain(&program);
        command.arg(role);
        node.start(command)
    };
    let mut owner = role("own");
    owner.await_output("ready\n");
    let mut user = role("use");
    user.await_output("putting\n");
    user.signal(Signal::KILL);
    let _ = user.wait(LIMIT);
    owner.await_output("peer ended, key revoked\n");
    let mut user = role("use");
    user.await_output("putting\n");
    owner.signal(Signal::KILL);
    let _ = owner.wait(LIMIT);
    let told = user.wait(LIMIT).success();
    assert!(told.stdout.contains("told by an"), "{}", told.report());
    node.await_status("no endpoint is left", |status| endpoints(status) == 0);
    Ok(())
}

fn without_a_daemon() -> Outcome {
    let node = Node::without_daemon();
    let source = program::script("c_death.c");
    let program = Installed::links(&node).compiled(&source, Linked::Shared)?;
    let mut command = node.plain(&program);
    command.arg("alone");
    let ended = node.start(command).wait(LIMIT).success();
    assert!(ended.stdout.contains("weft daemon"), "{}", ended.report());
    assert!(!node.socket().exists(), "nothing was started");
    Ok(())
}

fn inside() -> Outcome {
    let node = Node::new();
    let source = program::script("c_bad_input.c");
    let program = Installed::by_weft(&node)?.compiled(&source, Linked::Static)?;
    let needed = Command::new(program::find("readelf")?).arg("-d").arg(&program).output();
    let needed = String::from_utf8_lossy(&needed.expect("readelf starts").stdout).into_owned();
    assert!(needed.contains("libc.so") && !needed.contains("libweft"), "{needed}");
    let ended = node.start(node.plain(&program)).wait(LIMIT).success();
    assert!(ended.stdout.ends_with("all of it\n"), "{}", ended.report());
    Ok(())
}

/// Uses the header, twice included, and its macros.
const USING: &str = r#"#include "HEADER"
#include "HEADER"
int used(weft_endpoint *endpoint) {
    weft_operation put = WEFT_OPERATION;
    put.context = WEFT_CONTEXT_END;
    return weft_put(endpoint, WEFT_ANY_PEER, 0, 0, 0, WEFT_FOREVER + 1, &put);
}
"#;

/// The header is good for each standard of both languages.
fn standards() -> Outcome {
    let node = Node::without_daemon();
    let header = Installed::links(&node).header();
    for (compiler, language, standards) in [
        ("gcc", "c", &["c99", "c11", "c17", "gnu2x"][..]),
        ("g++", "c++", &["c++11", "c++14", "c++17", "c++20"][..]),
    ] {
        let compiler = program::find(compiler)?;
        for standard in standards {
            let mut command = Command::new(&compiler);
            command.args(["-fsyntax-only", "-Wall", "-Wextra", "-pedantic", "-Werror"]);
            command.arg(format!("-std={standard}")).args(["-x", language]);
            let using = node.directory().join("using");
            let text = USING.replace("HEADER", &header.to_string_lossy());
            std::fs::write(&using, text).expect("the node's own directory");
            let output = command.arg(&using).output().expect("the compiler starts");
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{standard}: {errors}");
        }
    }
    Ok(())
}

/// The library has the functions of the header and no other symbol, and the name of its interface.
fn symbols() -> Outcome {
    let node = Node::without_daemon();
    let library = Installed::links(&node).library();
    let output = |tool: &str, options: &[&str]| -> Result<String, Skip> {
        let mut command = Command::new(program::find(tool)?);
        let output = command.args(options).arg(&library).output().expect("it starts");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let printed = output("nm", &["-D", "--defined-only"])?;
    let mut found: Vec<&str> =
        printed.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    found.sort_unstable();
    let known = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../surfaces/capi/abi/symbols.txt");
    let known = std::fs::read_to_string(known).expect("the list");
    assert_eq!(found, known.lines().collect::<Vec<_>>());
    let dynamic = output("readelf", &["-d"])?;
    assert!(dynamic.contains("soname: [libweft.so.0]"), "{dynamic}");
    Ok(())
}

//! curl fetches files from Python's web server; both sides or one side under weft.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use sha2::{Digest, Sha256};
use weft_e2e::{Case, Node, Outcome, Under, process, program, suite};

const SMALL_BYTES: usize = 12_345;
/// Large enough that both ends have agreed before the transfer ends, even on a busy machine.
const MIDDLE_BYTES: usize = 64 << 20;
const BIG_BYTES: usize = 300_000_000;

fn main() -> ExitCode {
    let mut cases = Vec::new();
    for under in Under::ALL {
        let name = format!("curl_gets_a_small_file_under_weft_{under:?}").to_lowercase();
        cases.push(Case::new(name, move || fetch(under, SMALL_BYTES, 5)));
    }
    cases.push(Case::new("curl_gets_a_big_file_under_weft_both", || {
        fetch(Under::Both, BIG_BYTES, 1)
    }));
    for under in [Under::Client, Under::Server] {
        // These bytes stay on TCP.
        let name = format!("curl_gets_a_large_file_under_weft_{under:?}").to_lowercase();
        cases.push(Case::new(name, move || fetch(under, MIDDLE_BYTES, 1)));
    }
    cases.push(Case::new("curl_puts_many_requests_on_one_connection", keep_alive));
    cases.push(
        Case::new("curl_starts_the_daemon_that_is_missing", daemon_starts)
            .alone("a daemon that starts has to answer before all is over TCP"),
    );
    suite::main(cases)
}

/// Fetches a file of `bytes` bytes `times` times and compares it.
fn fetch(under: Under, bytes: usize, times: u64) -> Outcome {
    let (curl, python) = (program::find("curl")?, program::python()?);
    let node = Node::new();
    let expected = make_file(&node.directory().join("file.bin"), bytes);
    let port = process::free_port();
    let mut server = node.program(under.server(), python);
    server.args(["-m", "http.server", "--bind", "127.0.0.1", &port.to_string()]);
    server.current_dir(node.directory());
    let mut server = node.start(server);
    server.await_port(port);
    let got = node.directory().join("got.bin");
    let total = bytes as u64 * times;
    for _ in 0..times {
        let mut client = node.program(under.client(), &curl);
        client.args(["-sS", "--fail", "-o"]).arg(&got);
        client.arg(format!("http://127.0.0.1:{port}/file.bin"));
        let client = node.start(client).wait(Duration::from_secs(60)).success();
        assert_eq!(hash(&got), expected, "{}", client.report());
        match under {
            Under::Both => client.statistics().assert_all_fabric(1, 70, bytes as u64),
            Under::Client => client.statistics().assert_all_tcp(1),
            Under::Server => {}
        }
    }
    let server = server.stop();
    match under {
        Under::Both => server.statistics().assert_all_fabric(times, total, 70 * times),
        Under::Server => server.statistics().assert_all_tcp(times),
        Under::Client => {}
    }
    Ok(())
}

/// Many HTTP/1.1 requests on one connection, one after the other.
fn keep_alive() -> Outcome {
    let (curl, python) = (program::find("curl")?, program::python()?);
    let node = Node::new();
    make_file(&node.directory().join("file.bin"), SMALL_BYTES);
    let port = process::free_port();
    let mut server = node.program(true, python);
    server.args(["-m", "http.server", "--protocol", "HTTP/1.1", "--bind", "127.0.0.1"]);
    server.arg(port.to_string()).current_dir(node.directory());
    let mut server = node.start(server);
    server.await_port(port);
    let mut client = node.program(true, curl);
    client.args(["-sS", "--fail", "-o", "/dev/null", "-w", "%{num_connects} "]);
    client.arg(format!("http://127.0.0.1:{port}/file.bin?[1-200]"));
    let client = node.start(client).wait(Duration::from_secs(30)).success();
    let connects: Vec<&str> = client.stdout.split_whitespace().collect();
    assert_eq!(connects.len(), 200);
    assert_eq!(connects.iter().filter(|count| **count == "1").count(), 1, "{connects:?}");
    let total = 200 * SMALL_BYTES as u64;
    client.statistics().assert_all_fabric(1, 200 * 70, total);
    server.stop().statistics().assert_all_fabric(1, total, 200 * 70);
    Ok(())
}

/// The first `weft run` starts a daemon, which both sides use. `weft down` ends it.
fn daemon_starts() -> Outcome {
    let (curl, python) = (program::find("curl")?, program::python()?);
    let node = Node::without_daemon();
    make_file(&node.directory().join("file.bin"), MIDDLE_BYTES);
    let port = process::free_port();
    let mut server = node.program(true, python);
    server.args(["-m", "http.server", "--bind", "127.0.0.1", &port.to_string()]);
    server.current_dir(node.directory());
    let mut server = node.start(server);
    server.await_port(port);
    let mut client = node.program(true, curl);
    client.args(["-sS", "--fail", "-o", "/dev/null"]);
    client.arg(format!("http://127.0.0.1:{port}/file.bin"));
    let client = node.start(client).wait(Duration::from_secs(30)).success();
    client.statistics().assert_all_fabric(1, 70, MIDDLE_BYTES as u64);
    drop(server);
    let _ = node.start(node.weft(["down"])).wait(Duration::from_secs(10)).success();
    assert!(!node.socket().exists(), "the daemon removes its socket");
    Ok(())
}

/// Makes a file of `bytes` bytes that do not repeat, and returns its hash.
fn make_file(path: &Path, bytes: usize) -> Vec<u8> {
    let mut file = File::create(path).expect("the test's directory");
    let mut hasher = Sha256::new();
    let mut block = vec![0_u8; 1 << 20];
    let (mut left, mut state) = (bytes, 0x9e37_79b9_7f4a_7c15_u64);
    while left > 0 {
        for word in block.chunks_exact_mut(8) {
            // xorshift64
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        let part = &block[..left.min(block.len())];
        file.write_all(part).expect("room on the disk");
        hasher.update(part);
        left -= part.len();
    }
    hasher.finalize().to_vec()
}

fn hash(path: &Path) -> Vec<u8> {
    let mut file = File::open(path).expect("curl wrote it");
    let mut hasher = Sha256::new();
    let mut block = vec![0_u8; 1 << 20];
    loop {
        match file.read(&mut block).expect("readable") {
            0 => return hasher.finalize().to_vec(),
            bytes => hasher.update(&block[..bytes]),
        }
    }
}

//! Clients in threads against the server of their job, over real sockets.
#![allow(clippy::disallowed_methods, reason = "tests own threads and sockets")]
#![allow(clippy::unwrap_used, reason = "a test ends at what it does not expect")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use weft_pmi::server::{Action, Description, Membership, Server};
use weft_pmi::{Client, Error, Version};

const WITHIN: Duration = Duration::from_secs(30);

/// Passes on what a process sends; an empty piece is its end.
fn pump(rank: u32, mut stream: UnixStream, to: Sender<(u32, Vec<u8>)>) {
    thread::spawn(move || {
        let mut buffer = [0; 512];
        loop {
            let length = stream.read(&mut buffer).unwrap_or(0);
            if to.send((rank, buffer[..length].to_vec())).is_err() || length == 0 {
                return;
            }
        }
    });
}

/// Runs `each` as every process of a job; the server refuses versions but this one. Returns the
/// exit codes by which processes ended the job.
fn job(size: u32, version: Version, each: impl Fn(Client) + Send + Clone + 'static) -> Vec<i32> {
    let (to, from) = channel();
    let (mut streams, mut processes) = (Vec::new(), Vec::new());
    for rank in 0..size {
        let (ours, theirs) = UnixStream::pair().unwrap();
        pump(rank, ours.try_clone().unwrap(), to.clone());
        streams.push(ours);
        let each = each.clone();
        processes.push(thread::spawn(move || {
            each(Client::over(theirs.into(), rank, size).unwrap());
        }));
    }
    drop(to);
    let membership = Membership { host: 0, program: 0 };
    let mut server = Server::new(Description {
        name: "job".to_owned(),
        mapping: "(vector,(0,1,3))".to_owned(),
        processes: vec![membership; usize::try_from(size).unwrap()],
    });
    let mut codes = Vec::new();
    for (rank, bytes) in from {
        let index = usize::try_from(rank).unwrap();
        if bytes.is_empty() {
            server.hang_up(rank);
        } else if version == Version::Two && bytes.starts_with(b"cmd=init pmi_version=1") {
            let refusal = b"cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=-1\n";
            streams[index].write_all(refusal).unwrap();
        } else {
            server.receive(rank, &bytes);
        }
        while let Some(action) = server.next_action() {
            match action {
                Action::Send { rank, bytes } => {
                    streams[usize::try_from(rank).unwrap()].write_all(&bytes).unwrap();
                }
                Action::Abort { code, .. } => {
                    codes.push(code);
                    streams.iter().for_each(|stream| {
                        let _ = stream.shutdown(std::net::Shutdown::Both);
                    });
                }
                Action::Offence { rank, problem } => panic!("rank {rank}: {problem}"),
            }
        }
    }
    for process in processes {
        process.join().expect("no process panicked");
    }
    codes
}

fn exchange(mut client: Client, version: Version) {
    assert_eq!(client.version(), version);
    let (rank, size) = (client.rank(), client.size());
    client.put(&format!("k{rank}"), &format!("value;of={rank}")).unwrap();
    client.barrier(WITHIN).unwrap();
    for other in 0..size {
        assert_eq!(client.get(other, &format!("k{other}")).unwrap(), format!("value;of={other}"));
    }
    assert!(matches!(client.get(0, "nobody"), Err(Error::Refused { .. })));
    assert_eq!(client.attribute("PMI_process_mapping").unwrap(), "(vector,(0,1,3))");
    assert!(matches!(client.put("PMI_x", "1"), Err(Error::Refused { .. })));
    assert!(matches!(client.put("x", "a b"), Err(Error::Character { character: ' ', .. })));
    let long = "v".repeat(client.value_bytes_max() + 1);
    assert!(matches!(client.put("x", &long), Err(Error::TooLong { .. })));
    client.barrier(WITHIN).unwrap();
    client.finalize().unwrap();
}

#[test]
fn processes_exchange_values_over_pmi_1() {
    assert!(job(3, Version::One, |client| exchange(client, Version::One)).is_empty());
}

#[test]
fn processes_exchange_values_over_pmi_2() {
    assert!(job(3, Version::Two, |client| exchange(client, Version::Two)).is_empty());
}

#[test]
fn an_abort_ends_the_barriers_of_the_others() {
    let codes = job(2, Version::One, |mut client| {
        // Both have joined before one ends the job.
        client.barrier(WITHIN).unwrap();
        if client.rank() == 1 {
            client.abort(7, "enough").unwrap();
        } else {
            assert!(matches!(client.barrier(WITHIN), Err(Error::Closed { .. })));
        }
    });
    assert_eq!(codes, [7]);
}

/// A launcher that gives one answer, whatever it is asked.
fn reach(answer: &'static [u8]) -> Error {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.write_all(answer).unwrap();
    // Only its writing end is closed, so that the client's requests still find a reader.
    ours.shutdown(std::net::Shutdown::Write).unwrap();
    Client::over(theirs.into(), 0, 2).expect_err("the launcher is hostile")
}

#[test]
fn a_hostile_launcher_is_an_error() {
    assert!(matches!(reach(b""), Error::Closed { request: "init" }));
    assert!(matches!(reach(b"hello\n"), Error::Malformed { .. }));
    assert!(matches!(reach(b"cmd=response_to_init rc=5\n"), Error::Closed { .. }));
    assert!(matches!(reach(b"cmd=maxes rc=0\n"), Error::Unexpected { request: "init", .. }));
    let answers = b"cmd=response_to_init rc=0\ncmd=maxes keylen_max=many vallen_max=1\n";
    assert!(matches!(reach(answers), Error::Unexpected { request: "get_maxes", .. }));
}

#[test]
fn a_barrier_to_which_nobody_comes_has_an_end() {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.write_all(b"cmd=response_to_init rc=0\ncmd=maxes keylen_max=64 vallen_max=1024\n")
        .unwrap();
    ours.write_all(b"cmd=my_kvsname kvsname=k\n").unwrap();
    let mut client = Client::over(theirs.into(), 0, 2).unwrap();
    let error = client.barrier(Duration::from_millis(20)).expect_err("nobody answers");
    assert!(matches!(error, Error::NoAnswer { request: "barrier_in", .. }), "{error}");
}

//! Memory in place between processes at a real daemon, by the kernel's copy: either end is killed
//! or stopped in the middle, or becomes another program.
//!
//! The other processes run this test program again, with a role in their environment.

#![allow(clippy::disallowed_methods, reason = "tests own their clocks and threads")]

mod common;

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use weft_fabric::{
    Access, Audience, Blocking, Endpoint, EndpointAddress, Event, GrantError, HostMemory, Issued,
    LocalRange, MessageHeader, Operation, OperationError, PATIENCE, Peer, Region, RemoteKey,
    Revoked, Source, Target, Value, Way,
};
use weft_memory::Memory;
use weft_transport_shm::{Parameters, ShmEndpoint, ShmRegion};

use common::{Daemon, WATCHDOG, open_with, spawn, target, until};

/// Bytes that one put writes: some milliseconds.
const LENGTH: usize = 16 << 20;
/// Bytes on both sides that nobody may write.
const GUARD: usize = 4096 - 3;

/// The subject of a message.
mod tag {
    /// A key.
    pub const KEY: u8 = 1;
    /// The first put is done.
    pub const READY: u8 = 2;
    /// A put ended with an error; 1 if the key was void.
    pub const FAILED: u8 = 3;
    /// To become another program.
    pub const EXEC: u8 = 4;
}

/// Whether the kernel copies between processes of this user: as root, or where a process may trace
/// others of its user. Else nothing is tested.
fn copies(daemon: &Daemon) -> bool {
    let mut near = open(&daemon.socket());
    let _owner = Process(spawn("owner", &daemon.socket(), near.address().vpid));
    let (address, _) = message(&mut near, tag::KEY);
    let far = near.connect_within(address, PATIENCE).expect("it spoke");
    match near.reach(far).expect("it lives").in_place {
        Way::Kernel => true,
        way => {
            assert_eq!(way, Way::Refused);
            println!("not tested: the kernel lets this user copy to no other process");
            false
        }
    }
}

/// Not a test: the role of the other processes.
#[test]
fn role() {
    let Some((role, socket)) = common::role() else { return };
    match role.as_str() {
        "daemon" => common::serve(socket),
        "owner" => own(&socket),
        "writer" => write(&socket),
        _ => {}
    }
}

/// Offers memory in place to the endpoint named in the environment, until it is killed.
fn own(socket: &Path) -> ! {
    let mut endpoint = open(socket);
    let to = target(&mut endpoint);
    let region = in_place(&mut endpoint);
    let key = grant(&mut endpoint, &region);
    let header = MessageHeader::tag(tag::KEY);
    endpoint.send_short(to, header, &[&key.0.to_le_bytes()]).expect("an empty mailbox");
    loop {
        endpoint.wait(Some(Duration::from_millis(10)));
        endpoint.poll(16, &mut |event| {
            if let Event::Message(message) = event
                && message.header.tag == tag::EXEC
            {
                let failed = Command::new("sleep").arg("60").exec();
                panic!("{failed}");
            }
        });
    }
}

/// Writes to the memory that the endpoint named in the environment offers, until it is killed.
fn write(socket: &Path) -> ! {
    let mut endpoint = open(socket);
    let to = target(&mut endpoint);
    let hello = MessageHeader::tag(tag::READY);
    endpoint.send_short(to, hello, &[]).expect("an empty mailbox");
    let mut key = None;
    until(&mut endpoint, "a key", |event| {
        if let Event::Message(message) = event {
            key = Some(key_in(message.payload));
        }
        key.is_some()
    });
    let target = Target::new(key.expect("a key came"), 0);
    for round in 1_u64.. {
        let byte = u8::try_from(round % 255).expect("masked") | 1;
        match put_all(&mut endpoint, to, target, &vec![byte; LENGTH]) {
            Ok(_) if round == 1 => {
                endpoint.send_short(to, hello, &[]).expect("room");
            }
            Ok(_) => {}
            Err(error) => {
                let is_void = u8::from(error == OperationError::InvalidKey);
                let _ = endpoint.send_short(to, MessageHeader::tag(tag::FAILED), &[&[is_void]]);
                break;
            }
        }
    }
    loop {
        endpoint.wait(Some(Duration::from_millis(10)));
        endpoint.poll(16, &mut |_| {});
    }
}

fn key_in(payload: &[u8]) -> RemoteKey {
    RemoteKey(u64::from_le_bytes(payload.try_into().expect("a key")))
}

/// Puts and waits for the end.
fn put_all(
    endpoint: &mut ShmEndpoint,
    to: Peer,
    target: Target,
    bytes: &[u8],
) -> Result<Value, OperationError> {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < WATCHDOG, "there is never room");
        match endpoint.put(to, Source::Bytes(bytes), target, Operation::new(77)) {
            Ok(Issued::Done(value)) => return Ok(value),
            Ok(Issued::Pending) => return end_of(endpoint, 77),
            Err(OperationError::WouldBlock) => {
                endpoint.wait(Some(Duration::from_millis(10)));
                endpoint.poll(16, &mut |_| {});
            }
            Err(error) => return Err(error),
        }
    }
}

/// Waits for the completion of an operation.
fn end_of(endpoint: &mut ShmEndpoint, context: u64) -> Result<Value, OperationError> {
    let mut end = None;
    until(endpoint, "a completion", |event| {
        if let Event::Completion(completion) = event
            && completion.context == context
        {
            end = Some(completion.result.clone());
        }
        end.is_some()
    });
    end.expect("it came")
}

/// Memory that is never freed, between two guards.
fn in_place(endpoint: &mut ShmEndpoint) -> ShmRegion {
    let bytes = vec![0_u8; LENGTH + 2 * GUARD].leak();
    // SAFETY: nobody else has these bytes, which are never freed, and the only reference to them
    // ends here.
    let memory = unsafe { Memory::in_place(NonNull::from(&mut bytes[0]), LENGTH + 2 * GUARD) };
    endpoint.register_memory(&memory.expect("some bytes")).expect("there is room")
}

/// A key to what is between the guards.
fn grant(endpoint: &mut ShmEndpoint, region: &ShmRegion) -> RemoteKey {
    let range = LocalRange::new(region, GUARD as u64, LENGTH as u64);
    let key = endpoint.grant_within(range, Audience::Partition, Access::all(), PATIENCE);
    key.expect("a grant")
}

fn check_guards(region: &ShmRegion) {
    for start in [0, GUARD + LENGTH] {
        let mut guard = vec![1; GUARD];
        region.read(start as u64, &mut guard).expect("inside");
        assert!(guard.iter().all(|byte| *byte == 0), "somebody wrote outside of the key");
    }
}

fn contents(region: &ShmRegion) -> Vec<u8> {
    let mut bytes = vec![0; LENGTH];
    region.read(GUARD as u64, &mut bytes).expect("inside");
    bytes
}

fn open(socket: &Path) -> ShmEndpoint {
    open_with(socket, Parameters::default())
}

/// A process that ends with the test.
struct Process(Child);

impl Process {
    fn number(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    fn stop(&self) {
        kill_process(self.number(), Signal::STOP).expect("ours");
        let state = format!("/proc/{}/stat", self.0.id());
        let start = Instant::now();
        while !std::fs::read_to_string(&state).is_ok_and(|text| text.contains(") T ")) {
            assert!(start.elapsed() < WATCHDOG, "it does not stop");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn go_on(&self) {
        kill_process(self.number(), Signal::CONT).expect("ours");
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits for a message and returns its sender and its bytes.
fn message(endpoint: &mut ShmEndpoint, wanted: u8) -> (EndpointAddress, Vec<u8>) {
    let mut heard = None;
    until(endpoint, "a message", |event| {
        if let Event::Message(message) = event
            && message.header.tag == wanted
        {
            heard = Some((message.source, message.payload.to_vec()));
        }
        heard.is_some()
    });
    heard.expect("it came")
}

/// A writer that is in the middle of putting to a region of `owner`, and the key that it uses.
fn start_writer(
    owner: &mut ShmEndpoint,
    region: &ShmRegion,
    socket: &Path,
) -> (Process, EndpointAddress, RemoteKey) {
    let process = Process(spawn("writer", socket, owner.address().vpid));
    let (address, _) = message(owner, tag::READY);
    let peer = owner.connect_within(address, PATIENCE).expect("it spoke");
    let key = grant(owner, region);
    let header = MessageHeader::tag(tag::KEY);
    owner.send_short(peer, header, &[&key.0.to_le_bytes()]).expect("room");
    message(owner, tag::READY);
    (process, address, key)
}

/// Lets some time pass, another one in each round, in which the endpoint serves its peers.
fn serve_for(endpoint: &mut ShmEndpoint, round: u64) {
    let pause = Instant::now();
    while pause.elapsed() < Duration::from_micros(round * 1370 % 9000) {
        endpoint.poll(16, &mut |_| {});
    }
}

fn is_down(event: &Event<'_>, who: EndpointAddress) -> bool {
    matches!(event, Event::PeerDown { address, .. } if *address == who)
}

#[test]
fn a_writer_that_is_killed_in_the_middle_writes_nothing_else_and_leaves_nothing() {
    let daemon = Daemon::start();
    if !copies(&daemon) {
        return;
    }
    let mut owner = open(&daemon.socket());
    let region = in_place(&mut owner);
    for round in 0..6 {
        let (mut writer, address, key) = start_writer(&mut owner, &region, &daemon.socket());
        serve_for(&mut owner, round);
        writer.kill();
        until(&mut owner, "the death of a peer", |event| is_down(event, address));
        check_guards(&region);
        assert_eq!(owner.revoke_within(key, PATIENCE), Ok(Revoked::Published));
        let quiet = contents(&region);
        owner.poll(16, &mut |_| {});
        assert!(contents(&region) == quiet, "a dead process writes");
    }
}

#[test]
fn an_owner_that_is_killed_in_the_middle_ends_the_operations_on_its_memory() {
    let daemon = Daemon::start();
    if !copies(&daemon) {
        return;
    }
    let mut near = open(&daemon.socket());
    for round in 0..6_u64 {
        let owner = Process(spawn("owner", &daemon.socket(), near.address().vpid));
        let (address, payload) = message(&mut near, tag::KEY);
        let (key, number) = (key_in(&payload), owner.number());
        let far = near.connect_within(address, PATIENCE).expect("it spoke");
        let target = Target::new(key, 0);
        assert_eq!(put_all(&mut near, far, target, &vec![1; LENGTH]), Ok(Value::Nothing));
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(round * 1370 % 9000));
            kill_process(number, Signal::KILL).expect("ours");
        });
        // Puts until one fails. The bytes are gone with the process.
        let bytes = vec![2; LENGTH];
        let mut last = Ok(Value::Nothing);
        let start = Instant::now();
        while last.is_ok() {
            assert!(start.elapsed() < WATCHDOG, "puts to a dead process end well");
            last = put_all(&mut near, far, target, &bytes);
        }
        let failed = last.expect_err("the loop ended");
        let expected =
            matches!(failed, OperationError::PeerDown | OperationError::KernelCopy { .. });
        assert!(expected, "{failed:?}");
        killer.join().expect("no panic");
        // The report may have been handed out while the last put waited.
        let start = Instant::now();
        while near.reach(far).is_ok() {
            assert!(start.elapsed() < WATCHDOG, "the death is not noticed");
            near.wait(Some(Duration::from_millis(100)));
            near.poll(64, &mut |_| {});
        }
        let late = near.put(far, Source::Bytes(b"x"), target, Operation::new(1));
        assert_eq!(late, Err(OperationError::PeerDown));
        drop(owner);
    }
}

#[test]
fn a_stopped_owner_is_written_to_by_the_kernel() {
    let daemon = Daemon::start();
    if !copies(&daemon) {
        return;
    }
    let mut near = open(&daemon.socket());
    let owner = Process(spawn("owner", &daemon.socket(), near.address().vpid));
    let (address, payload) = message(&mut near, tag::KEY);
    let far = near.connect_within(address, PATIENCE).expect("it spoke");
    let target = Target::new(key_in(&payload), 0);
    assert_eq!(put_all(&mut near, far, target, &vec![1; LENGTH]), Ok(Value::Nothing));
    owner.stop();
    let bytes: Vec<u8> = (0..LENGTH).map(|at| at.to_le_bytes()[0] | 1).collect();
    let into = near.register(LENGTH as u64).expect("memory");
    let whole = LocalRange::whole(&into);
    let put = near.put(far, Source::Bytes(&bytes), target, Operation::new(1));
    assert_eq!(put, Ok(Issued::Done(Value::Nothing)));
    let got = near.get(far, target, whole, Operation::new(2));
    assert_eq!(got, Ok(Issued::Done(Value::Nothing)));
    owner.go_on();
    let mut found = vec![0; LENGTH];
    into.read(0, &mut found).expect("inside");
    assert!(found == bytes, "the get returns the bytes of the put");
}

#[test]
fn a_revocation_ends_though_a_writer_is_stopped_in_the_middle() {
    let daemon = Daemon::start();
    if !copies(&daemon) {
        return;
    }
    let mut owner = open(&daemon.socket());
    let region = in_place(&mut owner);
    for round in 0..6 {
        let (mut writer, address, key) = start_writer(&mut owner, &region, &daemon.socket());
        serve_for(&mut owner, round);
        writer.stop();
        let revoked = owner.revoke_within(key, PATIENCE);
        let own = vec![0xee; LENGTH];
        region.write(GUARD as u64, &own).expect("inside");
        writer.go_on();
        match revoked {
            // The memory is the owner's again.
            Ok(Revoked::Published) => {
                assert_eq!(message(&mut owner, tag::FAILED).1, [1], "the key is void");
                assert!(contents(&region) == own, "a write came behind the revocation");
            }
            // It stands inside the kernel's copy, or between the announcement of a write, which
            // each way begins with, and the look at the way.
            Err(GrantError::StillWriting { peer }) => {
                assert_eq!(peer, address);
                message(&mut owner, tag::FAILED);
            }
            other => panic!("{other:?}"),
        }
        check_guards(&region);
        writer.kill();
        until(&mut owner, "the death of a peer", |event| is_down(event, address));
    }
}

/// The process that became another program has the number of the owner, and is not the owner.
#[test]
fn nothing_is_written_to_the_program_that_took_the_owner_s_place() {
    let daemon = Daemon::start();
    if !copies(&daemon) {
        return;
    }
    let mut near = open(&daemon.socket());
    let owner = Process(spawn("owner", &daemon.socket(), near.address().vpid));
    let (address, payload) = message(&mut near, tag::KEY);
    let far = near.connect_within(address, PATIENCE).expect("it spoke");
    let target = Target::new(key_in(&payload), 0);
    assert_eq!(put_all(&mut near, far, target, b"first"), Ok(Value::Nothing));
    near.send_short(far, MessageHeader::tag(tag::EXEC), &[]).expect("room");
    let name = format!("/proc/{}/comm", owner.0.id());
    let start = Instant::now();
    while std::fs::read_to_string(&name).expect("it lives") != "sleep\n" {
        assert!(start.elapsed() < WATCHDOG, "it does not become another program");
        std::thread::sleep(Duration::from_millis(1));
    }
    // Nobody has polled, so that the endpoint has not heard of the end.
    let put = near.put(far, Source::Bytes(b"late"), target, Operation::new(1));
    assert_eq!(put, Err(OperationError::PeerDown));
    until(&mut near, "the end of a peer", |event| is_down(event, address));
}

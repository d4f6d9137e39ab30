//! Ports over the providers of the libfabric that is installed.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use weft_e2e::{Case, Outcome, Skip, provider_limit, providers, source, suite};
use weft_libfabric::{
    Error, Library, Offer, Peer, Port, PortOptions, Refused, Registration, Report, Rights, Spot,
    Wanted,
};
use weft_memory::{CopyMode, Memory, MemoryOptions};

/// Those of Debian's libfabric that need no hardware.
const PROVIDERS: [&str; 4] = ["net", "tcp;ofi_rxm", "sockets", "shm"];
/// Cases that libfabric's shm does not pass: it copies into its peer's memory before that looks at
/// the rights, crashes when a port of the same process has ended amid operations, and waits for
/// ever for messages that are too long.
const NOT_OVER_SHM: [&str; 6] = [
    "rights_are_kept",
    "rights_end_amid_an_own_operation",
    "a_port_ends_amid_operations",
    "the_end_of_a_port_is_told",
    "no_messages_are_taken_for_a_port_that_has_ended",
    "long_messages_leave_no_port_deaf",
];
/// Cases that are not for `verbs;ofi_rxm`: its NIC chooses the keys and takes 8 MB at once, and
/// libfabric's rxm crashes when a message in segments finds a buffer that is too short.
const NOT_OVER_VERBS: [&str; 4] = [
    "keys_are_not_guessed",
    "rights_end_amid_an_own_operation",
    "late_bytes_meet_nobody",
    "long_messages_leave_no_port_deaf",
];
const LIMIT: Duration = Duration::from_secs(60);
/// The number of each operation.
const TOKEN: u64 = 77;
const BOTH: Rights = Rights { read: true, write: true };

type Run = fn(&str) -> Outcome;

fn main() -> ExitCode {
    let all: [(&str, Run); 20] = [
        ("messages_arrive_in_order", messages_arrive_in_order),
        ("writes_and_reads_arrive_whole", writes_and_reads_arrive_whole),
        ("rights_are_kept", rights_are_kept),
        ("memory_ends_with_its_registration", memory_ends_with_its_registration),
        ("rights_end_amid_an_own_operation", rights_end_amid_an_own_operation),
        ("keys_are_not_guessed", keys_are_not_guessed),
        ("late_bytes_meet_nobody", late_bytes_meet_nobody),
        ("a_sleeper_is_woken", a_sleeper_is_woken),
        ("a_sleeper_serves_writes", a_sleeper_serves_writes),
        ("wrong_calls_are_refused", wrong_calls_are_refused),
        ("wrong_options_are_refused", wrong_options_are_refused),
        ("long_operations_are_refused", long_operations_are_refused),
        ("numbers_of_others_are_refused", numbers_of_others_are_refused),
        ("a_peer_is_removed_amid_operations", a_peer_is_removed_amid_operations),
        ("a_message_that_is_too_long_is_told", a_message_that_is_too_long_is_told),
        ("long_messages_leave_no_port_deaf", long_messages_leave_no_port_deaf),
        ("a_port_ends_amid_operations", a_port_ends_amid_operations),
        (
            "no_messages_are_taken_for_a_port_that_has_ended",
            no_messages_are_taken_for_a_port_that_has_ended,
        ),
        ("the_end_of_a_port_is_told", the_end_of_a_port_is_told),
        ("some_keep_messages_behind_writes", some_keep_messages_behind_writes),
    ];
    let mut cases = Vec::new();
    for (name, run) in all {
        for provider in providers(&PROVIDERS) {
            let left_out: &[&str] = match provider.as_str() {
                "shm" => &NOT_OVER_SHM,
                "verbs;ofi_rxm" => &NOT_OVER_VERBS,
                _ => &[],
            };
            if left_out.contains(&name) {
                continue;
            }
            let short = provider.split(';').next_back().unwrap_or(&provider);
            let of = provider.clone();
            let case = Case::new(format!("{name}_over_{short}"), move || run(&of));
            let case = case.within(provider_limit());
            let is_old = provider == "sockets";
            cases.push(if is_old { case.long("libfabric 2 has no sockets") } else { case });
        }
    }
    suite::main(cases)
}

fn offer(provider: &str) -> Result<Offer, Skip> {
    let library = Library::load().map_err(|error| Skip(error.to_string()))?;
    // Names of the shm provider are no addresses.
    let source = (provider != "shm").then(source);
    let wanted = Wanted { provider: Some(provider.to_owned()), source, ports: None };
    let mut offers = library.offers(&wanted).expect("the library answers");
    if offers.is_empty() {
        let (major, minor) = library.version();
        return Err(Skip(format!("libfabric {major}.{minor} has no provider {provider}")));
    }
    Ok(offers.remove(0))
}

fn port(provider: &str) -> Result<Port, Skip> {
    Ok(Port::open(offer(provider)?, PortOptions::default()).expect("the provider opens a port"))
}

/// The reports of a port.
#[derive(Default)]
struct Told {
    messages: Vec<Vec<u8>>,
    done: Vec<u64>,
    failed: Vec<(u64, Error)>,
    lost: usize,
}

impl Told {
    fn poll(&mut self, port: &mut Port) {
        port.poll(64, &mut |report| match report {
            Report::Message(bytes) => self.messages.push(bytes.to_vec()),
            Report::Done { token } => self.done.push(token),
            Report::Failed { token, error } => self.failed.push((token, error)),
            Report::SendFailed { .. } | Report::Unfit { .. } => self.lost += 1,
            Report::Stray { .. } => {}
        })
        .expect("the port lives");
    }
}

/// Two ports of one provider.
struct Pair {
    ports: [Port; 2],
    /// Each one's handle for the other.
    peers: [Peer; 2],
    told: [Told; 2],
}

impl Pair {
    fn new(provider: &str) -> Result<Self, Skip> {
        let mut ports = [port(provider)?, port(provider)?];
        let names = [ports[0].name().to_vec(), ports[1].name().to_vec()];
        let peers = [0, 1].map(|at: usize| ports[at].insert(&names[1 - at]).expect("a name"));
        Ok(Self { ports, peers, told: [Told::default(), Told::default()] })
    }

    fn poll(&mut self) {
        for (port, told) in self.ports.iter_mut().zip(&mut self.told) {
            told.poll(port);
        }
    }

    fn until(&mut self, what: &str, mut is: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !is(self) {
            self.poll();
            assert!(start.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        }
    }

    fn send(&mut self, from: usize, message: &[u8]) {
        self.until("room for a message", |pair| {
            match pair.ports[from].send(pair.peers[from], message) {
                Ok(()) => true,
                Err(Refused::Busy) => false,
                Err(Refused::Failed(error)) => panic!("{error}"),
            }
        });
    }

    /// Starts a write or a read of port 0 that has to be refused. libfabric's shm drops those
    /// without a word; the others say so.
    fn assert_refused(
        &mut self,
        provider: &str,
        is_write: bool,
        local: (Registration, usize, usize),
        spot: Spot,
    ) {
        if provider != "shm" {
            assert!(self.access(is_write, local, spot).is_err(), "{provider}, {is_write}");
            return;
        }
        assert_eq!(self.begin(is_write, local, spot), Ok(()));
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(100) {
            self.poll();
        }
        assert!(self.told[0].done.is_empty(), "it was not done");
    }

    /// Starts a write or a read of port 0, and returns how it ended.
    fn access(
        &mut self,
        is_write: bool,
        local: (Registration, usize, usize),
        spot: Spot,
    ) -> Result<(), Error> {
        self.begin(is_write, local, spot)?;
        let mut ended = None;
        self.until("the end of an operation", |pair| {
            let told = &mut pair.told[0];
            ended = told.failed.pop().map(|(of, error)| (of, Err(error)));
            ended = ended.take().or_else(|| told.done.pop().map(|of| (of, Ok(()))));
            ended.is_some()
        });
        let (of, result) = ended.expect("it ended");
        assert_eq!(of, TOKEN);
        result
    }

    fn begin(
        &mut self,
        is_write: bool,
        local: (Registration, usize, usize),
        spot: Spot,
    ) -> Result<(), Error> {
        let begin = if is_write { Port::write } else { Port::read };
        let mut begun = Ok(());
        self.until("an operation that is taken", |pair| {
            begun = begin(&mut pair.ports[0], pair.peers[0], local, spot, TOKEN);
            begun != Err(Refused::Busy)
        });
        begun.map_err(|refused| match refused {
            Refused::Failed(error) => error,
            Refused::Busy => unreachable!("it was taken"),
        })
    }
}

fn memory(bytes: &[u8]) -> Memory {
    let memory = Memory::fresh(MemoryOptions::bytes(bytes.len())).expect("memory");
    memory.segment().write(0, bytes, CopyMode::Plain);
    memory
}

fn content(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.segment().length()];
    memory.segment().read(0, &mut bytes);
    bytes
}

fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + seed * 31 + at / 251).to_le_bytes()[0]).collect()
}

/// In both directions at once, of every length, more than all buffers hold. As many are under way
/// as a mailbox of the fabric is deep.
fn messages_arrive_in_order(provider: &str) -> Outcome {
    const COUNT: usize = 10_000;
    const UNDER_WAY: usize = 256;
    let mut pair = Pair::new(provider)?;
    let message = |from: usize, number: usize| {
        let mut bytes = pattern(number + from, 8 + number % 121);
        bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
        bytes
    };
    for number in 0..COUNT {
        for from in [0, 1] {
            pair.until("credit", |pair| number < pair.told[1 - from].messages.len() + UNDER_WAY);
            pair.send(from, &message(from, number));
        }
    }
    pair.until("all messages", |pair| pair.told.iter().all(|told| told.messages.len() >= COUNT));
    for (at, told) in pair.told.iter().enumerate() {
        assert_eq!((told.messages.len(), told.lost), (COUNT, 0));
        for (number, got) in told.messages.iter().enumerate() {
            assert_eq!(*got, message(1 - at, number), "message {number} at {at}");
        }
    }
    Ok(())
}

fn writes_and_reads_arrive_whole(provider: &str) -> Outcome {
    let mut pair = Pair::new(provider)?;
    for length in [1, 7, 4096, 1 << 20] {
        let (source, target) = (pattern(length, length), vec![0; length + 64]);
        let (from, to, back) = (memory(&source), memory(&target), memory(&vec![0; length]));
        let (local, _) =
            pair.ports[0].register((&from, 0, length), Rights::default()).expect("registered");
        let (_, spot) = pair.ports[1].register((&to, 32, length), BOTH).expect("registered");
        pair.access(true, (local, 0, length), spot).expect("a write");
        let mut expected = target;
        expected[32..32 + length].copy_from_slice(&source);
        assert_eq!(content(&to), expected, "{length} bytes, and none beside them");
        let (local, _) =
            pair.ports[0].register((&back, 0, length), Rights::default()).expect("registered");
        pair.access(false, (local, 0, length), spot).expect("a read");
        assert_eq!(content(&back), source, "{length} bytes");
        // A part of it.
        let half = length / 2;
        let at = Spot { address: spot.address + half as u64, ..spot };
        pair.access(true, (local, 0, length - half), at).expect("a write");
        assert_eq!(content(&to)[32 + half..32 + length], source[..length - half]);
    }
    Ok(())
}

/// A peer that has the right to read alone cannot write, nor reach beyond the range.
fn rights_are_kept(provider: &str) -> Outcome {
    let (read, write) = (Rights { read: true, write: false }, Rights { read: false, write: true });
    for (rights, is_write, from) in
        [(read, true, 0), (write, false, 0), (BOTH, true, 100), (BOTH, false, 100)]
    {
        // libfabric's rxm gives the right to read to whoever may do anything.
        if provider.ends_with(";ofi_rxm") && rights == write {
            continue;
        }
        // A refusal may end the connection (libfabric's providers differ), so each has its own.
        let mut pair = Pair::new(provider)?;
        let (local, target) = (memory(&[7; 200]), memory(&[9; 4096]));
        let (own, _) =
            pair.ports[0].register((&local, 0, 200), Rights::default()).expect("registered");
        let (_, spot) = pair.ports[1].register((&target, 0, 200), rights).expect("registered");
        let spot = Spot { address: spot.address + from, ..spot };
        pair.assert_refused(provider, is_write, (own, 0, 200), spot);
        assert_eq!(content(&target), [9; 4096], "nothing was written");
        assert_eq!(content(&local), [7; 200], "nothing was read");
    }
    Ok(())
}

fn memory_ends_with_its_registration(provider: &str) -> Outcome {
    let mut pair = Pair::new(provider)?;
    let (local, target) = (memory(&[7; 64]), memory(&[9; 64]));
    let (own, _) = pair.ports[0].register((&local, 0, 64), Rights::default()).expect("registered");
    let (theirs, spot) = pair.ports[1].register((&target, 0, 64), BOTH).expect("registered");
    pair.access(true, (own, 0, 8), spot).expect("a write");
    pair.ports[1].deregister(theirs).expect("it was registered");
    pair.assert_refused(provider, true, (own, 0, 64), spot);
    assert_eq!(content(&target)[..9], [7, 7, 7, 7, 7, 7, 7, 7, 9]);
    Ok(())
}

/// A peer that finds the port knows no key.
fn keys_are_not_guessed(provider: &str) -> Outcome {
    let mut port = port(provider)?;
    let memory = memory(&[0; 64]);
    let mut keys: Vec<u64> =
        (0..64).map(|_| port.register((&memory, 0, 64), BOTH).expect("registered").1.key).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 64);
    // shm chooses the keys, and reads and writes by addresses whatever the key is.
    if provider != "shm" {
        let least = keys.windows(2).map(|pair| pair[1] - pair[0]).min();
        assert!(keys[0] > 1 << 32 && least > Some(1 << 32), "{keys:x?}");
    }
    Ok(())
}

/// Also while an operation of the port itself uses the range, which goes on.
fn rights_end_amid_an_own_operation(provider: &str) -> Outcome {
    const BYTES: usize = 32 << 20;
    for is_write in [true, false] {
        let mut pair = Pair::new(provider)?;
        let (shared, target) = (memory(&vec![7; BYTES]), memory(&vec![9; BYTES]));
        let small = memory(&[5; 64]);
        let (own, _) =
            pair.ports[0].register((&small, 0, 64), Rights::default()).expect("registered");
        let (_, at) = pair.ports[0].register((&target, 0, BYTES), BOTH).expect("registered");
        let (used, spot) = pair.ports[1].register((&shared, 0, BYTES), BOTH).expect("registered");
        pair.access(is_write, (own, 0, 8), spot).expect("it may");
        pair.until("an own write that is taken", |pair| {
            pair.ports[1].write(pair.peers[1], (used, 0, BYTES), at, TOKEN) == Ok(())
        });
        assert!(shared.begin_move().is_err(), "it moves");
        pair.ports[1].deregister(used).expect("it was registered");
        assert!(pair.told[1].done.is_empty() && shared.begin_move().is_err());
        pair.assert_refused(provider, is_write, (own, 8, 56), spot);
        pair.until("the end of the own write", |pair| pair.ports[1].pending() == 0);
        assert_eq!(content(&shared)[8..64], [7; 56], "nothing was written");
        assert_eq!(content(&small)[8..], [5; 56], "nothing was read");
        assert!(shared.begin_move().is_ok(), "nobody uses it");
    }
    Ok(())
}

/// A peer goes on with a write or a read that it began before the registration ended. The program
/// has let go of the memory, and other memory would be at its addresses.
fn late_bytes_meet_nobody(provider: &str) -> Outcome {
    const BYTES: usize = 32 << 20;
    for is_write in [true, false] {
        let mut pair = Pair::new(provider)?;
        let (mine, served) = (if is_write { 7 } else { 0 }, if is_write { 0 } else { 7 });
        let (local, target) = (memory(&vec![mine; BYTES]), memory(&vec![served; BYTES]));
        let (own, _) =
            pair.ports[0].register((&local, 0, BYTES), Rights::default()).expect("registered");
        let (theirs, spot) = pair.ports[1].register((&target, 0, BYTES), BOTH).expect("registered");
        pair.begin(is_write, (own, 0, BYTES), spot).expect("it is taken");
        let arrives = if is_write { target.clone() } else { local.clone() };
        pair.until("the first bytes", |_| {
            let mut first = [0];
            arrives.segment().read(0, &mut first);
            first == [7]
        });
        drop(arrives);
        pair.ports[1].deregister(theirs).expect("it was registered");
        let start = target.segment().base();
        drop(target);
        pair.poll();
        let fresh = [(); 2].map(|()| memory(&vec![3; BYTES]));
        assert!(fresh.iter().all(|fresh| fresh.segment().base() != start), "{provider}");
        // Some providers say how it ended, and `sockets` nothing at all.
        let began = Instant::now();
        while pair.told[0].done.is_empty()
            && pair.told[0].failed.is_empty()
            && began.elapsed() < Duration::from_secs(1)
        {
            pair.poll();
        }
        assert!(fresh.iter().all(|fresh| content(fresh) == vec![3; BYTES]), "{provider}");
    }
    Ok(())
}

/// Sleeps on the descriptor of a port. Whether something ended the sleep.
fn sleep(sleeper: &Port, milliseconds: i64) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let file = sleeper.descriptor().expect("it may sleep");
    let mut files = [PollFd::from_borrowed_fd(file, PollFlags::IN)];
    let (seconds, rest) = (milliseconds / 1000, milliseconds % 1000);
    let time = Timespec { tv_sec: seconds, tv_nsec: rest * 1_000_000 };
    poll(&mut files, Some(&time)).expect("poll") > 0
}

/// A program may sleep on the descriptor after it was told so, and wakes when a message comes.
fn a_sleeper_is_woken(provider: &str) -> Outcome {
    /// A port that never may sleep gets its message all the same.
    const REFUSALS: u32 = 100;
    let mut pair = Pair::new(provider)?;
    // Connections are made.
    pair.send(0, b"first");
    pair.send(1, b"first");
    pair.until("the first", |pair| pair.told.iter().all(|told| !told.messages.is_empty()));
    let [sender, sleeper] = &mut pair.ports;
    if sleeper.descriptor().is_none() {
        // libfabric's shm has none, and says so.
        assert!(provider == "shm" && !sleeper.may_sleep());
        return Ok(());
    }
    let (mut heard, mut told) = (Told::default(), Told::default());
    let mut slept = 0;
    for round in 0..100_u64 {
        let start = Instant::now();
        let (mut sent, mut refusals) = (false, 0);
        while heard.messages.len() as u64 <= round {
            assert!(start.elapsed() < LIMIT, "round {round}");
            let may_sleep = sleeper.may_sleep();
            refusals += u32::from(!may_sleep);
            if may_sleep || refusals >= REFUSALS {
                // The sender needs turns of its own only where the provider has no thread.
                if !sent {
                    sent = sender.send(pair.peers[0], &round.to_le_bytes()).is_ok();
                }
                told.poll(sender);
            }
            if may_sleep {
                slept += 1;
                sleep(sleeper, 100);
            }
            heard.poll(sleeper);
        }
    }
    if let "net" | "tcp;ofi_rxm" = provider {
        assert!(slept >= 100, "{slept} sleeps");
    }
    // Nothing comes any more: a port that may sleep does, and one that cannot says so.
    let start = Instant::now();
    while sleeper.may_sleep() && sleep(sleeper, 0) {
        assert!(start.elapsed() < LIMIT, "a sleep ends at once, and nothing came");
        told.poll(sender);
        heard.poll(sleeper);
    }
    let numbers: Vec<Vec<u8>> = (0..100_u64).map(|round| round.to_le_bytes().to_vec()).collect();
    assert_eq!(heard.messages, numbers);
    Ok(())
}

/// The provider serves writes in calls of the target, to which it tells nothing of them. The
/// descriptor on which that sleeps is readable all the same.
fn a_sleeper_serves_writes(provider: &str) -> Outcome {
    if provider != "net" {
        // The others serve them by threads or at the initiator, or have the target look by itself.
        return Ok(());
    }
    let mut pair = Pair::new(provider)?;
    let (local, target) = (memory(&[7; 4096]), memory(&[9; 4096]));
    let (own, _) =
        pair.ports[0].register((&local, 0, 4096), Rights::default()).expect("registered");
    let (_, spot) = pair.ports[1].register((&target, 0, 4096), BOTH).expect("registered");
    pair.access(true, (own, 0, 4096), spot).expect("a write");
    for round in 1..=50 {
        pair.until("the target may sleep", |pair| pair.ports[1].may_sleep());
        pair.begin(true, (own, 0, 4096), spot).expect("a write");
        let millis = i64::try_from(LIMIT.as_millis()).expect("a few seconds");
        assert!(sleep(&pair.ports[1], millis), "nothing woke the target");
        pair.until("the write is over", |pair| pair.told[0].done.len() == round);
    }
    Ok(())
}

fn wrong_calls_are_refused(provider: &str) -> Outcome {
    let mut pair = Pair::new(provider)?;
    let (port, peer) = (&mut pair.ports[0], pair.peers[0]);
    let is_wrong = |result: Result<(), Refused>| matches!(result, Err(Refused::Failed(_)));
    assert!(is_wrong(port.send(peer, &[0; 129])), "longer than a message may be");
    assert!(port.insert(b"no name").is_err());
    assert!(port.insert(&[]).is_err());
    if provider != "shm" {
        // libfabric's software would refuse every name behind one of a wrong family.
        let name = port.name().to_vec();
        for family in [0_u16, 1, 10, 77, u16::MAX] {
            let mut wrong = name.clone();
            wrong[..2].copy_from_slice(&family.to_ne_bytes());
            assert!(port.insert(&wrong).is_err(), "family {family}");
        }
        let own = port.insert(&name).expect("the own name is one, too");
        port.remove(own).expect("it was there");
    }
    let memory = memory(&[0; 64]);
    assert!(port.register((&memory, 0, usize::MAX), BOTH).is_err(), "outside the memory");
    assert!(port.register((&memory, usize::MAX, 1), BOTH).is_err());
    let (own, spot) = port.register((&memory, 0, 32), BOTH).expect("registered");
    assert!(is_wrong(port.write(peer, (own, 30, 8), spot, 1)), "outside the range");
    assert!(is_wrong(port.read(peer, (own, usize::MAX, 8), spot, 1)));
    port.deregister(own).expect("it was registered");
    assert!(is_wrong(port.write(peer, (own, 0, 8), spot, 1)), "no registration any more");
    assert_eq!(port.pending(), 0);
    Ok(())
}

/// Numbers of another port, of what was removed and of nothing reach no provider, which would read
/// where they lead.
fn numbers_of_others_are_refused(provider: &str) -> Outcome {
    let mut pair = Pair::new(provider)?;
    let (local, target) = (memory(&[7; 64]), memory(&[9; 64]));
    let (own, _) = pair.ports[0].register((&local, 0, 64), Rights::default()).expect("registered");
    let (theirs, spot) = pair.ports[1].register((&target, 0, 64), BOTH).expect("registered");
    let einval = rustix::io::Errno::INVAL.raw_os_error();
    let is_einval =
        |error: &Error| matches!(error, Error::Call { number, .. } if *number == einval);
    let is_wrong = |result: &Result<(), Refused>| match result {
        Err(Refused::Failed(error)) => is_einval(error),
        Ok(()) | Err(Refused::Busy) => false,
    };
    let assert_wrong_peer = |port: &mut Port, peer: Peer| {
        assert!(is_wrong(&port.send(peer, b"hello")) && is_wrong(&port.send(peer, &[1; 128])));
        assert!(is_wrong(&port.write(peer, (own, 0, 8), spot, 1)));
        assert!(is_wrong(&port.read(peer, (own, 0, 8), spot, 1)));
        assert!(port.remove(peer).is_err_and(|error| is_einval(&error)));
    };
    let (port, peer) = (&mut pair.ports[0], pair.peers[0]);
    for foreign in [pair.peers[1], Peer(0), Peer(5000), Peer(u64::MAX)] {
        assert_wrong_peer(port, foreign);
    }
    for foreign in [theirs, Registration(0), Registration(u64::MAX)] {
        assert!(is_wrong(&port.write(peer, (foreign, 0, 8), spot, 1)));
        assert!(is_wrong(&port.read(peer, (foreign, 0, 8), spot, 1)));
        assert!(port.deregister(foreign).is_err_and(|error| is_einval(&error)));
    }
    let name = pair.ports[1].name().to_vec();
    let other = pair.ports[0].insert(&name).expect("a name");
    assert_ne!(peer, other);
    pair.ports[0].remove(peer).expect("it was there");
    assert_wrong_peer(&mut pair.ports[0], peer);
    // The other number for it works, and a new one behind the removal of the last.
    for number in [Some(other), None] {
        let number = number.unwrap_or_else(|| pair.ports[0].insert(&name).expect("a name"));
        pair.peers[0] = number;
        pair.send(0, b"hello");
        pair.access(true, (own, 0, 8), spot).expect("a write");
        pair.ports[0].remove(number).expect("it was there");
        assert_wrong_peer(&mut pair.ports[0], number);
    }
    pair.until("the messages", |pair| pair.told[1].messages.len() == 2);
    pair.ports[0].deregister(own).expect("it was registered");
    assert!(pair.ports[0].deregister(own).is_err());
    assert_eq!(content(&target)[..9], [7, 7, 7, 7, 7, 7, 7, 7, 9]);
    Ok(())
}

/// A peer that is removed amid a write and messages to it still gets them.
fn a_peer_is_removed_amid_operations(provider: &str) -> Outcome {
    const BYTES: usize = 4 << 20;
    let mut pair = Pair::new(provider)?;
    let (local, target) = (memory(&vec![7; BYTES]), memory(&vec![9; BYTES]));
    let (own, _) =
        pair.ports[0].register((&local, 0, BYTES), Rights::default()).expect("registered");
    let (_, spot) = pair.ports[1].register((&target, 0, BYTES), BOTH).expect("registered");
    let name = pair.ports[1].name().to_vec();
    for round in 0..5 {
        pair.send(0, &[5; 128]);
        pair.begin(true, (own, 0, BYTES), spot).expect("a write");
        pair.ports[0].remove(pair.peers[0]).expect("it was there");
        if round % 2 == 0 {
            pair.until("the write", |pair| pair.told[0].done.len() > round);
        }
        pair.peers[0] = pair.ports[0].insert(&name).expect("a name");
    }
    pair.until("the writes", |pair| pair.told[0].done.len() == 5);
    pair.until("the messages", |pair| pair.told[1].messages.len() == 5);
    assert!(content(&target) == content(&local) && pair.told[0].failed.is_empty());
    pair.until("the end of the messages", |pair| pair.ports[0].pending() == 0);
    Ok(())
}

/// Streams need it: without it each message waits for the writes before it.
fn some_keep_messages_behind_writes(provider: &str) -> Outcome {
    let is_kept = matches!(provider, "net" | "tcp;ofi_rxm" | "verbs;ofi_rxm");
    assert_eq!(offer(provider)?.keeps_messages_behind_writes(), is_kept);
    Ok(())
}

fn wrong_options_are_refused(provider: &str) -> Outcome {
    let usual = PortOptions::default();
    for options in [
        PortOptions { sends_max: usize::MAX, ..usual },
        PortOptions { sends_max: usize::MAX / 128 + 1, receives_max: 1, ..usual },
        PortOptions { message_bytes_max: usize::MAX / 2, ..usual },
    ] {
        assert!(Port::open(offer(provider)?, options).is_err(), "{options:?}");
    }
    let source = Some("localhost".to_owned());
    let wanted = Wanted { provider: Some(provider.to_owned()), source, ports: None };
    let library = Library::load().expect("as before");
    assert!(library.offers(&wanted).is_err(), "no name is looked up");
    Ok(())
}

/// A write or a read that is longer than the provider's longest is refused before it sees it.
fn long_operations_are_refused(provider: &str) -> Outcome {
    let mut pair = Pair::new(provider)?;
    let longest = pair.ports[0].offer().operation_bytes_max();
    let Some(length) = longest.checked_add(1).filter(|length| *length < 1 << 46) else {
        return Ok(());
    };
    let Ok(memory) = Memory::fresh(MemoryOptions::bytes(length)) else { return Ok(()) };
    let Ok((own, _)) = pair.ports[0].register((&memory, 0, length), Rights::default()) else {
        return Ok(());
    };
    let spot = Spot::default();
    for access in [Port::write, Port::read] {
        let begun = access(&mut pair.ports[0], pair.peers[0], (own, 0, length), spot, TOKEN);
        assert!(matches!(begun, Err(Refused::Failed(_))), "{begun:?}");
    }
    assert_eq!(pair.ports[0].pending(), 0);
    Ok(())
}

/// A port for messages that others take for too long.
fn hostile(provider: &str) -> Result<Port, Skip> {
    let options = PortOptions { message_bytes_max: 200_000, receives_max: 8, sends_max: 8 };
    Ok(Port::open(offer(provider)?, options).expect("the provider opens a port"))
}

fn a_message_that_is_too_long_is_told(provider: &str) -> Outcome {
    let (mut receiver, mut sender) = (port(provider)?, hostile(provider)?);
    let to = sender.insert(receiver.name()).expect("a name");
    let (mut is_sent, mut is_told, start) = (false, false, Instant::now());
    while !is_told {
        assert!(start.elapsed() < LIMIT, "sent: {is_sent}");
        is_sent = is_sent || sender.send(to, &[1; 129]).is_ok();
        sender.poll(64, &mut |_| {}).expect("the port lives");
        receiver
            .poll(64, &mut |report| {
                assert!(matches!(report, Report::Unfit { .. }), "{report:?}");
                is_told = true;
            })
            .expect("the port lives");
    }
    Ok(())
}

/// A hostile peer sends messages that do not fit into a buffer for receiving. Those of another peer
/// arrive all the same.
fn long_messages_leave_no_port_deaf(provider: &str) -> Outcome {
    let (mut receiver, mut enemy, mut friend) =
        (port(provider)?, hostile(provider)?, port(provider)?);
    let to = enemy.insert(receiver.name()).expect("a name");
    let from_friend = friend.insert(receiver.name()).expect("a name");
    let long = [129, 60_000, 130_000, 199_999];
    let (mut attacks, mut sent, mut heard, start) = (0, 0_u8, Vec::new(), Instant::now());
    while heard.len() < 100 {
        assert!(start.elapsed() < LIMIT, "{heard:?} arrived, {sent} were sent, {attacks} attacks");
        // Some providers end the connection of such a peer.
        attacks += usize::from(enemy.send(to, &vec![7; long[attacks % long.len()]]).is_ok());
        let _ = enemy.poll(64, &mut |_| {});
        // Behind some attacks, or when there can be no more of them.
        let is_time = attacks > 20 || start.elapsed() > Duration::from_millis(300);
        if is_time && sent < 100 && friend.send(from_friend, &[sent; 100]).is_ok() {
            sent += 1;
        }
        friend.poll(64, &mut |_| {}).expect("the port lives");
        receiver
            .poll(64, &mut |report| {
                if let Report::Message(bytes) = report {
                    assert_eq!((bytes.len(), &bytes[1..]), (100, &[bytes[0]; 99][..]));
                    heard.push(bytes[0]);
                }
            })
            .expect("the port lives");
    }
    assert!(attacks > 0 && heard == (0..100).collect::<Vec<u8>>(), "{attacks} {heard:?}");
    Ok(())
}

/// Ports are dropped with messages and writes under way, and others are opened. A provider that
/// used what is gone would crash.
fn a_port_ends_amid_operations(provider: &str) -> Outcome {
    for round in 0..10 {
        let mut pair = Pair::new(provider)?;
        let (local, target) = (memory(&vec![7; 1 << 20]), memory(&vec![9; 1 << 20]));
        let (own, _) =
            pair.ports[0].register((&local, 0, 1 << 20), Rights::default()).expect("registered");
        let (_, spot) = pair.ports[1].register((&target, 0, 1 << 20), BOTH).expect("registered");
        pair.send(0, b"first");
        pair.until("the first", |pair| !pair.told[1].messages.is_empty());
        for _ in 0..20 {
            let _ = pair.ports[0].write(pair.peers[0], (own, 0, 1 << 20), spot, TOKEN);
            let _ = pair.ports[0].send(pair.peers[0], &[5; 128]);
        }
        let [first, second] = pair.ports;
        // Either end first.
        let (one, mut other) = if round % 2 == 0 { (first, second) } else { (second, first) };
        drop((local, target));
        drop(one);
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(5) {
            let _ = other.poll(64, &mut |_| {});
        }
    }
    Ok(())
}

/// A port that sends nothing but messages hears of their receiver's end, too, or its provider takes
/// no more of them: libfabric's net connects anew without an end.
fn no_messages_are_taken_for_a_port_that_has_ended(provider: &str) -> Outcome {
    let mut pair = Pair::new(provider)?;
    pair.send(0, b"first");
    pair.until("the first", |pair| !pair.told[1].messages.is_empty());
    let Pair { ports: [mut port, gone], peers: [peer, _], .. } = pair;
    drop(gone);
    let (mut told, start) = (Told::default(), Instant::now());
    let mut taken = start;
    while told.lost == 0 && taken.elapsed() < Duration::from_millis(300) {
        assert!(start.elapsed() < LIMIT, "messages are taken");
        match port.send(peer, b"hello?") {
            Ok(()) => taken = Instant::now(),
            Err(Refused::Failed(_)) => break,
            Err(Refused::Busy) => {}
        }
        told.poll(&mut port);
    }
    Ok(())
}

/// Operations on a port that has ended fail.
fn the_end_of_a_port_is_told(provider: &str) -> Outcome {
    let mut pair = Pair::new(provider)?;
    let (local, target) = (memory(&[7; 64]), memory(&[9; 64]));
    let (own, _) = pair.ports[0].register((&local, 0, 64), Rights::default()).expect("registered");
    let (_, spot) = pair.ports[1].register((&target, 0, 64), BOTH).expect("registered");
    pair.access(true, (own, 0, 8), spot).expect("a write");
    let Pair { ports: [mut port, gone], peers: [peer, _], .. } = pair;
    drop(gone);
    let (mut told, start) = (Told::default(), Instant::now());
    let mut is_told = false;
    while !is_told {
        assert!(start.elapsed() < LIMIT, "nothing is told of the end");
        let begun = [port.write(peer, (own, 0, 8), spot, TOKEN), port.send(peer, b"hello?")];
        is_told = begun.iter().any(|begun| matches!(begun, Err(Refused::Failed(_))));
        told.poll(&mut port);
        is_told |= told.lost > 0 || !told.failed.is_empty();
        assert!(told.done.is_empty(), "nobody was there to write to");
    }
    Ok(())
}

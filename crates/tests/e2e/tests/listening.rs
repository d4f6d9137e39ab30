//! Endpoints of libfabric listen at the TCP ports that the administrator lets them have
//! (`fabric.ports`), and at no others.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use weft_e2e::process::free_port;
use weft_e2e::{Case, Outcome, Skip, source, suite};
use weft_libfabric::{Error, Library, Port, PortOptions, Report, Wanted};

/// A busy machine does not reach it.
const LIMIT: Duration = Duration::from_secs(60);
/// The state of a socket that listens, in `/proc/net/tcp`.
const LISTENS: &str = "0A";

fn main() -> ExitCode {
    let case = |name: &'static str, provider: &'static str| {
        Case::new(format!("ports_listen_within_their_range_over_{name}"), move || within(provider))
    };
    suite::main(vec![case("net", "net"), case("ofi_rxm", "tcp;ofi_rxm")])
}

/// Three ports in a row that nobody uses.
fn free_range() -> RangeInclusive<u16> {
    let mut last = [0; 3];
    loop {
        last = [last[1], last[2], free_port()];
        if last[0] + 1 == last[1] && last[1] + 1 == last[2] {
            return last[0]..=last[2];
        }
    }
}

/// The TCP ports at which this process listens, as `ss -ltn` shows them.
fn listening() -> BTreeSet<u16> {
    let files = std::fs::read_dir("/proc/self/fd").expect("own files").flatten();
    let links = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    let own: BTreeSet<String> = links.map(|link| link.display().to_string()).collect();
    let mut ports = BTreeSet::new();
    for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        let table = std::fs::read_to_string(table).unwrap_or_default();
        for line in table.lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            if words[3] == LISTENS && own.contains(&format!("socket:[{}]", words[9])) {
                let port = words[1].rsplit(':').next().expect("a port");
                ports.insert(u16::from_str_radix(port, 16).expect("hexadecimal"));
            }
        }
    }
    ports
}

fn within(provider: &str) -> Outcome {
    Library::load().map_err(|error| Skip(error.to_string()))?;
    let range = free_range();
    let wanted = Wanted {
        provider: Some(provider.to_owned()),
        source: Some(source()),
        ports: Some(range.clone()),
    };
    let open = || Port::of(&wanted, PortOptions::default());
    let mut ports: Vec<Port> = match open() {
        Err(Error::NoOffer(what)) => return Err(Skip(format!("libfabric has no {what}"))),
        first => [first].into_iter().chain([(); 2].map(|()| open())).collect::<Result<_, _>>(),
    }
    .expect("as many as there are ports");
    assert_eq!(listening(), range.clone().collect());
    let (low, high) = (*range.start(), *range.end());
    let error = open().expect_err("no port is left");
    assert_eq!(error, Error::PortsInUse { low, high });
    assert!(error.to_string().contains("fabric.ports"), "{error}");
    // They reach each other, which opens no other listener.
    let name = ports[1].name().to_vec();
    let peer = ports[0].insert(&name).expect("a name");
    let start = Instant::now();
    let (mut is_sent, mut came) = (false, false);
    while !came {
        is_sent = is_sent || ports[0].send(peer, b"a message").is_ok();
        for port in &mut ports {
            let polled = port.poll(64, &mut |report| {
                came |= matches!(report, Report::Message(b"a message"));
            });
            polled.expect("the port lives");
        }
        assert!(start.elapsed() < LIMIT, "sent: {is_sent}, and nothing came");
    }
    assert_eq!(listening(), range.collect());
    // One that ends leaves its port to the next one.
    drop(ports.pop());
    ports.push(open().expect("a port is free again"));
    Ok(())
}

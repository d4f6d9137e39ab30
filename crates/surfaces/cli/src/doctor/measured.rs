//! Measured times of each transport, beside those that this kind of machine should have.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Check, State};

/// Round trips that are measured of TCP.
const ROUND_TRIPS: u32 = 2_000;
/// How long the other end of TCP may take for one.
const ROUND_TRIP_WITHIN: Duration = Duration::from_secs(2);

/// A measurement by `weft perf`, and the one-way time in microseconds up to which an idle machine
/// of two or more cores is as it should be (docs/measurements.md has those of others).
struct Measurement {
    name: &'static str,
    arguments: &'static [&'static str],
    should_us: f64,
}

const MEASUREMENTS: &[Measurement] = &[
    Measurement { name: "mailbox, shared memory", arguments: &["latency"], should_us: 1.0 },
    Measurement { name: "direct socket, shared memory", arguments: &["lane"], should_us: 1.0 },
    Measurement {
        name: "mailbox, libfabric on this host",
        arguments: &["latency", "--transport", "ofi"],
        should_us: 40.0,
    },
];

/// The one-way time of TCP over loopback up to which a machine is as it should be.
const TCP_SHOULD_US: f64 = 20.0;

/// The measured checks. A busy machine is not judged by them.
pub fn checks(is_busy: bool) -> Vec<Check> {
    let tcp = tcp_us();
    let judged = |name, us, should_us, tcp| judged(name, us, should_us, tcp, is_busy);
    let mut checks = vec![match &tcp {
        Ok(us) => judged("TCP over loopback", *us, TCP_SHOULD_US, None),
        Err(error) => Check::note("TCP over loopback", error.to_string()),
    }];
    let tcp = tcp.ok();
    for Measurement { name, arguments, should_us } in MEASUREMENTS {
        checks.push(match perf(arguments) {
            Ok(us) => judged(name, us, *should_us, tcp),
            Err(why) => Check::note(name, format!("not measured: {why}")),
        });
    }
    checks
}

/// A time beside the one that it should be: three times as long is too slow.
fn judged(
    name: &'static str,
    us: f64,
    should_us: f64,
    tcp_us: Option<f64>,
    is_busy: bool,
) -> Check {
    let beside = match tcp_us {
        Some(tcp) if tcp >= us => format!("; TCP takes {:.1} times that", tcp / us),
        Some(_) => "; TCP over loopback is faster now".to_owned(),
        None => String::new(),
    };
    let found = format!("{us:.2} us one way, should be {should_us} us or less{beside}");
    let gain = format!("up to {:.0} times faster", us / should_us);
    match us > 3.0 * should_us {
        true if is_busy => Check::note(name, format!("{found}; the machine is busy")),
        true => Check::new(name, State::Slow, found)
            .change("See cores and governor, and what else runs", gain),
        false => Check::good(name, found),
    }
}

/// The median that `weft perf` tells, in microseconds.
fn perf(arguments: &[&str]) -> Result<f64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(program)
        .arg("perf")
        .args(arguments)
        .args(["--runs", "3", "--json"])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(text.lines().last().unwrap_or("weft perf failed").to_owned());
    }
    let last = output.stdout.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty());
    let told: Value =
        serde_json::from_slice(last.unwrap_or_default()).map_err(|e| e.to_string())?;
    microseconds(&told).ok_or_else(|| "weft perf told no time".to_owned())
}

/// The one-way time that a result has: as its median, or beside it.
fn microseconds(told: &Value) -> Option<f64> {
    match told["unit"].as_str() {
        Some("us") => told["median"].as_f64(),
        _ => told["latency_us"].as_f64().or_else(|| told["latency"]["median"].as_f64()),
    }
}

/// Half of a round trip of one byte over loopback, between two threads.
fn tcp_us() -> std::io::Result<f64> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    let (mut server, _) = listener.accept()?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ROUND_TRIP_WITHIN))?;
    }
    let echo = std::thread::spawn(move || {
        let mut byte = [0];
        while server.read_exact(&mut byte).and_then(|()| server.write_all(&byte)).is_ok() {}
    });
    let mut times = Vec::new();
    for _ in 0..ROUND_TRIPS {
        let start = Instant::now();
        client.write_all(&[1])?;
        client.read_exact(&mut [0])?;
        times.push(start.elapsed());
    }
    drop(client);
    let _ = echo.join();
    times.sort();
    Ok(times[times.len() / 2].as_secs_f64() * 1e6 / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_judged_by_the_one_that_it_should_be() {
        let slow = judged("x", 4.0, 1.0, Some(8.0), false);
        assert_eq!(slow.state, State::Slow);
        assert_eq!(judged("x", 4.0, 1.0, Some(1.0), true).state, State::Note);
        assert!(slow.found.contains("TCP takes 2.0 times") && slow.gain.contains("4 times"));
        assert_eq!(judged("x", 2.9, 1.0, None, false).state, State::Good);
    }

    #[test]
    fn tcp_is_measured() {
        assert!(tcp_us().expect("loopback") > 0.1);
    }
}

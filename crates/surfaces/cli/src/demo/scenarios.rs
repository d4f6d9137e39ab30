//! The pairs of programs: how each is started, and where its figure is in what it prints.

use anyhow::{Context, ensure};
use serde_json::Value;

use super::Stage;
use super::process::{Server, client, free_port};

/// Length of the file that is downloaded.
const FILE_BYTES: u64 = 512 << 20;
/// Requests of redis-benchmark for each command.
const REQUESTS: &str = "30000";
/// Seconds of iperf3 and sockperf.
const SECONDS: &str = "3";
/// Round trips of the echo programs.
const ROUND_TRIPS: u32 = 20_000;

/// Which direction is better.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Better {
    /// Rates.
    Higher,
    /// Times.
    Lower,
}

/// One figure of a program.
#[derive(Clone, Debug)]
pub struct Measure {
    /// Its meaning.
    pub what: &'static str,
    /// The figure.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// Which direction is better.
    pub better: Better,
}

impl Measure {
    /// True for bytes in one direction.
    pub fn is_stream(&self) -> bool {
        self.gigabytes().is_some()
    }

    /// A rate of bytes in GB/s.
    pub fn gigabytes(&self) -> Option<f64> {
        match self.unit {
            "GB/s" => Some(self.value),
            "MB/s" => Some(self.value / 1e3),
            _ => None,
        }
    }
}

/// A server and a client.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// The name that people know them by.
    pub name: &'static str,
    /// Programs that must be installed.
    pub needs: &'static [&'static str],
    /// Runs them once.
    pub run: fn(&Stage) -> anyhow::Result<Vec<Measure>>,
}

/// All of them. The last needs nothing.
pub const SCENARIOS: [Scenario; 6] = [
    Scenario { name: "http.server, curl", needs: &["python3", "curl"], run: http },
    Scenario { name: "redis", needs: &["redis-server", "redis-benchmark"], run: redis },
    Scenario { name: "iperf3", needs: &["iperf3"], run: iperf },
    Scenario { name: "sockperf", needs: &["sockperf"], run: sockperf },
    Scenario { name: "python echo", needs: &["python3"], run: python_echo },
    Scenario { name: "rust echo", needs: &[], run: own_echo },
];

fn http(stage: &Stage) -> anyhow::Result<Vec<Measure>> {
    let path = stage.directory.join("file");
    let file = std::fs::File::create(&path)?;
    file.set_len(FILE_BYTES).context("no room for a file to download")?;
    // Both ways find the file in the page cache.
    std::io::copy(&mut std::fs::File::open(&path)?, &mut std::io::sink())?;
    let port = free_port()?;
    let mut server = stage.command("python3");
    server.args(["-m", "http.server", "--bind", "127.0.0.1", &port.to_string()]);
    let _server = Server::start(server, port)?;
    let mut download = stage.command("curl");
    download.args(["-sS", "--noproxy", "*", "-o", "/dev/null"]);
    download.args(["-w", "%{size_download} %{speed_download}"]);
    download.arg(format!("http://127.0.0.1:{port}/file"));
    let printed = client(download)?;
    let (size, speed) = printed.split_once(' ').context("curl printed no figures")?;
    ensure!(size.trim() == FILE_BYTES.to_string(), "curl got {size} of {FILE_BYTES} bytes");
    Ok(vec![Measure {
        what: "download",
        value: number(speed)? / 1e6,
        unit: "MB/s",
        better: Better::Higher,
    }])
}

fn redis(stage: &Stage) -> anyhow::Result<Vec<Measure>> {
    let port = free_port()?;
    let mut server = stage.command("redis-server");
    server.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
    server.args(["--save", "", "--appendonly", "no"]);
    let _server = Server::start(server, port)?;
    let mut benchmark = stage.command("redis-benchmark");
    benchmark.args(["-p", &port.to_string(), "-t", "set,get", "-c", "1"]);
    benchmark.args(["-n", REQUESTS, "--csv"]);
    let printed = client(benchmark)?;
    let figure = |name: &str| -> anyhow::Result<f64> {
        let line = printed
            .lines()
            .find(|line| line.starts_with(&format!("\"{name}\"")))
            .with_context(|| format!("redis-benchmark printed no line for {name}"))?;
        number(line.split(',').nth(1).context("a line without figures")?.trim_matches('"'))
    };
    Ok(vec![
        Measure { what: "SET", value: figure("SET")?, unit: "/s", better: Better::Higher },
        Measure { what: "GET", value: figure("GET")?, unit: "/s", better: Better::Higher },
    ])
}

fn iperf(stage: &Stage) -> anyhow::Result<Vec<Measure>> {
    let port = free_port()?;
    let mut server = stage.command("iperf3");
    server.args(["-s", "-B", "127.0.0.1", "-p", &port.to_string()]);
    let _server = Server::start(server, port)?;
    let mut stream = stage.command("iperf3");
    stream.args(["-c", "127.0.0.1", "-p", &port.to_string(), "-t", SECONDS, "-J"]);
    let json: Value = serde_json::from_str(&client(stream)?).context("iperf3 printed no JSON")?;
    let bits = json["end"]["sum_received"]["bits_per_second"]
        .as_f64()
        .context("iperf3 printed no figure")?;
    Ok(vec![Measure {
        what: "one stream",
        value: bits / 8e9,
        unit: "GB/s",
        better: Better::Higher,
    }])
}

fn sockperf(stage: &Stage) -> anyhow::Result<Vec<Measure>> {
    let port = free_port()?.to_string();
    let place = ["--tcp", "-i", "127.0.0.1", "-p", &port];
    let mut server = stage.command("sockperf");
    server.arg("server").args(place);
    let _server = Server::start(server, port.parse()?)?;
    let mut ping = stage.command("sockperf");
    // Its default is 600,000 messages a second at most, and it stops when a connection is faster.
    ping.arg("ping-pong").args(place).args(["-m", "64", "-t", SECONDS, "--mps=3000000"]);
    let printed = client(ping)?;
    let latency = printed
        .split("Latency is ")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next())
        .context("sockperf printed no latency")?;
    Ok(vec![Measure {
        what: "64 B one way",
        value: number(latency)?,
        unit: "us",
        better: Better::Lower,
    }])
}

const PYTHON_SERVER: &str = "\
import socket, sys
listener = socket.create_server(('127.0.0.1', int(sys.argv[1])))
while True:
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection:
        while data := connection.recv(4096):
            connection.sendall(data)
";

const PYTHON_CLIENT: &str = "\
import socket, sys, time
connection = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
count = int(sys.argv[2])
start = time.monotonic()
for number in range(count):
    message = number.to_bytes(8, 'little') * 8
    connection.sendall(message)
    answer = b''
    while len(answer) < 64:
        answer += connection.recv(64 - len(answer))
    assert answer == message
print((time.monotonic() - start) / count * 1e6)
";

fn python_echo(stage: &Stage) -> anyhow::Result<Vec<Measure>> {
    let port = free_port()?;
    let mut server = stage.command("python3");
    server.args(["-c", PYTHON_SERVER, &port.to_string()]);
    let _server = Server::start(server, port)?;
    let mut ping = stage.command("python3");
    ping.args(["-c", PYTHON_CLIENT, &port.to_string(), &ROUND_TRIPS.to_string()]);
    round_trip(&client(ping)?)
}

fn own_echo(stage: &Stage) -> anyhow::Result<Vec<Measure>> {
    let port = free_port()?;
    let weft = stage.weft.display().to_string();
    let mut server = stage.command(&weft);
    server.args(["demo", "--echo", "server", "--port", &port.to_string()]);
    let _server = Server::start(server, port)?;
    let mut ping = stage.command(&weft);
    ping.args(["demo", "--echo", "client", "--port", &port.to_string()]);
    round_trip(&client(ping)?)
}

fn round_trip(printed: &str) -> anyhow::Result<Vec<Measure>> {
    Ok(vec![Measure {
        what: "64 B round trip",
        value: number(printed)?,
        unit: "us",
        better: Better::Lower,
    }])
}

fn number(text: &str) -> anyhow::Result<f64> {
    let text = text.trim();
    let value: f64 = text.parse().with_context(|| format!("{text:?} is not a figure"))?;
    ensure!(value.is_finite() && value > 0.0, "{text} cannot be a figure");
    Ok(value)
}

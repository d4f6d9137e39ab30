//! `weft measure`: the programs by which daemons measure the ways to other hosts. A daemon starts
//! them; they are of no use to others.
//!
//! `serve` listens and answers. `run` is one client: it moves bytes until its connection had time
//! to come to a lane, then a stream, then round trips. `to` runs clients of both ways in turns.
//!
//! # Invariants
//! - Bytes and times are bounded at both ends: a stranger that connects gets no more either.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use weft_libfabric::{Library, Wanted};
use weft_options::Options;
use weft_transport_ofi::Ports;

use crate::arguments::MeasureCommand;
use crate::configuration::Configuration;
use crate::output::show_line;
use crate::path_trial;

/// Bytes of a message of a round trip.
const MESSAGE: usize = 64;
/// Round trips of one client.
const TURNS: usize = 200;
/// Bytes of the stream of one client.
const STREAM_BYTES: usize = 8 << 20;
/// Bytes of one write of the stream.
const PIECE: usize = 64 << 10;
/// How long a client talks before it measures: opening an endpoint takes as long.
const WARM_FOR: Duration = Duration::from_secs(3);
/// The time between two messages of that talk. The endpoints open meanwhile, and the programs of
/// both hosts have their processors.
const WARM_EVERY: Duration = Duration::from_millis(1);
/// The same of a client that stays on TCP.
const WARM_PLAIN_FOR: Duration = Duration::from_millis(200);
/// A connection that moves nothing for so long is over.
const SILENT_FOR: Duration = Duration::from_secs(10);
/// How long a server serves, and how many connections.
const SERVED_FOR: Duration = Duration::from_secs(80);
const CONNECTIONS_MAX: usize = 16;
/// Clients of each way.
const CLIENTS: usize = 2;
/// If the first clients took longer, the machine is busy, and they are the only ones: a measurement
/// has its end.
const AGAIN_WITHIN: Duration = Duration::from_secs(12);
/// Turns are measured for so long on a busy machine, if there have been a few.
const TURNS_FOR: Duration = Duration::from_secs(1);
const TURNS_FEW: usize = 20;

/// The first byte of what a client sends.
const TURN: u8 = 1;
const STREAM: u8 = 2;

/// `weft measure`.
pub fn measure(
    command: &MeasureCommand,
    configuration: impl Fn() -> anyhow::Result<Configuration>,
) -> anyhow::Result<ExitCode> {
    match command {
        MeasureCommand::Serve { address } => serve(*address)?,
        MeasureCommand::Run { to, warm_ms } => {
            let (round_trip_ns, bytes_per_s) = run(*to, Duration::from_millis(*warm_ms))?;
            show_line!("{round_trip_ns} {bytes_per_s}");
        }
        MeasureCommand::Path => path_trial::serve(&configuration()?.options)?,
        MeasureCommand::To { plain, fabric } => {
            match ensure_provider(&configuration()?.options).and_then(|()| both(*plain, *fabric)) {
                Ok([tcp, fabric]) => show_line!("{} {} {} {}", tcp.0, tcp.1, fabric.0, fabric.1),
                Err(error) => show_line!("{error:#}"),
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn serve(address: IpAddr) -> anyhow::Result<()> {
    let listener = TcpListener::bind((address, 0))?;
    show_line!("{}", listener.local_addr()?.port());
    std::thread::spawn(|| {
        std::thread::sleep(SERVED_FOR);
        std::process::exit(0);
    });
    for stream in listener.incoming().take(CONNECTIONS_MAX) {
        // One that breaks off is no reason to stop.
        let _ = stream.and_then(answer);
    }
    Ok(())
}

fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENT_FOR))?;
    stream.set_write_timeout(Some(SILENT_FOR))
}

/// Answers a client: each message by itself, and a stream by one byte.
fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    prepare(&stream)?;
    let mut piece = vec![0; PIECE];
    loop {
        match stream.read_exact(&mut piece[..MESSAGE]) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        }
        if piece[0] == STREAM {
            let mut left = STREAM_BYTES;
            while left > 0 {
                let most = left.min(PIECE);
                let got = stream.read(&mut piece[..most])?;
                if got == 0 {
                    return Ok(());
                }
                left -= got;
            }
        }
        stream.write_all(&piece[..MESSAGE])?;
    }
}

fn turn(stream: &mut TcpStream, kind: u8) -> std::io::Result<()> {
    let mut message = [kind; MESSAGE];
    stream.write_all(&message)?;
    if kind == TURN { stream.read_exact(&mut message) } else { Ok(()) }
}

/// One client: nanoseconds of the median round trip, and bytes per second.
fn run(to: SocketAddr, warm: Duration) -> anyhow::Result<(u64, u64)> {
    let mut stream = TcpStream::connect_timeout(&to, SILENT_FOR)?;
    prepare(&stream)?;
    let start = Instant::now();
    while start.elapsed() < warm {
        turn(&mut stream, TURN)?;
        std::thread::sleep(WARM_EVERY);
    }
    let piece = vec![7; PIECE];
    let start = Instant::now();
    turn(&mut stream, STREAM)?;
    for _ in 0..STREAM_BYTES / PIECE {
        stream.write_all(&piece)?;
    }
    stream.read_exact(&mut [0; MESSAGE])?;
    let nanoseconds = start.elapsed().as_nanos().max(1);
    let bytes_per_s = u64::try_from(STREAM_BYTES as u128 * 1_000_000_000 / nanoseconds)?;
    let mut times = Vec::with_capacity(TURNS);
    let turns_end = Instant::now() + TURNS_FOR;
    while times.len() < TURNS && (times.len() < TURNS_FEW || Instant::now() < turns_end) {
        let start = Instant::now();
        turn(&mut stream, TURN)?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok((u64::try_from(times[times.len() / 2].as_nanos())?, bytes_per_s))
}

/// Checks that libfabric is there, with the provider that programs use.
fn ensure_provider(options: &Options) -> anyhow::Result<()> {
    let provider = options.fabric_provider().map(str::to_owned);
    let wanted = Ports::between_hosts(Wanted { provider, ..Wanted::default() })?.wanted;
    let offers = Library::load()?.offers(&wanted)?;
    let name = wanted.provider.unwrap_or_default();
    ensure!(!offers.is_empty(), "libfabric has no provider {name}; see `weft info`");
    Ok(())
}

/// Clients of both ways in turns: the best of each figure, of TCP and of the fabric.
fn both(plain: SocketAddr, fabric: SocketAddr) -> anyhow::Result<[(u64, u64); 2]> {
    let own = std::env::current_exe()?;
    let own = own.to_str().context("the path of weft is no text")?;
    let mut best = [(u64::MAX, 0); 2];
    let start = Instant::now();
    for client in 0..CLIENTS {
        if client > 0 && start.elapsed() > AGAIN_WITHIN {
            break;
        }
        for (way, (to, warm)) in
            [(plain, WARM_PLAIN_FOR), (fabric, WARM_FOR)].into_iter().enumerate()
        {
            let (to, warm) = (to.to_string(), warm.as_millis().to_string());
            let client = ["measure", "run", &to, "--warm-ms", &warm];
            let under = ["run", "--stats", "--socket-between-hosts", "always", "--", own];
            let mut command = Command::new(own);
            let command =
                if way == 0 { command.args(client) } else { command.args(under).args(client) };
            let ended = command.stdin(Stdio::null()).output()?;
            let told = String::from_utf8_lossy(&ended.stdout).into_owned();
            let complaints = String::from_utf8_lossy(&ended.stderr).into_owned();
            let (round_trip, stream) =
                figures(&told).with_context(|| first_line(&complaints, "a client failed"))?;
            if way == 1 {
                ensure_moved(&complaints)?;
            }
            let one = &mut best[way];
            *one = (one.0.min(round_trip), one.1.max(stream));
        }
    }
    Ok(best)
}

fn figures(told: &str) -> anyhow::Result<(u64, u64)> {
    let mut words = told.split_whitespace().map(str::parse);
    match (words.next(), words.next()) {
        (Some(Ok(round_trip)), Some(Ok(stream))) => Ok((round_trip, stream)),
        _ => bail!("no figures"),
    }
}

fn first_line(text: &str, otherwise: &str) -> String {
    text.lines().next().unwrap_or(otherwise).to_owned()
}

/// Checks that the stream went over the fabric, by what `weft run --stats` printed.
fn ensure_moved(stats: &str) -> anyhow::Result<()> {
    let row = stats.lines().find_map(|line| line.strip_prefix("fabric "));
    let words: Vec<&str> = row.unwrap_or_default().split_whitespace().collect();
    let [_, sent, unit, ..] = words[..] else { bail!("no counters of the client") };
    let scale = match unit {
        "kB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        _ => 1.0,
    };
    let sent = sent.parse::<f64>().unwrap_or(0.0) * scale;
    // Counters are rounded.
    let tells = |line: &&str| line.starts_with("weft: ") || line.starts_with("on tcp: ");
    let warning = stats.lines().find(tells).unwrap_or_default();
    ensure!(
        sent >= 0.9 * STREAM_BYTES as f64,
        "the connection stayed on TCP{}{warning}",
        if warning.is_empty() { "" } else { ": " }
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_measures_a_server() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let to = listener.local_addr().expect("bound");
        let server = std::thread::spawn(move || answer(listener.accept().expect("a client").0));
        let (round_trip_ns, bytes_per_s) = run(to, Duration::ZERO).expect("a server");
        assert!(round_trip_ns > 0 && bytes_per_s > 0);
        server.join().expect("no panic").expect("a client that ends in order");
    }

    #[test]
    fn what_stayed_on_tcp_is_no_measurement_of_the_fabric() {
        let stats =
            |row: &str| format!("weft    connections  sent  received\n{row}\ntcp 1 1 MB 1 MB\n");
        assert!(ensure_moved(&stats("fabric            1  8450 kB    61 kB")).is_ok());
        assert!(ensure_moved(&stats("fabric            1  8 MB    61 kB")).is_ok());
        let stayed = format!("weft: no endpoint: it\n{}", stats("fabric 1 20 kB 61 kB"));
        let error = ensure_moved(&stayed).expect_err("too little").to_string();
        assert_eq!(error, "the connection stayed on TCP: weft: no endpoint: it");
        assert!(ensure_moved("nothing").is_err());
        assert!(figures("5 7\n").is_ok_and(|told| told == (5, 7)) && figures("x").is_err());
    }
}

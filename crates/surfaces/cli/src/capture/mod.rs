//! `weft capture`: what connections on the fabric carry, as a file that Wireshark reads.
//!
//! The daemon shows the memory of each connection for reading alone; this process looks at it every
//! moment ([`weft_transport_shm::lane::tap`]). The two ends do nothing for it and notice nothing.

mod segments;

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use signal_hook::consts::{SIGINT, SIGTERM};
use weft_transport_shm::lane::tap::{Found, Tap, TappedMessage};
use weftd::ConnectionStatus;

use crate::arguments::CaptureArguments;
use crate::configuration::Configuration;
use crate::daemon::absence;
use crate::output::show_line;
use segments::Ends;

/// How often the daemon is asked for new connections.
const CONNECTIONS_EVERY: Duration = Duration::from_millis(20);
/// The pause when nothing was found: short beside the time in which a lane is used once.
const PAUSE: Duration = Duration::from_micros(100);
/// Connections that are looked at, at once.
const CONNECTIONS_MAX: usize = 256;
/// The form of time stamps: nanoseconds.
const NANOSECONDS: u8 = 9;

/// The addresses of a connection and the process that opened it.
type Key = (String, String, u32);

/// A connection that is looked at.
struct Watched {
    tap: Tap,
    ends: Ends,
    /// The bytes that each end had sent when the capture began.
    base: [u64; 2],
    /// The bytes of each end that were captured or are known to be lost.
    place: [u64; 2],
}

/// The counts of a capture.
#[derive(Clone, Copy, Default, Debug, serde::Serialize)]
struct Sums {
    connections: u64,
    packets: u64,
    bytes: u64,
    losses: u64,
    lost_bytes: u64,
    file_bytes: u64,
}

/// `weft capture`.
pub fn capture(
    arguments: &CaptureArguments,
    configuration: &Configuration,
) -> anyhow::Result<ExitCode> {
    let socket = configuration.control_socket(arguments.node.node.as_deref())?;
    ensure!(weftd::client::answers(&socket.path), "{}", absence(&socket));
    let mut output = Output::create(&arguments.write)?;
    let ends = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&ends))?;
    }
    let until = arguments.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut watched: HashMap<Key, Watched> = HashMap::new();
    let mut due = Instant::now();
    eprintln!("weft: capturing to {}; control-c ends it", arguments.write.display());
    while !ends.load(Ordering::Relaxed)
        && until.is_none_or(|until| Instant::now() < until)
        && output.sums.file_bytes < arguments.bytes
    {
        if Instant::now() >= due {
            due = Instant::now() + CONNECTIONS_EVERY;
            find(&socket.path, arguments.of.as_deref(), &mut watched, &mut output)?;
        }
        let mut found = false;
        for one in watched.values_mut() {
            for direction in 0..2 {
                found |= one.look(direction, &mut output)?;
            }
        }
        if !found {
            output.flush()?;
            std::thread::sleep(PAUSE);
        }
    }
    output.sums.lost_bytes += watched.values().map(Watched::missing).sum::<u64>();
    output.flush()?;
    let sums = output.sums;
    if arguments.json {
        show_line!("{}", serde_json::to_string(&sums)?);
    } else {
        eprintln!(
            "weft: {} packets with {} bytes of {} connections; {} bytes were lost, in {} places",
            sums.packets, sums.bytes, sums.connections, sums.lost_bytes, sums.losses
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Begins to look at new connections, and ends it for those that are gone.
fn find(
    socket: &Path,
    of: Option<&str>,
    watched: &mut HashMap<Key, Watched>,
    output: &mut Output,
) -> anyhow::Result<()> {
    let status = weftd::client::status(socket)?;
    let wanted = |one: &&ConnectionStatus| {
        of.is_none_or(|of| {
            let is_process =
                [one.client_pid, one.server_pid].iter().any(|pid| pid.to_string() == of);
            is_process || one.client.contains(of) || one.server.contains(of)
        })
    };
    let key = |one: &ConnectionStatus| (one.server.clone(), one.client.clone(), one.client_pid);
    let there: HashMap<Key, &ConnectionStatus> =
        status.connections.iter().filter(wanted).map(|one| (key(one), one)).collect();
    let gone: Vec<_> = watched.keys().filter(|key| !there.contains_key(*key)).cloned().collect();
    for key in gone {
        if let Some(mut one) = watched.remove(&key) {
            for direction in 0..2 {
                one.look(direction, output)?;
            }
            output.sums.lost_bytes += one.missing();
            one.ends.end().iter().try_for_each(|packet| output.packet(packet))?;
        }
    }
    for (key, one) in there {
        if watched.len() < CONNECTIONS_MAX && !watched.contains_key(&key) {
            // One of another user, or one that is gone by now.
            let Ok(shown) = weftd::client::tap(socket, one) else { continue };
            let tap = Tap::open(shown.as_fd()).context("the daemon showed no lane")?;
            let address = |text: &str| text.parse::<SocketAddr>().ok();
            let (Some(server), Some(client)) = (address(&one.server), address(&one.client)) else {
                continue;
            };
            let ends = Ends::new([server, client]);
            ends.beginning().iter().try_for_each(|packet| output.packet(packet))?;
            output.sums.connections += 1;
            let mut one = Watched { tap, ends, base: [0; 2], place: [0; 2] };
            one.begin();
            watched.insert(key, one);
        }
    }
    Ok(())
}

fn announces(message: &TappedMessage) -> Option<u64> {
    weft_socket::tap::announced(message.tag, &message.payload)
}

impl Watched {
    /// Begins where the receivers are.
    fn begin(&mut self) {
        for direction in 0..2 {
            self.tap.follow(direction, announces);
            self.base[direction] = self.tap.sent(direction);
            // Unread bytes were sent before, and are captured still.
            let unread = self.tap.unread(direction, announces);
            self.base[direction] = self.base[direction].saturating_sub(unread);
        }
    }

    /// Bytes that were sent and neither captured nor told to be lost.
    fn missing(&self) -> u64 {
        let of = |direction: usize| {
            let sent = self.tap.sent(direction).saturating_sub(self.base[direction]);
            sent.saturating_sub(self.place[direction])
        };
        of(0).saturating_add(of(1))
    }

    /// Writes what an end has sent since. True if there was something.
    fn look(&mut self, direction: usize, output: &mut Output) -> anyhow::Result<bool> {
        if !self.tap.is_followed(direction) {
            if !self.tap.follow(direction, announces) {
                return Ok(false);
            }
            let unread = self.tap.unread(direction, announces);
            let sent = self.tap.sent(direction).saturating_sub(self.base[direction]);
            let here = sent.saturating_sub(unread).max(self.place[direction]);
            output.sums.lost_bytes += here - self.place[direction];
            self.place[direction] = here;
            self.ends.seek(direction, here);
        }
        match self.tap.look(direction, announces) {
            Found::Nothing => Ok(false),
            Found::Lost => {
                output.sums.losses += 1;
                Ok(true)
            }
            Found::Bytes(bytes) => {
                self.place[direction] += bytes.len() as u64;
                output.sums.bytes += bytes.len() as u64;
                let packets = self.ends.bytes(direction, &bytes);
                packets.iter().try_for_each(|packet| output.packet(packet))?;
                Ok(true)
            }
        }
    }
}

/// The file.
struct Output {
    writer: PcapNgWriter<BufWriter<File>>,
    sums: Sums,
    is_dirty: bool,
}

impl Output {
    fn create(path: &Path) -> anyhow::Result<Self> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)
            .with_context(|| format!("{} cannot be written", path.display()))?;
        let mut writer = PcapNgWriter::new(BufWriter::new(file))?;
        writer.write_pcapng_block(InterfaceDescriptionBlock {
            linktype: DataLink::RAW,
            snaplen: 0,
            options: vec![
                InterfaceDescriptionOption::IfName("weft".into()),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ],
        })?;
        Ok(Self { writer, sums: Sums::default(), is_dirty: true })
    }

    fn packet(&mut self, packet: &[u8]) -> anyhow::Result<()> {
        let written = self.writer.write_pcapng_block(EnhancedPacketBlock {
            interface_id: 0,
            timestamp: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            original_len: u32::try_from(packet.len()).unwrap_or(u32::MAX),
            data: packet.into(),
            options: Vec::new(),
        })?;
        self.sums.file_bytes += written as u64;
        self.sums.packets += 1;
        self.is_dirty = true;
        Ok(())
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        if std::mem::take(&mut self.is_dirty) {
            self.writer.get_mut().flush().context("the capture cannot be written")?;
        }
        Ok(())
    }
}

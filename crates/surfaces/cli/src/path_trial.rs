//! `weft measure path`: tries the path of data to other hosts, for the daemon of this one, by
//! endpoints of the provider that programs use. A provider that crashes ends this program alone.
//!
//! It prints `at PROVIDER NAME` for an endpoint that sends back whatever comes, the name in
//! hexadecimal digits. A line `try NUMBER NAME` has it send something to such an endpoint of
//! another host, from an endpoint that is new, so that no connection of an earlier try is used. It
//! prints `tried NUMBER` or `tried NUMBER REASON`, or `busy NUMBER REASON` where all ports are in
//! use here. It ends with its input.
//!
//! # Invariants
//! - Each try ends, after [`TRIED_WITHIN`] at the latest, and at most [`AT_ONCE`] are under way.
//! - An endpoint that cannot be opened here says nothing of the path: `without REASON`.

use std::collections::VecDeque;
use std::io::BufRead;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use weft_libfabric::{Error, Peer, Port, PortOptions, Refused, Report, Wanted};
use weft_options::Options;
use weft_transport_ofi::Ports;

use crate::output::show_line;

/// How long a try may take. A busy machine is not that slow.
const TRIED_WITHIN: Duration = Duration::from_secs(10);
/// How soon something is sent again: what was on a connection that broke is lost.
const AGAIN: Duration = Duration::from_millis(500);
/// Tries at the same time.
const AT_ONCE: usize = 8;
/// Peers that are answered at most.
const ANSWERED_MAX: usize = 4096;
/// Bytes of a message: the number of a try, and the name of its endpoint.
const MESSAGE_BYTES_MAX: usize = 8 + 256;
/// The pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(1);
const OPTIONS: PortOptions =
    PortOptions { message_bytes_max: MESSAGE_BYTES_MAX, receives_max: 256, sends_max: 64 };

/// A try that is under way.
struct Try {
    node: u32,
    port: Port,
    peer: Peer,
    secret: [u8; 8],
    until: Instant,
    again: Instant,
    /// The last thing that the provider complained of.
    fault: Option<String>,
}

/// Runs until the input ends.
pub fn serve(options: &Options) -> anyhow::Result<()> {
    let provider = options.fabric_provider().map(str::to_owned);
    let source = options.fabric_listen().map(|listen| listen.ip().to_string());
    let wanted = Wanted { provider, source, ports: options.fabric_ports() };
    let opened = Ports::between_hosts(wanted).map(|ports| ports.wanted).and_then(|wanted| {
        let port = Port::of(&wanted, OPTIONS)?;
        Ok((wanted, port))
    });
    let (wanted, mut answering) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            show_line!("without {error}");
            return Ok(());
        }
    };
    let lines = input()?;
    let provider = wanted.provider.clone().unwrap_or_default();
    show_line!("at {provider} {}", hexadecimal(answering.name()));
    let mut waiting: VecDeque<(u32, Vec<u8>)> = VecDeque::new();
    let mut tries: Vec<Try> = Vec::new();
    let mut answered = 0;
    loop {
        loop {
            match lines.try_recv() {
                Ok(line) => waiting.push_back(parse(&line).context("a line that is no try")?),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Ok(()),
            }
        }
        while tries.len() < AT_ONCE
            && let Some((node, name)) = waiting.pop_front()
        {
            match Try::begin(&wanted, node, &name) {
                Ok(begun) => tries.push(begun),
                Err(error) if is_busy(&error) => show_line!("busy {node} {error:#}"),
                Err(error) => show_line!("tried {node} {error:#}"),
            }
        }
        answer(&mut answering, &mut answered)?;
        tries.retain_mut(|one| match one.look(&wanted) {
            None => true,
            Some(told) => {
                show_line!("tried {}{told}", one.node);
                false
            }
        });
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Whether there is no port for an endpoint, which says nothing of the path.
fn is_busy(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::PortsInUse { .. }))
}

/// The lines of the input, read by a thread.
fn input() -> anyhow::Result<Receiver<String>> {
    let (sender, lines) = sync_channel(512);
    std::thread::Builder::new().name("weft-input".to_owned()).spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    })?;
    Ok(lines)
}

/// Sends back what came.
fn answer(port: &mut Port, answered: &mut usize) -> Result<(), Error> {
    let mut came = Vec::new();
    port.poll(64, &mut |report| {
        if let Report::Message(message) = report {
            came.push(message.to_vec());
        }
    })?;
    for message in came {
        let Some((secret, name)) = message.split_first_chunk::<8>() else { continue };
        if *answered >= ANSWERED_MAX {
            continue;
        }
        *answered += 1;
        // It asks again, if this is lost.
        if let Ok(peer) = port.insert(name) {
            let _ = port.send(peer, secret);
        }
    }
    Ok(())
}

impl Try {
    fn begin(wanted: &Wanted, node: u32, name: &[u8]) -> anyhow::Result<Self> {
        let mut port = Port::of(wanted, OPTIONS)?;
        let peer = port.insert(name).context(
            "the endpoint there has an address of another kind; see that fabric.listen is an \
             address of the same family (IPv4 or IPv6) on all hosts, and fabric.provider the same",
        )?;
        let mut secret = [0; 8];
        rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())?;
        let now = Instant::now();
        let (until, again) = (now + TRIED_WITHIN, now);
        Ok(Self { node, port, peer, secret, until, again, fault: None })
    }

    /// Goes on. `Some` when it is over: nothing, or a blank and why it failed.
    fn look(&mut self, wanted: &Wanted) -> Option<String> {
        let now = Instant::now();
        if self.again <= now {
            self.again = now + AGAIN;
            let message = [&self.secret[..], self.port.name()].concat();
            if let Err(Refused::Failed(error)) = self.port.send(self.peer, &message) {
                self.fault = Some(error.to_string());
            }
        }
        let (mut has_come, mut fault) = (false, None);
        let polled = self.port.poll(64, &mut |report| match report {
            Report::Message(message) => has_come |= *message == self.secret,
            Report::SendFailed { error, .. } | Report::Stray { error } => {
                fault = Some(error.to_string());
            }
            _ => {}
        });
        self.fault = fault.or_else(|| polled.err().map(|error| error.to_string())).or_else(|| {
            // The last one stays.
            self.fault.take()
        });
        if has_come {
            return Some(String::new());
        }
        (self.until <= now).then(|| {
            let fault = self.fault.as_ref().map(|fault| format!(" ({fault})"));
            format!(" {}{}", silence(wanted), fault.unwrap_or_default())
        })
    }
}

/// The words for a path on which nothing came back, with the cure.
fn silence(wanted: &Wanted) -> String {
    let provider = wanted.provider.as_deref().unwrap_or_default();
    let seconds = TRIED_WITHIN.as_secs();
    let is_ip = ["tcp", "net", "sockets"].iter().any(|name| provider.starts_with(name));
    let cure = match &wanted.ports {
        Some(ports) if is_ip => format!(
            "let the TCP ports {} to {} (fabric.ports) through the firewalls between the two hosts",
            ports.start(),
            ports.end()
        ),
        None if is_ip => "endpoints listen at any TCP port; where there is a firewall set \
                          fabric.ports on all hosts, as 7710-7790, and let those through it"
            .to_owned(),
        _ => format!("see that the network of {provider} connects the two hosts"),
    };
    format!("nothing came back over {provider} within {seconds} s; {cure}")
}

/// `try NUMBER NAME`.
fn parse(line: &str) -> anyhow::Result<(u32, Vec<u8>)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let ["try", node, name] = words[..] else { bail!("{line:?}") };
    let digits = name.as_bytes().as_chunks::<2>();
    let name: Option<Vec<u8>> = digits.0.iter().map(byte_of).collect();
    let name = name.filter(|_| digits.1.is_empty());
    Ok((node.parse()?, name.with_context(|| format!("{line:?}"))?))
}

fn byte_of(digits: &[u8; 2]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_is_written() {
        let name = [0, 7, 255, 16];
        let line = format!("try 12 {}", hexadecimal(&name));
        assert_eq!(parse(&line).expect("a try"), (12, name.to_vec()));
        for wrong in ["", "try", "try 1", "try x 00", "try 1 0", "try 1 zz", "no 1 00"] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_silent_path_is_told_with_its_ports() {
        let wanted = |provider: &str, ports| Wanted {
            provider: Some(provider.to_owned()),
            source: None,
            ports,
        };
        let told = silence(&wanted("net", Some(7710..=7790)));
        assert!(told.contains("7710 to 7790") && told.contains("firewall"), "{told}");
        assert!(silence(&wanted("tcp;ofi_rxm", None)).contains("set fabric.ports"));
        assert!(silence(&wanted("verbs;ofi_rxm", None)).contains("the network of verbs"));
    }
}

//! Messages and notifications of an endpoint in shared memory.
//!
//! They are read out of the memory of the endpoint's process, `/proc/PID/mem`. The kernel lets a
//! process read there which may trace the other one: one of the same user, as far as its security
//! modules allow, and root. So the daemon hands out nothing for it, and the endpoints notice
//! nothing.
//!
//! Each is a packet of link type [`LINK`]: a header of 20 bytes, then the payload. Numbers are big
//! endian. `docs/wireshark/weft.lua` names the fields.
//!
//! ```text
//! 0   version, 1            1   content: 0 message, 1 to a group, 2 notification, 3 unknown,
//!                                        255 lost messages
//! 2   VPID of the sender    4   VPID of the receiver
//! 6   tag or class          7   type of message
//! 8   number in its direction
//! 16  group, or side        17  command        18  bytes of payload        19  zero
//! ```

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, bail};
use pcap_file::DataLink;
use weft_transport_shm::pair_tap::{Content, PairTap, Tapped};

use super::Subject;
use super::output::{Direction, Interface, Output};

/// The link type: the first of those that pcap leaves to private use.
pub const LINK: DataLink = DataLink::USER0;
const VERSION: u8 = 1;
const LOST: u8 = 255;
/// Pairs that are looked at, at once.
const PAIRS_MAX: usize = 256;
/// The name of the memory of a pair in `/proc/PID/maps`.
const MEMORY: &str = "/memfd:weft-pair";

/// Reads the memory of a pair in another process.
type Reader = Box<dyn FnMut(usize, &mut [u8]) -> std::io::Result<()>>;

/// The pairs of an endpoint, by their addresses in its process.
pub struct Messages {
    vpid: u16,
    interface: Interface,
    pid: Option<u32>,
    watched: HashMap<u64, PairTap<Reader>>,
}

impl Messages {
    /// Those of the endpoint with a number.
    pub fn new(vpid: u16, output: &mut Output) -> anyhow::Result<Self> {
        let interface = output.interface(&format!("endpoint {vpid}"), LINK)?;
        Ok(Self { vpid, interface, pid: None, watched: HashMap::new() })
    }

    fn open(&self, pid: u32, start: u64, length: usize) -> anyhow::Result<PairTap<Reader>> {
        let memory = File::open(format!("/proc/{pid}/mem")).with_context(|| {
            format!(
                "process {pid} cannot be looked at: it is of another user, or \
                 kernel.yama.ptrace_scope forbids it; root may"
            )
        })?;
        let read: Reader = Box::new(move |offset, bytes| {
            memory.read_exact_at(bytes, start.saturating_add(offset as u64))
        });
        Ok(PairTap::open(length, read)?)
    }
}

/// The starts and lengths of the pairs in the memory of a process.
fn pairs(maps: &str) -> Vec<(u64, usize)> {
    let pair = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let (start, end) = (number(start)?, number(end)?);
        let is_pair = rest.contains(MEMORY);
        is_pair.then(|| Some((start, usize::try_from(end.checked_sub(start)?).ok()?)))?
    };
    maps.lines().filter_map(pair).collect()
}

/// A packet of the file.
fn packet((from, to): (u16, u16), message: &Tapped) -> Vec<u8> {
    let (content, kind, place, command) = match message.content() {
        Content::Message(kind) => (0, kind, 0, 0),
        Content::Multicast(kind, group) => (1, kind, group, 0),
        Content::Notification(side, command) => (2, 0, side, command),
        Content::Unknown => (3, 0, 0, 0),
    };
    let length = u8::try_from(message.payload.len()).unwrap_or(u8::MAX);
    let mut packet = vec![VERSION, content];
    packet.extend(from.to_be_bytes());
    packet.extend(to.to_be_bytes());
    packet.extend([message.tag, kind]);
    packet.extend(message.number.to_be_bytes());
    packet.extend([place, command, length, 0]);
    packet.extend(&message.payload);
    packet
}

/// A packet that says how many messages are missing.
fn lost((from, to): (u16, u16), count: u64) -> Vec<u8> {
    let mut packet = vec![VERSION, LOST];
    packet.extend(from.to_be_bytes());
    packet.extend(to.to_be_bytes());
    packet.extend([0; 2]);
    packet.extend(count.to_be_bytes());
    packet.extend([0; 4]);
    packet
}

impl Subject for Messages {
    fn find(&mut self, socket: &Path, output: &mut Output) -> anyhow::Result<()> {
        let status = weftd::client::status(socket)?;
        let found = status.endpoints.iter().find(|endpoint| endpoint.vpid == self.vpid);
        let Some(endpoint) = found else {
            if self.pid.is_none() {
                bail!("there is no endpoint {}; `weft status` shows all", self.vpid);
            }
            self.watched.clear();
            return Ok(());
        };
        if self.pid.replace(endpoint.pid).is_some_and(|former| former != endpoint.pid) {
            self.watched.clear();
        }
        let pid = endpoint.pid;
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"));
        let maps = maps.with_context(|| format!("process {pid} is of another user, or gone"))?;
        let there = pairs(&maps);
        self.watched.retain(|start, _| there.iter().any(|(known, _)| known == start));
        for (start, length) in there {
            if self.watched.len() < PAIRS_MAX && !self.watched.contains_key(&start) {
                let tap = self.open(pid, start, length);
                let is_not_ready = tap.as_ref().is_err_and(|error| {
                    error
                        .downcast_ref::<std::io::Error>()
                        .is_some_and(|error| error.kind() == std::io::ErrorKind::InvalidData)
                });
                // A pair that has one end so far is looked at again.
                if is_not_ready {
                    continue;
                }
                let tap = tap?;
                let (maker, peer) = tap.ends(0);
                if maker == self.vpid || peer == self.vpid {
                    output.sums.subjects += 1;
                    self.watched.insert(start, tap);
                }
            }
        }
        Ok(())
    }

    fn look(&mut self, output: &mut Output) -> anyhow::Result<bool> {
        let mut found = false;
        let mut gone = Vec::new();
        for (start, tap) in &mut self.watched {
            for direction in 0..2 {
                let ends = tap.ends(direction);
                let (from, _) = ends;
                let before = tap.lost;
                let Ok(seen) = tap.look(direction) else {
                    gone.push(*start);
                    break;
                };
                let way = if from == self.vpid { Direction::Outbound } else { Direction::Inbound };
                if tap.lost > before {
                    found = true;
                    output.sums.losses += 1;
                    output.sums.lost_packets += tap.lost - before;
                    output.packet(self.interface, &lost(ends, tap.lost - before), way, 0)?;
                }
                for message in seen {
                    found = true;
                    let bytes = message.payload.len();
                    output.packet(self.interface, &packet(ends, &message), way, bytes)?;
                }
            }
        }
        for start in gone {
            self.watched.remove(&start);
        }
        Ok(found)
    }

    fn end(&mut self, _: &mut Output) -> anyhow::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_found_among_the_maps_of_a_process() {
        let maps = "7f10-7f20 rw-s 00000000 00:01 5  /memfd:weft-pair (deleted)\n\
                    7f20-7f30 rw-s 00000000 00:01 6  /memfd:weft-lane (deleted)\nnonsense\n";
        assert_eq!(pairs(maps), [(0x7f10, 0x10)]);
    }

    #[test]
    fn a_packet_has_its_header_and_its_payload() {
        let message = Tapped { number: 258, tag: 9, flags: 0b1001_1000, payload: vec![1; 40] };
        let packet = packet((3, 260), &message);
        assert_eq!(packet[..8], [1, 2, 0, 3, 1, 4, 9, 0]);
        assert_eq!(packet[8..20], [0, 0, 0, 0, 0, 0, 1, 2, 1, 2, 40, 0]);
        assert_eq!(packet.len(), 60);
        assert_eq!(lost((1, 2), 7)[8..16], [0, 0, 0, 0, 0, 0, 0, 7]);
    }
}

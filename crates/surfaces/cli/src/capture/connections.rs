//! Connections on the fabric: the daemon shows the memory of their lanes.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::Path;

use anyhow::Context;
use pcap_file::DataLink;
use weft_transport_shm::lane::tap::{Found, Tap, TappedMessage};
use weftd::ConnectionStatus;

use super::Subject;
use super::output::{Direction, Interface, Output};
use super::segments::{Ends, PAYLOAD_MAX};

/// Connections that are looked at, at once.
const CONNECTIONS_MAX: usize = 256;

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

/// The connections that are looked at.
pub struct Connections {
    /// The content of an address, or the number of a process.
    of: Option<String>,
    interface: Interface,
    watched: HashMap<Key, Watched>,
}

impl Connections {
    /// Those that have `of` in an address, or of that process; all without it.
    pub fn new(of: Option<String>, output: &mut Output) -> anyhow::Result<Self> {
        let interface = output.interface("weft", DataLink::RAW)?;
        Ok(Self { of, interface, watched: HashMap::new() })
    }
}

impl Subject for Connections {
    fn find(&mut self, socket: &Path, output: &mut Output) -> anyhow::Result<()> {
        let Self { of, interface, watched } = self;
        find(socket, of.as_deref(), *interface, watched, output)
    }

    fn look(&mut self, output: &mut Output) -> anyhow::Result<bool> {
        let mut found = false;
        for one in self.watched.values_mut() {
            for direction in 0..2 {
                found |= one.look(direction, self.interface, output)?;
            }
        }
        Ok(found)
    }

    fn end(&mut self, output: &mut Output) -> anyhow::Result<()> {
        output.sums.lost_bytes += self.watched.values().map(Watched::missing).sum::<u64>();
        Ok(())
    }
}

/// Begins to look at new connections, and ends it for those that are gone.
fn find(
    socket: &Path,
    of: Option<&str>,
    interface: Interface,
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
                one.look(direction, interface, output)?;
            }
            output.sums.lost_bytes += one.missing();
            one.ends
                .end()
                .iter()
                .try_for_each(|packet| output.packet(interface, packet, Direction::Unknown, 0))?;
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
            ends.beginning()
                .iter()
                .try_for_each(|packet| output.packet(interface, packet, Direction::Unknown, 0))?;
            output.sums.subjects += 1;
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
    fn look(
        &mut self,
        direction: usize,
        interface: Interface,
        output: &mut Output,
    ) -> anyhow::Result<bool> {
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
                for payload in bytes.chunks(PAYLOAD_MAX) {
                    let packet = self.ends.bytes(direction, payload);
                    output.packet(interface, &packet, Direction::Unknown, payload.len())?;
                }
                Ok(true)
            }
        }
    }
}

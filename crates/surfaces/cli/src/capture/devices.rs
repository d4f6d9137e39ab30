//! Ethernet devices: the kernel shows the frames that their interfaces send and receive.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;

use anyhow::{Context, bail};
use pcap_file::DataLink;
use weft_netdev::namespace::Namespace;
use weft_netdev::packets::Packets;
use weftd::DeviceStatus;

use super::Subject;
use super::output::{Direction, Interface, Output};

/// Bytes of a frame at most: the kernel leaves segments of 64 KiB together.
const FRAME_MAX: usize = 66_000;
/// Frames that are taken from a device before the next one is looked at.
const FRAMES_A_TURN: usize = 256;

/// The devices that are looked at, by their nodes.
pub struct Devices {
    /// The node of the device; `None` for all.
    node: Option<u32>,
    watched: HashMap<u32, (Packets, Interface)>,
    frame: Vec<u8>,
}

impl Devices {
    /// The device of a node, or all devices.
    pub fn new(node: Option<u32>) -> Self {
        Self { node, watched: HashMap::new(), frame: vec![0; FRAME_MAX] }
    }
}

fn open(device: &DeviceStatus) -> anyhow::Result<Packets> {
    let open = || Packets::of(&device.interface);
    let opened = match &device.namespace {
        Some(name) => Namespace::named(name)?.enter(open)?,
        None => open(),
    };
    opened.with_context(|| format!("the device of node {} cannot be looked at", device.node))
}

impl Subject for Devices {
    fn find(&mut self, socket: &Path, output: &mut Output) -> anyhow::Result<()> {
        let status = weftd::client::status(socket)?;
        let is_wanted = |device: &&DeviceStatus| self.node.is_none_or(|node| node == device.node);
        let wanted: Vec<_> = status.devices.iter().filter(is_wanted).collect();
        if let (Some(node), true) = (self.node, wanted.is_empty()) {
            bail!("node {node} has no Ethernet device; `weft status` shows those that there are");
        }
        for device in wanted {
            if let Entry::Vacant(place) = self.watched.entry(device.node) {
                let packets = open(device)?;
                let name = match &device.namespace {
                    Some(namespace) => format!("{} of {namespace}", device.interface),
                    None => device.interface.clone(),
                };
                let interface = output.interface(&name, DataLink::ETHERNET)?;
                output.sums.subjects += 1;
                place.insert((packets, interface));
            }
        }
        Ok(())
    }

    fn look(&mut self, output: &mut Output) -> anyhow::Result<bool> {
        let mut found = false;
        let mut gone = Vec::new();
        for (node, (packets, interface)) in &self.watched {
            for _ in 0..FRAMES_A_TURN {
                match packets.next(&mut self.frame) {
                    Ok(Some(seen)) => {
                        found = true;
                        let frame = &self.frame[..seen.length.min(FRAME_MAX)];
                        let direction = match seen.is_outgoing {
                            true => Direction::Outbound,
                            false => Direction::Inbound,
                        };
                        output.packet(*interface, frame, direction, frame.len())?;
                    }
                    Ok(None) => break,
                    Err(_) => {
                        gone.push(*node);
                        break;
                    }
                }
            }
        }
        for node in gone {
            self.watched.remove(&node);
        }
        Ok(found)
    }

    fn end(&mut self, output: &mut Output) -> anyhow::Result<()> {
        for (packets, _) in self.watched.values() {
            let lost = packets.lost();
            output.sums.lost_packets += lost;
            output.sums.losses += u64::from(lost > 0);
        }
        Ok(())
    }
}

//! The file of a capture: pcapng, an interface for each kind of thing that is looked at.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};

use super::filter::Filter;

/// The form of time stamps: nanoseconds.
const NANOSECONDS: u8 = 9;

/// An interface of the file.
#[derive(Clone, Copy, Debug)]
pub struct Interface {
    number: u32,
    link: DataLink,
}

/// Whether the interface received a packet or sent it: the two low bits of `epb_flags`.
#[derive(Clone, Copy, Debug)]
pub enum Direction {
    Unknown = 0,
    Inbound = 1,
    Outbound = 2,
}

/// The counts of a capture.
#[derive(Clone, Copy, Default, Debug, serde::Serialize)]
pub struct Sums {
    /// Connections, devices or pairs of endpoints that were looked at.
    pub subjects: u64,
    pub packets: u64,
    /// Of connections: bytes of their streams. Else bytes of frames or payloads.
    pub bytes: u64,
    /// Places at which something is missing.
    pub losses: u64,
    /// Bytes of streams that are missing.
    pub lost_bytes: u64,
    /// Frames or messages that are missing.
    pub lost_packets: u64,
    pub file_bytes: u64,
}

/// The file.
pub struct Output {
    writer: PcapNgWriter<BufWriter<File>>,
    interfaces: u32,
    filter: Option<Filter>,
    pub sums: Sums,
    is_dirty: bool,
}

impl Output {
    /// Makes the file, for its owner alone. It gets the packets that the filter keeps.
    pub fn create(path: &Path, filter: Option<Filter>) -> anyhow::Result<Self> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)
            .with_context(|| format!("{} cannot be written", path.display()))?;
        let writer = PcapNgWriter::new(BufWriter::new(file))?;
        Ok(Self { writer, interfaces: 0, filter, sums: Sums::default(), is_dirty: true })
    }

    /// A further interface.
    pub fn interface(&mut self, name: &str, linktype: DataLink) -> anyhow::Result<Interface> {
        self.writer.write_pcapng_block(InterfaceDescriptionBlock {
            linktype,
            snaplen: 0,
            options: vec![
                InterfaceDescriptionOption::IfName(name.into()),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ],
        })?;
        self.interfaces += 1;
        Ok(Interface { number: self.interfaces - 1, link: linktype })
    }

    /// Writes a packet that the filter keeps, with the time of now, and counts it and its `bytes`.
    pub fn packet(
        &mut self,
        Interface { number, link }: Interface,
        packet: &[u8],
        direction: Direction,
        bytes: usize,
    ) -> anyhow::Result<()> {
        if self.filter.as_ref().is_some_and(|filter| !filter.keeps(link, packet)) {
            return Ok(());
        }
        let flags = direction as u32;
        let options = (flags != 0).then_some(EnhancedPacketOption::Flags(flags));
        let written = self.writer.write_pcapng_block(EnhancedPacketBlock {
            interface_id: number,
            timestamp: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            original_len: u32::try_from(packet.len()).unwrap_or(u32::MAX),
            data: packet.into(),
            options: options.into_iter().collect(),
        })?;
        self.sums.file_bytes += written as u64;
        self.sums.packets += 1;
        self.sums.bytes += bytes as u64;
        self.is_dirty = true;
        Ok(())
    }

    /// Hands everything to the kernel, so that others can read it.
    pub fn flush(&mut self) -> anyhow::Result<()> {
        if std::mem::take(&mut self.is_dirty) {
            self.writer.get_mut().flush().context("the capture cannot be written")?;
        }
        Ok(())
    }
}

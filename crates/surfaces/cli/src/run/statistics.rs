//! The counters of `weft run --stats`: a page of shared memory, and the table printed at exit.
//!
//! The page is an unnamed memfd of this process. The program opens it through
//! `/proc/PID/fd/N`, which works for its descendants too and leaves nothing behind.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use anyhow::Context;
use rustix::fs::{MemfdFlags, SealFlags};
use weft_wire::stats::{self, Stats, TcpReason};

use crate::table::{Table, bytes};

/// The shared page.
#[derive(Debug)]
pub struct Block {
    file: File,
}

impl Block {
    /// A page of zeroes behind its magic, sealed against being cut short.
    pub fn new() -> anyhow::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(
            rustix::fs::memfd_create("weft-stats", flags)
                .context("no memory for the counters of --stats")?,
        );
        file.set_len(u64::try_from(stats::BYTES)?)?;
        file.write_all_at(&Stats::header(), 0)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(Self { file })
    }

    /// The value of `WEFT_STATS`.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// The counters as they are now.
    pub fn read(&self) -> anyhow::Result<Stats> {
        let mut block = vec![0; stats::BYTES];
        self.file.read_exact_at(&mut block, 0)?;
        Ok(Stats::parse(&block)?)
    }
}

/// The table that is printed when the program ended.
pub fn render(stats: &Stats) -> String {
    let mut table = Table::new(["weft", "connections", "sent", "received"]);
    for (name, connections, sent, received) in [
        (
            "fabric",
            stats::CONNECTIONS_FABRIC,
            stats::BYTES_FABRIC_SENT,
            stats::BYTES_FABRIC_RECEIVED,
        ),
        ("tcp", stats::CONNECTIONS_TCP, stats::BYTES_TCP_SENT, stats::BYTES_TCP_RECEIVED),
    ] {
        table.line([
            name.to_owned(),
            stats.counter(connections).to_string(),
            bytes(stats.counter(sent)),
            bytes(stats.counter(received)),
        ]);
    }
    let mut text = table.render();
    if stats.counter(stats::PROCESSES) == 0 {
        text.push_str(
            "no process loaded the preload library: the program is static, privileged, or made \
             for another C library\n",
        );
    }
    for reason in TcpReason::ALL {
        let count = stats.reason(reason);
        if count > 0 {
            text.push_str(&format!("on tcp: {count} because {}\n", reason.text()));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_descriptor_of_the_block_adds_to_the_table() {
        let block = Block::new().expect("a block");
        let other = File::options()
            .read(true)
            .write(true)
            .open(block.path())
            .expect("opened through /proc");
        let set = |index: usize, value: u64| {
            let place = u64::try_from(stats::place(0, index)).expect("small");
            other.write_all_at(&value.to_ne_bytes(), place).expect("written");
        };
        set(stats::PROCESSES, 1);
        set(stats::CONNECTIONS_FABRIC, 2);
        set(stats::BYTES_FABRIC_SENT, 1_500_000);
        set(stats::CONNECTIONS_TCP, 1);
        set(TcpReason::PeerNotWeft.index(), 1);
        assert_eq!(
            render(&block.read().expect("readable")),
            "weft    connections     sent  received\n\
             fabric            2  1500 kB       0 B\n\
             tcp               1      0 B       0 B\n\
             on tcp: 1 because the other end does not run under weft, or weft \
             does not see how it waits\n"
        );
        assert!(other.set_len(0).is_err(), "the block is sealed");
    }

    #[test]
    fn a_program_that_never_loaded_the_library_is_told() {
        let text = render(&Block::new().expect("a block").read().expect("readable"));
        assert!(text.contains("no process loaded the preload library"), "{text}");
    }
}

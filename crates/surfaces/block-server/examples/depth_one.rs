//! Accesses at depth 1 by an initiator of ours: `depth_one SECONDS PLACE…`.
//!
//! A place is `weft://HOST:PORT/IQN/N` over the fabric or `iscsi://HOST:PORT/IQN/N` over TCP. Each
//! prints a line: the place, reads and writes of 4 KiB in a second.
#![allow(clippy::disallowed_methods, reason = "a program owns its clock and sockets")]

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use weft_block_server::configuration::addresses;
use weft_block_server::initiator::Initiator as Iscsi;
use weft_block_server::remote::{RemoteLun, Session};
use weft_open::Opening;

const BYTES: u32 = 4096;
/// The accesses go round in so many bytes.
const SPAN: u64 = 32 << 20;

fn main() -> anyhow::Result<()> {
    let mut words = std::env::args().skip(1);
    let seconds = words.next().and_then(|text| text.parse().ok()).context("SECONDS PLACE…")?;
    let time = Duration::from_secs_f64(seconds);
    for place in words {
        let rates = match place.strip_prefix("iscsi://") {
            Some(rest) => over_tcp(rest, time)?,
            None => over_the_fabric(&place, time)?,
        };
        println!("{place} {:.0} {:.0}", rates[0], rates[1]);
    }
    Ok(())
}

/// READ (10) or WRITE (10) of 4 KiB, at a place that follows from the number.
fn command(writes: bool, number: u64) -> [u8; 16] {
    // A prime number of pages from one to the next.
    let block = number * 7919 % (SPAN / u64::from(BYTES)) * u64::from(BYTES / 512);
    let block = u32::try_from(block).expect("a small span").to_be_bytes();
    let mut command = [0; 16];
    (command[0], command[8]) = (if writes { 0x2a } else { 0x28 }, 8);
    command[2..6].copy_from_slice(&block);
    command
}

/// Accesses in a second, first writes so that reads find what was written.
fn rates(
    time: Duration,
    mut access: impl FnMut(bool, u64) -> anyhow::Result<()>,
) -> anyhow::Result<[f64; 2]> {
    for number in 0..SPAN / u64::from(BYTES) {
        access(true, number)?;
    }
    let mut all = [0.0; 2];
    for writes in [false, true] {
        let (begun, mut number) = (Instant::now(), 0);
        while begun.elapsed() < time {
            for _ in 0..64 {
                access(writes, number)?;
                number += 1;
            }
        }
        all[usize::from(writes)] = number as f64 / begun.elapsed().as_secs_f64();
    }
    Ok(all)
}

fn over_tcp(place: &str, time: Duration) -> anyhow::Result<[f64; 2]> {
    let (portal, unit) = place.split_once('/').context("HOST:PORT/IQN/N")?;
    let (target, lun) = unit.rsplit_once('/').context("HOST:PORT/IQN/N")?;
    let lun = lun.parse()?;
    let mut session = Iscsi::login(&addresses(portal)?, Some(target), None)?;
    session.read(lun, &command(false, 0)[..10], BYTES)?;
    let data = vec![7; BYTES as usize];
    rates(time, |writes, number| {
        let command = command(writes, number);
        if writes {
            let ended = session.write(lun, &command[..10], &data)?;
            ensure!(ended.is_ok(), "a write failed");
        } else {
            let read = session.read(lun, &command[..10], BYTES)?;
            ensure!(read.len() == data.len(), "too little was read");
        }
        Ok(())
    })
}

fn over_the_fabric(place: &str, time: Duration) -> anyhow::Result<[f64; 2]> {
    let at: RemoteLun = place.parse()?;
    let mut session = Session::open(&Opening::named("depth_one")?, &at)?;
    let data = vec![7; BYTES as usize];
    // The first command hears that the unit is new to it.
    session.command(&command(false, 0), &[], BYTES)?;
    rates(time, |writes, number| {
        let command = command(writes, number);
        let ended = match writes {
            true => session.command(&command, &data, 0)?,
            false => session.command(&command, &[], BYTES)?,
        };
        ensure!(ended.status == 0, "an access failed");
        Ok(())
    })
}

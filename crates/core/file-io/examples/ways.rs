//! A file that is written and read in blocks, as `weft cp` does it, by each way of an engine:
//!
//! ```console
//! $ cargo run --release -p weft-file-io --example ways -- FILE [MIB] [direct]
//! ```
//!
//! The file is made. A block of 1 MiB is one request, or eight at a time. Rates are MB/s; the
//! processor time is that of the process and of the kernel's threads for it, seconds for each GB.
#![allow(clippy::disallowed_methods, reason = "a program owns its clock")]
#![allow(clippy::cast_precision_loss, reason = "figures for people")]

use std::error::Error;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::time::{ClockId, clock_gettime};
use weft_file_io::{Action, Engine, Options, Pool, Request, Space, Way};

const BLOCK_BYTES: usize = 1 << 20;
const TURNS: usize = 3;

/// How a block moves.
struct How {
    name: &'static str,
    way: Way,
    /// Requests at a time.
    depth: usize,
    /// Bytes of a request.
    bytes: usize,
}

const WAYS: [How; 4] = [
    How { name: "plain", way: Way::Plain, depth: 1, bytes: BLOCK_BYTES },
    How { name: "io_uring", way: Way::Uring, depth: 1, bytes: BLOCK_BYTES },
    How { name: "io_uring, 8 of 128K", way: Way::Uring, depth: 8, bytes: BLOCK_BYTES / 8 },
    How { name: "io_uring, 8 of 1M", way: Way::Uring, depth: 8, bytes: BLOCK_BYTES },
];

fn processor() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

/// The action at a place of the file.
type Make = fn(u64) -> Action;

/// Moves all of a file once, and returns how long it took and the processor time.
fn pass(
    file: &Arc<OwnedFd>,
    size: usize,
    how: &How,
    action: Make,
) -> Result<(Duration, Duration), Box<dyn Error>> {
    let depth = u32::try_from(how.depth)?;
    let mut engine = Engine::new(&Options { depth, way: how.way })?;
    let pool = Pool::new(how.bytes, how.depth)?;
    engine.register(&pool);
    let (begun, before) = (Instant::now(), processor());
    let (mut at, mut done) = (0, Vec::new());
    while at < size || engine.pending() > 0 {
        while at < size
            && let Some(buffer) = pool.take()
        {
            let space = Some(Space::buffer(buffer, 0, how.bytes));
            let action = action(at as u64);
            let request = Request { token: 0, file: Arc::clone(file), action, space };
            engine.submit(request).map_err(|_| "there are as many buffers as requests")?;
            at += how.bytes;
        }
        engine.wait(1, &mut done)?;
        for one in done.drain(..) {
            assert_eq!(one.result?, how.bytes, "the file has whole blocks");
        }
    }
    Ok((begun.elapsed(), processor() - before))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let path = words.next().ok_or("name a file to make")?;
    let blocks: usize = words.next().map_or(Ok(512), |word| word.parse())?;
    let is_direct = words.next().is_some_and(|word| word == "direct");
    let size = blocks * BLOCK_BYTES;
    let mut flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    if is_direct {
        flags |= OFlags::DIRECT;
    }
    let file = Arc::new(rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)?);
    rustix::fs::ftruncate(&file, size as u64)?;
    let actions: [(&str, Make); 2] =
        [("write", |at| Action::Write { at }), ("read", |at| Action::Read { at })];
    for (action, make) in actions {
        // The pages of the file are there from the first pass on.
        pass(&file, size, &WAYS[0], make)?;
        let mut figures: Vec<Vec<(Duration, Duration)>> = WAYS.iter().map(|_| Vec::new()).collect();
        for _ in 0..TURNS {
            for (how, own) in WAYS.iter().zip(&mut figures) {
                own.push(pass(&file, size, how, make)?);
            }
        }
        for (how, mut own) in WAYS.iter().zip(figures) {
            own.sort_unstable();
            let (took, cost) = own[TURNS / 2];
            let rate = size as f64 / took.as_secs_f64() / 1e6;
            let cost = cost.as_secs_f64() / (size as f64 / 1e9);
            println!("{action:<6} {:<20} {rate:7.0} MB/s {cost:6.3} CPU s/GB", how.name);
        }
    }
    Ok(())
}

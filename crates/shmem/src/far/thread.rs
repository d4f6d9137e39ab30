//! The thread of the library: it serves PEs of other hosts while the program does not look.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use weft_fabric::{Armed, Endpoint};
use weft_sync::signals;

use super::{Station, sleep_on};

/// How long the program may not look before the thread does. As long may a put wait for others.
const AWAY: Duration = Duration::from_millis(1);
/// Longest sleep: a PE that is lost is noticed by then.
const SLICE: Duration = Duration::from_millis(500);
/// A silence has so many looks at least, so that each counts whole.
const LOOKS_IN_SILENCE: u32 = 8;

/// Starts the thread.
pub fn start(station: &'static Station) -> Result<(), String> {
    let thread = std::thread::Builder::new().name("weft-shmem".into()).stack_size(256 << 10);
    let started = signals::without(|| thread.spawn(move || serve(station)));
    started.map(drop).map_err(|error| {
        format!("no thread can be made for other hosts: {error}; raise the limit (ulimit -u)")
    })
}

/// Serves until the process ends.
fn serve(station: &Station) {
    let mut seen = 0;
    let slice = SLICE.min(station.desk().driver.endpoint().silence() / LOOKS_IN_SILENCE);
    loop {
        let looks = station.looks.load(Relaxed);
        if looks != seen {
            seen = looks;
            std::thread::sleep(AWAY);
            continue;
        }
        let armed = {
            let mut desk = station.desk();
            desk.look();
            desk.driver.hurry();
            station.is_called.store(false, SeqCst);
            station.thread_sleeps.store(true, SeqCst);
            desk.driver.endpoint().arm()
        };
        match armed {
            Armed::Busy => {}
            // That nothing came does not mean that it was woken in vain: the fabric serves puts and
            // gets without a word.
            Armed::Sleep => sleep_on(&[&station.arrived, &station.called], slice),
            Armed::PollWithin(time) => sleep_on(&[&station.called], time),
        }
        station.thread_sleeps.store(false, SeqCst);
        // Empty again; that it is empty already is no fault.
        let _ = rustix::io::read(&station.called, &mut [0; 8]);
    }
}

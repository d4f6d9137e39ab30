//! The thread of the library: it serves PEs of other hosts while the program does not look.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use weft_fabric::{Armed, Endpoint};

use super::{Station, sleep_on};

/// How long the program may not look before the thread does. As long may a put wait for others.
const AWAY: Duration = Duration::from_millis(1);
/// Longest sleep: a PE that is lost is noticed by then.
const SLICE: Duration = Duration::from_millis(500);
/// A silence has so many looks at least, so that each counts whole.
const LOOKS_IN_SILENCE: u32 = 8;

/// Starts what makes threads, with all signals blocked: those of the program are for its threads.
pub fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let mut all = std::mem::MaybeUninit::uninit();
    let mut former = std::mem::MaybeUninit::uninit();
    // SAFETY: the calls fill in the two sets, and the mask is put back before this function ends.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), former.as_mut_ptr());
        let started = start();
        libc::pthread_sigmask(libc::SIG_SETMASK, former.as_ptr(), std::ptr::null_mut());
        started
    }
}

/// Starts the thread.
pub fn start(station: &'static Station) -> Result<(), String> {
    let thread = std::thread::Builder::new().name("weft-shmem".into()).stack_size(256 << 10);
    let started = without_signals(|| thread.spawn(move || serve(station)));
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

//! Rests of a program that looks at its queues again and again.
//!
//! Programs of MPI wait by calls that never block. Where others want the processor, such a program
//! would keep it from the very peer that it waits for. So after looks that found nothing the call
//! gives the processor away, without the lock of the domain.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weft_fabric::Armed;
use weft_sync::contention;

use crate::state::Domain;

/// Looks that found nothing, after which the processor is given to others.
const LOOKS_MAX: u32 = 256;
/// The same where others wanted it lately.
const LOOKS_CONTENDED: u32 = 8;
/// The longest sleep: a program may have more to do than to wait.
const NAP: Duration = Duration::from_micros(100);

/// The looks after which a program rests.
#[inline]
pub fn looks_max() -> u32 {
    if contention::is_contended() { LOOKS_CONTENDED } else { LOOKS_MAX }
}

/// Gives the processor to others: by a yield, which lets a peer run. Where programs compute, a yield
/// costs a time slice. Then this is a short sleep, which the next message ends.
#[cold]
pub fn rest(domain: &Domain) {
    if !contention::is_computing() {
        contention::yield_core();
        return;
    }
    let mut files = Vec::new();
    let mut time = NAP;
    for ep in domain.lock().endpoints.iter_mut().flatten() {
        match ep.rdm.arm() {
            Armed::Busy => return,
            Armed::Sleep => {}
            Armed::PollWithin(within) => time = time.min(within),
        }
        // A copy, since another thread may close the endpoint meanwhile.
        let Ok(file) = ep.descriptor().try_clone_to_owned() else { return };
        files.push(file);
    }
    let mut files: Vec<_> = files.iter().map(|file| PollFd::new(file, PollFlags::IN)).collect();
    let time = Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
    // An interruption is a look too much.
    let _ = poll(&mut files, Some(&time));
}

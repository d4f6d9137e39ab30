//! The counts of a job on a host, which its daemon shows.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use weft_launch::frame::{Ending, Plan};
use weft_wire::stats::Work;

use crate::configuration::Configuration;
use crate::counting::{self, Shown};

/// Longest name of a job.
const NAME_MAX: usize = 64;

/// The counts of a job.
#[derive(Debug, Default)]
pub struct Counts {
    size: u64,
    started: AtomicU64,
    ended: AtomicU64,
    failed: AtomicU64,
    /// The processes that run, with the time that each used when it was looked at last.
    running: Mutex<Vec<(u32, u64)>>,
    /// Processor time of those that ended, in milliseconds.
    past_ms: AtomicU64,
}

impl Counts {
    /// Counts for a plan, which are shown until the second value is dropped. Without a daemon, or
    /// with options that are wrong, nobody sees them.
    pub fn shown(plan: &Plan) -> (Arc<Self>, Option<Shown>) {
        let counts = Arc::new(Self { size: plan.size.into(), ..Self::default() });
        let program = plan.processes.first().map(|process| process.program.clone());
        let program = program.unwrap_or_default();
        let name = Path::new(OsStr::from_bytes(&program)).file_name().unwrap_or_default();
        let name: String = name.to_string_lossy().chars().take(NAME_MAX).collect();
        let of = Arc::clone(&counts);
        let configuration = Configuration::load(Vec::new()).ok();
        let shown = configuration
            .map(|one| counting::show(&one, &format!("job {name}"), move || of.totals()));
        (counts, shown)
    }

    /// A process was started.
    pub fn started(&self, pid: u32) {
        self.started.fetch_add(1, Ordering::Relaxed);
        self.running.lock().push((pid, 0));
    }

    /// A process has ended.
    pub fn ended(&self, pid: u32, how: Ending) {
        self.ended.fetch_add(1, Ordering::Relaxed);
        if how != Ending::Exit(0) {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        self.running.lock().retain(|(running, used_ms)| {
            if *running == pid {
                self.past_ms.fetch_add(*used_ms, Ordering::Relaxed);
            }
            *running != pid
        });
    }

    fn totals(&self) -> Vec<(Work, u64)> {
        let mut running = self.running.lock();
        for (pid, used_ms) in running.iter_mut() {
            *used_ms = processor_ms(*pid).unwrap_or(0).max(*used_ms);
        }
        let now_ms: u64 = running.iter().map(|(_, used_ms)| used_ms).sum();
        drop(running);
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        vec![
            (Work::JobProcesses, self.size),
            (Work::JobStarted, of(&self.started)),
            (Work::JobEnded, of(&self.ended)),
            (Work::JobFailed, of(&self.failed)),
            (Work::JobProcessorMs, of(&self.past_ms) + now_ms),
        ]
    }
}

/// The processor time of a process, in its own code and in the kernel.
fn processor_ms(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain spaces and brackets; the numbers follow the last bracket.
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11).map(str::parse::<u64>);
    let ticks = fields.next()?.ok()? + fields.next()?.ok()?;
    Some(ticks * 1000 / rustix::param::clock_ticks_per_second().max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_ended_are_counted_with_their_time() {
        let counts = Counts { size: 3, ..Counts::default() };
        let own = std::process::id();
        counts.started(own);
        counts.started(u32::MAX);
        counts.running.lock()[0].1 = 70;
        counts.ended(own, Ending::Exit(0));
        counts.ended(u32::MAX, Ending::Signal { number: 9, has_core: false });
        let totals: Vec<u64> = counts.totals().into_iter().map(|(_, total)| total).collect();
        assert_eq!(totals, [3, 2, 2, 1, 70]);
        assert!(processor_ms(own).is_some() && processor_ms(u32::MAX).is_none());
    }
}

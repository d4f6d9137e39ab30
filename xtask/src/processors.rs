//! How much of the machine's processors nobody uses, by the kernel's counts.

use std::time::{Duration, Instant};

/// Measures the share of the processors that is free.
#[derive(Debug)]
pub struct Processors {
    since: Instant,
    times: Option<Times>,
    counts_low: bool,
}

/// Processor time since the start of the machine, in ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Times {
    used: u64,
    all: u64,
}

impl Processors {
    /// Begins to measure.
    pub fn new() -> Self {
        // Where this program itself has a low priority, all that it starts has one, too.
        let counts_low = std::fs::read_to_string("/proc/self/stat").is_ok_and(|text| is_low(&text));
        Self { since: Instant::now(), times: read(counts_low), counts_low }
    }

    /// Begins anew.
    pub fn restart(&mut self) {
        (self.since, self.times) = (Instant::now(), read(self.counts_low));
    }

    /// For how long it has measured.
    pub fn measured(&self) -> Duration {
        self.since.elapsed()
    }

    /// The share that nobody used meanwhile, from 0 to 1. What has a low priority, as stages beside
    /// this one, uses none. 0 if the kernel does not tell.
    pub fn free(&self) -> f64 {
        let both = self.times.zip(read(self.counts_low));
        both.map_or(0.0, |(before, now)| share(before, now))
    }
}

#[allow(clippy::cast_precision_loss, reason = "a share needs no more")]
fn share(before: Times, now: Times) -> f64 {
    let [used, all] = [(now.used, before.used), (now.all, before.all)]
        .map(|(now, before)| now.saturating_sub(before));
    if all == 0 { 0.0 } else { 1.0 - used as f64 / all as f64 }
}

fn read(counts_low: bool) -> Option<Times> {
    times(&std::fs::read_to_string("/proc/stat").ok()?, counts_low)
}

/// The times in a text as /proc/stat has it (proc_stat(5)).
fn times(text: &str, counts_low: bool) -> Option<Times> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let [user, low, system, idle, waiting, hard, soft, stolen, ..] = *fields.as_slice() else {
        return None;
    };
    let used = user + system + hard + soft + stolen + if counts_low { low } else { 0 };
    Some(Times { used, all: user + low + system + idle + waiting + hard + soft + stolen })
}

/// Whether a process with this /proc/PID/stat has a lower priority than usual.
fn is_low(stat: &str) -> bool {
    let nice = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(16));
    nice.and_then(|word| word.parse::<i32>().ok()).is_some_and(|nice| nice > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_free_processors_leaves_out_low_priorities() {
        let before = "cpu  100 10 50 500 5 1 2 3 0 0\ncpu0 1 2 3\n";
        let now = "cpu  140 60 60 600 5 1 2 3 0 0\n";
        let free = |counts_low| {
            let [before, now] = [before, now].map(|text| times(text, counts_low).expect("times"));
            share(before, now)
        };
        assert!((free(false) - 0.75).abs() < 1e-9, "50 of 200 ticks were used");
        assert!((free(true) - 0.5).abs() < 1e-9, "100 of 200 ticks were used");
        assert_eq!(times("cpu  1 2 3", false), None);
    }

    #[test]
    fn a_low_priority_is_read() {
        let stat = |nice| format!("1 (a) b) S 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 25 {nice} 1 0");
        assert!(is_low(&stat(5)));
        assert!(!is_low(&stat(0)) && !is_low(&stat(-5)));
    }
}

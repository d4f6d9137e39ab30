//! `weft sim swarm`: runs seeds of the swarm on all processors, and tells the violations.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use weft_swarm::{Plan, Summary, Violation, run};

use crate::arguments::simulator::SwarmArguments;
use crate::output::{show, show_line};

/// Violations that are told in full.
const TOLD_MAX: usize = 10;

/// `weft sim swarm`. The exit status is 1 if a seed broke a promise.
pub fn swarm(arguments: &SwarmArguments) -> anyhow::Result<ExitCode> {
    let (from, count) = match arguments.seed {
        Some(seed) => (seed, 1),
        None => (arguments.from, arguments.seeds),
    };
    anyhow::ensure!(
        count > 0 && from.checked_add(count).is_some(),
        "{count} seeds from {from} on are none; give --seeds 1 or more, and a smaller --from"
    );
    let results = run_all(from, count);
    let violations: Vec<&Violation> = results.iter().filter_map(|end| end.as_ref().err()).collect();
    if arguments.json {
        show_line!("{}", as_json(from, count, &results));
    } else {
        show!("{}", lines(from, count, &results));
    }
    Ok(if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The end of a run.
type End = Result<Summary, Violation>;

/// Runs seeds, a thread for each processor. The ends are in the order of the seeds.
fn run_all(from: u64, count: u64) -> Vec<End> {
    let bar = ProgressBar::new(count);
    let style = ProgressStyle::with_template("{bar:30} seed {pos} of {len}, {msg}, {eta} left");
    bar.set_style(style.expect("the template is valid"));
    bar.set_message("no violation");
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let (next, failed) = (AtomicU64::new(0), AtomicU64::new(0));
    let ends = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    if place >= count {
                        return;
                    }
                    let end = run(&Plan::new(from + place));
                    if let Err(violation) = &end {
                        let failed = failed.fetch_add(1, Ordering::Relaxed) + 1;
                        bar.set_message(format!("{failed} with a violation"));
                        bar.suspend(|| eprintln!("seed {}: {}", violation.seed, violation.reason));
                    }
                    bar.inc(1);
                    ends.lock().expect("no thread panics with it").push((place, end));
                }
            });
        }
    });
    bar.finish_and_clear();
    let mut ends = ends.into_inner().expect("no thread panics with it");
    ends.sort_by_key(|(place, _)| *place);
    ends.into_iter().map(|(_, end)| end).collect()
}

/// The sum of what runs did.
struct Total {
    done: u64,
    faults: u64,
    simulated_ns: u64,
    violations: usize,
}

fn total(ends: &[End]) -> Total {
    let summaries = || ends.iter().filter_map(|end| end.as_ref().ok());
    Total {
        done: summaries().map(|summary| summary.done).sum(),
        faults: summaries().map(|summary| u64::from(summary.faults)).sum(),
        simulated_ns: summaries().map(|summary| summary.simulated_ns).sum(),
        violations: ends.iter().filter(|end| end.is_err()).count(),
    }
}

fn lines(from: u64, count: u64, ends: &[End]) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    for violation in ends.iter().filter_map(|end| end.as_ref().err()).take(TOLD_MAX) {
        let _ = writeln!(text, "{violation}\n");
    }
    let Total { done, faults, simulated_ns, violations } = total(ends);
    let last = from + (count - 1);
    let _ = writeln!(
        text,
        "seeds {from} to {last}: {violations} with a violation, {done} messages and operations, \
         {faults} faults, {} ms simulated",
        simulated_ns / 1_000_000
    );
    if let [Ok(summary)] = ends {
        let _ = writeln!(text, "digest {:016x}", summary.digest);
    }
    text
}

fn as_json(from: u64, count: u64, ends: &[End]) -> serde_json::Value {
    let Total { done, faults, simulated_ns, .. } = total(ends);
    let violations = ends.iter().filter_map(|end| end.as_ref().err()).map(|violation| {
        let Violation { seed, reason, plan, trace } = violation;
        json!({ "seed": seed, "reason": reason, "plan": plan, "trace": trace })
    });
    json!({
        "from": from,
        "seeds": count,
        "done": done,
        "faults": faults,
        "simulated_ns": simulated_ns,
        "violations": violations.collect::<Vec<_>>(),
    })
}

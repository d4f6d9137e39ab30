//! `cargo verify`: runs all stages, even after one failed, and prints the result of each.
//!
//! Two stages run at a time: one, and beside it one of those for which nothing waits, with what the
//! first leaves of the processors.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, bail};

use crate::log::Log;
use crate::programs::Installation;
use crate::shards::Ran;
use crate::stages::{END_TO_END, Outcome, Run, STAGES, Stage};

/// How many of the slowest cases are listed.
const SLOWEST: usize = 20;

/// Runs all stages, or those that `--only` names.
pub fn run(arguments: &[String]) -> anyhow::Result<ExitCode> {
    let mut only = Vec::new();
    let mut run = Run::default();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--only" => only.push(arguments.next().context("--only needs the name of a stage")?),
            "--long" => run.long = true,
            "--list" => {
                for stage in STAGES {
                    println!("{:<17} {}", stage.name, stage.text);
                }
                return Ok(ExitCode::SUCCESS);
            }
            other => bail!("{other} is not an option; there are --only NAME, --long and --list"),
        }
    }
    for name in &only {
        if !STAGES.iter().any(|stage| stage.name == name.as_str()) {
            bail!("{name} is not a stage; `cargo verify --list` lists them");
        }
    }
    let start = Instant::now();
    let wanted: Vec<&Stage> = (STAGES.iter())
        .filter(|stage| only.is_empty() || only.iter().any(|name| *name == stage.name))
        .collect();
    if wanted.iter().any(|stage| stage.name == END_TO_END) {
        run.installation = Some(Installation::begin());
    }
    let (beside, first): (Vec<_>, Vec<_>) = wanted.iter().partition(|stage| stage.is_beside);
    let (first, beside) = if first.is_empty() { (beside, first) } else { (first, beside) };
    let mut results = std::thread::scope(|scope| {
        let long = run.long;
        let beside = scope.spawn(move || -> Vec<Done> {
            beside.into_iter().map(|stage| kept(stage, long)).collect()
        });
        let mut done: Vec<Done> = first.into_iter().map(|stage| timed(stage, &mut run)).collect();
        if !beside.is_finished() {
            eprintln!("\n=== the stages beside these go on");
        }
        done.extend(beside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        done
    });
    results.sort_by_key(|done| STAGES.iter().position(|stage| stage.name == done.stage.name));
    println!("{}\n{}", slowest(run.ran), summary(&results, start.elapsed().as_secs()));
    let failed = results.iter().any(|done| matches!(done.outcome, Outcome::Failed(_)));
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A stage that has run.
struct Done<'a> {
    stage: &'a Stage,
    outcome: Outcome,
    seconds: u64,
}

fn timed<'a>(stage: &'a Stage, run: &mut Run) -> Done<'a> {
    eprintln!("\n=== {}: {}", stage.name, stage.text);
    let start = Instant::now();
    let outcome = (stage.run)(run);
    Done { stage, outcome, seconds: start.elapsed().as_secs() }
}

/// Runs a stage beside others, and shows its output at its end.
fn kept(stage: &Stage, long: bool) -> Done<'_> {
    let start = Instant::now();
    let mut run = Run { long, log: Log::Kept(String::new()), ..Run::default() };
    let outcome = (stage.run)(&mut run);
    if let Log::Kept(printed) = run.log {
        eprintln!("\n=== {} (beside others): {}\n{}", stage.name, stage.text, printed.trim());
    }
    Done { stage, outcome, seconds: start.elapsed().as_secs() }
}

/// The list of the slowest cases, slowest first.
fn slowest(mut ran: Vec<Ran>) -> String {
    ran.sort_by_key(|one| std::cmp::Reverse(one.took));
    let mut text = String::new();
    if !ran.is_empty() {
        text.push_str(
            "\nthe slowest cases, in seconds, and the seconds of the processors in them:\n",
        );
    }
    for one in ran.iter().take(SLOWEST) {
        let [took, busy] = [one.took, one.busy].map(|time| time.as_secs_f64());
        text.push_str(&format!("{took:>7.1} {busy:>7.1}  {}\n", one.name));
    }
    text
}

/// The table of results.
fn summary(results: &[Done<'_>], seconds_of_all: u64) -> String {
    let mut text = format!("{:<17} {:<8} {:>6}  {}\n", "stage", "result", "s", "");
    let mut counts = [0_usize; 3];
    for Done { stage, outcome, seconds } in results {
        let (place, word, detail) = match outcome {
            Outcome::Passed(detail) => (0, "passed", detail),
            Outcome::Failed(detail) => (1, "FAILED", detail),
            Outcome::Skipped(detail) => (2, "skipped", detail),
        };
        counts[place] += 1;
        let beside = if stage.is_beside { "*" } else { " " };
        let line = format!("{:<17} {word:<8} {seconds:>6}{beside} {detail}", stage.name);
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text.push_str(&format!("{:<26} {seconds_of_all:>6}\n", "all"));
    if results.iter().any(|done| done.stage.is_beside) {
        text.push_str("* beside others, with what they leave of the processors\n");
    }
    let [passed, failed, skipped] = counts;
    text.push_str(&format!("{passed} passed, {failed} failed, {skipped} skipped"));
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::shards::End;

    #[test]
    fn a_skipped_stage_is_not_counted_as_passed() {
        let done = |name: &str, outcome, seconds| {
            let stage = STAGES.iter().find(|stage| stage.name == name);
            Done { stage: stage.expect("it is in the table"), outcome, seconds }
        };
        let results = [
            done("format", Outcome::Passed(String::new()), 1),
            done("loom", Outcome::Skipped("why".into()), 0),
            done(END_TO_END, Outcome::Failed("what".into()), 2),
        ];
        let text = summary(&results, 3);
        assert!(text.ends_with("1 passed, 1 failed, 1 skipped"), "{text}");
        assert!(text.contains("loom              skipped       0* why"), "{text}");
        assert!(text.contains("end-to-end        FAILED        2  what"), "{text}");
        assert!(text.contains("all                             3"), "{text}");
    }

    #[test]
    fn the_slowest_cases_are_shown_with_the_slowest_first() {
        let ran = (1..30).map(|number| Ran {
            name: format!("n{number}"),
            took: Duration::from_secs(number),
            busy: Duration::from_secs(1),
            end: End::Passed,
        });
        let text = slowest(ran.collect());
        assert!(text.contains("them:\n   29.0     1.0  n29\n   28.0     1.0  n28\n"), "{text}");
        assert!(text.contains("  n10\n") && !text.contains("  n9\n"), "{text}");
        assert_eq!(slowest(Vec::new()), "");
    }
}

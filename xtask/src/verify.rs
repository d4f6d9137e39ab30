//! `cargo verify`: runs all stages, even after one failed, and prints the result of each.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, bail};

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
    let is_wanted = |stage: &&Stage| only.is_empty() || only.iter().any(|name| *name == stage.name);
    if STAGES.iter().filter(is_wanted).any(|stage| stage.name == END_TO_END) {
        run.installation = Some(Installation::begin());
    }
    let results: Vec<(&Stage, Outcome, u64)> =
        STAGES.iter().filter(is_wanted).map(|stage| timed(stage, &mut run)).collect();
    println!("{}\n{}", slowest(run.ran), summary(&results));
    let failed = results.iter().any(|(_, outcome, _)| matches!(outcome, Outcome::Failed(_)));
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn timed<'a>(stage: &'a Stage, run: &mut Run) -> (&'a Stage, Outcome, u64) {
    eprintln!("\n=== {}: {}", stage.name, stage.text);
    let start = Instant::now();
    let outcome = (stage.run)(run);
    (stage, outcome, start.elapsed().as_secs())
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
fn summary(results: &[(&Stage, Outcome, u64)]) -> String {
    let mut text = format!("{:<17} {:<8} {:>6}  {}\n", "stage", "result", "s", "");
    let mut counts = [0_usize; 3];
    for (stage, outcome, seconds) in results {
        let (place, word, detail) = match outcome {
            Outcome::Passed(detail) => (0, "passed", detail),
            Outcome::Failed(detail) => (1, "FAILED", detail),
            Outcome::Skipped(detail) => (2, "skipped", detail),
        };
        counts[place] += 1;
        let line = format!("{:<17} {word:<8} {seconds:>6}  {detail}", stage.name);
        text.push_str(line.trim_end());
        text.push('\n');
    }
    let total: u64 = results.iter().map(|(_, _, seconds)| seconds).sum();
    text.push_str(&format!("{:<26} {total:>6}\n", "all"));
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
        let results = [
            (&STAGES[0], Outcome::Passed(String::new()), 1),
            (&STAGES[4], Outcome::Skipped("why".into()), 0),
            (&STAGES[6], Outcome::Failed("what".into()), 2),
        ];
        let text = summary(&results);
        assert!(text.ends_with("1 passed, 1 failed, 1 skipped"), "{text}");
        assert!(text.contains("loom              skipped       0  why"), "{text}");
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

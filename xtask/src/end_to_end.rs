//! The stage of the end-to-end tests: runs the cases of their programs and reports.
//!
//! Invariants: all cases run, even after one failed. An ignored case is listed with its reason and
//! is not counted as passed. A case that failed runs once more, alone: if it passes then, it is
//! unsteady. One such case is let through and shown; two fail the stage. Cases have time limits of
//! their own; a program that does not keep to them is ended, too.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::cargo::{folder, root, weft};
use crate::shards::{self, AtOnce, End, Ran};
use crate::stages::{Count, Outcome};
use crate::test_programs::{Program, limited};

/// The library's unit tests, which the standard test runner runs.
const LIBRARY: &str = "weft_e2e";

/// Runs the cases of the test programs; with `long` also the long cases. Appends the results to
/// `ran`.
pub fn run(programs: &[Program], long: bool, ran: &mut Vec<Ran>) -> Outcome {
    match cases(programs, long, ran) {
        Ok(count) => count.outcome(),
        Err(error) => Outcome::Failed(format!("{error:#}")),
    }
}

fn cases(programs: &[Program], long: bool, ran: &mut Vec<Ran>) -> anyhow::Result<Count> {
    ensure!(!programs.is_empty(), "cargo names no test program of weft-e2e");
    let own = folder("e2e").context("there is no crate e2e")?;
    let third = if long { None } else { third() };
    let limit = Duration::from_mins(if long { 30 } else { 5 });
    let start = |path: &Path| {
        let mut command = limited(path, limit);
        command.current_dir(&own).env("WEFT_BIN", weft(long));
        if let Some(third) = third {
            command.env("WEFT_E2E_THIRD", third.to_string());
        }
        if long {
            command.env("WEFT_E2E_LONG", "1");
        }
        command
    };
    let mut count = Count::default();
    let mut planned = Vec::new();
    for Program { name, path, .. } in programs {
        let mut command = start(path);
        if name == LIBRARY {
            count.add(library(command)?);
            continue;
        }
        let output = command.arg("--plan").output().with_context(|| format!("{name} --plan"))?;
        ensure!(output.status.success(), "{name} --plan: {output:?}");
        planned.extend(shards::plan(name, path, &String::from_utf8_lossy(&output.stdout)));
    }
    let at_once = at_once();
    let all = planned.clone();
    let [together, alone] = shards::ordered(planned);
    let AtOnce { least, most } = at_once;
    println!("\nrunning {} cases, {least} to {most} at once", together.len());
    let mut tell = |one: Ran| {
        println!("{}", line(&one));
        ran.push(one);
    };
    shards::run(together, at_once, &start, &mut tell);
    println!("\nrunning {} cases alone:", alone.len());
    for case in &alone {
        let reason = case.alone.as_deref().unwrap_or_default();
        println!("    {}::{}, {reason}", case.program, case.name);
    }
    shards::run(alone, AtOnce::ONE, &start, &mut tell);
    shards::repeat_failed(&all, ran, &start);
    count.add(report(ran));
    Ok(count)
}

/// How many cases run side by side: at least twice as many as there are processors, as a case keeps
/// less than half a processor busy (docs/measurements/verify.md), and more while they only wait.
fn at_once() -> AtOnce {
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    AtOnce { least: 2 * processors, most: 4 * processors }
}

/// Which third of the ways of a case runs (`weft_e2e::share_of`). The commit determines it, so that
/// a run can be repeated. `WEFT_E2E_THIRD` overrides it.
fn third() -> Option<u8> {
    if let Ok(wanted) = std::env::var("WEFT_E2E_THIRD") {
        return wanted.parse().ok();
    }
    let mut command = Command::new("git");
    command.args(["rev-parse", "HEAD"]).current_dir(root()).stderr(Stdio::null());
    let printed = command.output().ok().filter(|output| output.status.success())?.stdout;
    let commit = String::from_utf8(printed).ok()?;
    let third = third_of(commit.trim())?;
    println!("ways of a case under weft: third {third}, by commit {}", commit.trim());
    println!("(WEFT_E2E_THIRD={third} repeats that, `cargo verify --long` runs all)");
    Some(third)
}

fn third_of(commit: &str) -> Option<u8> {
    let first = u32::from_str_radix(commit.get(..8)?, 16).ok()?;
    u8::try_from(first % 3).ok()
}

fn library(mut command: Command) -> anyhow::Result<Count> {
    let output = command.arg("--quiet").output().context("the library's tests")?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let mut count = Count::default();
    for line in printed.lines() {
        count.read(line);
    }
    if !output.status.success() {
        println!("{printed}{}", String::from_utf8_lossy(&output.stderr));
        count.failed = count.failed.max(1);
    }
    Ok(count)
}

fn line(ran: &Ran) -> String {
    let words = match &ran.end {
        End::Passed => "ok".to_owned(),
        End::Ignored(reason) => format!("ignored, {reason}"),
        End::Failed(_) => "FAILED".to_owned(),
        End::Unsteady(_) => "UNSTEADY".to_owned(),
    };
    let [took, busy] = [ran.took, ran.busy].map(|time| time.as_secs_f64());
    format!("test {} ... {words} ({took:.1} s, {busy:.2} s busy)", ran.name)
}

/// Prints the results: the output of failed cases, the ignored cases, the time of each program's
/// cases, and the line that counts them.
fn report(ran: &[Ran]) -> Count {
    let mut count = Count::default();
    let mut times: BTreeMap<&str, [Duration; 2]> = BTreeMap::new();
    for one in ran {
        let program = one.name.split("::").next().unwrap_or_default();
        let [took, busy] = times.entry(program).or_default();
        *took += one.took;
        *busy += one.busy;
        match &one.end {
            End::Passed => count.passed += 1,
            End::Ignored(_) => count.ignored += 1,
            End::Failed(_) => count.failed += 1,
            End::Unsteady(_) => count.unsteady += 1,
        }
    }
    println!("\nseconds of the cases of each program, and of the processors in them:");
    for (program, times) in times {
        let [took, busy] = times.map(|time| time.as_secs_f64());
        println!("{took:>7.1} {busy:>7.1}  {program}");
    }
    let ignored: Vec<String> =
        ran.iter().filter(|one| matches!(one.end, End::Ignored(_))).map(line).collect();
    if !ignored.is_empty() {
        println!("\nignored:\n    {}", ignored.join("\n    "));
    }
    for one in ran {
        match &one.end {
            End::Failed(printed) => println!("\n---- {} failed, {printed}", one.name),
            End::Unsteady(printed) => {
                println!("\n---- {} passed alone, but failed beside others, {printed}", one.name);
            }
            End::Passed | End::Ignored(_) => {}
        }
    }
    let word = if count.failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {} passed; {} failed; {} ignored; {} unsteady",
        count.passed, count.failed, count.ignored, count.unsteady
    );
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commit_determines_the_third() {
        assert_eq!(third_of("00000004aaaaaaaa"), Some(1));
        assert_eq!(third_of("fffffffe"), Some(2));
        assert_eq!(third_of("no commit"), None);
    }

    #[test]
    fn only_passed_cases_are_counted_as_passed() {
        let ran = [
            End::Passed,
            End::Ignored("w".into()),
            End::Failed("w".into()),
            End::Unsteady("w".into()),
        ]
        .map(|end| Ran {
            name: "a::b".into(),
            took: Duration::ZERO,
            busy: Duration::ZERO,
            end,
        });
        assert_eq!(report(&ran), Count { passed: 1, failed: 1, ignored: 1, unsteady: 1 });
    }
}

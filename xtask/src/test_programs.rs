//! Builds the test programs of the workspace, and runs those of the standard test runner side by
//! side.
//!
//! Cargo runs one test program after the other, and many of them end with one long test, beside
//! which a processor is idle.
//!
//! Invariants: all programs run, even after one failed. A program without a summary line has
//! failed.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::cargo::cargo;
use crate::compiles;
use crate::stages::Count;

/// The time that a program may take. The slowest takes a tenth of this; one that hangs must not
/// hold up what runs behind it, and what it printed tells which test that was.
const LIMIT: Duration = Duration::from_mins(5);

/// How many of the slowest programs are listed.
const SLOWEST: usize = 10;

/// A test program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// Its path.
    pub path: PathBuf,
    /// The directory of its package, in which it runs.
    pub package: PathBuf,
}

/// Builds the test programs of the workspace, and what they run: one build, in which each package
/// is compiled once.
pub fn build() -> anyhow::Result<Vec<Program>> {
    let mut command = cargo(&["build", "--workspace", "--quiet", "--message-format", "json"]);
    command.args(["--lib", "--bins", "--examples", "--tests", "--benches"]);
    compiles::keep(&mut command)?;
    let output = command.stderr(Stdio::inherit()).output().context("cargo cannot be run")?;
    ensure!(output.status.success(), "the tests do not build; see the errors above");
    let printed = String::from_utf8_lossy(&output.stdout);
    let programs: Vec<_> = printed.lines().filter_map(program).collect();
    ensure!(!programs.is_empty(), "cargo names no test program");
    Ok(programs)
}

/// The test program that a JSON message of cargo names.
fn program(message: &str) -> Option<Program> {
    let text = |name: &str| {
        let (_, rest) = message.split_once(&format!("\"{name}\":\""))?;
        Some(rest.split_once('"')?.0)
    };
    let path = Path::new(text("executable")?);
    let package = Path::new(text("manifest_path")?).parent()?;
    // A program that a test runs, as an example, is no test, nor is one that measures.
    if message.contains("\"kind\":[\"bench\"]") {
        return None;
    }
    let (_, profile) = message.split_once("\"profile\":{")?;
    if !profile.split_once('}')?.0.contains("\"test\":true") {
        return None;
    }
    let (name, _) = path.file_name()?.to_str()?.rsplit_once('-')?;
    Some(Program { name: name.to_owned(), path: path.to_owned(), package: package.to_owned() })
}

/// Runs the programs, as many at a time as there are processors, and counts their tests. Prints
/// what a program printed when it ends, and which took longest.
pub fn run(programs: Vec<Program>) -> Count {
    let at_once = std::thread::available_parallelism().map_or(1, usize::from);
    let queue = Mutex::new(VecDeque::from(programs));
    let ran = Mutex::new((Count::default(), Vec::new()));
    let next = || queue.lock().ok()?.pop_front();
    let work = || {
        while let Some(program) = next() {
            let start = Instant::now();
            let (printed, of_one) = run_one(&program);
            let took = start.elapsed();
            if let Ok(mut ran) = ran.lock() {
                println!("{}: {printed}", program.path.display());
                ran.0.add(of_one);
                ran.1.push((took, program));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(work);
        }
    });
    let failed = (Count { failed: 1, ..Count::default() }, Vec::new());
    let (count, mut times) = ran.into_inner().unwrap_or(failed);
    times.sort_by_key(|(took, _)| Reverse(*took));
    println!("\nthe slowest test programs, in seconds:");
    for (took, Program { name, package, .. }) in times.iter().take(SLOWEST) {
        let package = package.file_name().unwrap_or_default().to_string_lossy();
        println!("{:>7.1}  {package}: {name}", took.as_secs_f64());
    }
    count
}

/// A command that runs the program at `path` and ends it, and what it started, after `limit`. It
/// fails then, by status 124.
pub fn limited(path: &Path, limit: Duration) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", &limit.as_secs().to_string()]).arg(path);
    command
}

/// The output of a program, and the numbers of its tests.
fn run_one(program: &Program) -> (String, Count) {
    let mut command = limited(&program.path, LIMIT);
    command.arg("--quiet").current_dir(&program.package).stdin(Stdio::null());
    match command.output() {
        Ok(output) => {
            let printed = String::from_utf8_lossy(&output.stdout);
            let complained = String::from_utf8_lossy(&output.stderr);
            let count = count(&printed, output.status.success());
            (format!("{}\n{}\n{}", output.status, printed.trim(), complained.trim()), count)
        }
        Err(error) => (format!("cannot be run: {error}"), count("", false)),
    }
}

/// The numbers of tests of a program that printed this.
fn count(printed: &str, success: bool) -> Count {
    let mut count = Count::default();
    let ends = printed.lines().filter(|line| count.read(line)).count();
    // A program that was ended by a signal has failed, whatever it printed before.
    if !success || ends != 1 {
        count.failed = count.failed.max(1);
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found_in_the_messages_of_cargo() {
        let message = |test: bool, executable: &str| {
            let package = r#""manifest_path":"/w/crates/tests/e2e/Cargo.toml""#;
            let profile = format!(r#""profile":{{"opt_level":"0","test":{test}}}"#);
            format!(r#"{{{package},{profile},"executable":{executable}}}"#)
        };
        let found = program(&message(true, r#""/t/deps/bad_input-0f""#)).expect("a program");
        assert_eq!(found.name, "bad_input");
        assert_eq!(found.path, Path::new("/t/deps/bad_input-0f"));
        assert_eq!(found.package, Path::new("/w/crates/tests/e2e"));
        assert_eq!(program(&message(true, "null")), None);
        assert_eq!(program(&message(false, r#""/t/examples/ping_pong-0f""#)), None);
    }

    #[test]
    fn a_program_that_dies_has_failed() {
        let printed = "running 3 tests\ntest result: ok. 3 passed; 0 failed; 0 ignored\n";
        assert_eq!(count(printed, true), Count { passed: 3, ..Count::default() });
        assert_eq!(count(printed, false), Count { passed: 3, failed: 1, ..Count::default() });
        assert_eq!(count("running 3 tests\n", true).failed, 1);
        assert_eq!(count("test result: FAILED. 1 passed; 2 failed;", false).failed, 2);
    }

    #[test]
    fn a_program_that_hangs_is_ended() {
        let start = std::time::Instant::now();
        let mut command = limited(Path::new("sleep"), Duration::from_secs(1));
        let output = command.arg("60").output().expect("timeout is part of the system");
        assert_eq!(output.status.code(), Some(124));
        assert!(start.elapsed() < Duration::from_secs(50), "it ran to its end");
    }

    #[test]
    fn every_program_runs_even_after_one_failed() {
        let program = |path: &str| Program {
            name: "x".into(),
            path: path.into(),
            package: std::env::temp_dir(),
        };
        let failing: Vec<_> =
            ["/bin/false", "/bin/true", "/nowhere"].map(program).into_iter().collect();
        assert_eq!(run(failing), Count { failed: 3, ..Count::default() });
        assert_eq!(run(Vec::new()), Count::default());
    }
}

//! The stages of `cargo verify`: what each one runs, and when it is skipped.
//!
//! A stage that could not run is *skipped*, with the reason, and is never counted as passed. A
//! stage of tests that ran no test has failed.

use std::path::Path;
use std::process::Command;

use crate::cargo::{cargo, folder, root, target};
use crate::compiles::{self, Tool};
use crate::log::Log;
use crate::programs::Installation;
use crate::shards::Ran;
use crate::test_programs::Program;
use crate::{end_to_end, test_programs};

/// The options of a run, and the results of its stages.
#[derive(Debug, Default)]
pub struct Run {
    /// Whether to run the full set of tests.
    pub long: bool,
    /// The installation of the programs that the end-to-end cases run, from its begin to its end.
    pub installation: Option<Installation>,
    /// The results of the end-to-end cases.
    pub ran: Vec<Ran>,
    /// The test programs that an earlier stage has built, and weft beside them.
    pub programs: Option<Vec<Program>>,
    /// Where output goes.
    pub log: Log,
}

/// The result of a stage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// All checks passed; the text says how many.
    Passed(String),
    /// A check failed; the text says which.
    Failed(String),
    /// The stage could not run; the text says why.
    Skipped(String),
}

/// One stage.
#[derive(Clone, Copy, Debug)]
pub struct Stage {
    /// The name for `--only`.
    pub name: &'static str,
    /// The description for `--list`.
    pub text: &'static str,
    /// Whether the stage runs beside the others, when these leave processors idle. No other stage
    /// needs its results, nor waits for a folder that it locks.
    pub is_beside: bool,
    /// Runs the stage.
    pub run: fn(&mut Run) -> Outcome,
}

impl Stage {
    const fn new(name: &'static str, text: &'static str, run: fn(&mut Run) -> Outcome) -> Self {
        Self { name, text, is_beside: false, run }
    }

    const fn beside(mut self) -> Self {
        self.is_beside = true;
        self
    }
}

/// The name of the stage of the end-to-end tests.
pub const END_TO_END: &str = "end-to-end";

/// All stages. Those that run beside others run in this order, and so do the others.
pub const STAGES: [Stage; 8] = [
    Stage::new("format", "cargo fmt --check", format),
    Stage::new("build", "weft, its libraries, the examples and all test programs", build),
    Stage::new("lint", "clippy over all that was built, warnings denied", lint),
    Stage::new("docs", "documentation, warnings denied", docs),
    Stage::new("test", "unit, property, conformance, layer tests and the fuzz corpus", test),
    Stage::new("loom", "models of the shared-memory algorithms", loom).beside(),
    Stage::new(
        "thread-sanitizer",
        "the shared-memory transport, both ends in one process",
        thread_sanitizer,
    )
    .beside(),
    Stage::new(END_TO_END, "third-party programs under weft run", end_to_end),
];

fn format(run: &mut Run) -> Outcome {
    checked(run, cargo(&["fmt", "--all", "--check"]), "run `cargo fmt --all`")
}

fn lint(run: &mut Run) -> Outcome {
    repeated(run, Tool::Clippy)
}

fn docs(run: &mut Run) -> Outcome {
    repeated(run, Tool::Rustdoc)
}

/// Has a tool look at what an earlier stage has built, or is built now.
fn repeated(run: &mut Run, tool: Tool) -> Outcome {
    if run.programs.is_none()
        && let failed @ Outcome::Failed(_) = build(run)
    {
        return failed;
    }
    compiles::repeat(tool)
}

fn build(run: &mut Run) -> Outcome {
    match test_programs::build() {
        Ok(programs) => run.programs = Some(programs),
        Err(error) => return Outcome::Failed(format!("{error:#}")),
    }
    if !run.long {
        return Outcome::Passed(String::new());
    }
    let mut command = cargo(&["build", "--quiet", "--release"]);
    command.args(
        ["weft-cli", "weft-preload", "weft-shmem", "weft-fi", "weft-c", "weft-python"]
            .map(|name| format!("-p{name}")),
    );
    // An end-to-end case runs it. One build, so that the packages have the same features.
    command.args(["-p", "weft-examples", "--lib", "--bins", "--example", "ping"]);
    checked(run, command, "see the errors above")
}

/// The test programs, built unless an earlier stage did: those of the end-to-end tests, or all
/// others.
fn programs(run: &mut Run, of_end_to_end: bool) -> Result<Vec<Program>, Outcome> {
    if run.programs.is_none()
        && let failed @ Outcome::Failed(_) = build(run)
    {
        return Err(failed);
    }
    let own = folder("e2e");
    let is_own = |program: &Program| own.as_ref().is_some_and(|own| program.package == *own);
    let programs = run.programs.iter().flatten();
    Ok(programs.filter(|program| is_own(program) == of_end_to_end).cloned().collect())
}

fn test(run: &mut Run) -> Outcome {
    let programs = match programs(run, false) {
        Ok(programs) => programs,
        Err(failed) => return failed,
    };
    let mut count = test_programs::run(programs);
    let mut of_docs = cargo(&["test", "--workspace", "--doc", "--quiet", "--no-fail-fast"]);
    // Libraries that are built with the wrapper are others for cargo than those without.
    if let Err(error) = compiles::keep(&mut of_docs) {
        return Outcome::Failed(format!("{error:#}"));
    }
    match counted(run, of_docs) {
        Ok(of_docs) => count.add(of_docs),
        Err(reason) => return Outcome::Failed(reason),
    }
    count.outcome()
}

/// Packages that are optimised for property tests and end-to-end cases alone. In a stage without
/// these it would take longer than the tests. The suppressions of the thread sanitizer name
/// functions, too, which are not inlined so.
const OPTIMISED_FOR_OTHERS: [&str; 11] = [
    "chacha20",
    "parking_lot",
    "parking_lot_core",
    "proptest",
    "rand_chacha",
    "rustix",
    "weft-fabric",
    "weft-memory",
    "weft-pgas",
    "weft-transport-shm",
    "zerocopy",
];

/// The options of cargo by which they are not optimised.
fn unoptimised() -> impl Iterator<Item = String> {
    let option = |package| format!("--config=profile.dev.package.{package}.opt-level=0");
    OPTIMISED_FOR_OTHERS.into_iter().map(option)
}

fn loom(run: &mut Run) -> Outcome {
    if folder("transport-shm").is_none() {
        return Outcome::Skipped("there is no crate transport-shm".into());
    }
    // The models are in the library. They take a tenth of a second; optimising what they use takes
    // a minute.
    let mut command = cargo(&["test", "--quiet", "-p", "weft-transport-shm", "--lib"]);
    command.args(unoptimised()).arg("loom");
    command.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", target().join("loom"));
    tests(run, command)
}

fn thread_sanitizer(run: &mut Run) -> Outcome {
    let Some(transport) = folder("transport-shm") else {
        return Outcome::Skipped("there is no crate transport-shm".into());
    };
    if cfg!(not(all(target_arch = "x86_64", target_os = "linux"))) {
        return Outcome::Skipped("it is set up for x86-64 Linux only".into());
    }
    let programs = if run.long {
        Ok(["--lib", "--tests"].map(str::to_owned).to_vec())
    } else {
        with_threads(&transport)
    };
    let programs = match programs {
        Ok(programs) => programs,
        Err(error) => return Outcome::Failed(format!("the tests cannot be read: {error}")),
    };
    let mut command = sanitized("test");
    command.args(["-p", "weft-transport-shm"]);
    command.args(unoptimised());
    if run.long {
        // PEs of one process are copies of this library.
        let mut library = sanitized("build");
        library.args(["-p", "weft-pgas", "--example", "one_pe"]);
        if let Outcome::Failed(reason) = checked(run, library, "see the errors above") {
            return Outcome::Failed(format!("the library of a PE does not build: {reason}"));
        }
        command.args(["-p", "weft-pgas"]);
    }
    command.args(programs);
    // Tests run one after another: the channels of the test runner are not instrumented.
    command.args(["--", "--test-threads=1"]);
    tests(run, command)
}

/// A command of cargo, with the thread sanitizer in all that it builds.
fn sanitized(subcommand: &str) -> Command {
    let mut command = cargo(&[subcommand, "--quiet", "--target", "x86_64-unknown-linux-gnu"]);
    let suppressions = root().join("xtask/thread-sanitizer.suppressions");
    // Libraries that a test loads find the sanitizer in the test program.
    let flags = "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer -Clink-arg=-rdynamic";
    command
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", flags)
        .env("TSAN_OPTIONS", format!("suppressions={}", suppressions.display()))
        .env("CARGO_TARGET_DIR", target().join("thread-sanitizer"));
    command
}

/// The arguments for cargo that choose those test programs of a crate which start threads. A
/// program of one thread has no race that the sanitizer could find.
fn with_threads(package: &Path) -> std::io::Result<Vec<String>> {
    let mut arguments = Vec::new();
    if starts_threads(&package.join("src"))? {
        arguments.push("--lib".to_owned());
    }
    for entry in std::fs::read_dir(package.join("tests"))? {
        let path = entry?.path();
        let name = path.file_stem().and_then(|name| name.to_str()).map(str::to_owned);
        if let (Some(name), true) = (name, starts_threads(&path)?) {
            arguments.extend(["--test".to_owned(), name]);
        }
    }
    Ok(arguments)
}

/// Whether a source, or one below a folder, starts threads of the standard library.
fn starts_threads(path: &Path) -> std::io::Result<bool> {
    if path.is_dir() {
        for entry in std::fs::read_dir(path)? {
            if starts_threads(&entry?.path())? {
                return Ok(true);
            }
        }
        return Ok(false);
    }
    let text = std::fs::read_to_string(path)?;
    // Models have the threads of loom.
    let models = text.contains("use loom::thread");
    let calls = ["thread::scope(", "thread::spawn(", "thread::Builder"];
    Ok(!models && calls.iter().any(|call| text.contains(call)))
}

fn end_to_end(run: &mut Run) -> Outcome {
    let programs = match programs(run, true) {
        Ok(programs) => programs,
        Err(failed) => return failed,
    };
    let missing = run.installation.take().unwrap_or_else(Installation::begin).end();
    if !missing.is_empty() {
        println!("not installed, so cases will be ignored: {}", missing.join(", "));
    }
    end_to_end::run(&programs, run.long, &mut run.ran)
}

/// Runs a command that passes when its exit status is success.
fn checked(run: &mut Run, command: Command, advice: &str) -> Outcome {
    match run.log.run(command) {
        Ok(status) if status.success() => Outcome::Passed(String::new()),
        Ok(_) => Outcome::Failed(advice.to_owned()),
        Err(error) => Outcome::Failed(format!("cargo cannot be run: {error}")),
    }
}

/// Runs tests. The stage passes when all tests passed and there was at least one.
fn tests(run: &mut Run, command: Command) -> Outcome {
    counted(run, command).map_or_else(Outcome::Failed, Count::outcome)
}

/// Runs tests and counts them. An error says why the command failed although no test did.
fn counted(run: &mut Run, command: Command) -> Result<Count, String> {
    let mut count = Count::default();
    let ended = run.log.read(command, |line| {
        count.read(line);
    });
    match ended {
        Ok(status) if status.success() || count.failed > 0 => Ok(count),
        Ok(status) => Err(format!("the tests ended with {status}")),
        Err(error) => Err(format!("cargo cannot be run: {error}")),
    }
}

/// Numbers of tests, read from the output of the test runner.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Count {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
    /// Tests that did not run.
    pub ignored: u64,
    /// Tests that failed beside others and passed alone.
    pub unsteady: u64,
}

/// Tests that may fail beside others and pass alone: a machine that others use, too, stops a
/// program for a second now and then. Two in one run have another cause.
const UNSTEADY_MAX: u64 = 1;

impl Count {
    /// Adds the numbers of a test runner's summary line. False, and nothing added, for other lines.
    pub fn read(&mut self, line: &str) -> bool {
        let Some(rest) = line.strip_prefix("test result: ") else { return false };
        let words: Vec<&str> =
            rest.split([' ', ';', '.']).filter(|word| !word.is_empty()).collect();
        for pair in words.windows(2) {
            let [number, what] = pair else { continue };
            let Ok(number) = number.parse::<u64>() else { continue };
            match *what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
        true
    }

    /// Adds `other`.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.unsteady += other.unsteady;
    }

    /// The result of a stage with these counts.
    pub fn outcome(self) -> Outcome {
        if self.failed > 0 {
            return Outcome::Failed(format!("{} tests failed", self.failed));
        }
        if self.unsteady > UNSTEADY_MAX {
            return Outcome::Failed(format!("{} tests are unsteady", self.unsteady));
        }
        if self.passed == 0 {
            return Outcome::Failed("no test ran".into());
        }
        let some = |count: u64, word: &str| {
            if count > 0 { format!(", {count} {word}") } else { String::new() }
        };
        let (ignored, unsteady) = (some(self.ignored, "ignored"), some(self.unsteady, "unsteady"));
        Outcome::Passed(format!("{} tests{ignored}{unsteady}", self.passed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_all_test_programs_are_added() {
        let mut count = Count::default();
        assert!(!count.read("running 3 tests"));
        count.read(
            "test result: ok. 27 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; \
             finished in 0.05s",
        );
        count.read("test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured");
        assert_eq!(count, Count { passed: 28, failed: 2, ignored: 1, unsteady: 0 });
    }

    #[test]
    fn a_stage_without_tests_has_failed() {
        assert_eq!(Count::default().outcome(), Outcome::Failed("no test ran".into()));
        let wrong = Count { passed: 2, failed: 3, ..Count::default() };
        assert_eq!(wrong.outcome(), Outcome::Failed("3 tests failed".into()));
        let ran = Count { passed: 2, ignored: 1, ..Count::default() };
        assert_eq!(ran.outcome(), Outcome::Passed("2 tests, 1 ignored".into()));
    }

    #[test]
    fn one_unsteady_test_is_told_and_two_fail() {
        let one = Count { passed: 2, unsteady: 1, ..Count::default() };
        assert_eq!(one.outcome(), Outcome::Passed("2 tests, 1 unsteady".into()));
        let two = Count { unsteady: 2, ..one };
        assert_eq!(two.outcome(), Outcome::Failed("2 tests are unsteady".into()));
    }

    #[test]
    fn the_sanitizer_gets_the_test_programs_that_start_threads_and_no_others() {
        let transport = folder("transport-shm").expect("it is there");
        let found = with_threads(&transport).expect("it can be read");
        let has = |name: &str| found.windows(2).any(|pair| pair[0] == "--test" && pair[1] == name);
        for name in ["moves", "revocations", "sharing", "sleeper", "threads"] {
            assert!(has(name), "{name} is not in {found:?}");
        }
        // The cases of the conformance suite have one thread, and so have the unit tests.
        assert!(!has("conformance") && !found.contains(&"--lib".to_owned()), "{found:?}");
    }

    #[test]
    fn names_of_stages_are_unique() {
        let mut names: Vec<&str> = STAGES.iter().map(|stage| stage.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), STAGES.len());
    }
}

//! Runs the cases of several test programs side by side, each in its own process.
//!
//! Invariants: a case that must run alone runs when no other case does. A case without a result
//! line has failed. The output of a failed case is shown at the end.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::processors::Processors;

/// A case of a test program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Case {
    /// The name of the test program.
    pub program: String,
    /// The path of the test program.
    pub path: PathBuf,
    /// The name of the case.
    pub name: String,
    /// Why the case must run alone, if it must.
    pub alone: Option<String>,
}

impl Case {
    /// The names of the program and of the case.
    fn full_name(&self) -> String {
        format!("{}::{}", self.program, self.name)
    }
}

/// The result of a case.
#[derive(Clone, PartialEq, Debug)]
pub enum End {
    /// The case passed.
    Passed,
    /// The case could not be run, and why.
    Ignored(String),
    /// The case failed, and its output.
    Failed(String),
    /// The case failed beside others and then passed alone. The output is that of the failure.
    Unsteady(String),
}

/// A case that has run.
#[derive(Clone, PartialEq, Debug)]
pub struct Ran {
    /// The program and the case.
    pub name: String,
    /// How long the case took.
    pub took: Duration,
    /// The processor time of its processes, as far as the test program tells it.
    pub busy: Duration,
    /// The result of the case.
    pub end: End,
}

/// The cases of the program at `path`, parsed from the output of its `--plan`.
pub fn plan(program: &str, path: &std::path::Path, printed: &str) -> Vec<Case> {
    let case = |line: &str| {
        let (name, rest) = line.split_once(": test")?;
        let alone = rest.strip_prefix(" alone, ").map(str::to_owned);
        let (program, path) = (program.to_owned(), path.to_owned());
        Some(Case { program, path, name: name.to_owned(), alone })
    };
    printed.lines().filter_map(case).collect()
}

/// Sorts the cases into those that run together and those that run alone. Programs with few cases
/// come first: their cases are long. Programs with many cases come last: their short cases fill the
/// gaps at the end.
pub fn ordered(mut cases: Vec<Case>) -> [VecDeque<Case>; 2] {
    let all = cases.clone();
    let siblings = |case: &Case| all.iter().filter(|other| other.program == case.program).count();
    cases.sort_by_cached_key(siblings);
    let (alone, together): (Vec<_>, Vec<_>) =
        cases.into_iter().partition(|case| case.alone.is_some());
    [together.into(), alone.into()]
}

/// How many cases run side by side.
#[derive(Clone, Copy, Debug)]
pub struct AtOnce {
    /// So many always.
    pub least: usize,
    /// So many while the processors are not in use: most cases wait more than they compute.
    pub most: usize,
}

impl AtOnce {
    /// One after another.
    pub const ONE: Self = Self { least: 1, most: 1 };
    /// The share of the processors that is free when one more starts beyond the least.
    const FREE: f64 = 0.3;
    /// How long that is measured. What was started before shows in it.
    const MEASURED: Duration = Duration::from_millis(400);
    const LOOKS_EVERY: Duration = Duration::from_millis(100);

    fn has_room(self, running: usize, processors: &Processors) -> bool {
        running < self.least
            || running < self.most
                && processors.measured() >= Self::MEASURED
                && processors.free() >= Self::FREE
    }
}

/// Runs the cases, so many `at_once`, and passes each result to `tell`. `start` makes the command
/// that runs a test program.
pub fn run(
    cases: VecDeque<Case>,
    at_once: AtOnce,
    start: &(dyn Fn(&Path) -> Command + Sync),
    tell: &mut (dyn FnMut(Ran) + Send),
) {
    let (tell, running, ended) = (Mutex::new(tell), Mutex::new(0), Condvar::new());
    let count = || running.lock().unwrap_or_else(PoisonError::into_inner);
    let mut processors = Processors::new();
    std::thread::scope(|scope| {
        for case in cases {
            let mut now = count();
            while !at_once.has_room(*now, &processors) {
                if processors.measured() >= AtOnce::MEASURED {
                    processors.restart();
                }
                let waited = ended.wait_timeout(now, AtOnce::LOOKS_EVERY);
                now = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            *now += 1;
            drop(now);
            processors.restart();
            let (tell, count, ended) = (&tell, &count, &ended);
            scope.spawn(move || {
                let ran = run_one(&case, start);
                if let Ok(mut tell) = tell.lock() {
                    tell(ran);
                }
                *count() -= 1;
                ended.notify_one();
            });
        }
    });
}

/// Runs each failed case of `ran` once more, alone. One that passes then is unsteady: the failure
/// tells of a race, in weft or in the case, and somebody has to find it.
pub fn repeat_failed(cases: &[Case], ran: &mut [Ran], start: &(dyn Fn(&Path) -> Command + Sync)) {
    for one in ran {
        let End::Failed(printed) = &mut one.end else { continue };
        let case = cases.iter().find(|case| case.full_name() == one.name);
        let again = case.map(|case| run_one(case, start).end);
        if again == Some(End::Passed) {
            one.end = End::Unsteady(std::mem::take(printed));
        }
    }
}

fn run_one(case: &Case, start: &dyn Fn(&Path) -> Command) -> Ran {
    let mut command = start(&case.path);
    command.args(["--exact", &case.name]).stdin(Stdio::null());
    let begin = std::time::Instant::now();
    let output = command.output();
    let took = begin.elapsed();
    let name = case.full_name();
    let mut busy = Duration::ZERO;
    let end = match output {
        Ok(output) => {
            let printed = String::from_utf8_lossy(&output.stdout);
            busy = busy_of(&case.name, &printed);
            let complained = String::from_utf8_lossy(&output.stderr);
            end_of(&case.name, &printed, output.status.success())
                .unwrap_or_else(|| End::Failed(format!("{}\n{printed}{complained}", output.status)))
        }
        Err(error) => End::Failed(format!("{} cannot be run: {error}", case.path.display())),
    };
    Ran { name, took, busy, end }
}

/// The result of a case according to the test runner's output; `None` when the case failed.
fn end_of(name: &str, printed: &str, success: bool) -> Option<End> {
    let begin = format!("test {name} ... ");
    let words = printed.lines().find_map(|line| line.strip_prefix(&begin))?;
    if let Some(reason) = words.strip_prefix("ignored, ") {
        return success.then(|| End::Ignored(reason.to_owned()));
    }
    (success && words.starts_with("ok")).then_some(End::Passed)
}

/// The processor time that the test runner printed behind a case that passed; zero if it printed
/// none.
fn busy_of(name: &str, printed: &str) -> Duration {
    let begin = format!("test {name} ... ok (");
    let words = printed.lines().find_map(|line| line.strip_prefix(&begin));
    let seconds = words.and_then(|words| words.split_once(" s, ")?.1.strip_suffix(" s busy)"));
    let seconds = seconds.and_then(|seconds| seconds.parse().ok());
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(program: &str, printed: &str) -> Vec<Case> {
        plan(program, &PathBuf::from(program), printed)
    }

    #[test]
    fn cases_that_run_alone_are_separate_and_long_cases_come_first() {
        let mut cases = planned("many", "a: test\nb: test alone, it measures\nc: test\nwords\n");
        cases.extend(planned("few", "d: test\n"));
        let names = |cases: &VecDeque<Case>| -> Vec<String> {
            cases.iter().map(|case| case.name.clone()).collect()
        };
        let [together, alone] = ordered(cases);
        assert_eq!(names(&together), ["d", "a", "c"]);
        assert_eq!(names(&alone), ["b"]);
        assert_eq!(alone[0].alone.as_deref(), Some("it measures"));
    }

    #[test]
    fn a_case_without_a_result_line_has_not_passed() {
        let printed = "test x_y ... ok (0.1 s)\ntest x ... ignored, no nc\n";
        assert_eq!(end_of("x", printed, true), Some(End::Ignored("no nc".into())));
        assert_eq!(end_of("x_y", printed, true), Some(End::Passed));
        assert_eq!(end_of("x_y", printed, false), None);
        assert_eq!(end_of("y", printed, true), None);
        assert_eq!(end_of("z", "test z ... FAILED (1.0 s)\n", true), None);
    }

    #[test]
    fn the_processor_time_of_a_case_is_read_behind_its_name() {
        let printed = "test x_y ... ok (0.5 s, 0.25 s busy)\ntest x ... ok (0.1 s)\n";
        assert_eq!(busy_of("x_y", printed), Duration::from_millis(250));
        assert_eq!(busy_of("x", printed), Duration::ZERO);
        assert_eq!(busy_of("y", printed), Duration::ZERO);
    }

    #[test]
    fn a_failed_case_runs_again_and_what_passed_does_not() {
        let directory = std::env::temp_dir().join(format!("weft-shards-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let program = directory.join("program");
        // It fails if its case is called "never".
        let script = "#!/bin/sh\necho \"test $2 ... ok\"\n[ \"$2\" != never ]\n";
        std::fs::write(&program, script).expect("room");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, mode).expect("an own file");
        let case = |name: &str| {
            let (program, path) = ("p".to_owned(), program.clone());
            Case { program, path, name: name.into(), alone: None }
        };
        let ran = |name: &str, end: End| Ran {
            name: format!("p::{name}"),
            took: Duration::ZERO,
            busy: Duration::ZERO,
            end,
        };
        let cases = ["second", "never", "good"].map(case);
        let mut all = [
            ran("second", End::Failed("race".into())),
            ran("never", End::Failed("bug".into())),
            ran("good", End::Passed),
        ];
        repeat_failed(&cases, &mut all, &|path| Command::new(path));
        let ends = all.map(|one| one.end);
        std::fs::remove_dir_all(&directory).expect("an own directory");
        assert_eq!(ends, [End::Unsteady("race".into()), End::Failed("bug".into()), End::Passed]);
    }

    #[test]
    fn each_case_is_reported_once() {
        let case = |name: &str| {
            let path = PathBuf::from("/bin/echo");
            Case { program: "echo".into(), path, name: name.into(), alone: None }
        };
        let cases: VecDeque<Case> = (0..20).map(|number| case(&number.to_string())).collect();
        let mut told = Vec::new();
        let at_once = AtOnce { least: 3, most: 5 };
        run(cases, at_once, &|path| Command::new(path), &mut |ran| told.push(ran));
        assert_eq!(told.len(), 20);
        assert!(told.iter().all(|ran| matches!(&ran.end, End::Failed(words)
            if words.contains("--exact"))));
    }
}

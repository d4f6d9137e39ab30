//! Runs the cases of a test program one after the other, each with a time limit.
//!
//! Replaces the standard test runner, which must know at compile time which tests are ignored. It
//! understands the arguments that cargo users give (a filter, `--exact`, `--skip`, `--list`,
//! `--quiet`) and prints the lines that `cargo verify` counts. `--plan` lists the cases and which
//! of them must run alone, so that `cargo verify` can run several test programs at once.
//!
//! Invariant: after a case none of the processes that it started is left. This process adopts
//! orphans among its descendants, so that daemons are found too. It leaves processes of other test
//! programs alone, which may run at the same time.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::process::{kill_descendants, processor_time};
use crate::third::third;

/// The location of the last panic, set by the hook that [`main`] installs.
static PLACE_OF_PANIC: Mutex<String> = Mutex::new(String::new());

/// Why a case could not be run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Skip(pub String);

/// The result of a case that does not panic.
pub type Outcome = Result<(), Skip>;

/// One test.
#[derive(Clone)]
pub struct Case {
    name: String,
    limit: Duration,
    alone: Option<&'static str>,
    long: Option<&'static str>,
    turn: Option<u64>,
    run: Arc<dyn Fn() -> Outcome + Send + Sync>,
}

impl Case {
    /// A case with a time limit of 240 s, which a busy machine does not reach.
    pub fn new(name: impl Into<String>, run: impl Fn() -> Outcome + Send + Sync + 'static) -> Self {
        let limit = Duration::from_secs(240);
        let (alone, long, turn) = (None, None, None);
        Self { name: name.into(), limit, alone, long, turn, run: Arc::new(run) }
    }

    /// Puts `what` in front of the name.
    #[must_use]
    pub fn of(mut self, what: &str) -> Self {
        self.name = format!("{what}_{}", self.name);
        self
    }

    /// Sets another time limit.
    #[must_use]
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Makes `cargo verify` run the case alone, because of `reason`.
    #[must_use]
    pub fn alone(mut self, reason: &'static str) -> Self {
        self.alone = Some(reason);
        self
    }

    /// Makes the case run only with `cargo verify --long`, which sets [`LONG`], because of
    /// `reason`. Otherwise the case is skipped.
    #[must_use]
    pub fn long(mut self, reason: &'static str) -> Self {
        self.long = Some(reason);
        self
    }

    /// Makes the case run for one of three commits alone ([`crate::third`]), and always without
    /// `WEFT_E2E_THIRD`: for the dearest cases of a kind of which another one runs. `turn` is 0, 1
    /// or 2.
    #[must_use]
    pub fn in_turn(mut self, turn: u64) -> Self {
        self.turn = Some(turn);
        self
    }
}

/// Has cases take turns by their places, as [`Case::in_turn`] does.
#[must_use]
pub fn in_turns(cases: Vec<Case>) -> Vec<Case> {
    let turns = (0..3).cycle();
    turns.zip(cases).map(|(turn, case)| case.in_turn(turn)).collect()
}

/// The variable that makes long cases run.
pub const LONG: &str = "WEFT_E2E_LONG";

/// The case that the command line names, if it names exactly one (`--exact NAME`), as `cargo
/// verify` does. A test program whose list of cases is dear to make asks for this one first.
#[must_use]
pub fn only() -> Option<String> {
    let arguments = Arguments::read();
    match arguments.filters.as_slice() {
        [name] if arguments.exact && arguments.skips.is_empty() => Some(name.clone()),
        _ => None,
    }
}

/// Makes cases from functions. The name of a case is the name of its function.
#[macro_export]
macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        vec![$($crate::Case::new(stringify!($name), $name)),*]
    };
}

#[derive(Default)]
struct Arguments {
    filters: Vec<String>,
    skips: Vec<String>,
    exact: bool,
    list: bool,
    plan: bool,
    only_ignored: bool,
}

impl Arguments {
    fn read() -> Self {
        let mut found = Self::default();
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--exact" => found.exact = true,
                "--list" => found.list = true,
                "--plan" => found.plan = true,
                "--ignored" => found.only_ignored = true,
                "--skip" => found.skips.extend(arguments.next()),
                "--test-threads" | "--format" | "--color" | "-Z" => drop(arguments.next()),
                option if option.starts_with('-') => {}
                filter => found.filters.push(filter.to_owned()),
            }
        }
        found
    }

    fn wants(&self, name: &str) -> bool {
        let fits =
            |pattern: &String| if self.exact { name == pattern } else { name.contains(pattern) };
        (self.filters.is_empty() || self.filters.iter().any(fits)) && !self.skips.iter().any(fits)
    }
}

enum Judgement {
    Passed,
    Skipped(String),
    Failed(String),
}

/// The `main` function of a test program.
#[must_use]
pub fn main(cases: Vec<Case>) -> ExitCode {
    let arguments = Arguments::read();
    let total = cases.len();
    let wanted: Vec<Case> = cases.into_iter().filter(|case| arguments.wants(&case.name)).collect();
    if arguments.list || arguments.plan {
        for case in &wanted {
            match case.alone.filter(|_| arguments.plan) {
                Some(reason) => println!("{}: test alone, {reason}", case.name),
                None => println!("{}: test", case.name),
            }
        }
        return ExitCode::SUCCESS;
    }
    let wanted = if arguments.only_ignored { Vec::new() } else { wanted };
    // Without this only daemons that outlive a case would not be found.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    std::panic::set_hook(Box::new(|panic| {
        let at = panic.location().map(ToString::to_string).unwrap_or_default();
        *PLACE_OF_PANIC.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }));
    println!("\nrunning {} tests", wanted.len());
    let start = Instant::now();
    let (mut passed, mut ignored, mut failures) = (0, 0, Vec::new());
    for case in &wanted {
        let (begin, busy) = (Instant::now(), processor_time());
        let result = run(case);
        let seconds = begin.elapsed().as_secs_f64();
        let busy = (processor_time() - busy).as_secs_f64();
        match result {
            Judgement::Passed => {
                passed += 1;
                println!("test {} ... ok ({seconds:.1} s, {busy:.2} s busy)", case.name);
            }
            Judgement::Skipped(reason) => {
                ignored += 1;
                println!("test {} ... ignored, {reason}", case.name);
            }
            Judgement::Failed(reason) => {
                println!("test {} ... FAILED ({seconds:.1} s)\n{reason}\n", case.name);
                failures.push(case.name.clone());
            }
        }
    }
    if !failures.is_empty() {
        println!("\nfailures:\n    {}", failures.join("\n    "));
    }
    println!(
        "\ntest result: {}. {passed} passed; {} failed; {ignored} ignored; 0 measured; {} filtered \
         out; finished in {:.2}s\n",
        if failures.is_empty() { "ok" } else { "FAILED" },
        failures.len(),
        total - wanted.len(),
        start.elapsed().as_secs_f64(),
    );
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a case in a thread, and ends the processes that it started.
fn run(case: &Case) -> Judgement {
    if let Some(reason) = case.long.filter(|_| std::env::var_os(LONG).is_none()) {
        return Judgement::Skipped(format!("it runs with `cargo verify --long`: {reason}"));
    }
    if let Some(turn) = case.turn.filter(|turn| !is_turn(*turn, third())) {
        let how = format!("WEFT_E2E_THIRD={turn} or `cargo verify --long`");
        return Judgement::Skipped(format!("it runs for one of three commits, and with {how}"));
    }
    let (sender, receiver) = channel();
    let body = Arc::clone(&case.run);
    thread::spawn(move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| body()));
        // The main thread may have timed out.
        let _ = sender.send(outcome);
    });
    let result = match receiver.recv_timeout(case.limit) {
        Ok(Ok(Ok(()))) => Judgement::Passed,
        Ok(Ok(Err(Skip(reason)))) => Judgement::Skipped(reason),
        Ok(Err(panic)) => Judgement::Failed(message(panic.as_ref())),
        Err(RecvTimeoutError::Timeout) => {
            kill_descendants();
            // With its processes dead the case ends soon; it has failed in either case.
            let _ = receiver.recv_timeout(Duration::from_secs(5));
            Judgement::Failed(format!("no end within {} s", case.limit.as_secs()))
        }
        Err(RecvTimeoutError::Disconnected) => {
            Judgement::Failed("the test's thread is gone".into())
        }
    };
    kill_descendants();
    result
}

/// Whether a case of `turn` runs in the `third` of this run; `None` means all.
fn is_turn(turn: u64, third: Option<u64>) -> bool {
    third.is_none_or(|third| third % 3 == turn)
}

fn message(panic: &(dyn Any + Send)) -> String {
    let place = PLACE_OF_PANIC.lock().unwrap_or_else(PoisonError::into_inner).split_off(0);
    let text = panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without a message".to_owned());
    if place.is_empty() { text } else { format!("{place}: {text}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_fails_by_panic_or_time_limit_and_is_skipped_by_its_result() {
        let failed = run(&Case::new("x", || panic!("seven")));
        assert!(matches!(failed, Judgement::Failed(reason) if reason == "seven"));
        let skipped = run(&Case::new("x", || Err(Skip("why".into()))));
        assert!(matches!(skipped, Judgement::Skipped(reason) if reason == "why"));
        let long = Case::new("x", || {
            thread::sleep(Duration::from_millis(300));
            Ok(())
        });
        let late = run(&long.within(Duration::from_millis(20)));
        assert!(matches!(late, Judgement::Failed(reason) if reason.contains("no end")));
    }

    #[test]
    fn each_turn_comes_once_in_three_thirds() {
        for turn in 0..3 {
            assert_eq!((0..3).filter(|third| is_turn(turn, Some(*third))).count(), 1);
            assert!(is_turn(turn, None));
        }
    }

    #[test]
    fn filters_select_as_cargo_users_expect() {
        let arguments = Arguments {
            filters: vec!["curl".into()],
            skips: vec!["big".into()],
            ..Arguments::default()
        };
        assert!(arguments.wants("curl_small") && !arguments.wants("curl_big"));
        assert!(!arguments.wants("redis"));
    }
}

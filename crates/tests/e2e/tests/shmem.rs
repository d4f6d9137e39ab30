//! OpenSHMEM programs in C on one host, under `weft oshrun` and other launchers.
//!
//! `programs/shmem.c` has the rules that need more than one call; the programs that call every
//! function with every type are generated from the table of functions.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use weft_e2e::{Case, Ended, Node, Outcome, Skip, cases, program, setting, suite};
use weft_shmem_api::headers;
use weft_shmem_api::programs::{self, Naming};

const LIMIT: Duration = Duration::from_secs(120);

/// The rules that `programs/shmem.c` checks.
const RULES: [&str; 13] = [
    "statics",
    "races",
    "order",
    "sizes",
    "reductions",
    "long_collectives",
    "sets",
    "teams",
    "threads",
    "heap",
    "locks",
    "again",
    "exit",
];

/// Jobs of mistakes beside each other: each waits for its processes most of the time.
const MISTAKES_AT_A_TIME: usize = 6;
/// Mistakes, and words of the message about each.
const MISTAKES: [(&str, &[&str]); 26] = [
    ("pe", &["shmem_long_p", "PE 2 is outside of 0..2"]),
    ("negative", &["shmem_long_p", "PE -1 is outside of 0..2"]),
    ("address", &["shmem_long_p: 8 bytes at 0x7f", "not symmetric", "shmem_malloc"]),
    ("behind", &["shmem_putmem: 1099511627776 bytes", "behind the heap"]),
    ("other", &["not symmetric", "leads to another PE"]),
    ("aligned", &["shmem_long_atomic_inc: the word at 0x", "not aligned to its 8 bytes"]),
    ("team", &["shmem_team_sync: 0x", "is no team of this PE"]),
    ("context", &["shmem_ctx_long_p: 0x", "is no context"]),
    ("comparison", &["shmem_long_wait_until: 77 is no comparison"]),
    ("collective", &["PE 1 calls shmem_barrier_all", "shmem_long_broadcast(1, 0, "]),
    ("root", &["shmem_long_broadcast(1, 1, ", "shmem_long_broadcast(1, 0, "]),
    ("length", &["calls shmem_long_sum_reduce(1, 0, ", "calls shmem_long_sum_reduce(2, 0, "]),
    ("set length", &["calls shmem_long_sum_to_all(1, 0)", "calls shmem_long_sum_to_all(2, 0)"]),
    ("operation", &["calls shmem_long_max_reduce(1, 0, ", "calls shmem_long_sum_reduce(1, 0, "]),
    ("result", &["PE 0 calls shmem_long_fcollect(1, 0, ", "PE 1 calls shmem_long_fcollect(1, 0, "]),
    ("split", &["shmem_team_split_strided(0, 1, 1)", "shmem_team_split_strided(1, 1, 1)"]),
    ("automatic", &["shmem_long_broadcast: 8 bytes at 0x7f", "not symmetric"]),
    ("no root", &["shmem_long_broadcast: PE 2 is outside of 0..2"]),
    ("foreign", &["PE 0: shmem_team_sync: 0x", "is no team of this PE"]),
    ("set", &["PE 0: shmem_barrier: the active set (start 1, log stride 0, size 1) is without"]),
    ("sizes", &["calls shmem_malloc(128, 1, 0)", "calls shmem_malloc(64, 1, 0)"]),
    ("free", &["shmem_free: 0x", "free already"]),
    ("lock", &["shmem_set_lock", "held by this PE already"]),
    ("left", &["PE 0: shmem_barrier_all: PE 1 has ended"]),
    ("child", &["shmem_long_p: this process is a child of a PE"]),
    ("finalized", &["shmem_long_p: the library is not started"]),
];

fn main() -> ExitCode {
    let mut cases = cases![
        mistakes_are_told_with_pe_function_and_value,
        statuses_are_those_of_the_first_that_failed,
        a_killed_pe_ends_the_job_at_any_moment,
        settings_that_mean_nothing_are_told,
        heaps_that_cannot_be_are_told,
        a_call_before_the_start_is_told,
        variables_are_shared_beside_threads_that_began_before,
        information_is_printed_by_one_pe,
        another_launcher_starts_the_program,
        a_launcher_with_pmix_starts_the_program,
        a_launcher_with_pmix_that_is_gone_is_told,
        the_address_sanitizer_finds_nothing,
        a_profiler_is_called_once_for_each_call,
    ];
    let on = |pes| Case::new(format!("the_rules_hold_on_{pes}_pes"), move || the_rules(pes));
    cases.extend([on(1), on(2).in_turn(0), on(5).in_turn(1)]);
    let mut all = Vec::new();
    for (name, compiler, naming) in [
        ("typed", &["gcc", "-std=c99"][..], Naming::Typed),
        ("twin", &["gcc", "-std=c99"], Naming::Twin),
        ("c11", &["gcc", "-std=c11"], Naming::Generic),
        ("cxx", &["g++", "-x", "c++", "-std=c++17"], Naming::Generic),
    ] {
        let name = format!("every_function_with_every_type_{name}");
        all.push(Case::new(name, move || every_function(compiler, naming)));
    }
    cases.extend(suite::in_turns(all));
    suite::main(cases)
}

/// The library, beside `weft`.
fn library() -> PathBuf {
    program::weft().with_file_name("libweft_shmem.so")
}

/// Writes the headers below the directory of a node.
fn write_headers(node: &Node) -> PathBuf {
    let include = node.directory().join("include");
    for header in headers::all() {
        let path = include.join(header.path);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("our own directory");
        std::fs::write(path, header.text).expect("our own directory");
    }
    include
}

/// Compiles a source file against the library.
fn compile(
    node: &Node,
    compiler: &[&str],
    source: &Path,
    options: &[&str],
) -> Result<PathBuf, Skip> {
    let include = write_headers(node);
    let binary = node.directory().join("program");
    let library = library();
    let mut command = Command::new(program::find(compiler[0])?);
    command
        .args(&compiler[1..])
        .args(["-Wall", "-Wextra", "-Werror", "-pthread", "-Wno-unused-value"])
        .args(options)
        .arg("-I")
        .arg(include)
        .arg("-o")
        .arg(&binary)
        .arg(source)
        // In C++ the library must not be taken for a source.
        .args(["-x", "none"])
        .arg(&library)
        .arg(format!("-Wl,-rpath,{}", library.parent().expect("a directory").display()));
    let output = command.output().expect("the compiler starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(binary)
}

fn rules(node: &Node) -> Result<PathBuf, Skip> {
    compile(node, &["gcc", "-std=gnu11"], &program::script("shmem.c"), &["-O1"])
}

fn oshrun(node: &Node, pes: usize, program: &Path, arguments: &[&str]) -> Command {
    let mut command = node.weft(["oshrun", "-np", &pes.to_string()]);
    command.arg(program).args(arguments);
    command
}

fn ended(node: &Node, command: Command) -> Ended {
    let ended = node.start(command).wait(LIMIT);
    assert!(!ended.stderr.contains("panicked"), "{}", ended.report());
    ended
}

fn the_rules(pes: usize) -> Outcome {
    let node = Node::without_daemon();
    let program = rules(&node)?;
    for rule in RULES {
        let ended = ended(&node, oshrun(&node, pes, &program, &[rule])).success();
        let said = match rule {
            "exit" => "communicated at exit".to_owned(),
            rule => format!("{rule} is right on {pes} PEs"),
        };
        assert!(ended.stdout.contains(&said), "{}", ended.report());
    }
    Ok(())
}

fn mistakes_are_told_with_pe_function_and_value() -> Outcome {
    let node = Node::without_daemon();
    let program = rules(&node)?;
    let start = |mistake: &str| {
        let mut command = oshrun(&node, 2, &program, &["mistake", mistake]);
        command.env("SHMEM_DEBUG", "1");
        node.start(command)
    };
    for mistakes in MISTAKES.chunks(MISTAKES_AT_A_TIME) {
        let jobs: Vec<_> = mistakes.iter().map(|(mistake, _)| start(mistake)).collect();
        for (job, (mistake, words)) in jobs.into_iter().zip(mistakes) {
            let ended = job.wait(LIMIT);
            assert_eq!(ended.code(), 1, "{mistake}: {}", ended.report());
            assert!(!ended.stderr.contains("panicked"), "{mistake}: {}", ended.report());
            for word in ["weft-shmem: PE "].iter().chain(*words) {
                assert!(ended.stderr.contains(word), "{word}: {}", ended.report());
            }
        }
    }
    Ok(())
}

fn every_function(compiler: &'static [&'static str], naming: Naming) -> Outcome {
    let node = Node::without_daemon();
    let source = node.directory().join("every.c");
    std::fs::write(&source, programs::text(naming)).expect("our own directory");
    let program = compile(&node, compiler, &source, &[])?;
    for pes in [1, 3, 8] {
        let ended = ended(&node, oshrun(&node, pes, &program, &[])).success();
        let said = format!("checks on each of {pes} PEs");
        assert!(ended.stdout.contains(&said), "{}", ended.report());
    }
    Ok(())
}

fn statuses_are_those_of_the_first_that_failed() -> Outcome {
    let node = Node::without_daemon();
    let program = rules(&node)?;
    for (mode, code) in [("status", 7), ("fail", 5), ("killed", 137)] {
        let ended = ended(&node, oshrun(&node, 3, &program, &[mode]));
        assert_eq!(ended.code(), code, "{mode}: {}", ended.report());
        assert!(ended.stderr.contains("PE 2 on host"), "{mode}: {}", ended.report());
    }
    Ok(())
}

/// The moments are those of the seed; a quarter of `WEFT_E2E_KILLS` says how many.
fn a_killed_pe_ends_the_job_at_any_moment() -> Outcome {
    let node = Node::without_daemon();
    let program = rules(&node)?;
    let kills = setting("WEFT_E2E_KILLS", 20).div_ceil(4);
    for kill in 0..kills {
        let seed = setting("WEFT_E2E_SEED", 1) + kill;
        let us = (seed.wrapping_mul(6_364_136_223_846_793_005) >> 33) % 150_000;
        let ended = ended(&node, oshrun(&node, 3, &program, &["dies", &us.to_string()]));
        assert_eq!(ended.code(), 137, "{us} us: {}", ended.report());
        let named = format!("PE {} on host", us % 3);
        assert!(ended.stderr.contains(&named), "{us} us: {}", ended.report());
    }
    Ok(())
}

fn settings_that_mean_nothing_are_told() -> Outcome {
    let node = Node::without_daemon();
    let program = rules(&node)?;
    for size in ["1x", "", "-3", "1.5.2m"] {
        let mut command = oshrun(&node, 2, &program, &["heap"]);
        command.env("SHMEM_SYMMETRIC_SIZE", size);
        let ended = ended(&node, command);
        assert_eq!(ended.code(), 1, "{size}: {}", ended.report());
        let named = format!("SHMEM_SYMMETRIC_SIZE={size} ");
        assert!(ended.stderr.contains(&named), "{size}: {}", ended.report());
    }
    Ok(())
}

fn heaps_that_cannot_be_are_told() -> Outcome {
    let node = Node::without_daemon();
    let program = rules(&node)?;
    let mut huge = oshrun(&node, 2, &program, &["heap"]);
    huge.env("SHMEM_SYMMETRIC_SIZE", "90t");
    let mut limited = node.plain("/bin/sh");
    limited.args(["-c", "ulimit -v 3000000; exec \"$0\" oshrun -np 8 \"$1\" heap"]);
    limited.arg(program::weft()).arg(&program);
    for command in [huge, limited] {
        let ended = ended(&node, command);
        assert_eq!(ended.code(), 1, "{}", ended.report());
        assert!(ended.stderr.contains("lower SHMEM_SYMMETRIC_SIZE"), "{}", ended.report());
    }
    // An overrun of a heap that is there is no mistake, and names the variable, too.
    let ended = ended(&node, oshrun(&node, 2, &program, &["heap"])).success();
    assert!(ended.stderr.contains("raise SHMEM_SYMMETRIC_SIZE"), "{}", ended.report());
    Ok(())
}

fn a_call_before_the_start_is_told() -> Outcome {
    let node = Node::without_daemon();
    let program = rules(&node)?;
    let mut alone = node.plain(&program);
    alone.arg("early");
    for command in [oshrun(&node, 2, &program, &["early"]), alone] {
        let ended = ended(&node, command);
        assert_eq!(ended.code(), 1, "{}", ended.report());
        assert!(ended.stderr.contains("call shmem_init before it"), "{}", ended.report());
    }
    Ok(())
}

/// The constructor of another library has started a thread, which writes to a variable meanwhile.
fn variables_are_shared_beside_threads_that_began_before() -> Outcome {
    let node = Node::without_daemon();
    let source = program::script("beside_threads.c");
    let library = node.directory().join("libhammer.so");
    let mut compiler = Command::new(program::find("gcc")?);
    compiler.args(["-O1", "-shared", "-fPIC", "-pthread", "-DLIBRARY", "-o"]).arg(&library);
    assert!(compiler.arg(&source).status().is_ok_and(|status| status.success()));
    let hammer = library.to_string_lossy();
    let all = "-Wl,--no-as-needed";
    let first = self::library().display().to_string();
    // Of two libraries the one that is named last begins first.
    for options in [&[all, &first, &hammer][..], &[all, &hammer]] {
        let program = compile(&node, &["gcc", "-std=gnu11"], &source, options)?;
        for _ in 0..3 {
            let ended = ended(&node, oshrun(&node, 2, &program, &[])).success();
            assert_eq!(ended.stdout, "right\nright\n", "{options:?}: {}", ended.report());
        }
    }
    Ok(())
}

fn information_is_printed_by_one_pe() -> Outcome {
    let node = Node::without_daemon();
    let program = rules(&node)?;
    let mut command = oshrun(&node, 3, &program, &["locks"]);
    command.env("SHMEM_INFO", "1").env("SHMEM_VERSION", "").env("SMA_SYMMETRIC_SIZE", "3.1m");
    let ended = ended(&node, command).success();
    let pages = 3_250_586_usize.next_multiple_of(rustix::param::page_size());
    for said in [format!("heap of a PE: {pages}"), "(OpenSHMEM 1.6)".to_owned()] {
        assert_eq!(ended.stdout.matches(&said).count(), 1, "{said}: {}", ended.report());
    }
    Ok(())
}

fn another_launcher_starts_the_program() -> Outcome {
    let node = Node::without_daemon();
    let hydra = program::find("mpiexec.hydra")?;
    let program = rules(&node)?;
    for (mode, code) in [("statics", 0), ("teams", 0), ("status", 7), ("exit", 0)] {
        let mut command = node.plain(&hydra);
        command.args(["-n", "4"]).arg(&program).arg(mode);
        let ended = ended(&node, command);
        assert_eq!(ended.code(), code, "{mode}: {}", ended.report());
    }
    Ok(())
}

/// Open MPI's launcher serves PMIx to any program.
fn a_launcher_with_pmix_starts_the_program() -> Outcome {
    let node = Node::without_daemon();
    let orterun = program::find("orterun")?;
    let program = rules(&node)?;
    for (mode, code) in [("statics", 0), ("teams", 0), ("status", 7), ("fail", 5), ("exit", 0)] {
        let mut command = node.plain(&orterun);
        // It refuses to run as root, and more processes than processors, otherwise.
        command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "4"]);
        command.arg(&program).arg(mode);
        let ended = ended(&node, command);
        assert_eq!(ended.code(), code, "{mode}: {}", ended.report());
        if matches!(mode, "statics" | "teams") {
            let said = format!("{mode} is right on 4 PEs");
            assert!(ended.stdout.contains(&said), "{}", ended.report());
        }
    }
    Ok(())
}

fn a_launcher_with_pmix_that_is_gone_is_told() -> Outcome {
    let node = Node::without_daemon();
    program::find("orterun")?;
    let program = rules(&node)?;
    let mut command = node.plain(&program);
    command.arg("statics").env("PMIX_NAMESPACE", "gone").env("PMIX_RANK", "0");
    let ended = ended(&node, command);
    assert_eq!(ended.code(), 1, "{}", ended.report());
    assert!(ended.stderr.contains("unset PMIX_NAMESPACE"), "{}", ended.report());
    Ok(())
}

fn the_address_sanitizer_finds_nothing() -> Outcome {
    let node = Node::without_daemon();
    let options = ["-O1", "-g", "-fsanitize=address"];
    let source = program::script("shmem.c");
    let program = compile(&node, &["gcc", "-std=gnu11"], &source, &options)?;
    for rule in ["statics", "reductions", "heap", "again", "exit"] {
        let ended = ended(&node, oshrun(&node, 2, &program, &[rule]));
        assert_eq!(ended.code(), 0, "{}", ended.report());
    }
    Ok(())
}

/// A profiler defines a function and calls its twin. It must see each call of the program once, and
/// no call that the library makes inside.
fn a_profiler_is_called_once_for_each_call() -> Outcome {
    let node = Node::without_daemon();
    let source = node.directory().join("profiler.c");
    let text = r#"
#include <pshmem.h>
#include <stdio.h>
static int puts_seen, mallocs_seen, barriers_seen;
void shmem_long_put(long *dest, const long *source, size_t nelems, int pe) {
  puts_seen++;
  pshmem_long_put(dest, source, nelems, pe);
}
void *shmem_malloc(size_t size) {
  mallocs_seen++;
  return pshmem_malloc(size);
}
void shmem_barrier_all(void) {
  barriers_seen++;
  pshmem_barrier_all();
}
int main(void) {
  shmem_init();
  int me = shmem_my_pe(), n = shmem_n_pes();
  long *memory = (long *)shmem_malloc(8), value = me;
  if (shmem_realloc(NULL, 8) == NULL) return 1;
  for (int i = 0; i < 5; i++) shmem_long_put(memory, &value, 1, (me + 1) % n);
  pshmem_long_put(memory, &value, 1, (me + 1) % n);
  shmem_barrier_all();
  int is_right = *memory == (me + n - 1) % n;
  shmem_finalize();
  printf("%d: %d %d %d\n", is_right, puts_seen, mallocs_seen, barriers_seen);
  return 0;
}
"#;
    std::fs::write(&source, text).expect("our own directory");
    let program = compile(&node, &["gcc", "-std=c11"], &source, &[])?;
    let ended = ended(&node, oshrun(&node, 2, &program, &[])).success();
    assert_eq!(ended.stdout.matches("1: 5 1 1\n").count(), 2, "{}", ended.report());
    Ok(())
}

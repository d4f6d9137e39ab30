//! System calls of the library itself enter no other library's hooks. That library may hold a lock
//! there, having called weft's hooks with it.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use weft_e2e::exchange::exchange;
use weft_e2e::{Case, Node, Outcome, program, suite};

const LIMIT: Duration = Duration::from_secs(60);

/// Functions that the library calls by names which others may take: none makes a system call that
/// is weft's own. For any other function, `crates/surfaces/preload/build.rs` has an entry.
const OF_OTHERS: &[&str] = &[
    // The linker, the compiler and the loader.
    "_ITM_deregisterTMCloneTable _ITM_registerTMCloneTable __cxa_finalize __gmon_start__",
    "__cxa_thread_atexit_impl __errno_location __tls_get_addr dl_iterate_phdr dlclose dlerror",
    "dlopen dlsym getauxval abort __stack_chk_fail",
    // Unwinding, for panics and cancelled threads.
    "_Unwind_Backtrace _Unwind_DeleteException _Unwind_GetDataRelBase _Unwind_GetIP",
    "_Unwind_GetIPInfo _Unwind_GetLanguageSpecificData _Unwind_GetRegionStart",
    "_Unwind_GetTextRelBase _Unwind_RaiseException _Unwind_Resume _Unwind_SetGR _Unwind_SetIP",
    // Memory is the program's, from its allocator.
    "calloc free malloc posix_memalign realloc strdup vasprintf __vasprintf_chk",
    // Computing.
    "__xpg_strerror_r bcmp environ getenv memchr memcmp memcpy memmove memrchr memset sigaddset",
    "sigdelset sigemptyset sigfillset strlen",
    // Threads, of which sanitizers and collectors have to know.
    "__register_atfork pthread_attr_destroy pthread_attr_getguardsize pthread_attr_getstack",
    "pthread_attr_init pthread_attr_setstacksize pthread_create pthread_detach pthread_getattr_np",
    "pthread_join pthread_key_create pthread_key_delete pthread_once pthread_self",
    "pthread_setcancelstate pthread_setname_np pthread_setspecific pthread_testcancel",
    // The program's own streams, and programs that it starts by `system` and `popen`.
    "__fpurge clearerr fclose fflush flockfile fopencookie ftrylockfile funlockfile setvbuf stderr",
    "stdin stdout posix_spawn_file_actions_addclose posix_spawnattr_destroy posix_spawnattr_init",
    "posix_spawnattr_setflags posix_spawnattr_setsigdefault posix_spawnattr_setsigmask",
];

fn main() -> ExitCode {
    suite::main(vec![
        Case::new("functions_of_other_libraries_are_known", functions),
        Case::new("a_library_in_front_is_not_entered", in_front),
        Case::new("fakeroot_in_front", fakeroot),
    ])
}

fn library() -> PathBuf {
    program::weft().with_file_name("libweft_preload.so")
}

fn functions() -> Outcome {
    let mut command = Command::new(program::find("readelf")?);
    let output = command.arg("-rW").arg(library()).output().expect("readelf starts");
    let printed = String::from_utf8(output.stdout).expect("names are text");
    let entries = printed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let called: BTreeSet<&str> = entries
        .filter(|words| {
            words
                .get(2)
                .is_some_and(|kind| ["GLOB_DAT", "JUMP_SLO"].iter().any(|k| kind.contains(k)))
        })
        .filter_map(|words| words.get(4)?.split('@').next())
        .collect();
    assert!(called.contains("malloc"), "{printed}");
    let known: BTreeSet<&str> = OF_OTHERS.iter().flat_map(|line| line.split(' ')).collect();
    let others: Vec<_> = called.difference(&known).collect();
    assert!(others.is_empty(), "crates/surfaces/preload/build.rs lacks {others:?}");
    Ok(())
}

/// A command under weft with a library in front of weft's. The program is given as "$@".
fn behind(node: &Node, front: &Path, program: &Path) -> Command {
    let mut command = node.program(true, "sh");
    let script = format!("LD_PRELOAD='{}':$LD_PRELOAD exec \"$@\"", front.display());
    command.args(["-c", &script, "sh"]).arg(program);
    command
}

fn in_front() -> Outcome {
    let node = Node::new();
    let front = program::compiled("jealous.c", &["-O1", "-shared", "-fPIC"], node.directory())?;
    let python = program::python()?;
    let side = |arguments: &[&str]| {
        let mut command = behind(&node, &front, &python);
        command.arg(program::script("exchange.py")).args(arguments).arg("--twice");
        command
    };
    let (server, client) = exchange(&node, side, side);
    for ended in [server, client] {
        assert!(ended.statistics().fabric.sent > 0, "{}", ended.report());
    }
    Ok(())
}

fn fakeroot() -> Outcome {
    let node = Node::new();
    let mut command = node.program(true, program::find("fakeroot-tcp")?);
    let file = node.directory().join("owned");
    command.args(["sh", "-c", "touch $0 && chown 7:8 $0 && stat -c %u:%g $0"]).arg(&file);
    let ended = node.start(command).wait(LIMIT).success();
    assert_eq!(ended.stdout.trim(), "7:8", "{}", ended.report());
    Ok(())
}

//! The `weft` command from outside: exit statuses, messages, the daemon's life. The
//! tests of its output about options and status are in `people.rs`.
//!
//! The preload library is an empty file here, which the dynamic linker passes over with a word on
//! standard error: these tests are about the command, not about sockets.

mod place;

use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use place::{Place, text};

#[test]
fn run_ends_as_the_program_did() {
    let place = Place::new();
    for extra in [&[][..], &["--stats"][..]] {
        let with = |script: &str| {
            let mut line = extra.to_vec();
            line.extend(["--", "sh", "-c", script]);
            place.run(&line)
        };
        let output = with("echo out; exit 7");
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(7), "out\n".into()));
        assert_eq!(with("true").status.code(), Some(0));
    }
    // Without --stats the program took the place of the command: it is killed itself.
    assert_eq!(place.run(&["--", "sh", "-c", "kill -9 $$"]).status.signal(), Some(9));
    let supervised = place.run(&["--stats", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(supervised.status.code(), Some(128 + 9));
}

#[test]
fn what_cannot_be_run_is_told_with_the_status_of_a_shell() {
    let place = Place::new();
    let missing = place.run(&["--", "no-such-program-anywhere"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(text(&missing.stderr).contains("is not in PATH"), "{}", text(&missing.stderr));
    assert_eq!(place.run(&["--", "/nonexistent/x"]).status.code(), Some(127));
    assert_eq!(place.run(&["--stats", "--", "/etc/passwd"]).status.code(), Some(126));
    let script = place.directory.path().join("script");
    std::fs::write(&script, "#!/nonexistent/interpreter\n").expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).expect("own file");
    let output = place.run(&["--", &script.display().to_string()]);
    assert_eq!(output.status.code(), Some(127), "{}", text(&output.stderr));
}

#[test]
fn a_script_without_interpreter_line_is_run_by_the_shell() {
    let place = Place::new();
    let script = place.directory.path().join("script");
    std::fs::write(&script, "echo $1; exit 5\n").expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).expect("own file");
    for line in [vec!["--"], vec!["--stats", "--"]] {
        let path = script.display().to_string();
        let mut line = line;
        line.extend([path.as_str(), "word"]);
        let output = place.run(&line);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(5), "word\n".into()));
    }
}

#[test]
fn the_program_sees_the_library_the_socket_and_the_configuration() {
    let place = Place::new();
    let mut command = place.weft(&["run", "--socket-enable", "no", "--shm-spin-us", "7"]);
    command.args(["--", "env"]).env("LD_PRELOAD", "/nonexistent/other.so");
    let printed = text(&command.output().expect("weft starts").stdout);
    let library = place.directory.path().join("libempty.so");
    for line in [
        format!("LD_PRELOAD={}:/nonexistent/other.so", library.display()),
        format!("WEFT_SOCKET={}", place.socket().display()),
        "WEFT_SHM_SPIN_US=7".into(),
        "WEFT_SOCKET_ENABLE=false".into(),
        "WEFT_NODE=default".into(),
    ] {
        assert!(printed.lines().any(|found| found == line), "{line} is missing in\n{printed}");
    }
    assert!(!printed.contains("WEFT_STATS="), "{printed}");
}

#[test]
fn the_program_is_told_which_unknown_variables_were_told() {
    let place = Place::new();
    let warned = |unknown: &[(&str, &str)]| {
        let mut command = place.weft(&["run", "--socket-enable", "no", "--", "env"]);
        command.envs(unknown.iter().copied()).env("WEFT_WARNED", "WEFT_OF_BEFORE");
        let printed = text(&command.output().expect("weft starts").stdout);
        printed.lines().find_map(|line| line.strip_prefix("WEFT_WARNED=")).map(str::to_owned)
    };
    assert_eq!(warned(&[]).as_deref(), Some(""));
    let mut two = warned(&[("WEFT_ONE", "1"), ("WEFT_TWO", "2")]).expect("it is set");
    assert_eq!(two.len(), "WEFT_ONE WEFT_TWO".len(), "{two}");
    two.push(' ');
    assert!(two.contains("WEFT_ONE ") && two.contains("WEFT_TWO "), "{two}");
}

#[test]
fn a_reader_that_goes_away_ends_the_command_without_a_message() {
    let place = Place::new();
    for arguments in [&["config", "list", "--json"][..], &["config", "list"]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = place.weft(arguments);
        let output = command.stdout(writer).output().expect("weft starts");
        assert_eq!(output.status.code(), Some(128 + 13));
        assert_eq!(text(&output.stderr), "");
    }
}

#[test]
fn a_full_disk_is_told() {
    let place = Place::new();
    for words in [&["config", "dump"][..], &["--help"], &["--version"], &["run", "--help"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("Linux has it");
        let output = place.weft(words).stdout(full).output().expect("weft starts");
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        let message = text(&output.stderr);
        assert!(message.contains("No space left") && !message.contains("panicked"), "{message}");
    }
}

#[test]
fn an_old_name_is_accepted_everywhere_and_told_once() {
    let place = Place::new();
    let file = place.directory.path().join("old.toml");
    std::fs::write(&file, "[socket]\nrest_ms = 1\n").expect("written");
    let ways: [(&[&str], (&str, &str), &str); 3] = [
        (&["--socket-rest-ms", "1"], ("A", "B"), "--socket-idle-ms"),
        (&[], ("WEFT_SOCKET_REST_MS", "1"), "WEFT_SOCKET_IDLE_MS"),
        (&[], ("WEFT_CONFIG", &file.display().to_string()), "socket.idle_ms"),
    ];
    for (flags, (name, value), new) in ways {
        let mut line = vec!["run", "--socket-enable", "off"];
        line.extend(flags);
        line.extend(["--", "env"]);
        let output = place.weft(&line).env(name, value).output().expect("weft starts");
        let (printed, told) = (text(&output.stdout), text(&output.stderr));
        assert!(printed.lines().any(|line| line == "WEFT_SOCKET_IDLE_MS=1"), "{printed}");
        assert!(!printed.contains("REST"), "{printed}");
        assert_eq!(told.matches(&format!("write {new} in its place")).count(), 1, "{told}");
    }
}

#[test]
fn stats_are_told_where_to_go_and_printed_at_exit() {
    let place = Place::new();
    let output = place.run(&["--stats", "--", "sh", "-c", "head -c 8 $WEFT_STATS"]);
    assert_eq!(output.stdout.len(), 8, "the program can open the block");
    let table = text(&output.stderr);
    assert!(table.contains("fabric") && table.contains("no process loaded"), "{table}");
}

#[test]
fn signals_reach_the_program_under_stats() {
    let place = Place::new();
    let ready = place.directory.path().join("ready");
    let script =
        format!("trap 'exit 9' TERM; : > {}; while :; do sleep 0.05; done", ready.display());
    let mut command = place.weft(&["run", "--socket-enable", "off", "--stats", "--"]);
    command.args(["sh", "-c", &script]).stderr(Stdio::null());
    let mut child = command.spawn().expect("weft starts");
    while !ready.exists() {
        thread::sleep(Duration::from_millis(5));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a child");
    assert_eq!(child.wait().expect("it ends").code(), Some(9));
}

#[test]
fn a_bad_configuration_is_refused_and_an_unknown_variable_told() {
    let place = Place::new();
    let mut command = place.weft(&["config", "dump"]);
    command.env("WEFT_SHM_SPIN_US", "4000").env("WEFT_SHM_YIELD", "1");
    let output = command.output().expect("weft starts");
    assert_eq!(output.status.code(), Some(1));
    let told = text(&output.stderr);
    assert!(told.contains("allowed is a whole number from 0 to 1000"), "{told}");
    assert!(told.contains("did you mean WEFT_SHM_YIELDS?"), "{told}");
    let output = place.weft(&["status", "--node", "../x"]).output().expect("weft starts");
    assert!(text(&output.stderr).contains("node name \"../x\" is not valid"));
    let output = place.weft(&["status", "--jsn"]).output().expect("weft starts");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_missing_library_is_told_with_what_to_do() {
    let place = Place::new();
    let mut command = place.weft(&["run", "--", "true"]);
    command.env("WEFT_PRELOAD", "/nonexistent/lib.so");
    let output = command.output().expect("weft starts");
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains("/nonexistent/lib.so"), "{}", text(&output.stderr));
}

#[test]
fn no_daemon_and_a_stale_socket_are_told_apart() {
    let place = Place::new();
    let output = place.weft(&["status"]).output().expect("weft starts");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("no node daemon runs"), "{}", text(&output.stderr));
    assert!(place.weft(&["down"]).status().expect("weft starts").success());
    drop(UnixListener::bind(place.socket()).expect("a socket"));
    let output = place.weft(&["status"]).output().expect("weft starts");
    assert!(text(&output.stderr).contains("left over"), "{}", text(&output.stderr));
}

#[test]
fn a_daemon_starts_replaces_a_stale_socket_tells_its_status_and_stops() {
    let place = Place::new();
    drop(UnixListener::bind(place.socket()).expect("a socket"));
    let output = place.weft(&["daemon", "--background"]).output().expect("weft starts");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = place.weft(&["status", "--json"]).output().expect("weft starts");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(status.is_object(), "{status}");
    let output = place.weft(&["daemon"]).output().expect("weft starts");
    assert_eq!(output.status.code(), Some(1));
    let told = text(&output.stderr);
    assert!(told.contains("already answers") && !told.contains("alone"), "{told}");
    // One that a program started is in the way of one that would join.
    let join = ["daemon", "--fabric-key", "key", "--fabric-listen", "127.0.0.1:7700"];
    let output = place.weft(&join).output().expect("weft starts");
    let told = text(&output.stderr);
    assert!(told.contains("serves this host alone") && told.contains("`weft down"), "{told}");
    let output = place.weft(&["info", "--json"]).output().expect("weft starts");
    let information: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(information["daemon"]["answers"], true);
    assert!(place.weft(&["down"]).status().expect("weft starts").success());
    assert!(!place.weft(&["status"]).output().expect("weft starts").status.success());
}

#[test]
fn run_starts_a_daemon_that_is_nobodys_child() {
    let place = Place::new();
    // The shell's only child is the `cat` that reads the list.
    let script = "exec 3>&1; cat /proc/$$/task/$$/children >&3";
    let output = place.weft(&["run", "--", "sh", "-c", script]).output().expect("weft starts");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let children = text(&output.stdout);
    assert_eq!(children.split_whitespace().count(), 1, "{children}");
    assert!(place.weft(&["status"]).output().expect("weft starts").status.success());
    assert!(place.weft(&["down"]).status().expect("weft starts").success());
}

#[test]
fn a_lane_is_measured_between_two_processes_over_memory_and_over_endpoints() {
    let place = Place::new();
    let few = ["--size", "5000", "--json", "--runs", "2", "--iterations", "20", "--unpinned"];
    for over in ["memory", "endpoint"] {
        let line = [&["perf", "lane", "--over", over][..], &few].concat();
        let output = place.weft(&line).output().expect("weft starts");
        assert!(output.status.success(), "{over}: {}", text(&output.stderr));
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let field = |name: &str| told[name].clone();
        assert_eq!((field("test"), field("over")), ("lane".into(), over.into()));
        assert_eq!((field("unit"), field("runs")), ("messages/s".into(), 2.into()));
        for figure in [field("median"), field("p99"), told["latency"]["median"].clone()] {
            assert!(figure.as_f64().is_some_and(|figure| figure > 0.0), "{told}");
        }
    }
    for (line, advice) in [
        (&["perf", "put", "--over", "memory"][..], "leave it out"),
        (&["perf", "lane", "--transport", "sim"], "use --over endpoint"),
    ] {
        let output = place.weft(line).output().expect("weft starts");
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains(advice), "{}", text(&output.stderr));
    }
}

#[test]
fn a_further_user_is_trusted_for_a_socket_that_is_named_alone() {
    let place = Place::new();
    let mut command = place.weft(&["status"]);
    command.env("WEFT_DAEMON_TRUST_UID", "65534");
    let named = text(&command.output().expect("weft starts").stderr);
    assert!(named.contains("no node daemon runs"), "{named}");
    command.env_remove("WEFT_DAEMON_SOCKET").env("XDG_RUNTIME_DIR", place.directory.path());
    let output = command.output().expect("weft starts");
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("name it with --daemon-socket"), "{told}");
}

#[test]
fn the_routes_of_a_topology_are_checked_without_a_fabric() {
    let place = Place::new();
    let fabric = |line: &[&str]| {
        let line: Vec<&str> = ["fabric"].iter().chain(line).copied().collect();
        let output = place.weft(&line).output().expect("weft starts");
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");

    let (code, told, _) = fabric(&["check", "--topology", "torus:4x4x4", "--json"]);
    let report = json(&told);
    assert_eq!((code, &report["sound"]), (Some(0), &true.into()), "{told}");
    assert_eq!(report["routed_pairs"], 64 * 63);
    let parted = ["check", "--topology", "mesh:3x1", "--fail", "n1:1"];
    let (code, told, _) = fabric(&parted);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("partition: 2 parts, of 2, 1 hosts"), "{told}");

    // The way from n0 to n2 is two links up; round the cut link it is over the next row.
    let way = ["trace", "n0", "n2", "--topology", "torus:4x4", "--json", "--fail", "n0:0"];
    let (code, told, _) = fabric(&way);
    let steps = json(&told);
    assert_eq!((code, steps[0]["from"].as_str()), (Some(0), Some("n0")), "{told}");
    assert_ne!(steps[0]["to"], "n1", "{told}");
    assert_eq!(json(&fabric(&way[..6]).1)[1]["to"], "n2");

    // A file that `show` wrote is read, and a link that is missing in it is told.
    let (_, file, _) = fabric(&["show", "--topology", "mesh:2x2", "--toml"]);
    let path = place.directory.path().join("planned.toml");
    std::fs::write(&path, &file).expect("written");
    let path = path.display().to_string();
    let expected = ["check", "--topology", "mesh:2x2", "--expect", &path];
    assert_eq!(fabric(&expected).0, Some(0));
    let (code, told, _) = fabric(&[&expected[..], &["--fail", "n0:0"]].concat());
    assert_eq!(code, Some(1));
    assert!(told.contains("missing: link n0:0 to n1:0"), "{told}");

    std::fs::write(&path, file.replace("\"n3:0\"", "\"n9:0\"")).expect("written");
    let (code, _, told) = fabric(&["check", "--topology", &path]);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("line 7") && told.contains("\"n9\""), "{told}");
}

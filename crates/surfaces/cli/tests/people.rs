//! The output of the `weft` command for people and for scripts: status, options, helps, manual.

mod place;

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use place::{Place, text};
use serde_json::Value;

/// The columns of a terminal that everything is to fit.
const COLUMNS: usize = 80;

/// How often it is looked whether something is there, 20 ms apart.
const LOOKS_MAX: usize = 1_000;

/// The output of a call that succeeds.
fn printed(command: &mut Command) -> String {
    let output = command.output().expect("weft starts");
    assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// The message of a call that fails.
fn refused(command: &mut Command) -> String {
    let output = command.output().expect("weft starts");
    assert!(!output.status.success(), "{command:?}: {}", text(&output.stdout));
    text(&output.stderr)
}

fn json(command: &mut Command) -> Value {
    serde_json::from_str(&printed(command)).expect("JSON")
}

fn assert_fits(printed: &str) {
    for line in printed.lines() {
        assert!(line.chars().count() <= COLUMNS, "too wide: {line}\nin\n{printed}");
    }
}

/// Two programs with endpoints, which end with the test.
struct Pair(Child);

impl Drop for Pair {
    fn drop(&mut self) {
        // The other end sees that this one is gone.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_status_is_sections_with_words_and_its_json_stays() {
    let place = Place::new();
    assert!(place.weft(&["daemon", "--background"]).output().expect("starts").status.success());
    let idle = printed(&mut place.weft(&["status"]));
    assert!(idle.contains("No program runs under weft here; `weft run -- PROGRAM`"), "{idle}");
    let mut perf = place.weft(&["perf", "latency", "--runs", "1000", "--unpinned"]);
    let pair = Pair(perf.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts"));
    let mut told = String::new();
    for _ in 0..LOOKS_MAX {
        told = printed(place.weft(&["status"]).env("COLUMNS", "80"));
        if told.contains("Endpoints of the fabric: 2\n") {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    assert!(told.contains("Endpoints of the fabric: 2\n"), "{told}");
    assert_fits(&told);
    for part in ["Node default\n", "Programs under weft: 2\n", "Services of the daemon\n"] {
        assert!(told.contains(part), "{part} is missing in\n{told}");
    }
    assert!(told.contains(&format!("weft perf {} ", pair.0.id())), "{told}");
    let works = |line: &str| line.split_whitespace().take(2).eq(["endpoints", "works"]);
    assert!(told.lines().any(works), "{told}");
    for raw in ["uptime_s", "vpid", "true", "null"] {
        assert!(!told.contains(raw), "{raw} is for scripts:\n{told}");
    }
    let status = json(&mut place.weft(&["status", "--json"]));
    let fields: Vec<&str> = status.as_object().expect("an object").keys().map(|k| &**k).collect();
    let known = "at_ms collected_us connections copy daemon devices ended endpoints fabric \
                 listeners node offers pid processes services totals uptime_s version waiting \
                 wired";
    assert_eq!(fields.join(" "), known);
    let endpoint = status["endpoints"][0].as_object().expect("an object");
    let keys: Vec<&str> = endpoint.keys().map(|k| &**k).collect();
    assert_eq!(keys, ["peers", "pid", "registers", "times", "vpid"]);
    assert!(endpoint["registers"]["messages_sent"].as_u64() > Some(0), "{endpoint:?}");
    drop(pair);
}

#[test]
fn the_other_end_of_a_measurement_ends_with_it_although_no_daemon_is_left_to_tell() {
    let place = Place::new();
    assert!(place.weft(&["daemon", "--background"]).output().expect("starts").status.success());
    let mut perf = place.weft(&["perf", "latency", "--runs", "1000", "--unpinned"]);
    let pair = Pair(perf.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts"));
    let other = (0..LOOKS_MAX).find_map(|_| {
        thread::sleep(Duration::from_millis(20));
        let status = json(&mut place.weft(&["status", "--json"]));
        let mut pids = status["endpoints"].as_array()?.iter().filter_map(|one| one["pid"].as_u64());
        pids.find(|pid| *pid != u64::from(pair.0.id()))
    });
    let other = std::path::PathBuf::from(format!("/proc/{}", other.expect("it has an endpoint")));
    assert!(place.weft(&["down"]).status().expect("starts").success());
    assert!(other.exists(), "it goes on without a daemon");
    drop(pair);
    let is_gone = (0..LOOKS_MAX).any(|_| {
        thread::sleep(Duration::from_millis(20));
        // Nobody may take the end of an orphan.
        let status = std::fs::read_to_string(other.join("stat")).unwrap_or_default();
        status.is_empty() || status.contains(") Z ")
    });
    assert!(is_gone, "{} polls for ever", other.display());
}

#[test]
fn a_log_in_a_file_has_no_colours() {
    let place = Place::new();
    let file = place.directory.path().join("log");
    let mut command = place.weft(&["daemon"]);
    command.env("WEFT_LOG", "info").stdout(Stdio::null());
    command.stderr(std::fs::File::create(&file).expect("a file"));
    let mut daemon = command.spawn().expect("weft starts");
    let log = || std::fs::read_to_string(&file).expect("it is there");
    for _ in 0..LOOKS_MAX {
        if log().contains("ready at") {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    printed(&mut place.weft(&["down"]));
    assert!(daemon.wait().expect("it ends").success());
    let log = log();
    assert!(log.contains(" INFO ") && !log.contains('\u{1b}'), "{log:?}");
}

#[test]
fn no_daemon_is_told_with_what_to_do_for_that_node() {
    let place = Place::new();
    let mut status = place.weft(&["status", "--node", "blue"]);
    status.env("XDG_RUNTIME_DIR", place.directory.path());
    let told = refused(&mut status);
    assert!(told.contains("`weft daemon --node blue`"), "{told}");
    assert!(told.contains("`weft run --node blue -- PROGRAM`"), "{told}");
}

#[test]
fn the_list_has_every_option_with_its_value_and_where_it_came_from() {
    let place = Place::new();
    let file = place.directory.path().join("a.toml");
    std::fs::write(&file, "[shm]\nyields = 7\n[socket]\nidle_ms = 8\n").expect("written");
    let weft = |last: &[&str]| {
        let mut line = vec!["config", "list", "--socket-lanes-kept", "9"];
        line.extend(last);
        let mut command = place.weft(&line);
        command.env("WEFT_CONFIG", &file).env("WEFT_SOCKET_IDLE_MS", "10").env("COLUMNS", "80");
        command
    };
    let list = json(&mut weft(&["--json"]));
    let list = list.as_array().expect("a list");
    let of = |name: &str| {
        let option = list.iter().find(|option| option["name"] == name).expect(name);
        (option["value"].as_str().expect("text"), option["origin"].as_str().expect("text"))
    };
    let from_file = format!("file {}", file.display());
    assert_eq!(of("shm.yields"), ("7", &*from_file));
    assert_eq!(of("socket.idle_ms"), ("10", "environment"));
    assert_eq!(of("socket.lanes_kept"), ("9", "flag"));
    assert_eq!(of("shm.spin_us"), ("2", "default"));
    let told = printed(&mut weft(&[]));
    assert_fits(&told);
    for option in list {
        let name = option["name"].as_str().expect("text");
        let named = |line: &&str| line.split_whitespace().next() == Some(name);
        assert_eq!(told.lines().filter(named).count(), 1, "{name}: {told}");
    }
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let yields = words("shm.yields 7 times file 100 times");
    assert!(told.lines().any(|line| words(line) == yields), "{told}");
    assert!(told.contains("configuration file: "), "{told}");
    assert_eq!(json(&mut place.weft(&["config", "dump", "--json"])), {
        json(&mut place.weft(&["config", "list", "--json"]))
    });
}

#[test]
fn an_option_is_explained_whatever_it_is_called_and_although_the_configuration_is_wrong() {
    let place = Place::new();
    let explained = printed(&mut place.weft(&["config", "explain", "socket.idle_ms"]));
    for name in ["WEFT_SOCKET_IDLE_MS", "socket-idle-ms", "socket.rest_ms"] {
        assert_eq!(printed(&mut place.weft(&["config", "explain", name])), explained, "{name}");
    }
    for part in ["250 ms", "from 0 to 86400000", "WEFT_SOCKET_IDLE_MS", "under [socket]"] {
        assert!(explained.contains(part), "{part} is missing in\n{explained}");
    }
    let mut old = place.weft(&["config", "explain", "WEFT_SOCKET_REST_MS"]);
    let told = text(&old.output().expect("weft starts").stderr);
    assert!(told.contains("an old name of socket.idle_ms"), "{told}");
    let all = json(&mut place.weft(&["config", "explain", "--json", "shm.ring_slots"]));
    assert_eq!((all["minimum"].as_u64(), all["maximum"].as_u64()), (Some(16), Some(65_536)));
    let mut wrong = place.weft(&["config", "explain", "shm.spin_us"]);
    let output = wrong.env("WEFT_SHM_SPIN_US", "soon").output().expect("weft starts");
    assert!(output.status.success() && text(&output.stdout).contains("from 0 to 1000"));
    assert!(text(&output.stderr).contains("weft config explain shm.spin_us"));
    let told = refused(place.weft(&["config", "list"]).env("WEFT_SHM_SPIN_US", "soon"));
    assert!(told.contains("WEFT_SHM_SPIN_US=\"soon\" is not valid"), "{told}");
}

#[test]
fn an_unknown_option_is_told_with_the_nearest() {
    let place = Place::new();
    let told = refused(&mut place.weft(&["config", "explain", "socket.idel_ms"]));
    assert!(told.contains("did you mean socket.idle_ms?"), "{told}");
    let told = refused(&mut place.weft(&["config", "explain", "colour_of_the_sea"]));
    assert!(told.contains("`weft config list` lists all options"), "{told}");
    let told = refused(&mut place.weft(&["status", "--socket-idl-ms", "5"]));
    assert!(told.contains("--socket-idle-ms"), "{told}");
}

#[test]
fn a_dumped_file_is_a_file_that_says_the_same() {
    let place = Place::new();
    let file = place.directory.path().join("dumped.toml");
    let line = ["config", "dump", "--socket-idle-ms", "77", "--shm-copy", "plain"];
    let dumped = printed(&mut place.weft(&line));
    assert_fits(&dumped);
    std::fs::write(&file, &dumped).expect("written");
    let mut dump = place.weft(&["config", "dump"]);
    dump.env("WEFT_CONFIG", &file).env_remove("WEFT_DAEMON_SOCKET");
    let output = dump.output().expect("weft starts");
    assert_eq!((text(&output.stdout), text(&output.stderr)), (dumped.clone(), String::new()));
    assert!(dumped.contains("\nidle_ms = 77\n") && dumped.contains("\ncopy = \"plain\"\n"));
}

#[test]
fn options_are_in_the_help_of_config_alone_and_flags_of_all() {
    let place = Place::new();
    for command in ["run", "daemon", "status", "down", "info", "perf", "demo"] {
        let help = printed(&mut place.weft(&[command, "--help"]));
        assert!(!help.contains("--shm-spin-us"), "{help}");
        assert!(help.trim_end().ends_with("`weft config --help` shows them."), "{help}");
    }
    let help = printed(&mut place.weft(&["config", "--help"]));
    assert!(help.contains("--shm-spin-us <US>"), "{help}");
    assert!(!help.contains("--socket-rest-ms"), "{help}");
    let value = |line: &[&str]| {
        let list = json(&mut place.weft(line));
        let list = list.as_array().expect("a list").clone();
        list.into_iter().find(|option| option["name"] == "shm.spin_us").expect("there")["value"]
            .clone()
    };
    assert_eq!(value(&["--shm-spin-us", "5", "config", "list", "--json"]), "5");
    assert_eq!(value(&["config", "list", "--json", "--shm-spin-us", "6"]), "6");
}

#[test]
fn manual_and_completions_know_the_commands_of_config() {
    let place = Place::new();
    let directory = place.directory.path().join("man");
    printed(&mut place.weft(&["man", &directory.display().to_string()]));
    let page = |name: &str| std::fs::read_to_string(directory.join(name)).expect("a page");
    assert!(page("weft-config.1").contains("WEFT_SHM_SPIN_US"));
    assert!(page("weft-config-explain.1").contains("socket.idle_ms"));
    assert!(!page("weft-run.1").contains("WEFT_SHM_SPIN_US"));
    let script = place.directory.path().join("weft.bash");
    std::fs::write(&script, printed(&mut place.weft(&["completions", "bash"]))).expect("written");
    let complete = format!(
        ". {}; COMP_WORDS=(weft config expl); COMP_CWORD=2; _weft weft expl config; \
         echo ${{COMPREPLY[@]}}",
        script.display()
    );
    let output = Command::new("bash").args(["-c", &complete]).output().expect("bash");
    assert_eq!(text(&output.stdout).trim(), "explain", "{}", text(&output.stderr));
}

#[test]
fn information_shows_the_options_that_were_set_and_its_json_all() {
    let place = Place::new();
    let told = printed(&mut place.weft(&["info", "--shm-yields", "3"]));
    assert!(told.contains("shm.yields") && told.contains("weft config list"), "{told}");
    assert!(!told.contains("shm.spin_us"), "{told}");
    let all = json(&mut place.weft(&["info", "--json"]));
    let list = json(&mut place.weft(&["config", "list", "--json"]));
    assert_eq!(all["configuration"], list);
}

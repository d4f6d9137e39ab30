//! The semantics of sockets, observed by Python scripts: the same on plain TCP and under weft.
//!
//! The cases are in `programs/cases_*.py`. Each case has two processes and runs six times: on plain
//! TCP, under weft as users have it, under weft asking for the fabric from the first byte on
//! ("cold"), under weft on a connection that is on the fabric already ("warm"), and twice with only
//! one of the two processes under weft. Both sides must print the same each time.
//!
//! With `WEFT_E2E_THIRD` set to 0, 1 or 2, as `cargo verify` does by the commit, each case runs on
//! plain TCP, warm, and in one of the other ways: three values run all.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use weft_e2e::{
    Case, Ended, ForkServer, Node, Outcome, Share, Statistics, as_usual, program, share_of, suite,
};

/// Time limit of each run of a case, without the time for which its peer is away.
const LIMIT: Duration = Duration::from_secs(60);
/// Runs of a case.
const RUNS: u32 = 6;

/// The beginning of the names of cases whose connections move while bytes are on their way: most
/// bytes go over the fabric.
const MOVES_AMID: &str = "moves_amid_";

/// The least time for which a peer that is away stays away (`WEFT_E2E_AWAY`).
fn away() -> Duration {
    Duration::from_secs(weft_e2e::setting("WEFT_E2E_AWAY", 0))
}

fn main() -> ExitCode {
    let names = suite::only().map_or_else(names, |name| Ok(vec![name]));
    let cases = match names {
        Ok(names) => {
            let limit = Duration::from_secs(240) + RUNS * away();
            let case = |name: String| {
                let is_timed = name == "passed_with_much_unread_beside_the_other_end";
                let case = Case::new(name.clone(), move || compare(&name)).within(limit);
                if is_timed { case.alone("the other end has a second to follow") } else { case }
            };
            names.into_iter().map(case).collect()
        }
        Err(skip) => vec![Case::new("semantics", move || Err(skip.clone()))],
    };
    suite::main(cases)
}

fn names() -> Result<Vec<String>, weft_e2e::Skip> {
    let printed = Command::new(program::python()?)
        .arg(program::script("semantics.py"))
        .arg("list")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .output()
        .expect("python starts");
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    let printed = String::from_utf8(printed.stdout).expect("names are text");
    Ok(printed.lines().map(str::to_owned).collect())
}

/// The sides that run under weft, and whether the connection exchanged some bytes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    Tcp,
    Usual,
    Cold,
    Warm,
    ServerOnly,
    ClientOnly,
}

impl How {
    fn is_under_weft(self, role: &str) -> bool {
        match self {
            Self::Tcp => false,
            Self::Usual | Self::Cold | Self::Warm => true,
            Self::ServerOnly => role == "server",
            Self::ClientOnly => role == "client",
        }
    }
}

fn compare(name: &str) -> Outcome {
    let node = Node::new();
    let mut without_weft = ForkServer::start(&node, "semantics.py", name)?;
    let (server, client) = run(&node, &mut without_weft, name, How::Tcp)?;
    let expected = [server.success().stdout, client.success().stdout];
    let mut wrong = Vec::new();
    let ways: &[How] = match share_of(name) {
        _ if name.starts_with(MOVES_AMID) => &[How::Warm, How::Usual, How::Cold],
        Share::All => &[How::Warm, How::Usual, How::Cold, How::ServerOnly, How::ClientOnly],
        Share::OneSided => &[How::Warm, How::ServerOnly, How::ClientOnly],
        Share::Usual => &[How::Warm, How::Usual],
        Share::Cold => &[How::Warm, How::Cold],
    };
    for &how in ways {
        let (server, client) = run(&node, &mut without_weft, name, how)?;
        for (side, ended, expected) in
            [("server", &server, &expected[0]), ("client", &client, &expected[1])]
        {
            if ended.stdout != *expected {
                wrong.push(format!(
                    "{how:?}, the {side} printed\n{}on tcp it was\n{expected}{}",
                    ended.stdout, ended.stderr
                ));
            } else if how != How::Warm && name.starts_with(MOVES_AMID) {
                let Statistics { fabric, tcp, .. } = ended.statistics();
                if fabric.sent + fabric.received < tcp.sent + tcp.received {
                    wrong.push(format!("{how:?}, the {side} did not move:\n{}", ended.stderr));
                }
            } else if how == How::Warm && !on_tcp(name) {
                let statistics = ended.statistics();
                let most = statistics.fabric.connections > statistics.tcp.connections;
                if !(on_fabric(&statistics, returns_to_tcp(name)) || most && is_held_by_two(name)) {
                    wrong
                        .push(format!("{how:?}, the {side} was not all on fabric: {statistics:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Whether all connections switched, after at most a few bytes on TCP.
///
/// Among hundreds of short connections, one in fifty may end before its two ends agreed.
fn on_fabric(statistics: &Statistics, returns_to_tcp: bool) -> bool {
    statistics.fabric.connections > 0
        && statistics.tcp.connections <= statistics.fabric.connections / 50
        && (returns_to_tcp || statistics.tcp.sent + statistics.tcp.received < 500)
}

/// Cases in which two processes first hold the connection. Such a connection moves only after one
/// process has closed it, which may be after all bytes were sent, or after the second of two
/// programs that start together is there. Until then the first reads from TCP.
fn is_held_by_two(name: &str) -> bool {
    matches!(name, "server_forks_for_each_connection" | "programs_in_a_pipe")
}

/// Cases that return to TCP for what only the kernel supports, or that write more than a lane holds
/// to a peer that does not read.
fn returns_to_tcp(name: &str) -> bool {
    let begins = ["passed_to_a_program", "passed_when_", "passed_with_", "passed_without_rights"];
    if begins.iter().any(|begin| name.starts_with(begin)) {
        return true;
    }
    const NAMES: [&str; 46] = [
        "alarm_ends_a_wait",
        "both_write_before_they_read",
        "both_write_by_epoll_before_they_read",
        "both_write_by_poll_before_they_read",
        "bytes_that_wait_to_be_read",
        "child_behind_a_filter_of_system_calls",
        "child_behind_a_filter_of_system_calls_in_use",
        "child_of_vfork_in_use_without_weft",
        "completions_of_zero_copy",
        "low_water_mark",
        "low_water_mark_in_use",
        "dropped_by_a_filter",
        "dropped_by_a_map_of_sockets",
        "edges_across_a_crossing",
        "end_comes_after_all_data",
        "epoll_edge_of_writing",
        "epoll_edge_writer_that_looks_often",
        "epoll_writable_after_drain",
        "half_close_with_much_data_after",
        "looks_far_ahead",
        "non_blocking_read_and_full_write",
        "options_about_the_wire",
        "passed_in_use_by_a_peer_in_epoll",
        "passed_in_use_to_a_program_without_weft",
        "passed_amid_a_message",
        "passed_beside_the_other_end",
        "passed_beside_the_other_end_and_a_thread_that_waits",
        "passed_beside_the_other_end_that_is_half_closed",
        "passed_half_closed_while_the_peer_is_stopped",
        "program_answers_line_by_line_in_use",
        "program_of_wide_characters_in_use",
        "program_without_weft_finds_what_was_not_read",
        "read_by_aio_in_use",
        "reader_pauses_again_and_again",
        "signal_for_an_urgent_byte",
        "signal_for_bytes",
        "signal_for_bytes_by_ioctl_of_a_copy",
        "spawned_in_use_without_weft",
        "spliced_into_a_connection",
        "spliced_out_of_a_connection",
        "stamps_are_told",
        "stdin_of_the_server_itself_for_a_while",
        "time_limit_of_writing",
        "urgent_byte_in_use",
        "waiting_costs_no_processor",
        "writer_whose_peer_has_ended_over_tcp",
    ];
    NAMES.contains(&name)
}

/// Cases whose connections weft leaves on TCP, wholly or in part.
fn on_tcp(name: &str) -> bool {
    if name.starts_with("dissolved_with") || name.starts_with("dissolved_after") {
        // The socket that follows is counted, too.
        return true;
    }
    const NAMES: [&str; 26] = [
        "stdin_and_stdout_of_a_program",
        "standard_streams_are_reopened",
        "stdout_of_a_program_in_the_client",
        "started_by_posix_spawn",
        "replaced_by_exec",
        "child_of_vfork_keeps_a_connection_by_its_number",
        "passed_to_another_process",
        "printed_at_exit_by_a_program",
        "program_of_wide_characters",
        "streams_of_a_program_have_descriptors",
        "low_water_mark_of_a_listener",
        // On a busy machine 2 MB may be over before both ends have agreed.
        "one_way_to_an_end_that_sends_nothing",
        // All connections of the process go back, and the last one finds no descriptor.
        "descriptors_of_a_thread_alone",
        "as_many_descriptors_as_the_limit",
        // In these nothing is sent before the client closes, or nothing while no connection is
        // accepted.
        "closed_before_accept",
        "small_buffers_and_a_writer_that_does_not_wait",
        "client_speaks_before_accept",
        "server_speaks_first",
        "reply_after_a_large_upload",
        "silent_server_closes_after_a_large_upload",
        "reader_waits_before_anybody_spoke",
        "epoll_registered_before_connect",
        "shutdown_twice_and_unconnected",
        "connection_refused",
        "spliced",
        "registered_and_then_connected_by_sendto",
    ];
    NAMES.contains(&name)
}

fn run(
    node: &Node,
    without_weft: &mut ForkServer,
    name: &str,
    how: How,
) -> Result<(Ended, Ended), weft_e2e::Skip> {
    let python = program::python()?;
    let control = node.directory().join("control");
    // Left over from the previous run.
    let _ = std::fs::remove_file(&control);
    let mut side = |role: &str| {
        if !how.is_under_weft(role) {
            let control = control.to_str().expect("a path of this test");
            return without_weft.fork(node, &[name, role, control]);
        }
        let mut command = node.program(true, &python);
        command.arg(program::script("semantics.py")).args([name, role]).arg(&control);
        if how == How::Cold {
            // No wait for the daemon: the ends agree whenever they do.
            command.arg("--cold").env_remove("WEFT_SOCKET_SWITCH_WAIT_US");
        }
        if how == How::Usual {
            command.arg("--cold");
            as_usual(&mut command);
        }
        node.start(command)
    };
    let (server, client) = (side("server"), side("client"));
    Ok(server.wait_with(client, LIMIT + away()))
}

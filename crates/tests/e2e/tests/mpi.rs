//! Programs of MPI and of libfabric over weft, by its provider: `libweft-fi.so`.
//!
//! The programs and libraries are Debian's, unchanged. `programs/mpi/messages.c` and `windows.c`
//! have what is checked. Two hosts are those of `mpi_hosts`, what takes long is in `mpi_long`.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use weft_e2e::mpi::{
    END_WITHIN, LIMIT, await_end, compiled, has_no_programs, is_right, job, processes,
    with_provider,
};
use weft_e2e::{Case, Node, Outcome, Skip, cases, program, suite};

fn main() -> ExitCode {
    let mut cases = cases![
        libfabric_lists_the_provider_where_weft_says_that_it_is,
        a_ping_pong_goes_by_messages_and_by_tags,
        a_job_starts_a_daemon_if_there_is_none,
        a_killed_rank_ends_the_job_and_leaves_nothing,
        without_a_daemon_that_can_be_started_the_reason_is_told,
        threads_stopped_peers_and_forks_are_served,
        ranks_that_find_no_endpoint_say_so,
        a_program_that_unloads_libfabric_goes_on,
        the_log_of_libfabric_has_the_thresholds,
        a_killed_server_ends_a_client_that_waits_for_any_source,
    ];
    for ranks in [1, 2, 5] {
        let name = format!("messages_are_right_on_{ranks}_ranks");
        cases.push(Case::new(name, move || messages(ranks)));
    }
    for ranks in [2, 4] {
        let name = format!("windows_are_right_on_{ranks}_ranks");
        cases.push(Case::new(name, move || windows(ranks)));
    }
    suite::main(cases)
}

fn libfabric_lists_the_provider_where_weft_says_that_it_is() -> Outcome {
    let node = Node::without_daemon();
    let fi_info = program::find("fi_info")?;
    let mut shell = node.plain("sh");
    let script = r#"eval "$("$1" fi env)" && exec "$2" -p weft"#;
    shell.args(["-c", script, "sh"]).arg(program::weft()).arg(fi_info);
    let ended = node.start(shell).wait(LIMIT).success();
    for words in ["provider: weft", "fabric: weft", "type: FI_EP_RDM"] {
        assert!(ended.stdout.contains(words), "{}", ended.report());
    }
    Ok(())
}

fn a_ping_pong_goes_by_messages_and_by_tags() -> Outcome {
    let node = Node::new();
    let fi_pingpong = program::find("fi_pingpong")?;
    for mode in ["msg", "tagged"] {
        let port = weft_e2e::process::free_port().to_string();
        let end = |port_flag: &str| {
            let mut command = with_provider(&node, &fi_pingpong);
            command.args(["-p", "weft", "-e", "rdm", "-c", "-I", "100", "-m", mode]);
            command.args([port_flag, &port]);
            command
        };
        let mut server = node.start(end("-B"));
        server.await_port(port.parse().expect("a number"));
        let mut client = end("-P");
        client.arg("127.0.0.1");
        let client = node.start(client).wait(LIMIT).success();
        assert!(client.stdout.contains("1m"), "{}", client.report());
        let _ = server.wait(LIMIT).success();
    }
    Ok(())
}

fn messages(ranks: u32) -> Outcome {
    let node = Node::new();
    let program = compiled(&node, "messages.c")?;
    is_right(&node.start(job(&node, ranks, &program)?).wait(LIMIT));
    Ok(())
}

fn windows(ranks: u32) -> Outcome {
    let node = Node::new();
    let program = compiled(&node, "windows.c")?;
    let mut command = job(&node, ranks, &program)?;
    // One-sided operations go to the provider, too, and not to memory of Open MPI's own.
    command.env("OMPI_MCA_btl", "self,ofi").env("OMPI_MCA_osc", "rdma");
    command.env("OMPI_MCA_btl_ofi_provider_include", "weft");
    command.env("WITHOUT_COMPARE_AND_SWAP", "1");
    is_right(&node.start(command).wait(LIMIT));
    Ok(())
}

fn a_job_starts_a_daemon_if_there_is_none() -> Outcome {
    let node = Node::without_daemon();
    let program = compiled(&node, "loop.c")?;
    let mut job = node.start(job(&node, 2, &program)?);
    job.await_output("begun");
    let status = node.status();
    let text = status.to_string();
    assert!(text.matches("fi loop").count() >= 2, "the endpoints of the ranks are listed: {text}");
    job.signal(Signal::TERM);
    let _ = job.wait(END_WITHIN);
    let _ = node.start(node.weft(["down"])).wait(LIMIT).success();
    Ok(())
}

fn a_killed_rank_ends_the_job_and_leaves_nothing() -> Outcome {
    for signal in [Signal::KILL, Signal::SEGV] {
        let node = Node::new();
        let program = compiled(&node, "loop.c")?;
        let mut job = node.start(job(&node, 3, &program)?);
        job.await_output("begun");
        let ranks = processes(&program);
        assert_eq!(ranks.len(), 3);
        kill_process(ranks[1], signal).expect("it runs");
        let killed = Instant::now();
        let ended = job.wait(END_WITHIN);
        assert_ne!(ended.code(), 0, "{}", ended.report());
        await_end(&program, killed);
        let _ = node.await_status("without the endpoints of the job", has_no_programs);
    }
    Ok(())
}

fn without_a_daemon_that_can_be_started_the_reason_is_told() -> Outcome {
    let node = Node::without_daemon();
    let fi_pingpong = program::find("fi_pingpong")?;
    let mut command = with_provider(&node, fi_pingpong);
    command.args(["-p", "weft", "-e", "rdm", "127.0.0.1"]);
    command.env("WEFT_DAEMON_SOCKET", "/proc/nowhere/n.sock");
    let ended = node.start(command).wait(LIMIT);
    assert_ne!(ended.code(), 0, "{}", ended.report());
    Ok(())
}

fn threads_stopped_peers_and_forks_are_served() -> Outcome {
    let node = Node::new();
    let program = compiled(&node, "edges.c")?;
    for part in ["threads", "stopped", "forks"] {
        let mut command = job(&node, 2, &program)?;
        command.arg(part);
        is_right(&node.start(command).wait(LIMIT));
    }
    Ok(())
}

fn ranks_that_find_no_endpoint_say_so() -> Outcome {
    let node = Node::without_daemon();
    let program = compiled(&node, "edges.c")?;
    let mut command = job(&node, 3, &program)?;
    command.arg("threads").env("WEFT_DAEMON_ENDPOINTS_MAX", "2");
    let ended = node.start(command).wait(LIMIT);
    let is_told = ended.stderr.contains("all 2 endpoints of this node are in use");
    assert!(is_told && ended.code() != 0, "{}", ended.report());
    let _ = node.start(node.weft(["down"])).wait(LIMIT).success();
    Ok(())
}

/// Compiles the program that loads and unloads libfabric.
fn reload(node: &Node) -> Result<PathBuf, Skip> {
    let binary = node.directory().join("reload");
    let mut compiler = Command::new(program::find("gcc")?);
    compiler.args(["-O1", "-Wall", "-o"]).arg(&binary).arg(program::script("mpi/reload.c"));
    let output = compiler.output().expect("the compiler starts");
    let missing = || Skip("the headers of libfabric are missing: install libfabric-dev".into());
    output.status.success().then_some(binary).ok_or_else(missing)
}

/// libfabric unloads its providers, whose threads and functions at exit must not be gone with them.
fn a_program_that_unloads_libfabric_goes_on() -> Outcome {
    let node = Node::new();
    is_right(&node.start(with_provider(&node, &reload(&node)?)).wait(LIMIT));
    Ok(())
}

fn the_log_of_libfabric_has_the_thresholds() -> Outcome {
    let node = Node::new();
    let said = "messages of up to 256 bytes go in the mailbox";
    let mut command = with_provider(&node, &reload(&node)?);
    command.env("FI_LOG_LEVEL", "info").env("WEFT_MPI_INLINE_BYTES", "256");
    let ended = node.start(command).wait(LIMIT).success();
    assert!(ended.stderr.contains(said), "{}", ended.report());
    let told = node.start(node.weft(["info", "--mpi-inline-bytes", "256"])).wait(LIMIT).success();
    assert!(told.stdout.contains(said), "{}", told.report());
    Ok(())
}

/// `fi_pingpong` receives from any source, and would wait for a newcomer without the option.
fn a_killed_server_ends_a_client_that_waits_for_any_source() -> Outcome {
    let node = Node::new();
    let fi_pingpong = program::find("fi_pingpong")?;
    let port = weft_e2e::process::free_port();
    let end = |flag: &str| {
        let mut command = with_provider(&node, &fi_pingpong);
        command.args(["-p", "weft", "-e", "rdm", "-m", "tagged", "-I", "100000000", "-S", "64"]);
        command.args([flag, &port.to_string()]).env("WEFT_MPI_ENDS_RECEIVES", "true");
        command
    };
    let mut server = node.start(end("-B"));
    server.await_port(port);
    let mut client = end("-P");
    client.arg("127.0.0.1");
    let client = node.start(client);
    let _ = node.await_status("with both endpoints", |status| {
        status["endpoints"].as_array().is_some_and(|all| all.len() == 2)
    });
    // They exchange addresses before their first message.
    std::thread::sleep(Duration::from_secs(1));
    server.signal(Signal::KILL);
    let _ = server.wait(LIMIT);
    let ended = client.wait(Duration::from_secs(6));
    assert_ne!(ended.code(), 0, "{}", ended.report());
    Ok(())
}

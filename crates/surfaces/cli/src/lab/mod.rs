//! `weft lab`: a cluster on one machine.
//!
//! Every node is a network namespace `weft-nI` with a device `weft0` of one daemon, which carries
//! frames between them as it would between machines. Everything is written down before it is
//! made, so that a crash at any moment leaves nothing that `weft lab down` does not know; what was
//! made by others is not touched.

mod health;
mod link;
mod state;
mod status;
mod up;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail, ensure};
use weft_netdev::namespace::Namespace;
use weft_netdev::room::{self, HostsFile};
use weft_options::runtime_path::ControlSocket;
use weft_topology::Graph;

use crate::arguments::{LabCommand, LabExecArguments};
use crate::configuration::Configuration;
use crate::daemon;
use state::State;

/// The name of the lab's daemon.
pub const NODE: &str = "lab";
/// The networks of a lab.
const PREFIX4: u8 = 16;
const PREFIX6: u8 = 64;
/// A lab's nodes have addresses 1 to 250 of the last byte.
pub const NODES_MAX: u16 = 250;
/// Exit status when weft itself failed, as `env` and `nohup` have it.
const EXIT_EXEC_FAILED: u8 = 125;

pub use link::set as set_link;

/// The links of the lab whose record is beside this socket.
///
/// # Errors
/// There is no lab.
pub fn links(socket: &ControlSocket) -> anyhow::Result<Graph> {
    let state =
        State::load(socket)?.context("there is no lab at this socket; run `weft lab up`")?;
    Ok(state.topology()?.graph().clone())
}

/// `weft lab`.
pub fn lab(command: &LabCommand, configuration: &Configuration) -> anyhow::Result<ExitCode> {
    let socket = configuration.control_socket(Some(NODE))?;
    if socket.directory().exists() {
        // The record of the lab in this directory is trusted, so nobody else may write there.
        weft_channel::open_directory(socket.directory())?;
    }
    let _guard = match command {
        LabCommand::Up(_) => {
            daemon::prepare_directory(&socket)?;
            State::guard(&socket)?
        }
        LabCommand::Link(_) | LabCommand::Down => State::guard(&socket)?,
        LabCommand::Exec(_) | LabCommand::Status { .. } => None,
    };
    match command {
        LabCommand::Up(arguments) => {
            up::up(arguments, &socket, configuration)?;
            Ok(ExitCode::SUCCESS)
        }
        LabCommand::Exec(arguments) => match exec(arguments, &socket) {
            Ok(never) => match never {},
            Err(error) => {
                eprintln!("weft: {error:#}");
                Ok(ExitCode::from(EXIT_EXEC_FAILED))
            }
        },
        LabCommand::Link(arguments) => {
            link::link(arguments, &socket)?;
            Ok(ExitCode::SUCCESS)
        }
        LabCommand::Status { json } => status::status(*json, &socket),
        LabCommand::Down => down(&socket),
    }
}

fn name_of(node: u16) -> String {
    format!("weft-n{node}")
}

/// 10.77.0.1 for node 0, and on.
fn address_of(node: u16) -> Ipv4Addr {
    let [high, low] = (node + 1).to_be_bytes();
    Ipv4Addr::new(10, 77, high, low)
}

/// fd77::1 for node 0, and on.
fn address6_of(node: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, node + 1)
}

/// The value of a successful exec, which does not return.
enum Never {}

fn exec(arguments: &LabExecArguments, socket: &ControlSocket) -> anyhow::Result<Never> {
    let state = State::load(socket)?.context("no lab is up; run `weft lab up`")?;
    let node = state.node(&arguments.node)?;
    let namespace = Namespace::named(&name_of(node))?;
    ensure!(
        state.nodes[usize::from(node)].is_of(&namespace) && !namespace.is_name_alone(),
        "the network namespace {} is gone; {} makes it again",
        namespace.name(),
        state.command()
    );
    let hosts = room::enter(&namespace, &format!("n{node}"), &State::hosts(socket))?;
    if hosts == HostsFile::NoPlace {
        eprintln!(
            "weft: this machine has no /etc/hosts, where programs look for the names of the nodes; \
             make an empty one, or use the addresses that `weft lab status` shows"
        );
    }
    let Some((program, rest)) = arguments.command.split_first() else {
        bail!("no program was given");
    };
    let error = Command::new(program)
        .args(rest)
        .env("WEFT_SOCKET", &socket.path)
        .env("WEFT_NODE", NODE)
        .exec();
    Err(error).with_context(|| format!("{} cannot be executed", program.display()))
}

/// Says how the lab's daemon is started again.
fn ensure_daemon(state: &State, socket: &ControlSocket) -> anyhow::Result<()> {
    ensure!(
        weftd::client::answers(&socket.path),
        "the lab's daemon does not answer; {} starts it again, `weft lab down` removes the lab",
        state.command()
    );
    Ok(())
}

fn down(socket: &ControlSocket) -> anyhow::Result<ExitCode> {
    let Some(state) = State::load(socket)? else {
        State::remove(socket)?;
        eprintln!("weft: no lab is up; nothing to remove");
        return Ok(ExitCode::SUCCESS);
    };
    remove(&state, socket)?;
    Ok(ExitCode::SUCCESS)
}

/// Removes all that the record names, and the record.
fn remove(state: &State, socket: &ControlSocket) -> anyhow::Result<()> {
    if weftd::client::answers(&socket.path) {
        daemon::stop(socket)?;
    }
    for (node, made) in (0..).zip(&state.nodes) {
        let namespace = Namespace::named(&name_of(node))?;
        if made.is_of(&namespace) {
            namespace.remove()?;
        }
    }
    State::remove(socket)
}

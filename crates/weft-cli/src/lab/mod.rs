//! `weft lab`: a cluster on one machine.
//!
//! Every node is a network namespace `weft-nI` with a device `weft0` of one daemon, which carries
//! frames between them as it would between machines. Everything is written down before it is
//! made, so that a crash at any moment leaves nothing that `weft lab down` does not know; what was
//! made by others is not touched.

mod link;
mod state;
mod status;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use weft_netdev::interface::Interface;
use weft_netdev::namespace::Namespace;
use weft_netdev::room;
use weft_options::runtime_path::ControlSocket;
use weft_topology::Graph;
use weftd::{DeviceSpec, DeviceStatus, INTERFACE};

use crate::arguments::{LabCommand, LabExecArguments, LabUpArguments};
use crate::configuration::Configuration;
use crate::daemon;
use state::{Made, State};

/// The name of the lab's daemon.
pub const NODE: &str = "lab";
/// The networks of a lab.
const PREFIX4: u8 = 16;
const PREFIX6: u8 = 64;
/// A lab's nodes have addresses 1 to 250 of the last byte.
pub const NODES_MAX: u16 = 250;
/// How long all devices may take.
const DEVICES_WITHIN: Duration = Duration::from_secs(30);
const ASK_EVERY: Duration = Duration::from_millis(20);
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
        LabCommand::Up(arguments) => up(arguments, &socket, configuration),
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
        LabCommand::Status { json } => {
            status::status(*json, &socket)?;
            Ok(ExitCode::SUCCESS)
        }
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

fn up(
    arguments: &LabUpArguments,
    socket: &ControlSocket,
    configuration: &Configuration,
) -> anyhow::Result<ExitCode> {
    let shape = link::shape(&arguments.topology)?;
    let nodes = shape.topology(arguments.nodes)?.nodes();
    ensure!(nodes <= NODES_MAX, "a lab has up to {NODES_MAX} nodes; {shape} has {nodes}");
    let wanted = State::new(nodes, arguments.mtu, &shape);
    let mut state = match State::load(socket)? {
        Some(state) => {
            ensure!(
                state.is_like(&wanted),
                "a lab of {} nodes with MTU {} and topology {} is up already; run `weft lab down` \
                 first",
                state.nodes.len(),
                state.mtu,
                state.shape
            );
            state
        }
        None => wanted,
    };
    for node in 0..nodes {
        let namespace = Namespace::named(&name_of(node))?;
        let made = &state.nodes[usize::from(node)];
        ensure!(
            !namespace.exists() || made.is_of(&namespace),
            "there is a network namespace {} that this lab did not make; rename or remove it (`ip \
             netns del {0}`) if it is not needed",
            namespace.name()
        );
    }
    state.store(socket)?;
    for node in 0..nodes {
        let namespace = Namespace::named(&name_of(node))?;
        if namespace.is_name_alone() {
            namespace.remove()?;
        }
        if !namespace.exists() {
            state.nodes[usize::from(node)] = Made::Begun;
            state.store(socket)?;
            namespace.create()?;
        }
        state.nodes[usize::from(node)] = Made::Namespace(namespace.inode().unwrap_or(0));
    }
    state.store(socket)?;
    state.store_hosts(socket)?;
    // A daemon that was killed a moment ago still accepts connections, but reports no status.
    let topology = state.topology()?;
    if weftd::client::status(&socket.path).is_err() {
        daemon::ensure_same_release(socket)?;
        let devices: Vec<DeviceSpec> = (0..nodes)
            .map(|node| DeviceSpec {
                node: weft_fabric::NodeId(node.into()),
                namespace: Some(name_of(node)),
                mtu: arguments.mtu,
                stays: true,
                segment: None,
                reach: link::reach(&topology, node),
            })
            .collect();
        daemon::start(socket, &configuration.options, &devices, true)?;
    }
    wait_for_devices(socket)?;
    // Also without a cut link: a shape may have nodes without a path between them, and a command
    // that mended a link may have died before it told the daemon.
    link::tell(&topology, socket)?;
    for node in 0..nodes {
        let set = || -> anyhow::Result<()> {
            let interface = Interface::named(INTERFACE)?;
            interface.add_address(address_of(node).into(), PREFIX4)?;
            interface.add_address(address6_of(node).into(), PREFIX6)?;
            Ok(())
        };
        Namespace::named(&name_of(node))?
            .enter(set)?
            .with_context(|| format!("the addresses of node {node}"))?;
    }
    eprintln!(
        "weft: {} nodes are up, n0 to n{}; `weft lab exec n0 -- CMD` runs a program in one",
        nodes,
        nodes - 1
    );
    Ok(ExitCode::SUCCESS)
}

/// Waits until the devices can reach each other. The daemon has a socket before it has devices. It
/// reports them when all are there, and they find each other a moment later.
fn wait_for_devices(socket: &ControlSocket) -> anyhow::Result<()> {
    let deadline = Instant::now() + DEVICES_WITHIN;
    loop {
        match weftd::client::status(&socket.path) {
            Ok(status) if status.devices.is_empty() => bail!(
                "the daemon at {} serves no devices; stop it with `weft down --node {NODE}`",
                socket.path.display()
            ),
            Ok(status) if has_met(&status.devices) => return Ok(()),
            Ok(_) if Instant::now() >= deadline => {
                bail!("the devices did not all find each other; see {}", socket.log().display())
            }
            Err(error) if Instant::now() >= deadline || !weftd::client::answers(&socket.path) => {
                let log = socket.log();
                return Err(error).context(format!("no devices; see {}", log.display()));
            }
            Ok(_) | Err(_) => std::thread::sleep(ASK_EVERY),
        }
    }
}

/// Every device knows every other one.
fn has_met(devices: &[DeviceStatus]) -> bool {
    devices.iter().all(|device| device.peers.len() + 1 == devices.len())
}

/// The value of a successful exec, which does not return.
enum Never {}

fn exec(arguments: &LabExecArguments, socket: &ControlSocket) -> anyhow::Result<Never> {
    let state = State::load(socket)?.context("no lab is up; run `weft lab up`")?;
    let node = state.node(&arguments.node)?;
    let namespace = Namespace::named(&name_of(node))?;
    ensure!(namespace.exists(), "{} is gone; run `weft lab up` again", namespace.name());
    room::enter(&namespace, &format!("n{node}"), &State::hosts(socket))?;
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
        "the lab's daemon does not answer; `weft lab up --nodes {} --mtu {} --topology {}` starts \
         it again, `weft lab down` removes the lab",
        state.nodes.len(),
        state.mtu,
        state.shape
    );
    Ok(())
}

fn down(socket: &ControlSocket) -> anyhow::Result<ExitCode> {
    let Some(state) = State::load(socket)? else {
        State::remove(socket)?;
        eprintln!("weft: no lab is up; nothing to remove");
        return Ok(ExitCode::SUCCESS);
    };
    if weftd::client::answers(&socket.path) {
        daemon::stop(socket)?;
    }
    for (node, made) in (0..).zip(&state.nodes) {
        let namespace = Namespace::named(&name_of(node))?;
        if made.is_of(&namespace) {
            namespace.remove()?;
        }
    }
    State::remove(socket)?;
    Ok(ExitCode::SUCCESS)
}

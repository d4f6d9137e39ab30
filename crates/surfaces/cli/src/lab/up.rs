//! `weft lab up`: makes the nodes, or what is missing of them.
//!
//! A command that fails leaves what was there before: no lab, or the one that was up.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use weft_netdev::interface::Interface;
use weft_netdev::namespace::Namespace;
use weft_options::runtime_path::ControlSocket;
use weftd::{DeviceSpec, DeviceStatus, INTERFACE};

use super::health::Health;
use super::state::{Made, State};
use super::{NODE, NODES_MAX, PREFIX4, PREFIX6, address_of, address6_of, link, name_of, remove};
use crate::arguments::LabUpArguments;
use crate::configuration::Configuration;
use crate::daemon;

/// How long all devices may take.
const DEVICES_WITHIN: Duration = Duration::from_secs(30);
const ASK_EVERY: Duration = Duration::from_millis(20);

/// `weft lab up`.
pub fn up(
    arguments: &LabUpArguments,
    socket: &ControlSocket,
    configuration: &Configuration,
) -> anyhow::Result<()> {
    let shape = link::shape(&arguments.topology)?;
    let nodes = shape.topology(arguments.nodes)?.nodes();
    ensure!(nodes <= NODES_MAX, "a lab has up to {NODES_MAX} nodes; {shape} has {nodes}");
    let mut wanted = State::new(nodes, arguments.mtu, &shape);
    match State::load(socket)? {
        Some(mut state) => {
            ensure!(
                state.is_like(&wanted),
                "a lab of {} nodes with MTU {} and topology {} is up already; run `weft lab down` \
                 first",
                state.nodes.len(),
                state.mtu,
                state.shape
            );
            make(&mut state, socket, configuration)?;
        }
        None => {
            // One that died a moment ago still accepts connections, but reports no status.
            ensure!(
                weftd::client::status(&socket.path).is_err(),
                "the daemon at {} is that of no lab; stop it with `weft down --node {NODE}`",
                socket.path.display()
            );
            if let Err(error) = make(&mut wanted, socket, configuration) {
                return Err(match remove(&wanted, socket) {
                    Ok(()) => error,
                    Err(left) => error.context(format!(
                        "something is left of the lab ({left:#}), which `weft lab down` removes"
                    )),
                });
            }
        }
    }
    eprintln!(
        "weft: {nodes} nodes are up, n0 to n{}; `weft lab exec n0 -- CMD` runs a program in one",
        nodes - 1
    );
    Ok(())
}

/// Makes all that is not there.
fn make(
    state: &mut State,
    socket: &ControlSocket,
    configuration: &Configuration,
) -> anyhow::Result<()> {
    make_namespaces(state, socket)?;
    state.store_hosts(socket)?;
    let topology = state.topology()?;
    // In this order: a daemon that an earlier command started, which is about to be ready, may make
    // the devices now. One that is ready has made them.
    let is_served = weftd::client::status(&socket.path).is_ok();
    let is_whole = Health::of_all(state)?.iter().all(|health| *health == Health::Whole);
    if is_served && !is_whole {
        // It has devices of namespaces that nobody reaches any more. The others stay while it is
        // away, as when it dies.
        daemon::stop(socket)?;
    }
    if !is_served || !is_whole {
        daemon::ensure_same_release(socket)?;
        let devices: Vec<DeviceSpec> = (0..topology.nodes())
            .map(|node| DeviceSpec {
                node: weft_fabric::NodeId(node.into()),
                namespace: Some(name_of(node)),
                mtu: state.mtu,
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
    for node in 0..topology.nodes() {
        let set = || -> anyhow::Result<()> {
            let interface = Interface::named(INTERFACE)?;
            interface.add_address(address_of(node).into(), PREFIX4)?;
            if state.has_ipv6() {
                interface.add_address(address6_of(node).into(), PREFIX6)?;
            }
            Ok(())
        };
        Namespace::named(&name_of(node))?
            .enter(set)?
            .with_context(|| format!("the addresses of node {node}"))?;
    }
    Ok(())
}

/// Makes the namespaces that are not there. Each is written down before.
fn make_namespaces(state: &mut State, socket: &ControlSocket) -> anyhow::Result<()> {
    let namespaces: Vec<Namespace> = (0..)
        .zip(&state.nodes)
        .map(|(node, _)| Namespace::named(&name_of(node)))
        .collect::<Result<_, _>>()?;
    for (namespace, made) in namespaces.iter().zip(&state.nodes) {
        ensure!(
            !namespace.exists() || made.is_of(namespace),
            "there is a network namespace {} that this lab did not make; rename or remove it (`ip \
             netns del {0}`) if it is not needed",
            namespace.name()
        );
    }
    state.store(socket)?;
    for (node, namespace) in namespaces.iter().enumerate() {
        if namespace.is_name_alone() {
            namespace.remove()?;
        }
        if !namespace.exists() {
            state.nodes[node] = Made::Begun;
            state.store(socket)?;
            namespace.create()?;
        }
        state.nodes[node] = Made::Namespace(namespace.inode().unwrap_or(0));
    }
    state.store(socket)
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

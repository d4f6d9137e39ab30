//! `weft kv serve`: one node, without a cluster or in one.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use weft_kv::node::{Durability, Node};
use weft_kv::store::StoreError;
use weft_kv_server::{
    Alone, ClusterNode, ClusterSettings, Listener, Settings, cluster_of, regions_in,
};
use weft_open::Opening;
use weft_wire::stats::Work;

use super::password;
use crate::arguments::kv::{DurabilityMode, ServeArguments};
use crate::configuration::Configuration;
use crate::counting::{self, Shown};

/// So long a node of a cluster waits for its primary before it answers clients anyway.
const USABLE_WITHIN: Duration = Duration::from_secs(10);

pub fn serve(
    arguments: &ServeArguments,
    configuration: impl Fn() -> anyhow::Result<Configuration>,
) -> anyhow::Result<ExitCode> {
    if let Some(parent) = arguments.parent {
        set_parent_process_death_signal(Some(Signal::TERM))?;
        let is_there = getppid().is_some_and(|pid| pid.as_raw_nonzero().get() == parent);
        ensure!(is_there, "the process that started this node is gone");
    }
    let password = password(arguments.password_file.as_deref())?;
    let addresses = addresses(&arguments.bind, arguments.port)?;
    let listener = weft_kv_server::listen(&addresses).with_context(|| {
        format!("{} port {} cannot be listened at", arguments.bind, arguments.port)
    })?;
    // Port 0 is any free one.
    let shown = listener.addresses().first().copied().unwrap_or(addresses[0]);
    std::fs::create_dir_all(&arguments.data)
        .with_context(|| format!("the directory {} cannot be made", arguments.data.display()))?;
    let settings = Settings {
        password,
        directory: arguments.data.display().to_string(),
        ..Settings::default()
    };
    match &arguments.coord {
        Some(place) => {
            let configuration = configuration()?;
            let _shown = shown_to_daemon(&configuration, &settings);
            in_cluster(arguments, place, shown, &configuration, listener, settings)
        }
        None => {
            // A store alone needs no options: a file of them that is wrong does not stop it.
            let configuration = configuration().ok();
            let _shown = configuration.map(|one| shown_to_daemon(&one, &settings));
            alone(arguments, shown, listener, settings)
        }
    }
}

/// The daemon shows what the server counts.
fn shown_to_daemon(configuration: &Configuration, settings: &Settings) -> Shown {
    let counts = Arc::clone(&settings.counts);
    counting::show(configuration, "weft kv", move || {
        let totals = counts.totals();
        let [received, sent, connections] = counts.traffic();
        vec![
            (Work::KvCommands, totals.commands),
            (Work::KvErrors, totals.errors),
            (Work::KvHits, totals.hits),
            (Work::KvMisses, totals.misses),
            (Work::KvReceivedBytes, received),
            (Work::KvSentBytes, sent),
            (Work::KvConnections, connections),
        ]
    })
}

fn alone(
    arguments: &ServeArguments,
    shown: SocketAddr,
    listener: Listener,
    settings: Settings,
) -> anyhow::Result<ExitCode> {
    let data = &arguments.data;
    if let Some((cluster, file)) = cluster_of(data) {
        let (name, file) = (data.display(), file.display());
        let way_out = match regions_in(data).len() {
            0 => format!(", or remove {file} to serve alone what it has"),
            _ => String::new(),
        };
        return Err(anyhow!(
            "{name} belongs to the cluster {cluster}: give --coord and --cluster{way_out}"
        ));
    }
    let address = (shown.ip().to_string(), shown.port());
    let node = Alone::open(data, durability(arguments.durability), address)
        .map_err(|error| refusal(arguments, &error))?;
    for text in node.discarded() {
        eprintln!("weft: the recovery of {}: {text}", data.display());
    }
    let node = Arc::new(node);
    run(arguments, shown, listener, Arc::clone(&node) as _, settings)?;
    if let Some(node) = Arc::into_inner(node) {
        node.close()
            .with_context(|| format!("{} could not be closed; nothing is lost", data.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn in_cluster(
    arguments: &ServeArguments,
    place: &str,
    shown: SocketAddr,
    configuration: &Configuration,
    listener: Listener,
    settings: Settings,
) -> anyhow::Result<ExitCode> {
    let cluster = arguments.cluster.clone().unwrap_or_default();
    let command = std::env::current_exe().context("this program's own file cannot be found")?;
    let opening = Opening::with("weft kv", &configuration.options).starting_daemon_by(&command);
    let node = ClusterNode::open(
        &arguments.data,
        ClusterSettings {
            place: place.to_owned(),
            cluster,
            replicas: arguments.replicas,
            regions: arguments.regions,
            lease_ms: arguments.lease_ms,
            opening,
            durability: durability(arguments.durability),
            address: (reached_at(shown, place).to_string(), shown.port()),
        },
    );
    let node = Arc::new(node.map_err(|error| refusal(arguments, &error))?);
    if node.lease_ms() != arguments.lease_ms {
        eprintln!("weft: the lease of the cluster is {} ms", node.lease_ms());
    }
    node.wait_until_usable(USABLE_WITHIN);
    let served = run(arguments, shown, listener, Arc::clone(&node) as _, settings);
    node.close();
    served?;
    Ok(ExitCode::SUCCESS)
}

fn run(
    arguments: &ServeArguments,
    shown: SocketAddr,
    listener: Listener,
    node: Arc<dyn Node>,
    settings: Settings,
) -> anyhow::Result<()> {
    eprintln!("weft: serving {} at {shown}", arguments.data.display());
    weft_kv_server::serve(listener, node, settings)
        .with_context(|| format!("the server of {} ended", arguments.data.display()))
}

const fn durability(mode: DurabilityMode) -> Durability {
    match mode {
        DurabilityMode::Replicated => Durability::Replicated,
        DurabilityMode::Durable => Durability::Durable,
        DurabilityMode::DurableAll => Durability::DurableAll,
    }
}

fn addresses(bind: &str, port: u16) -> anyhow::Result<Vec<SocketAddr>> {
    // An address of IPv6 may be in brackets.
    let host = bind.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(bind);
    let found: Vec<SocketAddr> = (host, port)
        .to_socket_addrs()
        .with_context(|| format!("{bind} is no address of this host"))?
        .collect();
    if found.is_empty() { Err(anyhow!("{bind} is no address")) } else { Ok(found) }
}

/// The address by which clients and other nodes are told of this one: where it listens, or if that
/// is everywhere, the address of this host towards the coordinator.
fn reached_at(shown: SocketAddr, place: &str) -> IpAddr {
    if !shown.ip().is_unspecified() {
        return shown.ip();
    }
    let coordinator = place.strip_prefix("etcd://").and_then(|hosts| hosts.split(',').next());
    let towards = |coordinator: &str| {
        let socket = UdpSocket::bind((shown.ip(), 0)).ok()?;
        socket.connect(coordinator).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    coordinator.and_then(towards).unwrap_or(IpAddr::from([127, 0, 0, 1]))
}

/// Why a store is not served, in one line.
fn refusal(arguments: &ServeArguments, error: &StoreError) -> anyhow::Error {
    match error {
        // It begins with the directory.
        StoreError::NotServed(text) => anyhow!("{text}"),
        error => anyhow!("{} is not served: {error}", arguments.data.display()),
    }
}

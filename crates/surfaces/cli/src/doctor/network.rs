//! RDMA devices, providers of libfabric, and ports.

use std::net::{SocketAddr, TcpListener};

use weft_options::Options;
use weft_options::runtime_path::ControlSocket;

use super::{Check, Kernel, State};
use crate::providers;

pub fn checks(kernel: &Kernel, options: &Options, socket: &ControlSocket) -> Vec<Check> {
    let mut checks = vec![rdma(kernel), libfabric(options)];
    let is_served = weftd::client::answers(&socket.path);
    for (name, address) in [
        ("fabric.listen", options.fabric_listen()),
        ("metrics.listen", options.metrics_listen()),
        ("dash.listen", options.dash_listen()),
    ] {
        checks.extend(address.map(|address| port(name, address, is_served)));
    }
    checks
}

fn rdma(kernel: &Kernel) -> Check {
    let of = "sys/class/infiniband";
    let mut ports = Vec::new();
    for device in kernel.list(of) {
        for port in kernel.list(&format!("{of}/{device}/ports")) {
            let state = kernel.read(&format!("{of}/{device}/ports/{port}/state"));
            let state = state.unwrap_or_default();
            ports.push((format!("{device} port {port}: {state}"), state.contains("ACTIVE")));
        }
    }
    let texts: Vec<_> = ports.iter().map(|(text, _)| text.as_str()).collect();
    let found = texts.join(", ");
    match ports.iter().any(|(_, is_active)| *is_active) {
        true => Check::good("RDMA", found),
        false if ports.is_empty() => {
            Check::note("RDMA", "no device; other hosts are reached over TCP by libfabric")
        }
        false => Check::new("RDMA", State::Slow, found).change(
            "Bring a port up: the cable, the switch, `ip link set DEVICE up`, the subnet manager",
            "other hosts are reached past the kernel",
        ),
    }
}

fn libfabric(options: &Options) -> Check {
    let told = providers::json(options);
    if let Some(missing) = told["missing"].as_str() {
        return Check::note("libfabric", missing).change(
            "Install it (Debian: libfabric1)",
            "the fabric reaches other hosts; on this one nothing changes",
        );
    }
    let version = told["version"].as_str().unwrap_or("?");
    let between = &told["between_hosts"];
    match between["provider"].as_str() {
        Some(provider) => {
            Check::good("libfabric", format!("{version}; {provider} carries data between hosts"))
        }
        None => {
            let why = between["why"].as_str().unwrap_or_default();
            Check::new("libfabric", State::Broken, format!("{version}: {why}")).change(
                "Name a provider of `weft info` by fabric.provider, or none",
                "the fabric reaches other hosts",
            )
        }
    }
}

/// Whether a port is free, or is this daemon's.
fn port(name: &'static str, address: SocketAddr, is_served: bool) -> Check {
    match TcpListener::bind(address) {
        Ok(_) if is_served => {
            Check::note(name, format!("the daemon that runs does not use {address}"))
                .change("`weft down`, and start it with this option", "the option is in force")
        }
        Ok(_) => Check::good(name, format!("{address} is free")),
        Err(_) if is_served => Check::good(name, format!("{address} is in use, as by the daemon")),
        Err(error) => Check::new(name, State::Broken, format!("{address}: {error}"))
            .change("Choose another address or port", "the daemon starts"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::kernel;
    use super::*;

    #[test]
    fn ports_of_devices_are_told_with_their_states() {
        let place =
            |state: &'static str| kernel(&[("sys/class/infiniband/mlx5_0/ports/1/state", state)]);
        let (_place, down) = place("1: DOWN\n");
        let told = rdma(&down);
        assert_eq!((told.state, told.found.as_str()), (State::Slow, "mlx5_0 port 1: 1: DOWN"));
        let (_place, up) = place("4: ACTIVE\n");
        assert_eq!(rdma(&up).state, State::Good);
        let (_place, bare) = kernel(&[]);
        assert_eq!(rdma(&bare).state, State::Note);
    }

    #[test]
    fn a_port_that_another_has_is_broken_unless_the_daemon_runs() {
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = taken.local_addr().expect("it listens");
        assert_eq!(port("metrics.listen", address, false).state, State::Broken);
        assert_eq!(port("metrics.listen", address, true).state, State::Good);
        drop(taken);
        assert_eq!(port("metrics.listen", address, false).state, State::Good);
    }
}

//! The status of a node as samples of the metrics.
//!
//! The exporter and the views take their numbers from here, and so from [`Status`]: for one instant
//! all show the same. Labels are bounded: programs by the daemon's sums, links and services by
//! the limits here.

use weft_metrics as table;
use weft_metrics::{Metric, Sample, Snapshot, Value};

use crate::status::{DeviceStatus, FabricNodeStatus, ServiceStatus, Status, TotalStatus};

/// Links that have a sample of their own; all are counted.
const LINKS_MAX: usize = 1024;
/// Names of services that programs offer which have a sample of their own.
const OFFERS_MAX: usize = 256;

/// The samples of a status. `user` gives the name of a user.
#[must_use]
pub fn samples(status: &Status, user: &dyn Fn(u32) -> String) -> Vec<Sample> {
    let mut out = Vec::new();
    let mut whole = |metric: &'static Metric, value: u64| {
        out.push(Sample::new(metric, [], Value::Whole(value)));
    };
    whole(&table::CONNECTIONS, status.connections.len() as u64);
    whole(&table::CONNECTIONS_WAITING, status.waiting as u64);
    whole(&table::LISTENERS, status.listeners.len() as u64);
    whole(&table::DAEMON_MEMORY, status.daemon.resident_bytes);
    whole(&table::DAEMON_DESCRIPTORS, status.daemon.descriptors);
    let mut real = |metric: &'static Metric, micros: u64| {
        out.push(Sample::new(metric, [], Value::Real(seconds(micros, 1_000_000))));
    };
    real(&table::UPTIME, status.uptime_s.saturating_mul(1_000_000));
    real(&table::DAEMON_CPU, status.daemon.cpu_us);
    real(&table::SCRAPE_TIME, status.collected_us);
    out.push(Sample::new(&table::BUILD, [&status.node, &status.version], Value::Whole(1)));
    for quota in &status.daemon.quotas {
        out.push(Sample::new(&table::QUOTA_USED, [&quota.name], Value::Whole(quota.used)));
        out.push(Sample::new(&table::QUOTA_MAX, [&quota.name], Value::Whole(quota.maximum)));
    }
    status.totals.iter().for_each(|total| of_program(total, user, &mut out));
    of_offers(status, &mut out);
    status.devices.iter().for_each(|device| of_device(device, &mut out));
    let nodes = status.fabric.iter().flat_map(|fabric| &fabric.nodes);
    nodes.for_each(|node| of_node(node, &mut out));
    of_links(status, &mut out);
    status.services.iter().for_each(|service| of_service(service, &mut out));
    out
}

#[allow(clippy::cast_precision_loss, reason = "for people and plots")]
fn seconds(parts: u64, in_a_second: u64) -> f64 {
    parts as f64 / in_a_second as f64
}

fn of_program(total: &TotalStatus, user: &dyn Fn(u32) -> String, out: &mut Vec<Sample>) {
    let who = total.uid.map_or_else(|| "all".to_owned(), user);
    let (name, who) = (total.name.as_str(), who.as_str());
    let mut push = |sample| out.push(sample);
    push(Sample::new(&table::PROGRAMS, [name, who], Value::Whole(total.programs)));
    let streams = &total.streams;
    for (medium, ends, sent, received) in [
        ("fabric", streams.fabric, streams.fabric_sent, streams.fabric_received),
        ("tcp", streams.tcp, streams.tcp_sent, streams.tcp_received),
    ] {
        push(Sample::new(&table::PROGRAM_CONNECTIONS, [name, who, medium], Value::Whole(ends)));
        for (direction, bytes) in [("sent", sent), ("received", received)] {
            let labels = [name, who, medium, direction];
            push(Sample::new(&table::PROGRAM_BYTES, labels, Value::Whole(bytes)));
        }
    }
    for (reason, ends) in &streams.reasons {
        push(Sample::new(&table::PROGRAM_ON_TCP, [name, who, reason], Value::Whole(*ends)));
    }
    if streams.fabric > 0 {
        let turns = Value::Histogram(total.turns.snapshot());
        push(Sample::new(&table::PROGRAM_TURN, [name, who], turns));
    }
    for (service, counts) in &total.work {
        for (count, value) in counts {
            push(Sample::new(&table::WORK, [name, who, service, count], Value::Whole(*value)));
        }
    }
    for (operation, times) in &total.times {
        let times = Value::Histogram(times.snapshot());
        push(Sample::new(&table::ENDPOINT_TIME, [name, who, operation], times));
    }
    push(Sample::new(&table::ENDPOINTS, [name, who], Value::Whole(total.endpoints)));
    for (register, value) in &total.registers {
        let (metric, kind) = match register.as_str() {
            "messages_sent"
            | "messages_received"
            | "puts"
            | "gets"
            | "atomics"
            | "notifications_sent"
            | "notifications_received" => (&table::ENDPOINT_OPERATIONS, register.as_str()),
            "message_bytes_sent" => (&table::ENDPOINT_BYTES, "messages_sent"),
            "message_bytes_received" => (&table::ENDPOINT_BYTES, "messages_received"),
            "put_bytes" => (&table::ENDPOINT_BYTES, "puts"),
            "get_bytes" => (&table::ENDPOINT_BYTES, "gets"),
            trouble => (&table::ENDPOINT_TROUBLE, trouble),
        };
        push(Sample::new(metric, [name, who, kind], Value::Whole(*value)));
    }
}

fn of_offers(status: &Status, out: &mut Vec<Sample>) {
    let mut names = std::collections::BTreeMap::<&str, u64>::new();
    for offer in &status.offers {
        let is_new = !names.contains_key(offer.name.as_str());
        let name = if is_new && names.len() >= OFFERS_MAX { "other" } else { &offer.name };
        *names.entry(name).or_default() += 1;
    }
    for (name, count) in names {
        out.push(Sample::new(&table::OFFERS, [name], Value::Whole(count)));
    }
}

fn of_device(device: &DeviceStatus, out: &mut Vec<Sample>) {
    let node = device.node.to_string();
    let of = [node.as_str(), device.interface.as_str()];
    let mut push = |metric, label: &str, value| {
        let [node, interface] = of;
        out.push(Sample::new(metric, [node, interface, label], Value::Whole(value)));
    };
    push(&table::DEVICE_PACKETS, "sent", device.sent);
    push(&table::DEVICE_PACKETS, "received", device.received);
    push(&table::DEVICE_BYTES, "sent", device.sent_bytes);
    push(&table::DEVICE_BYTES, "received", device.received_bytes);
    push(&table::DEVICE_DROPS, "filtered", device.filtered);
    push(&table::DEVICE_DROPS, "unreachable", device.unreachable);
    push(&table::DEVICE_DROPS, "refused", device.refused);
    push(&table::DEVICE_DROPS, "unwanted", device.unwanted);
    push(&table::DEVICE_DROPS, "lost", device.lost);
    let waiting = device.peers.iter().map(|peer| peer.waiting).sum();
    out.push(Sample::new(&table::DEVICE_WAITING, of, Value::Whole(waiting)));
    out.push(Sample::new(&table::DEVICE_PEERS, of, Value::Whole(device.peers.len() as u64)));
}

fn of_node(node: &FabricNodeStatus, out: &mut Vec<Sample>) {
    let number = node.number.map_or_else(String::new, |number| number.to_string());
    let name = node.name.as_deref().unwrap_or(&node.address);
    let is_up = u64::from(node.state == "up" || node.state == "self");
    let labels = [number.as_str(), name, &node.state];
    out.push(Sample::new(&table::NODE_UP, labels, Value::Whole(is_up)));
    let Some(measured) = node.way.as_ref().and_then(|way| way.measured) else { return };
    for (medium, round_trip, stream) in [
        ("tcp", measured.tcp_round_trip_ns, measured.tcp_bytes_per_s),
        ("fabric", measured.fabric_round_trip_ns, measured.fabric_bytes_per_s),
    ] {
        let labels = [number.as_str(), name, medium];
        let round_trip = Value::Real(seconds(round_trip, 1_000_000_000));
        out.push(Sample::new(&table::NODE_ROUND_TRIP, labels, round_trip));
        out.push(Sample::new(&table::NODE_STREAM, labels, Value::Whole(stream)));
    }
}

fn of_links(status: &Status, out: &mut Vec<Sample>) {
    let Some(wired) = &status.wired else { return };
    let cut = wired.links.iter().filter(|(.., is_cut)| *is_cut).count() as u64;
    let up = wired.links.len() as u64 - cut;
    for (state, count) in [("up", up), ("cut", cut)] {
        out.push(Sample::new(&table::LINKS, [state], Value::Whole(count)));
    }
    let name = |place: u32| {
        let place = usize::try_from(place).unwrap_or(usize::MAX);
        wired.nodes.get(place).map_or("", String::as_str)
    };
    for (from, port, to, _, is_cut) in wired.links.iter().take(LINKS_MAX) {
        let labels = [name(*from), &port.to_string(), name(*to)];
        out.push(Sample::new(&table::LINK_UP, labels, Value::Whole(u64::from(!is_cut))));
    }
}

fn of_service(service: &ServiceStatus, out: &mut Vec<Sample>) {
    let name = service.name.as_str();
    let queued = Value::Whole(service.queued as u64);
    out.push(Sample::new(&table::SERVICE_QUEUED, [name], queued));
    out.push(Sample::new(&table::SERVICE_PANICS, [name], Value::Whole(service.panics)));
    for counter in &service.counters {
        let labels = [name, &counter.name];
        out.push(Sample::new(&table::SERVICE_COUNT, labels, Value::Whole(counter.value)));
    }
    let times = Snapshot::of(service.times.clone(), service.times_sum_ns);
    out.push(Sample::new(&table::SERVICE_TIME, [name], Value::Histogram(times)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{StreamCounts, TimesStatus, WiredStatus};

    #[test]
    fn each_number_of_the_status_is_a_sample_with_its_labels() {
        let streams = StreamCounts {
            fabric: 2,
            fabric_sent: 70,
            reasons: [("exec".to_owned(), 4)].into(),
            ..StreamCounts::default()
        };
        let registers = [("put_bytes".to_owned(), 9), ("sleeps".to_owned(), 3)].into();
        let times = TimesStatus { sum_ns: 2, ..TimesStatus::default() };
        let total = TotalStatus {
            name: "redis".into(),
            uid: Some(7),
            programs: 1,
            streams,
            endpoints: 1,
            registers,
            times: [("puts".to_owned(), TimesStatus { counts: vec![0, 2], ..times })].into(),
            work: [("kv".to_owned(), [("hits".to_owned(), 8)].into())].into(),
            turns: TimesStatus::default(),
        };
        let wired =
            WiredStatus { nodes: vec!["n0".into(), "n1".into()], links: vec![(0, 1, 1, 2, true)] };
        let device =
            DeviceStatus { node: 3, interface: "weft0".into(), lost: 5, ..Default::default() };
        let status = Status {
            totals: vec![total],
            wired: Some(wired),
            devices: vec![device],
            ..Status::default()
        };
        let samples = samples(&status, &|uid| format!("user{uid}"));
        let value = |metric: &Metric, labels: &[&str]| {
            let is_it = |sample: &&Sample| sample.metric == metric && sample.labels == labels;
            samples.iter().find(is_it).map(|sample| sample.value.clone())
        };
        let whole = |value| Some(Value::Whole(value));
        let of = ["redis", "user7"];
        assert_eq!(value(&table::PROGRAM_CONNECTIONS, &[of[0], of[1], "fabric"]), whole(2));
        assert_eq!(value(&table::PROGRAM_BYTES, &[of[0], of[1], "fabric", "sent"]), whole(70));
        assert_eq!(value(&table::PROGRAM_ON_TCP, &[of[0], of[1], "exec"]), whole(4));
        assert_eq!(value(&table::ENDPOINT_BYTES, &[of[0], of[1], "puts"]), whole(9));
        assert_eq!(value(&table::WORK, &[of[0], of[1], "kv", "hits"]), whole(8));
        let puts = value(&table::ENDPOINT_TIME, &[of[0], of[1], "puts"]);
        assert_eq!(puts, Some(Value::Histogram(Snapshot::of(vec![0, 2], 2))));
        assert_eq!(value(&table::ENDPOINT_TROUBLE, &[of[0], of[1], "sleeps"]), whole(3));
        assert_eq!(value(&table::DEVICE_DROPS, &["3", "weft0", "lost"]), whole(5));
        assert_eq!(value(&table::LINKS, &["cut"]), whole(1));
        assert_eq!(value(&table::LINK_UP, &["n0", "1", "n1"]), whole(0));
    }
}

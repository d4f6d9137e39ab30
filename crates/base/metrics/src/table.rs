//! The table itself.

/// The type of a metric, as OpenMetrics has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A total that only grows while its daemon runs.
    Counter,
    /// A present size.
    Gauge,
    /// How often each range of values was seen.
    Histogram,
    /// A number of which a service of the daemon says whether it is a total or a size.
    Unknown,
}

impl Kind {
    /// The name of the type in OpenMetrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Unknown => "unknown",
        }
    }
}

/// The unit of a metric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// A count of things.
    None,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
}

impl Unit {
    /// The unit as the end of a name; `None` for counts.
    #[must_use]
    pub const fn suffix(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Bytes => Some("bytes"),
            Self::Seconds => Some("seconds"),
        }
    }
}

/// A metric.
#[derive(PartialEq, Eq, Debug)]
pub struct Metric {
    /// Its name without the unit and without `_total`.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Its unit.
    pub unit: Unit,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// Its meaning, one sentence.
    pub help: &'static str,
}

impl Metric {
    /// The name by which queries ask for it. That of a histogram is followed by `_bucket`, `_sum`
    /// or `_count` there.
    #[must_use]
    pub fn full_name(&self) -> String {
        let unit = self.unit.suffix().map_or_else(String::new, |unit| format!("_{unit}"));
        let total = if self.kind == Kind::Counter { "_total" } else { "" };
        format!("{}{unit}{total}", self.name)
    }
}

/// Makes a static for each metric, and [`METRICS`] of all.
macro_rules! metrics {
    ($(
        $id:ident = $name:literal $kind:ident $unit:ident [$($label:literal),*] $help:literal;
    )+) => {
        $(
            #[doc = concat!("`", $name, "`. ", $help)]
            pub static $id: Metric = Metric {
                name: $name,
                kind: Kind::$kind,
                unit: Unit::$unit,
                labels: &[$($label),*],
                help: $help,
            };
        )+

        /// Every metric of weft.
        pub static METRICS: &[&Metric] = &[$(&$id),+];
    };
}

metrics! {
    BUILD = "weft_build_info" Gauge None ["node", "version"]
        "1, with the version of the daemon and the name of its node.";
    UPTIME = "weft_uptime" Gauge Seconds []
        "How long the daemon runs.";
    DAEMON_MEMORY = "weft_daemon_resident_memory" Gauge Bytes []
        "Memory of the daemon's process that is in use.";
    DAEMON_DESCRIPTORS = "weft_daemon_descriptors" Gauge None []
        "Descriptors that the daemon has open, its own included.";
    DAEMON_CPU = "weft_daemon_cpu" Counter Seconds []
        "Processor time that the daemon used.";
    QUOTA_USED = "weft_quota_used" Gauge None ["quota"]
        "Units of a quota that are taken: programs, or descriptors that the daemon holds for them.";
    QUOTA_MAX = "weft_quota_max" Gauge None ["quota"]
        "Units that a quota has.";

    PROGRAMS = "weft_programs" Gauge None ["program", "user"]
        "Programs that are connected to the daemon.";
    PROGRAM_CONNECTIONS = "weft_program_connections" Counter None ["program", "user", "medium"]
        "Ends of TCP connections of programs, by the medium that carried them: fabric or tcp.";
    PROGRAM_ON_TCP = "weft_program_connections_on_tcp" Counter None ["program", "user", "reason"]
        "Ends of connections that stayed on TCP, by the reason.";
    PROGRAM_BYTES = "weft_program_stream" Counter Bytes
        ["program", "user", "medium", "direction"]
        "Bytes that programs sent and received by their connections.";
    PROGRAM_TURN = "weft_program_turn" Histogram Seconds ["program", "user"]
        "From a write of the connecting end on the fabric until it read the next bytes; of each \
         connection one in 10 ms.";
    CONNECTIONS = "weft_connections" Gauge None []
        "Connections between programs of this host that are on the fabric now.";
    CONNECTIONS_WAITING = "weft_connections_waiting" Gauge None []
        "Offered ends of connections whose other end was not offered yet.";
    LISTENERS = "weft_listeners" Gauge None []
        "Listening sockets of programs under weft.";

    WORK = "weft_work" Counter None ["program", "user", "service", "count"]
        "Work of servers and tools of weft: `weft kv`, `weft cp`, `weft block`, jobs of oshrun.";

    ENDPOINTS = "weft_endpoints" Gauge None ["program", "user"]
        "Endpoints of the fabric that programs have open, those of PEs among them.";
    ENDPOINT_OPERATIONS = "weft_endpoint_operations" Counter None
        ["program", "user", "operation"]
        "Operations of endpoints, by kind.";
    ENDPOINT_BYTES = "weft_endpoint" Counter Bytes ["program", "user", "operation"]
        "Bytes that operations of endpoints moved, by kind.";
    ENDPOINT_TIME = "weft_endpoint_time" Histogram Seconds ["program", "user", "operation"]
        "How long operations of endpoints took. In shared memory, for their callers: some of the \
         puts and gets that looked their key up, and of the messages that looked for room. Over \
         libfabric, until the peer had answered: one put or get of 65.";
    ENDPOINT_TROUBLE = "weft_endpoint_trouble" Counter None ["program", "user", "kind"]
        "Operations that a full queue refused or that failed, peers that went down, and sleeps.";
    OFFERS = "weft_offers" Gauge None ["service"]
        "Services that programs offer by name, on this host and on others.";

    DEVICE_PACKETS = "weft_device_packets" Counter None ["node", "interface", "direction"]
        "Packets of Ethernet devices: sent by programs, or received for them.";
    DEVICE_BYTES = "weft_device" Counter Bytes ["node", "interface", "direction"]
        "Bytes of those packets, with their offload headers of 12 bytes.";
    DEVICE_DROPS = "weft_device_drops" Counter None ["node", "interface", "reason"]
        "Packets of Ethernet devices that went nowhere, by the reason.";
    DEVICE_WAITING = "weft_device_waiting_packets" Gauge None ["node", "interface"]
        "Packets of Ethernet devices that wait for credits of other nodes.";
    DEVICE_PEERS = "weft_device_peers" Gauge None ["node", "interface"]
        "Nodes that an Ethernet device can reach.";

    NODE_UP = "weft_node_up" Gauge None ["node", "name", "state"]
        "1 for a host of the fabric that can be reached and for the own one, 0 for another one.";
    NODE_ROUND_TRIP = "weft_node_round_trip" Gauge Seconds ["node", "name", "medium"]
        "The last measured round trip of programs to another host.";
    NODE_STREAM = "weft_node_stream_per_second" Gauge Bytes ["node", "name", "medium"]
        "The last measured rate of a stream of programs to another host, in a second.";
    LINKS = "weft_links" Gauge None ["state"]
        "Links of the network that the daemon rules: up or cut.";
    LINK_UP = "weft_link_up" Gauge None ["from", "port", "to"]
        "1 for a link that serves, 0 for one that is cut; the first 1024 links.";

    SERVICE_QUEUED = "weft_service_queued" Gauge None ["service"]
        "Packets of programs that wait for a service of the daemon.";
    SERVICE_PANICS = "weft_service_panics" Counter None ["service"]
        "Panics of a service of the daemon, each of which is a bug of weft.";
    SERVICE_COUNT = "weft_service_count" Unknown None ["service", "count"]
        "What a service of the daemon counts by itself; `weft status` shows the meanings.";
    SERVICE_TIME = "weft_service_time" Histogram Seconds ["service"]
        "How long a service of the daemon took for a packet of a program.";

    SCRAPE_TIME = "weft_collect" Gauge Seconds []
        "How long the daemon took to collect these numbers.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_labels_are_those_of_openmetrics_and_unique() {
        let is_name = |text: &str| {
            !text.is_empty()
                && text.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase())
                && !text.starts_with('_')
        };
        let mut names: Vec<_> = METRICS.iter().map(|metric| metric.full_name()).collect();
        for metric in METRICS {
            assert!(is_name(metric.name) && metric.name.starts_with("weft_"), "{}", metric.name);
            assert!(!metric.name.ends_with("_total"), "{} gets it by itself", metric.name);
            assert!(metric.labels.iter().all(|label| is_name(label)), "{}", metric.name);
            assert!(metric.help.ends_with('.'), "{}", metric.name);
        }
        names.sort();
        names.dedup();
        assert_eq!(names.len(), METRICS.len(), "each name is used once");
    }
}

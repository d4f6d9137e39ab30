//! The table itself: one entry for each option.
//!
//! An entry is all that an option needs: from it follow its [`Id`], its place in [`TABLE`], its
//! accessor of [`Options`], its variable, its flag, and its place in the file and the manual.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::entry::Category::{Daemon as ForDaemon, Ethernet, Fabric, Mpi, SharedMemory, Sockets};
use crate::entry::Effect::{Daemon, Programs, ProgramsAndDaemon};
use crate::entry::{Entry, Kind, boolean, choice, integer, power_of_two};
use crate::options::Options;
use crate::people::People;
use crate::seed::Seed;
use crate::services::ServicePolicy;
use crate::value::{BetweenHosts, CopyMethod, QueueChoice, TransportChoice, Value};

/// Makes [`Id`], [`TABLE`] and the accessors of [`Options`] from entries of this form:
///
/// ```text
/// "area.name" => AreaName, area_name -> TYPE {     TYPE: what the accessor returns (`value.rs`)
///     kind: integer(DEFAULT, MINIMUM, MAXIMUM),
///     unit: "bytes",
///     category: Sockets,
///     effect: Programs,
///     text: "Its effect. The memory that it costs at worst.",
///     old_names: ["area.former_name"],             only when it was called otherwise
/// }
/// ```
///
/// Without `, area_name -> TYPE` it has no accessor here: one that needs more than its own value
/// is written in `options.rs`.
macro_rules! options {
    ($(
        $name:literal => $id:ident $(, $accessor:ident -> $type:ty)? {
            kind: $kind:expr,
            unit: $unit:literal,
            category: $category:expr,
            effect: $effect:expr,
            text: $text:literal,
            $(old_names: [$($old:literal),+],)?
        }
    )+) => {
        /// Names an option; its number is its place in [`TABLE`].
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Id {
            $(
                #[doc = concat!("`", $name, "`.")]
                $id,
            )+
        }

        /// Every option of weft, in the order of [`Id`].
        pub const TABLE: &[Entry] = &[$(
            Entry {
                id: Id::$id,
                name: $name,
                kind: $kind,
                unit: $unit,
                category: $category,
                effect: $effect,
                text: $text,
                old_names: &[$($($old),+)?],
            },
        )+];

        impl Options {
            $($(
                #[doc = concat!("`", $name, "`: ", $text)]
                #[must_use]
                pub fn $accessor(&self) -> $type {
                    Value::read(self.setting(Id::$id), Id::$id.entry())
                }
            )?)+
        }

        /// Names and accessors, which a test compares.
        #[cfg(test)]
        pub(crate) const ACCESSORS: &[(&str, &str)] =
            &[$($(($name, stringify!($accessor)),)?)+];
    };
}

impl Id {
    /// The option's entry in the table.
    #[must_use]
    pub fn entry(self) -> &'static Entry {
        &TABLE[self as usize]
    }
}

options! {
    "shm.ring_slots" => ShmRingSlots, shm_ring_slots -> usize {
        kind: power_of_two(256, 16, 65_536),
        unit: "slots",
        category: SharedMemory,
        effect: ProgramsAndDaemon,
        text: "Messages of one sender that wait in a mailbox before the sender is refused. Memory: \
               128 bytes a slot for each ordered pair that talks, that is 32 KiB by default and 8 \
               MiB at most.",
    }
    "shm.spin_us" => ShmSpinUs, shm_spin_us -> u64 {
        kind: integer(2, 0, 1_000),
        unit: "us",
        category: SharedMemory,
        effect: Programs,
        text: "How long a waiting endpoint spins before it begins to yield. No memory.",
    }
    "shm.yields" => ShmYields, shm_yields -> u32 {
        kind: integer(100, 0, 10_000),
        unit: "times",
        category: SharedMemory,
        effect: Programs,
        text: "How often a waiting endpoint yields its core before it sleeps. No memory.",
    }
    "shm.copy" => ShmCopy, shm_copy -> CopyMethod {
        kind: choice(&["auto", "plain", "nontemporal"]),
        unit: "",
        category: SharedMemory,
        effect: ProgramsAndDaemon,
        text: "How long copies are done: `plain` stores leave the data in the writer's cache, \
               `nontemporal` stores go past it. `auto`: the daemon measures both when it starts, \
               for sockets; puts and gets stay plain. No memory.",
    }
    "socket.enable" => SocketEnable, socket_enable -> bool {
        kind: boolean(true),
        unit: "",
        category: Sockets,
        effect: Programs,
        text: "Whether TCP connections may move to the fabric; `false` keeps all on TCP. No \
               memory.",
    }
    "socket.eager_bytes" => SocketEagerBytes, socket_eager_bytes -> usize {
        kind: integer(480, 0, 4_096),
        unit: "bytes",
        category: Sockets,
        effect: ProgramsAndDaemon,
        // EXTOLL-THESIS#5.4.6.2 found 120 to 480 best.
        text: "Writes up to this length travel as eager messages, longer ones are put into the \
               receiver's sink. No memory of its own.",
    }
    "socket.sink_bytes" => SocketSinkBytes, socket_sink_bytes -> usize {
        kind: power_of_two(262_144, 16_384, 16_777_216),
        unit: "bytes",
        category: Sockets,
        effect: ProgramsAndDaemon,
        text: "Bytes that a connection holds in each direction between writer and reader. Memory: \
               this much for each direction once it was used, that is 512 KiB a connection by \
               default and 32 MiB at most.",
    }
    "socket.chunk_bytes" => SocketChunkBytes {
        kind: integer(16_384, 1_024, 1_048_576),
        unit: "bytes",
        category: Sockets,
        effect: ProgramsAndDaemon,
        text: "A long write is announced to the reader in pieces of this length, so that both copy \
               at the same time; more than the sink counts as the sink. Between hosts pieces are a \
               quarter of the sink at least. No memory.",
    }
    "socket.switch_calls" => SocketSwitchCalls, socket_switch_calls -> u64 {
        kind: integer(4, 0, 1_000_000),
        unit: "calls",
        category: Sockets,
        effect: Programs,
        text: "Reads and writes of a connection that go over TCP before it moves to the fabric; 0 \
               moves it at the first. A lane costs as much as some ten exchanges over TCP, so \
               connections that end sooner are better off there. No memory; without it idle \
               connections would have a lane each.",
    }
    "socket.switch_bytes" => SocketSwitchBytes, socket_switch_bytes -> u64 {
        kind: integer(32_768, 0, 1 << 40),
        unit: "bytes",
        category: Sockets,
        effect: Programs,
        text: "Bytes that a connection moved, or is about to write, after which it moves to the \
               fabric however few calls there were. No memory.",
    }
    "socket.switch_wait_us" => SocketSwitchWaitUs, socket_switch_wait_us -> u64 {
        kind: integer(1_000, 0, 10_000_000),
        unit: "us",
        category: Sockets,
        effect: Programs,
        text: "With `socket.switch_calls = 0`: how long the first call of a connection waits for \
               the other end to agree to the fabric; after that the bytes go over TCP and the \
               connection switches later. No memory.",
    }
    "socket.lanes_max" => SocketLanesMax, socket_lanes_max -> usize {
        kind: integer(1_536, 1, 1_048_576),
        unit: "lanes",
        category: Sockets,
        effect: Programs,
        text: "Connections of a process that are on the fabric at a time; with as many, others \
               stay on TCP until idle ones give theirs back. Memory: about 16 KiB each when idle, \
               twice `socket.sink_bytes` once it was full.",
    }
    "socket.idle_ms" => SocketIdleMs, socket_idle_ms -> u64 {
        kind: integer(250, 0, 86_400_000),
        unit: "ms",
        category: Sockets,
        effect: Programs,
        text: "How long a connection moves nothing before it may lose its place among \
               `socket.lanes_max` to one that is in use. No memory.",
        old_names: ["socket.rest_ms"],
    }
    "socket.lanes_kept" => SocketLanesKept, socket_lanes_kept -> usize {
        kind: integer(8, 0, 1_024),
        unit: "lanes",
        category: Sockets,
        effect: Programs,
        text: "Lanes that a process keeps when their connections end, for the next ones with the \
               same processes, which then move to the fabric without the daemon; so many of those \
               that it accepted, and of those that it began. 0: none. Memory: 16 KiB each, twice \
               `socket.sink_bytes` once it was full.",
    }
    "socket.between_hosts" => SocketBetweenHosts, socket_between_hosts -> BetweenHosts {
        kind: choice(&["auto", "never", "always"]),
        unit: "",
        category: Sockets,
        effect: Programs,
        text: "Whether connections to programs of other hosts that have joined go over \
               libfabric (`fabric.provider`; SECURITY.md says who can read them). With `auto` \
               the daemons measure both ways between their hosts when a program starts under \
               weft, for some seconds, and again after six hours; programs that start later \
               use the fabric to those hosts where it is faster (`weft fabric nodes`). With \
               `never` they stay on TCP. With `always` they move where both ends say so, and \
               nothing measures. They go on over TCP when the fabric fails. Memory, once a \
               connection moves: an endpoint, with up to 1 MiB for each peer, and twice \
               `socket.sink_bytes` and the slots for each lane.",
    }
    "mpi.inline_bytes" => MpiInlineBytes, mpi_inline_bytes -> usize {
        kind: integer(512, 64, 4_096),
        unit: "bytes",
        category: Mpi,
        effect: Programs,
        text: "Messages of up to this length travel in the mailbox itself, those to other hosts \
               up to 4,096 bytes. Up to this length messages can be injected, and writes, reads \
               and atomics are in order. Memory: that of messages that nobody waits for.",
    }
    "mpi.eager_bytes" => MpiEagerBytes, mpi_eager_bytes -> usize {
        kind: integer(32_768, 0, 65_536),
        unit: "bytes",
        category: Mpi,
        effect: Programs,
        text: "Messages of up to this length are copied through memory that peers on the same node \
               map, and that peers on other nodes read, before a receive is there. The receiver \
               fetches longer ones when it has a receive. Memory: up to 4 MiB an endpoint, and as \
               much again once it has peers on other nodes, whatever the length.",
    }
    "mpi.ends_receives" => MpiEndsReceives, mpi_ends_receives -> bool {
        kind: boolean(false),
        unit: "",
        category: Mpi,
        effect: Programs,
        text: "Whether receives from any source fail when the last peer that was met has ended; \
               `false` lets them wait for a newcomer, as servers need it. No memory.",
    }
    "ether.eager_bytes" => EtherEagerBytes, ether_eager_bytes -> usize {
        kind: integer(480, 0, 65_562),
        unit: "bytes",
        category: Ethernet,
        effect: Daemon,
        // EXTOLL-THESIS#5.4.6.2 found 120 to 480 best.
        text: "Packets up to this length, with their 12 bytes of offloads, go to a node in \
               messages, longer ones wait in a ring until it takes them. No memory of its own.",
    }
    "ether.eager_group_bytes" => EtherEagerGroupBytes, ether_eager_group_bytes -> usize {
        kind: integer(2_048, 0, 65_562),
        unit: "bytes",
        category: Ethernet,
        effect: Daemon,
        text: "The same for packets to several nodes at once. No memory of its own.",
    }
    "ether.slots" => EtherSlots, ether_slots -> u32 {
        kind: integer(32, 1, 4_096),
        unit: "packets",
        category: Ethernet,
        effect: Daemon,
        text: "Long packets that wait for one node to take them. Memory: 68 KiB each for each \
               ordered pair of nodes that talks, that is 2 MiB by default and 272 MiB at most.",
    }
    "ether.backlog" => EtherBacklog, ether_backlog -> usize {
        kind: integer(32, 1, 4_096),
        unit: "packets",
        category: Ethernet,
        effect: Daemon,
        text: "Further packets that wait for one node before the device is read no further; a \
               stream of long ones stops it as soon as the ring is full. Memory: up to 64 KiB each \
               while they wait.",
    }
    "ether.backlog_stalled" => EtherBacklogStalled, ether_backlog_stalled -> usize {
        kind: integer(1_024, 1, 65_536),
        unit: "packets",
        category: Ethernet,
        effect: Daemon,
        text: "The same for a node that has taken none for 20 ms, so that others do not wait for \
               it. Memory: up to 64 KiB each while they wait, 64 MiB by default for each node.",
    }
    "ether.queues" => EtherQueues, ether_queues -> usize {
        kind: integer(1, 1, 16),
        unit: "queues",
        category: Ethernet,
        effect: Daemon,
        text: "Queues of each Ethernet device, each with a port of its own, for the threads of \
               ether.loops to share; the same on all nodes of a network, which has room for 256 on \
               one host. Memory: that of ether.slots for each.",
    }
    "ether.steering" => EtherSteering, ether_steering -> QueueChoice {
        kind: choice(&["flow", "processor", "round-robin"]),
        unit: "",
        category: Ethernet,
        effect: Daemon,
        text: "Which queue the kernel puts a packet into: by flow, which keeps each flow in order; \
               by the processor that sends; one after the other. The last two need CAP_BPF, and \
               let packets of a flow overtake each other. No memory.",
    }
    "ether.loops" => EtherLoops, ether_loops -> usize {
        kind: integer(0, 0, 64),
        unit: "threads",
        category: Ethernet,
        effect: Daemon,
        text: "Threads that serve the Ethernet devices of a daemon; a queue of a device has one of \
               them, so that packets stay in order. 0: one for every two processors. No memory.",
    }
    "ether.coalesce" => EtherCoalesce, ether_coalesce -> Duration {
        kind: integer(50, 0, 10_000),
        unit: "us",
        category: Ethernet,
        effect: Daemon,
        // ixgbe in EXTOLL-THESIS#5.4.6.2 waits 125 us.
        text: "How long a loop leaves its devices alone after it has emptied them, counted from \
               when it began, above 20 MB/s; two fifths of that above 10 MB/s, and below nothing. \
               Frees processor time for latency. 0: never. No memory.",
    }
    "ether.pace" => EtherPace, ether_pace -> bool {
        kind: boolean(true),
        unit: "",
        category: Ethernet,
        effect: Daemon,
        text: "Whether a queueing discipline holds floods of datagrams back, at a rate that \
               follows what the daemon reads: their senders wait, where the device would drop. \
               Memory: up to 64 MiB of packets that wait for a device, in the kernel.",
    }
    "ether.learn_ms" => EtherLearnMs, ether_learn_ms -> Duration {
        kind: integer(12_000, 0, 3_600_000),
        unit: "ms",
        category: Ethernet,
        effect: Daemon,
        text: "How long a daemon that has begun sends what is for an IP multicast group to all \
               nodes, until it has heard who wants it: hosts answer within 10 s. With less, hosts \
               that had joined before it began may miss what comes before they answer. No memory.",
    }
    "daemon.answer_ms" => DaemonAnswerMs, daemon_answer_ms -> u64 {
        kind: integer(100, 1, 60_000),
        unit: "ms",
        category: ForDaemon,
        effect: Programs,
        text: "How long a program waits for an answer of the daemon before it goes on over TCP. \
               The connection moves when the answer comes. No memory.",
    }
    "daemon.endpoints_max" => DaemonEndpointsMax, daemon_endpoints_max -> usize {
        kind: integer(256, 1, 4096),
        unit: "endpoints",
        category: ForDaemon,
        effect: Daemon,
        // Extoll has 256: EXTOLL-THESIS#3.2.3.
        text: "Endpoints a node may have; Extoll's NIC has 256. Memory: about 2 KiB each in the \
               daemon.",
    }
    "daemon.connections_max" => DaemonConnectionsMax, daemon_connections_max -> usize {
        kind: integer(16_384, 1, 1_048_576),
        unit: "connections",
        category: ForDaemon,
        effect: Daemon,
        text: "Direct-socket connections a node may have; further ones stay on TCP. Memory: about \
               1 KiB each in the daemon; for those of the programs see `socket.lanes_max`.",
    }
    "daemon.user_share" => DaemonUserShare, daemon_user_share -> u8 {
        kind: integer(50, 1, 100),
        unit: "percent",
        category: ForDaemon,
        effect: Daemon,
        text: "How much of the programs, connections, listeners, endpoints, keys and descriptors \
               that the others leave one user may have, so that nobody can take all; root and the \
               daemon's own user may. No memory.",
    }
    "daemon.services" => DaemonServices, daemon_services -> ServicePolicy {
        kind: Kind::Services,
        unit: "",
        category: ForDaemon,
        effect: Daemon,
        text: "Who may offer a partition as a service to whom: rules `OWNER:NAME:USERS` with \
               blanks between. OWNER is the number of a user or `any`; a NAME that ends with `*` \
               stands for all that begin so; USERS are numbers with commas between, or `any`. A \
               name with a rule is offered by its owners and root alone. Without a rule a service \
               reaches its owner and root. Memory: that of the text.",
    }
    "daemon.allow" => DaemonAllow, daemon_allow -> People {
        kind: Kind::People,
        unit: "",
        category: ForDaemon,
        effect: Daemon,
        text: "Who may join the node from another network namespace than the daemon's, as \
               programs in containers do: numbers of users, and of groups with an @ before them, \
               with commas between, or `any`. Empty: nobody, root neither. The numbers are those \
               that the daemon sees. Programs in the daemon's own network namespace, and in the \
               nodes of a lab, join in any case. Memory: that of the text.",
    }
    "daemon.trust_uid" => DaemonTrustUid, daemon_trust_uid -> u32 {
        kind: integer(0, 0, 4_294_967_294),
        unit: "",
        category: ForDaemon,
        effect: Programs,
        text: "A user whose daemon, and whose directories on the way to its socket, programs \
               trust as those of root. For programs in a user namespace in which the host's root \
               shows as another user, such as 65534; the socket has to be named by \
               `daemon.socket`. 0: none but root. No memory.",
    }
    "daemon.socket" => DaemonSocket, daemon_socket -> Option<&str> {
        kind: Kind::Path,
        unit: "",
        category: ForDaemon,
        effect: ProgramsAndDaemon,
        text: "The control socket. Empty: `/run/weft/NODE.sock` for root or when a system daemon \
               is there, else `$XDG_RUNTIME_DIR/weft/NODE.sock`, else `/tmp/weft-UID/NODE.sock`. \
               No memory.",
    }
    "metrics.listen" => MetricsListen, metrics_listen -> Option<SocketAddr> {
        kind: Kind::Address,
        unit: "",
        category: ForDaemon,
        effect: Daemon,
        text: "The address at which the daemon tells its metrics to Prometheus, at `/metrics`: to \
               all who reach it. Empty: it tells none. Memory: up to 16 MiB for its clients, and \
               the metrics once.",
    }
    "dash.listen" => DashListen, dash_listen -> Option<SocketAddr> {
        kind: Kind::Address,
        unit: "",
        category: ForDaemon,
        effect: Daemon,
        text: "The address at which the daemon serves the dashboard to browsers. On loopback all \
               users of this host may see it; elsewhere those who have the token, which `weft \
               dash` prints. Empty: it serves none. Memory: up to 16 MiB for its clients, and the \
               status once for each of up to 256.",
    }
    "fabric.listen" => FabricListen, fabric_listen -> Option<SocketAddr> {
        kind: Kind::Address,
        unit: "",
        category: Fabric,
        effect: Daemon,
        text: "The address at which the daemon listens for those of other hosts, and that they are \
               told, so no wildcard. Empty: the daemon serves this host alone. Memory: up to 4 \
               MiB for each other host that takes its messages late.",
    }
    "fabric.seeds" => FabricSeeds, fabric_seeds -> Vec<Seed> {
        kind: Kind::Seeds,
        unit: "",
        category: Fabric,
        effect: Daemon,
        text: "Addresses of daemons of the fabric, or names of their hosts, which are resolved \
               again and again; one of them is enough to join. The daemon that was once started \
               without seeds is the first, which gives the others their numbers. No memory.",
    }
    "fabric.etcd" => FabricEtcd, fabric_etcd -> Vec<String> {
        kind: Kind::Urls,
        unit: "",
        category: Fabric,
        effect: Daemon,
        text: "Endpoints of an etcd, 3.4 or later, in place of `fabric.seeds`, the same etcd on \
               all hosts. It gives the numbers and holds the table of nodes, so no daemon is the \
               first. Memory: 1 MiB for an answer.",
    }
    "fabric.etcd_ca" => FabricEtcdCa, fabric_etcd_ca -> Option<&str> {
        kind: Kind::File,
        unit: "",
        category: Fabric,
        effect: Daemon,
        text: "The file with the certificates (PEM) of those who sign for etcd's endpoints; \
               needed where `fabric.etcd` has https. No memory.",
    }
    "fabric.etcd_cert" => FabricEtcdCert, fabric_etcd_cert -> Option<&str> {
        kind: Kind::File,
        unit: "",
        category: Fabric,
        effect: Daemon,
        text: "The file with this host's certificate for etcd (PEM), where etcd asks for one. No \
               memory.",
    }
    "fabric.etcd_key" => FabricEtcdKey, fabric_etcd_key -> Option<&str> {
        kind: Kind::File,
        unit: "",
        category: Fabric,
        effect: Daemon,
        text: "The file with the private key of `fabric.etcd_cert` (PEM), which only its owner \
               can read. No memory.",
    }
    "fabric.etcd_user" => FabricEtcdUser, fabric_etcd_user -> Option<&str> {
        kind: Kind::Name,
        unit: "",
        category: Fabric,
        effect: Daemon,
        text: "The user of etcd, where it has users. Empty: none. No memory.",
    }
    "fabric.etcd_password" => FabricEtcdPassword, fabric_etcd_password -> Option<&str> {
        kind: Kind::File,
        unit: "",
        category: Fabric,
        effect: Daemon,
        text: "The file with the password of `fabric.etcd_user`, which only its owner can read. \
               No memory.",
    }
    "fabric.key" => FabricKey, fabric_key -> Option<&str> {
        kind: Kind::File,
        unit: "",
        category: Fabric,
        effect: Daemon,
        text: "The file with the fabric's key, the same on all hosts, which `weft fabric key` \
               makes. Of several keys in it the first is shown and all are accepted. No memory.",
    }
    "fabric.name" => FabricName, fabric_name -> Option<&str> {
        kind: Kind::Name,
        unit: "",
        category: Fabric,
        effect: Daemon,
        text: "The name of the fabric, the same on all hosts. Empty: that of `fabric.file`, else \
               `weft`. No memory.",
    }
    "fabric.file" => FabricFile, fabric_file -> Option<&str> {
        kind: Kind::File,
        unit: "",
        category: Fabric,
        effect: Daemon,
        text: "A TOML file that describes the fabric, in place of `fabric.seeds`: its `name`, and \
               a `[[node]]` with `name` and `address` for each host. The first one admits. No \
               memory.",
    }
    "fabric.state" => FabricState, fabric_state -> Option<&str> {
        kind: Kind::File,
        unit: "",
        category: Fabric,
        effect: Daemon,
        text: "The directory in which the daemon keeps its identity and the table of nodes; it \
               has to outlive restarts of the machine. Empty: `/var/lib/weft/NODE` for a control \
               socket in `/run/weft`, else the control socket's path with `.fabric` behind it. No \
               memory.",
    }
    "fabric.transport" => FabricTransport, fabric_transport -> TransportChoice {
        kind: choice(&["auto", "shm", "ofi"]),
        unit: "",
        category: Fabric,
        effect: Programs,
        text: "How endpoints of programs reach their peers. `auto`: by shared memory on the own \
               host, by libfabric between hosts; the library is loaded at the first need. `shm`: \
               by shared memory, on the own host alone. `ofi`: by libfabric, also on the own host; \
               endpoints with memory there are not reached. Memory: with libfabric that of the \
               provider, for each endpoint.",
    }
    "fabric.provider" => FabricProvider, fabric_provider -> Option<&str> {
        kind: Kind::Name,
        unit: "",
        category: Fabric,
        effect: ProgramsAndDaemon,
        text: "The provider of libfabric that carries data between hosts, the same on all, as \
               `weft info` names it. Empty: the first that serves more than one host. Memory: that \
               of the provider, for each endpoint.",
    }
    "fabric.ports" => FabricPorts, fabric_ports -> Option<RangeInclusive<u16>> {
        kind: Kind::Ports,
        unit: "",
        category: Fabric,
        effect: ProgramsAndDaemon,
        text: "The TCP ports at which endpoints of this host listen for data of other hosts, as \
               7710-7790: one for each endpoint of a program and for the Ethernet device. For \
               providers over TCP, and firewalls before them. Empty: any port. No memory.",
    }
    "fabric.host" => FabricHost, fabric_host -> Option<&str> {
        kind: Kind::Name,
        unit: "",
        category: Fabric,
        effect: Programs,
        text: "A name for this host, by which PEs of an OpenSHMEM job tell whether they share \
               memory. PEs with different names talk over the fabric, also on one machine: for \
               network namespaces that stand for hosts. Empty: PEs of one machine share memory. No \
               memory.",
    }
    "fabric.device" => FabricDevice, fabric_device -> Option<&str> {
        kind: Kind::Name,
        unit: "",
        category: Fabric,
        effect: Daemon,
        text: "The Ethernet device of this host in the fabric: `on`, or `mtu=N`, `netns=NAME` and \
               `stays` with commas between, as for `weft daemon --device`. Empty: none. Memory: as \
               for any device.",
    }
    "fabric.silence_ms" => FabricSilenceMs, fabric_silence_ms -> Duration {
        kind: integer(5_000, 200, 600_000),
        unit: "ms",
        category: Fabric,
        effect: Daemon,
        text: "A host, or the peer of an endpoint on one, of which nothing is heard for so long is \
               down. It is asked for a sign of life meanwhile. Time in which a process is stopped \
               does not count. No memory.",
    }
}

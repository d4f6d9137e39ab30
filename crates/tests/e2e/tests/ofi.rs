//! The conformance suite over the providers of the libfabric that is installed.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weft_broker::local::LocalBroker;
use weft_broker::remote::RemoteBroker;
use weft_broker::{Limits, no_bells};
use weft_conformance::{Bench, HostBench};
use weft_e2e::{
    Case, Host, Namespace, Node, Outcome, Skip, host, provider_limit, providers, source, suite,
};
use weft_fabric::{
    Armed, Endpoint, EndpointOptions, NodeId, OpenError, Reach, Transport, Watchable, Way,
};
use weft_layers::{LayeredEndpoint, LayeredTransport, on_a_thread};
use weft_libfabric::{Error, Library, Peer, Refused, Registration, Report, Rights, Spot, Wanted};
use weft_memory::Memory;
use weft_memory::kinds::{self, Kind};
use weft_options::ServicePolicy;
use weft_transport_ofi::nic::{Local, Nic, PortNic, ThreadHolds, Work};
use weft_transport_ofi::{Cards, OfiEndpoint, OfiTransport, Parameters, Ports};
use weft_transport_shm::ShmTransport;

/// Those of Debian's libfabric that need no hardware, but for `shm`, which crashes when a port of
/// the same process ends amid operations.
const PROVIDERS: [&str; 3] = ["net", "tcp;ofi_rxm", "sockets"];
/// Opens 256 endpoints. Each costs a tenth of a second over `tcp;ofi_rxm`, which clears 30 MB for
/// it.
const DEAR: &str = "a_node_without_free_vpids_reports_it";
/// A user without privileges, independent of the user that runs the tests.
const USER: u32 = 1000;

thread_local! {
    /// The provider of the case that runs on this thread.
    static PROVIDER: RefCell<String> = const { RefCell::new(String::new()) };
}

struct Ofi {
    directory: LocalBroker,
    wanted: Wanted,
    /// Whether each endpoint has something on its way. Connections take milliseconds.
    busy: Vec<Box<dyn Fn() -> bool>>,
}

impl Ofi {
    fn open_at(
        &mut self,
        directory: LocalBroker,
        options: &EndpointOptions,
    ) -> Result<OfiEndpoint<PortNic>, OpenError> {
        let ports = Ports { wanted: self.wanted.clone() };
        let transport = OfiTransport::new(ports, Arc::new(directory), Parameters::default());
        let endpoint = transport.open(options)?;
        self.busy.push(Box::new(endpoint.is_busy()));
        Ok(endpoint)
    }
}

fn wanted() -> Wanted {
    let provider = Some(PROVIDER.with_borrow(Clone::clone));
    Wanted { provider, source: Some(source()), ports: None }
}

impl Bench for Ofi {
    type Endpoint = OfiEndpoint<PortNic>;

    fn with_services(rules: &str) -> Self {
        let policy = ServicePolicy::parse(rules).expect("rules");
        let directory =
            LocalBroker::new(NodeId::LOCAL, Limits::default(), policy, no_bells).as_user(USER);
        Self { directory, wanted: wanted(), busy: Vec::new() }
    }

    fn user(&self) -> u32 {
        USER
    }

    fn open(&mut self, options: &EndpointOptions) -> Result<Self::Endpoint, OpenError> {
        self.open_at(self.directory.clone(), options)
    }

    fn open_as(
        &mut self,
        user: u32,
        options: &EndpointOptions,
    ) -> Option<Result<Self::Endpoint, OpenError>> {
        let directory = self.directory.as_user(user);
        Some(self.open_at(directory, options))
    }

    fn let_pass(&mut self, time: Duration) {
        self.directory.let_pass(time);
    }

    fn progress(&mut self) -> bool {
        // A thread of libfabric's `sockets` takes what was handed to it.
        let is_handed_on = self.wanted.provider.as_deref() == Some("sockets");
        std::thread::sleep(Duration::from_micros(if is_handed_on { 1000 } else { 200 }));
        self.busy.iter().any(|busy| busy())
    }
}

impl HostBench for Ofi {
    fn kinds() -> usize {
        Kind::ALL.len()
    }

    fn memory(kind: usize, bytes: &[u8]) -> Memory {
        Kind::ALL[kind].memory(bytes)
    }

    fn way(kind: usize, reach: Reach) -> Way {
        [reach.fresh, reach.descriptor, reach.adopted, reach.in_place][kind]
    }

    fn bytes(memory: &Memory) -> Vec<u8> {
        kinds::bytes(memory)
    }
}

fn main() -> ExitCode {
    let mut cases = Vec::new();
    for provider in providers(&PROVIDERS) {
        let short = provider.split(';').next_back().unwrap_or(&provider);
        let mut groups = weft_conformance::conformance_list!(Ofi);
        groups.extend(weft_conformance::host_memory_list!(Ofi));
        for (group, list) in groups {
            let of = provider.clone();
            let case = Case::new(format!("{group}_over_{short}"), move || run(&of, &list));
            let case = case.within(provider_limit());
            let is_old = provider == "sockets";
            cases.push(if is_old { case.long("libfabric 2 has no sockets") } else { case });
        }
    }
    cases.push(Case::new("an_unknown_provider_is_named", an_unknown_provider_is_named));
    let across = Case::new("all_holds_across_two_hosts", all_holds_across_two_hosts);
    cases.push(across.within(provider_limit()).in_turn(2));
    let both = Case::new("all_holds_where_peers_share_memory_or_not", all_holds_on_both_ways);
    cases.push(both.within(Duration::from_secs(300)).long("it waits for what it cannot see"));
    cases.push(Case::new("who_sleeps_is_told_to_arm_again", who_sleeps_is_told_to_arm_again));
    suite::main(cases)
}

/// While a program polls, packets end no sleep. A thread of it that went to sleep before is told.
fn who_sleeps_is_told_to_arm_again() -> Outcome {
    let library = Library::load().map_err(|error| Skip(error.to_string()))?;
    let wanted = Wanted { provider: Some("net".into()), source: Some(source()), ports: None };
    if library.offers(&wanted).expect("the library answers").is_empty() {
        return Err(Skip("libfabric has no provider net".into()));
    }
    PROVIDER.set("net".into());
    let mut endpoint =
        Ofi::with_services("").open(&EndpointOptions::default()).expect("the provider opens it");
    let is_readable = |endpoint: &OfiEndpoint<PortNic>| {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&endpoint.descriptor(), PollFlags::IN)], Some(&now)) != Ok(0)
    };
    let falls_asleep = |endpoint: &mut OfiEndpoint<PortNic>| {
        let start = Instant::now();
        while endpoint.arm() != Armed::Sleep || is_readable(endpoint) {
            assert!(start.elapsed() < GONE_WITHIN, "it never may sleep");
        }
    };
    for _ in 0..3 {
        falls_asleep(&mut endpoint);
        let mut polls = 0;
        while !is_readable(&endpoint) {
            assert!(polls < 10_000, "nobody tells the sleeper");
            endpoint.poll(1, &mut |_| {});
            polls += 1;
        }
        assert!(polls > 100, "{polls} polls");
    }
    Ok(())
}

/// The hosts of a case, and the one whose endpoint is opened next.
struct TwoHosts {
    hosts: Rc<[Host; 2]>,
    turn: bool,
    busy: Vec<Box<dyn Fn() -> bool>>,
}

thread_local! {
    /// Hosts whose daemons have joined. All cases use them, one after the other.
    static HOSTS: RefCell<Option<Rc<[Host; 2]>>> = const { RefCell::new(None) };
}

/// How long the endpoints of a case may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// Two networks with a cable between them, and a daemon in each. Nothing else leads from one to the
/// other.
fn two_hosts() -> [Host; 2] {
    let keeper = Node::without_daemon();
    let key = host::key(&keeper, "key");
    let networks = [Namespace::new(), Namespace::new()];
    networks[0].cable_to(&networks[1]);
    let [first, second] = networks;
    let mut one = Host::inside(first, "10.9.0.1:7700", "one", &key, &[]);
    let mut two = Host::inside(second, "10.9.0.2:7700", "two", &key, &["10.9.0.1:7700"]);
    one.start();
    two.start();
    one.await_state("two", "up");
    two.await_state("one", "up");
    [one, two]
}

/// The hosts, without endpoints of an earlier case.
fn empty_hosts(rules: &str) -> Rc<[Host; 2]> {
    assert!(rules.is_empty(), "cases about services are left out");
    let hosts =
        HOSTS.with_borrow_mut(|hosts| Rc::clone(hosts.get_or_insert_with(|| Rc::new(two_hosts()))));
    let start = Instant::now();
    let has_endpoints =
        |host: &Host| host.node.status()["endpoints"].as_array().is_some_and(|all| !all.is_empty());
    while hosts.iter().any(has_endpoints) {
        assert!(start.elapsed() < GONE_WITHIN, "endpoints of an earlier case are still there");
        std::thread::sleep(Duration::from_millis(1));
    }
    hosts
}

/// The NICs of a host.
fn cards_of(host: &Host) -> CardsInside {
    let (source, _) = host.address.split_once(':').expect("it has a port");
    let network = host.network.as_ref().expect("its own");
    let wanted = Wanted { source: Some(source.to_owned()), ..wanted() };
    CardsInside { network: network.again(), ports: Ports { wanted } }
}

impl Bench for TwoHosts {
    type Endpoint = OfiEndpoint<Inside>;

    fn with_services(rules: &str) -> Self {
        Self { hosts: empty_hosts(rules), turn: false, busy: Vec::new() }
    }

    fn user(&self) -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn open(&mut self, options: &EndpointOptions) -> Result<Self::Endpoint, OpenError> {
        self.turn = !self.turn || !options.vpid.is_any();
        let host = &self.hosts[usize::from(!self.turn)];
        let broker = Arc::new(RemoteBroker::new(&host.node.socket(), "conformance"));
        let transport = OfiTransport::new(cards_of(host), broker, Parameters::default());
        let endpoint = transport.open(options)?;
        self.busy.push(Box::new(endpoint.is_busy()));
        Ok(endpoint)
    }

    fn open_as(
        &mut self,
        _user: u32,
        _options: &EndpointOptions,
    ) -> Option<Result<Self::Endpoint, OpenError>> {
        None
    }

    fn let_pass(&mut self, time: Duration) {
        std::thread::sleep(time);
    }

    fn progress(&mut self) -> bool {
        std::thread::sleep(Duration::from_micros(200));
        self.busy.iter().any(|busy| busy())
    }
}

/// The same with memory on each host: the first endpoint of a case is on one, all others on the
/// other, so that some pairs share memory and some do not.
struct BothWays {
    hosts: Rc<[Host; 2]>,
    opened: usize,
}

impl Bench for BothWays {
    type Endpoint = LayeredEndpoint<CardsInside>;

    fn with_services(rules: &str) -> Self {
        Self { hosts: empty_hosts(rules), opened: 0 }
    }

    fn user(&self) -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn open(&mut self, options: &EndpointOptions) -> Result<Self::Endpoint, OpenError> {
        let is_first = self.opened == 0 || !options.vpid.is_any();
        self.opened += 1;
        let host = &self.hosts[usize::from(!is_first)];
        let broker = Arc::new(RemoteBroker::new(&host.node.socket(), "conformance"));
        let near = ShmTransport::new(Arc::clone(&broker) as _, Default::default());
        let far = OfiTransport::new(cards_of(host), broker, Parameters::default());
        LayeredTransport::new(near, far, on_a_thread).open(options)
    }

    fn open_as(
        &mut self,
        _user: u32,
        _options: &EndpointOptions,
    ) -> Option<Result<Self::Endpoint, OpenError>> {
        None
    }

    fn let_pass(&mut self, time: Duration) {
        std::thread::sleep(time);
    }

    fn progress(&mut self) -> bool {
        // Nobody says whether something is on its way: a case that waits until nothing happens does
        // so for some of these.
        std::thread::sleep(Duration::from_millis(2));
        false
    }
}

/// A receiver that does not poll before it is met opens no port.
const UNPOLLED: &str = "a_poll_keeps_to_its_budget";

fn all_holds_on_both_ways() -> Outcome {
    let mut left_out = LEFT_OUT.to_vec();
    left_out.push(UNPOLLED);
    all_hold(&weft_conformance::conformance_list!(BothWays), &left_out)
}

/// Cases about the VPIDs of one node, about a user who is not root, and about changes of a group
/// that a sender is told at once: those of another host come one after the other. And one about the
/// address of a peer that is gone, of which the other host's broker may hear later than this end.
const LEFT_OUT: [&str; 5] = [
    "every_call_on_a_dead_peer_fails",
    "a_multicast_reaches_all_or_none",
    "a_node_without_free_vpids_reports_it",
    "a_key_of_one_peer_does_not_serve_its_successor",
    "a_partition_of_another_user_is_forbidden",
];

/// Cards in a network namespace.
struct CardsInside {
    network: Namespace,
    ports: Ports,
}

/// A NIC whose calls are made in a network namespace, so that its sockets are of that one.
struct Inside {
    network: Namespace,
    nic: PortNic,
}

impl Cards for CardsInside {
    type Nic = Inside;

    fn open(&self) -> Result<Inside, Error> {
        let nic = self.network.inside(|| self.ports.open())?;
        Ok(Inside { network: self.network.again(), nic })
    }
}

impl Nic for Inside {
    fn name(&self) -> &[u8] {
        self.nic.name()
    }

    fn insert(&mut self, name: &[u8]) -> Result<Peer, Error> {
        self.network.inside(|| self.nic.insert(name))
    }

    fn remove(&mut self, peer: Peer) {
        self.network.inside(|| self.nic.remove(peer));
    }

    fn send(&mut self, to: Peer, message: &[u8]) -> Result<(), Refused> {
        self.network.inside(|| self.nic.send(to, message))
    }

    fn register(
        &mut self,
        range: (&Memory, usize, usize),
        rights: Rights,
    ) -> Result<(Registration, Spot), Error> {
        self.nic.register(range, rights)
    }

    fn deregister(&mut self, registration: Registration, is_settled: bool) {
        self.nic.deregister(registration, is_settled);
    }

    fn write(&mut self, to: Peer, from: Local, spot: Spot, token: u64) -> Result<(), Refused> {
        self.network.inside(|| self.nic.write(to, from, spot, token))
    }

    fn read(&mut self, from: Peer, into: Local, spot: Spot, token: u64) -> Result<(), Refused> {
        self.network.inside(|| self.nic.read(from, into, spot, token))
    }

    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Report<'_>)) -> Result<usize, Error> {
        self.network.inside(|| self.nic.poll(budget, sink))
    }

    fn receives(&self) -> usize {
        self.nic.receives()
    }

    fn operation_bytes_max(&self) -> usize {
        self.nic.operation_bytes_max()
    }

    fn keeps_messages_behind_writes(&self) -> bool {
        self.nic.keeps_messages_behind_writes()
    }

    fn now(&self) -> Duration {
        self.nic.now()
    }

    fn random(&mut self) -> u64 {
        self.nic.random()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.nic.descriptor()
    }

    fn may_sleep(&self) -> bool {
        self.nic.may_sleep()
    }

    fn pass(&mut self, time: Duration) {
        self.nic.pass(time);
    }

    fn linger(&mut self, thread_holds: ThreadHolds, work: Work) {
        self.nic.linger(thread_holds, work);
    }
}

/// The suite between endpoints of two daemons that have joined, each in a network of its own.
/// The rules for partitions are left out: this process has one user. They are tried across two
/// nodes in memory.
fn all_holds_across_two_hosts() -> Outcome {
    all_hold(&weft_conformance::conformance_list!(TwoHosts), &LEFT_OUT)
}

/// A group of cases by name, and its cases by name.
type Group = (&'static str, Vec<(&'static str, fn())>);

fn all_hold(groups: &[Group], left_out: &[&str]) -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Err(Skip("network namespaces need root".to_owned()));
    }
    Library::load().map_err(|error| Skip(error.to_string()))?;
    PROVIDER.set("net".to_owned());
    for (_, list) in groups.iter().filter(|(group, _)| *group != "partition") {
        for (name, case) in list.iter().filter(|(name, _)| !left_out.contains(name)) {
            println!("{name}");
            case();
        }
    }
    HOSTS.take();
    Ok(())
}

fn an_unknown_provider_is_named() -> Outcome {
    Library::load().map_err(|error| Skip(error.to_string()))?;
    PROVIDER.set("nothing".to_owned());
    let refused = Ofi::new().open(&EndpointOptions::default()).err();
    let told = refused.expect("there is no such provider").to_string();
    assert_eq!(
        told,
        format!(
            "the network's provider refused: libfabric has no provider nothing at {} here; \
             `weft info` lists what it has",
            source()
        )
    );
    Ok(())
}

fn run(provider: &str, list: &[(&'static str, fn())]) -> Outcome {
    PROVIDER.set(provider.to_owned());
    let library = Library::load().map_err(|error| Skip(error.to_string()))?;
    if library.offers(&wanted()).expect("the library answers").is_empty() {
        let (major, minor) = library.version();
        return Err(Skip(format!("libfabric {major}.{minor} has no provider {provider}")));
    }
    let is_long = std::env::var_os(suite::LONG).is_some();
    for (name, case) in list {
        if *name == DEAR && provider == "tcp;ofi_rxm" && !is_long {
            continue;
        }
        println!("{name}");
        case();
    }
    Ok(())
}

//! The conformance suite over endpoints with both ways: on one node, where all goes by shared
//! memory; on two nodes in turn, where all goes over a seeded network; and with all endpoints but
//! the first on another node, so that some pairs go either way.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use weft_broker::Limits;
use weft_broker::local::LocalBroker;
use weft_conformance::{Bench, HostBench, conformance_tests, host_memory_tests};
use weft_fabric::{EndpointOptions, NodeId, OpenError, Reach, Transport, Way};
use weft_layers::{LayeredEndpoint, LayeredTransport};
use weft_memory::Memory;
use weft_memory::kinds::{self, Kind};
use weft_options::ServicePolicy;
use weft_transport_ofi::OfiTransport;
use weft_transport_ofi::seeded::{SeededNet, Settings};
use weft_transport_shm::{ShmTransport, open_bell};

/// A user without privileges, independent of the user that runs the tests.
const USER: u32 = 1000;

/// Where the endpoints of a case are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Nodes {
    /// All on one node.
    One,
    /// On two nodes in turn.
    Two,
    /// The first on one node, all others on the other.
    Mixed,
}

thread_local! {
    /// The setup of the case that runs on this thread.
    static SETUP: Cell<(Nodes, u64)> = const { Cell::new((Nodes::One, 1)) };
}

struct Layered {
    nodes: Nodes,
    net: SeededNet,
    /// The brokers of the nodes.
    brokers: [LocalBroker; 2],
    opened: usize,
}

fn at_once(work: weft_layers::Work) {
    work();
}

fn transport(broker: LocalBroker, net: &SeededNet) -> LayeredTransport<SeededNet> {
    let broker = Arc::new(broker);
    let near = ShmTransport::new(Arc::clone(&broker) as _, Default::default());
    let parameters = weft_transport_ofi::Parameters { spins: 0, yields: 0, ..Default::default() };
    let far = OfiTransport::new(net.clone(), broker, parameters);
    LayeredTransport::new(near, far, at_once)
}

impl Layered {
    /// The broker of the next endpoint. One that wants a VPID wants that of the first node.
    fn next(&mut self, options: &EndpointOptions) -> LocalBroker {
        let is_first = match self.nodes {
            Nodes::One => true,
            Nodes::Two => self.opened.is_multiple_of(2) || !options.vpid.is_any(),
            Nodes::Mixed => self.opened == 0 || !options.vpid.is_any(),
        };
        self.opened += 1;
        self.brokers[usize::from(!is_first)].clone()
    }
}

impl Bench for Layered {
    type Endpoint = LayeredEndpoint<SeededNet>;

    fn with_services(rules: &str) -> Self {
        let (nodes, seed) = SETUP.get();
        let policy = ServicePolicy::parse(rules).expect("rules");
        let broker = LocalBroker::new(NodeId::LOCAL, Limits::default(), policy, open_bell);
        let broker = broker.as_user(USER);
        let other = broker.beside(NodeId(7));
        let net = SeededNet::new(Settings { seed, ..Settings::default() });
        Self { nodes, net, brokers: [broker, other], opened: 0 }
    }

    fn user(&self) -> u32 {
        USER
    }

    fn open(&mut self, options: &EndpointOptions) -> Result<Self::Endpoint, OpenError> {
        let broker = self.next(options);
        transport(broker, &self.net).open(options)
    }

    fn open_as(
        &mut self,
        user: u32,
        options: &EndpointOptions,
    ) -> Option<Result<Self::Endpoint, OpenError>> {
        let broker = self.next(options).as_user(user);
        Some(transport(broker, &self.net).open(options))
    }

    fn let_pass(&mut self, time: Duration) {
        self.brokers[0].let_pass(time);
    }

    fn progress(&mut self) -> bool {
        self.net.step()
    }
}

fn one_node() {
    SETUP.set((Nodes::One, 1));
}

conformance_tests!(Layered, one_node);

impl HostBench for Layered {
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

host_memory_tests!(Layered, one_node);

/// Cases that are left out on two nodes: those about the VPIDs of one node, and one whose receiver
/// does not poll before it is met. It opens its port when it polls.
const LEFT_OUT: [&str; 4] = [
    "a_node_without_free_vpids_reports_it",
    "a_key_of_one_peer_does_not_serve_its_successor",
    "a_ticket_of_an_ended_endpoint_is_void",
    "a_poll_keeps_to_its_budget",
];

fn all_hold(nodes: Nodes, seed: u64) {
    let mut count = 0;
    let mut groups = weft_conformance::conformance_list!(Layered);
    groups.extend(weft_conformance::host_memory_list!(Layered));
    for (_, list) in groups {
        for (name, case) in list {
            SETUP.set((nodes, seed));
            println!("{name}");
            if LEFT_OUT.contains(&name) {
                count += 1;
            } else {
                case();
            }
        }
    }
    assert_eq!(count, LEFT_OUT.len(), "each name is that of a case");
}

#[test]
fn all_that_holds_on_one_node_holds_across_two() {
    all_hold(Nodes::Two, 4);
}

#[test]
fn all_that_holds_on_one_node_holds_where_pairs_go_either_way() {
    all_hold(Nodes::Mixed, 5);
}

//! The conformance suite over a seeded network in memory, in which writes and reads overtake
//! messages, NICs have no room now and then, and a message without a buffer is a mistake.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use weft_broker::local::LocalBroker;
use weft_broker::{Limits, no_bells};
use weft_conformance::{Bench, HostBench, conformance_tests, host_memory_tests};
use weft_fabric::{EndpointOptions, NodeId, OpenError, Reach, Transport, Way};
use weft_memory::Memory;
use weft_memory::kinds::{self, Kind};
use weft_options::ServicePolicy;
use weft_transport_ofi::seeded::{SeededNet, SeededNic, Settings};
use weft_transport_ofi::{OfiEndpoint, OfiTransport, Parameters};

/// A user without privileges, independent of the user that runs the tests.
const USER: u32 = 1000;

thread_local! {
    /// The network of the case that runs on this thread.
    static SETTINGS: Cell<Settings> = Cell::new(Settings::default());
}

/// The usual network. `WEFT_SEED` sets another seed.
fn usual() {
    let seed = std::env::var("WEFT_SEED").ok().and_then(|seed| seed.parse().ok());
    SETTINGS.set(Settings { seed: seed.unwrap_or(1), ..Settings::default() });
}

struct Seeded {
    net: SeededNet,
    directory: LocalBroker,
}

impl Seeded {
    fn open_at(
        &self,
        directory: LocalBroker,
        options: &EndpointOptions,
    ) -> Result<OfiEndpoint<SeededNic>, OpenError> {
        let parameters = Parameters { spins: 0, yields: 0, ..Parameters::default() };
        OfiTransport::new(self.net.clone(), Arc::new(directory), parameters).open(options)
    }
}

impl Bench for Seeded {
    type Endpoint = OfiEndpoint<SeededNic>;

    fn with_services(rules: &str) -> Self {
        let policy = ServicePolicy::parse(rules).expect("rules");
        let directory =
            LocalBroker::new(NodeId::LOCAL, Limits::default(), policy, no_bells).as_user(USER);
        Self { net: SeededNet::new(SETTINGS.get()), directory }
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
        Some(self.open_at(self.directory.as_user(user), options))
    }

    fn let_pass(&mut self, time: Duration) {
        self.directory.let_pass(time);
    }

    fn progress(&mut self) -> bool {
        self.net.step()
    }
}

conformance_tests!(Seeded, usual);

impl HostBench for Seeded {
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

host_memory_tests!(Seeded, usual);

/// The same with few buffers, so that pairs have little room.
mod few_buffers {
    use super::{SETTINGS, Seeded, Settings};

    fn few() {
        SETTINGS.set(Settings { receives: 200, seed: 2, ..Settings::default() });
    }

    weft_conformance::conformance_tests!(Seeded, few);
}

/// The same over a NIC that always has room.
mod never_busy {
    use super::{SETTINGS, Seeded, Settings};

    fn never() {
        SETTINGS.set(Settings { busy: 0, seed: 3, ..Settings::default() });
    }

    weft_conformance::conformance_tests!(Seeded, never);
}

/// The same over NICs that keep writes and messages in order, as most of them do.
mod keeps_order {
    use super::{SETTINGS, Seeded, Settings};

    fn keeps() {
        SETTINGS.set(Settings { keeps_order: true, seed: 5, ..Settings::default() });
    }

    weft_conformance::conformance_tests!(Seeded, keeps);
}

/// The same with the endpoints of a case on two nodes in turn.
mod two_nodes {
    use super::*;

    struct TwoNodes {
        bench: Seeded,
        other: LocalBroker,
        turn: bool,
    }

    impl TwoNodes {
        /// The node of the next endpoint. One that wants a VPID wants that of the first node.
        fn next(&mut self, options: &EndpointOptions) -> LocalBroker {
            self.turn = !self.turn || !options.vpid.is_any();
            if self.turn { self.bench.directory.clone() } else { self.other.clone() }
        }
    }

    impl Bench for TwoNodes {
        type Endpoint = OfiEndpoint<SeededNic>;

        fn with_services(rules: &str) -> Self {
            let bench = Seeded::with_services(rules);
            let other = bench.directory.beside(NodeId(7));
            Self { bench, other, turn: false }
        }

        fn user(&self) -> u32 {
            USER
        }

        fn open(&mut self, options: &EndpointOptions) -> Result<Self::Endpoint, OpenError> {
            let node = self.next(options);
            self.bench.open_at(node.as_user(USER), options)
        }

        fn open_as(
            &mut self,
            user: u32,
            options: &EndpointOptions,
        ) -> Option<Result<Self::Endpoint, OpenError>> {
            let node = self.next(options);
            Some(self.bench.open_at(node.as_user(user), options))
        }

        fn let_pass(&mut self, time: Duration) {
            self.bench.let_pass(time);
        }

        fn progress(&mut self) -> bool {
            self.bench.progress()
        }
    }

    /// Cases about the VPIDs of one node.
    const OF_ONE_NODE: [&str; 3] = [
        "a_node_without_free_vpids_reports_it",
        "a_key_of_one_peer_does_not_serve_its_successor",
        "a_ticket_of_an_ended_endpoint_is_void",
    ];

    #[test]
    fn all_that_holds_on_one_node_holds_across_two() {
        let mut left_out = 0;
        for (_, list) in weft_conformance::conformance_list!(TwoNodes) {
            for (name, case) in list {
                SETTINGS.set(Settings { seed: 4, ..Settings::default() });
                println!("{name}");
                if OF_ONE_NODE.contains(&name) {
                    left_out += 1;
                } else {
                    case();
                }
            }
        }
        assert_eq!(left_out, OF_ONE_NODE.len(), "each name is that of a case");
    }
}

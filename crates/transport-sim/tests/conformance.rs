//! The simulator passes the suite for all transports.

use std::time::Duration;

use weft_conformance::Bench;
use weft_fabric::{Endpoint, EndpointOptions, NodeId, OpenError, Transport};
use weft_options::ServicePolicy;
use weft_topology::Shape;
use weft_transport_sim::{Link, NetworkSettings, Settings, SimEndpoint, SimWorld};

/// A world with three nodes.
struct Sim {
    world: SimWorld,
    next_node: u32,
}

const USER: u32 = 1000;

fn rails() -> Vec<String> {
    ["left", "right"].map(str::to_owned).to_vec()
}

impl Bench for Sim {
    type Endpoint = SimEndpoint;

    fn with_services(rules: &str) -> Self {
        let services = ServicePolicy::parse(rules).expect("rules");
        let settings = Settings { services, rails: rails(), ..Settings::seeded(42) };
        Self { world: SimWorld::new(settings), next_node: 0 }
    }

    fn let_pass(&mut self, time: Duration) {
        self.world.advance(u64::try_from(time.as_nanos()).expect("less than centuries"));
    }

    fn user(&self) -> u32 {
        USER
    }

    fn open(&mut self, options: &EndpointOptions) -> Result<SimEndpoint, OpenError> {
        self.world.transport(NodeId(0), USER).open(options)
    }

    fn open_apart(&mut self, options: &EndpointOptions) -> Result<SimEndpoint, OpenError> {
        self.next_node = (self.next_node + 1) % 3;
        self.world.transport(NodeId(self.next_node), USER).open(options)
    }

    fn open_as(
        &mut self,
        user: u32,
        options: &EndpointOptions,
    ) -> Option<Result<SimEndpoint, OpenError>> {
        Some(self.world.transport(NodeId(0), user).open(options))
    }

    fn progress(&mut self) -> bool {
        self.world.step()
    }

    fn set_rail(&mut self, rail: &str, is_up: bool) -> bool {
        for (one, other) in [(0, 1), (0, 2), (1, 2)] {
            let (one, other) = (NodeId(one), NodeId(other));
            if is_up {
                self.world.heal_rail(one, other, rail);
            } else {
                self.world.cut_rail(one, other, rail);
            }
        }
        true
    }

    fn kill(&mut self, endpoint: SimEndpoint) -> bool {
        self.world.kill(endpoint.address())
    }
}

/// A world whose nodes stand in a small torus.
struct Torus(Sim);

impl Bench for Torus {
    type Endpoint = SimEndpoint;

    fn with_services(rules: &str) -> Self {
        let graph = "torus:3x2".parse::<Shape>().expect("a shape").graph(None).expect("a graph");
        let network = Some(NetworkSettings::of(graph));
        let services = ServicePolicy::parse(rules).expect("rules");
        let settings = Settings { network, services, rails: rails(), ..Settings::seeded(44) };
        Self(Sim { world: SimWorld::new(settings), next_node: 0 })
    }

    fn let_pass(&mut self, time: Duration) {
        self.0.let_pass(time);
    }

    fn user(&self) -> u32 {
        USER
    }

    fn open(&mut self, options: &EndpointOptions) -> Result<SimEndpoint, OpenError> {
        self.0.open(options)
    }

    fn open_apart(&mut self, options: &EndpointOptions) -> Result<SimEndpoint, OpenError> {
        self.0.open_apart(options)
    }

    fn open_as(
        &mut self,
        user: u32,
        options: &EndpointOptions,
    ) -> Option<Result<SimEndpoint, OpenError>> {
        self.0.open_as(user, options)
    }

    fn progress(&mut self) -> bool {
        self.0.progress()
    }

    fn set_rail(&mut self, rail: &str, is_up: bool) -> bool {
        self.0.set_rail(rail, is_up)
    }

    fn kill(&mut self, endpoint: SimEndpoint) -> bool {
        self.0.kill(endpoint)
    }
}

mod torus {
    use super::Torus;
    weft_conformance::conformance_tests!(Torus);
}

mod ordered {
    use super::Sim;
    weft_conformance::conformance_tests!(Sim);
}

/// A world that keeps no order of operations, and whose control calls take time.
struct Unordered(Sim);

impl Bench for Unordered {
    type Endpoint = SimEndpoint;

    fn with_services(rules: &str) -> Self {
        let services = ServicePolicy::parse(rules).expect("rules");
        let link = Link { jitter_ns: 50_000, ..Link::default() };
        let settings =
            Settings { ordered: false, control_ns: 3_000, link, services, ..Settings::seeded(43) };
        let settings = Settings { rails: rails(), ..settings };
        Self(Sim { world: SimWorld::new(settings), next_node: 0 })
    }

    fn let_pass(&mut self, time: Duration) {
        self.0.let_pass(time);
    }

    fn user(&self) -> u32 {
        USER
    }

    fn open(&mut self, options: &EndpointOptions) -> Result<SimEndpoint, OpenError> {
        self.0.open(options)
    }

    fn open_apart(&mut self, options: &EndpointOptions) -> Result<SimEndpoint, OpenError> {
        self.0.open_apart(options)
    }

    fn open_as(
        &mut self,
        user: u32,
        options: &EndpointOptions,
    ) -> Option<Result<SimEndpoint, OpenError>> {
        self.0.open_as(user, options)
    }

    fn progress(&mut self) -> bool {
        self.0.progress()
    }

    fn set_rail(&mut self, rail: &str, is_up: bool) -> bool {
        self.0.set_rail(rail, is_up)
    }

    fn kill(&mut self, endpoint: SimEndpoint) -> bool {
        self.0.kill(endpoint)
    }
}

mod unordered {
    use super::Unordered;
    weft_conformance::conformance_tests!(Unordered);
}

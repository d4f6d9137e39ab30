//! The simulator passes the suite for all transports.

use std::marker::PhantomData;
use std::time::Duration;

use weft_conformance::Bench;
use weft_fabric::{Endpoint, EndpointOptions, NodeId, OpenError, Transport};
use weft_options::ServicePolicy;
use weft_topology::Shape;
use weft_transport_sim::{Link, NetworkSettings, Settings, SimEndpoint, SimWorld};

/// The settings of a world.
trait Form {
    fn settings() -> Settings;
}

/// A world with links of its own between each two nodes.
struct Ordered;

impl Form for Ordered {
    fn settings() -> Settings {
        Settings::seeded(42)
    }
}

/// A world with three nodes.
struct Sim<F> {
    world: SimWorld,
    next_node: u32,
    form: PhantomData<F>,
}

const USER: u32 = 1000;

fn rails() -> Vec<String> {
    ["left", "right"].map(str::to_owned).to_vec()
}

impl<F: Form> Bench for Sim<F> {
    type Endpoint = SimEndpoint;

    fn with_services(rules: &str) -> Self {
        let services = ServicePolicy::parse(rules).expect("rules");
        let settings = Settings { services, rails: rails(), ..F::settings() };
        Self { world: SimWorld::new(settings), next_node: 0, form: PhantomData }
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
struct Torus;

impl Form for Torus {
    fn settings() -> Settings {
        let graph = "torus:3x2".parse::<Shape>().expect("a shape").graph(None).expect("a graph");
        Settings { network: Some(NetworkSettings::of(graph)), ..Settings::seeded(44) }
    }
}

/// A world that keeps no order of operations, and whose control calls take time.
struct Unordered;

impl Form for Unordered {
    fn settings() -> Settings {
        let link = Link { jitter_ns: 50_000, ..Link::default() };
        Settings { ordered: false, control_ns: 3_000, link, ..Settings::seeded(43) }
    }
}

mod ordered {
    type Ordered = super::Sim<super::Ordered>;
    weft_conformance::conformance_tests!(Ordered);
}

mod torus {
    type Torus = super::Sim<super::Torus>;
    weft_conformance::conformance_tests!(Torus);
}

mod unordered {
    type Unordered = super::Sim<super::Unordered>;
    weft_conformance::conformance_tests!(Unordered);
}

//! The conformance suite over a seeded network in memory, in which writes and reads overtake
//! messages, cards have no room now and then, and a message without a buffer is a mistake.

use std::sync::Arc;
use std::time::Duration;

use weft_conformance::{Bench, conformance_tests};
use weft_fabric::{EndpointOptions, NodeId, OpenError, Transport};
use weft_options::ServicePolicy;
use weft_transport_ofi::directory::{Limits, local::LocalDirectory};
use weft_transport_ofi::seeded::{SeededNet, SeededNic, Settings};
use weft_transport_ofi::{OfiEndpoint, OfiTransport, Parameters};

/// A user without privileges, independent of the user that runs the tests.
const USER: u32 = 1000;

struct Seeded {
    net: SeededNet,
    directory: LocalDirectory,
}

impl Seeded {
    fn open_at(
        &self,
        directory: LocalDirectory,
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
        let directory = LocalDirectory::new(NodeId::LOCAL, Limits::default(), policy, USER);
        let seed = std::env::var("WEFT_SEED").ok().and_then(|seed| seed.parse().ok());
        let settings = Settings { seed: seed.unwrap_or(1), ..Settings::default() };
        Self { net: SeededNet::new(settings), directory }
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

conformance_tests!(Seeded);

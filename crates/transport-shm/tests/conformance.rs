//! The conformance suite over shared memory, with a broker in this process.
#![cfg(not(loom))]

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use weft_conformance::{
    Bench, HostBench, Hostile, LaneBench, conformance_tests, host_memory_tests, lane_tests,
};
use weft_fabric::{EndpointOptions, NodeId, OpenError, Reach, Transport, Way};
use weft_memory::kinds::{self, Kind};
use weft_memory::{CopyMode, Memory, Segment};
use weft_options::ServicePolicy;
use weft_transport_shm::broker::{
    BrokerError, Client, Connector, Limits, Received, local::LocalBroker,
};
use weft_transport_shm::lane::{LaneLayout, ShmLane};
use weft_transport_shm::{Parameters, ShmEndpoint, ShmTransport, WayInPlace, open_bell};
use weft_wire::endpoint_control::EndpointControl;

/// A broker whose answers come some looks after the question, as the node daemon's do.
#[derive(Clone)]
struct Slow(LocalBroker);

struct SlowClient {
    client: Box<dyn Client>,
    /// Looks until the next message is handed out.
    looks: u8,
}

impl Connector for Slow {
    fn client(&self) -> Result<Box<dyn Client>, BrokerError> {
        Ok(Box::new(SlowClient { client: self.0.client()?, looks: 0 }))
    }
}

impl Client for SlowClient {
    fn call(
        &mut self,
        request: EndpointControl,
        ticket: u32,
        files: &[BorrowedFd<'_>],
    ) -> Result<Received, BrokerError> {
        self.client.call(request, ticket, files)
    }

    fn start(
        &mut self,
        request: EndpointControl,
        files: &[BorrowedFd<'_>],
    ) -> Result<(), BrokerError> {
        // The cases use keys without resolving them, and take a refusal for a failure.
        // `requests_tests` has keys that are looked up slowly.
        if !matches!(request, EndpointControl::Resolve(_)) {
            self.looks = 3;
        }
        self.client.start(request, files)
    }

    fn next(&mut self) -> Option<Received> {
        self.looks = self.looks.saturating_sub(1);
        if self.looks == 0 { self.client.next() } else { None }
    }
}

/// How the endpoints of a case reach the broker, and the memory of each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Setup {
    /// As programs of one host have it: memory is mapped.
    Usual,
    /// The broker answers some looks after the question, as the node daemon does.
    SlowBroker,
    /// All regions are in place, and the transport chooses the way to those of others: by the
    /// kernel, since the endpoints are of one process, but for endpoints of different users.
    InPlace,
    /// The same, with a copy by the kernel.
    ByKernel,
    /// The same, with the target's progress.
    ByTarget,
}

thread_local! {
    /// The setup of the case that runs on this thread.
    static SETUP: Cell<Setup> = const { Cell::new(Setup::Usual) };
}

impl Setup {
    fn of_this_case() -> Self {
        SETUP.get()
    }

    fn is_in_place(self) -> bool {
        matches!(self, Self::InPlace | Self::ByKernel | Self::ByTarget)
    }

    fn open(
        self,
        broker: LocalBroker,
        options: &EndpointOptions,
    ) -> Result<ShmEndpoint, OpenError> {
        let in_place = match self {
            Self::Usual | Self::SlowBroker | Self::InPlace => WayInPlace::Best,
            Self::ByKernel => WayInPlace::Kernel,
            Self::ByTarget => WayInPlace::Target,
        };
        let parameters = Parameters { in_place, ..Parameters::default() };
        let broker: Arc<dyn Connector> = match self {
            Self::SlowBroker => Arc::new(Slow(broker)),
            Self::Usual | Self::InPlace | Self::ByKernel | Self::ByTarget => Arc::new(broker),
        };
        let mut endpoint = ShmTransport::new(broker, parameters).open(options)?;
        if self.is_in_place() {
            endpoint.keep_memory_in_place();
        }
        Ok(endpoint)
    }
}

/// The bench of all setups: one type, so that the compiler makes the cases once.
struct Shm {
    broker: LocalBroker,
    setup: Setup,
}

/// A user without privileges, independent of the user that runs the tests.
const USER: u32 = 1000;

impl Bench for Shm {
    type Endpoint = ShmEndpoint;

    fn with_services(rules: &str) -> Self {
        let policy = ServicePolicy::parse(rules).expect("rules");
        let broker = LocalBroker::new(NodeId::LOCAL, Limits::default(), policy, open_bell);
        Self { broker: broker.as_user(USER), setup: Setup::of_this_case() }
    }

    fn has_windows(&self) -> bool {
        !self.setup.is_in_place()
    }

    fn let_pass(&mut self, time: Duration) {
        self.broker.let_pass(time);
    }

    fn user(&self) -> u32 {
        USER
    }

    fn open(&mut self, options: &EndpointOptions) -> Result<ShmEndpoint, OpenError> {
        self.setup.open(self.broker.clone(), options)
    }

    fn open_as(
        &mut self,
        user: u32,
        options: &EndpointOptions,
    ) -> Option<Result<ShmEndpoint, OpenError>> {
        Some(self.setup.open(self.broker.as_user(user), options))
    }

    fn progress(&mut self) -> bool {
        // Operations complete in their calls or in a poll; there is nothing else to advance.
        false
    }

    fn kill(&mut self, endpoint: ShmEndpoint) -> bool {
        endpoint.vanish();
        true
    }
}

fn usual() {
    SETUP.set(Setup::Usual);
}

conformance_tests!(Shm, usual);

mod slow_broker {
    use super::{SETUP, Setup, Shm};

    fn setup() {
        SETUP.set(Setup::SlowBroker);
    }

    weft_conformance::conformance_tests!(Shm, setup);
}

mod in_place_by_the_kernel {
    use super::{SETUP, Setup, Shm};

    fn setup() {
        SETUP.set(Setup::InPlace);
    }

    weft_conformance::conformance_tests!(Shm, setup);
}

mod in_place_by_the_target {
    use super::{SETUP, Setup, Shm};

    fn setup() {
        SETUP.set(Setup::ByTarget);
    }

    weft_conformance::conformance_tests!(Shm, setup);
}

impl HostBench for Shm {
    fn kinds() -> usize {
        if Setup::of_this_case().is_in_place() { 1 } else { 4 }
    }

    fn way(kind: usize, reach: Reach) -> Way {
        let setup = Setup::of_this_case();
        if !setup.is_in_place() {
            return [reach.fresh, reach.descriptor, reach.adopted, reach.in_place][kind];
        }
        let expected = if setup == Setup::ByTarget { Way::Target } else { Way::Kernel };
        assert_eq!(reach.in_place, expected);
        reach.in_place
    }

    fn memory(kind: usize, bytes: &[u8]) -> Memory {
        let in_place = Setup::of_this_case().is_in_place();
        if in_place { Kind::InPlace.memory(bytes) } else { Kind::ALL[kind].memory(bytes) }
    }

    fn bytes(memory: &Memory) -> Vec<u8> {
        kinds::bytes(memory)
    }
}

host_memory_tests!(Shm, usual);

mod host_memory_by_the_kernel {
    use super::{SETUP, Setup, Shm};

    fn setup() {
        SETUP.set(Setup::ByKernel);
    }

    weft_conformance::host_memory_tests!(Shm, setup);
}

mod host_memory_by_the_target {
    use super::{SETUP, Setup, Shm};

    fn setup() {
        SETUP.set(Setup::ByTarget);
    }

    weft_conformance::host_memory_tests!(Shm, setup);
}

struct Lanes {
    ends: [ShmLane; 2],
    layout: LaneLayout,
    /// The memory of the lane as a hostile end maps it.
    memory: Segment,
}

/// Offsets of the lane's words; see the layout in `lane.rs`.
const BLOCK_START: usize = 512;
const BLOCK_BYTES: usize = 512;
const SLOTS_START: usize = 4096;
const SLOT_BYTES: usize = 128;

impl LaneBench for Lanes {
    type Lane = ShmLane;

    fn new(mailbox_depth: u64, sink_bytes: u64) -> Self {
        let layout = LaneLayout {
            slots: u32::try_from(mailbox_depth.next_power_of_two().max(16)).expect("small"),
            sink_bytes: u32::try_from(sink_bytes.next_power_of_two().max(4096)).expect("small"),
        };
        let (one, file) = ShmLane::create(layout, CopyMode::Plain).expect("memory");
        let two = ShmLane::open(file.as_fd(), 1, CopyMode::NonTemporal).expect("a lane");
        let memory = Segment::open(file.as_fd(), layout.bytes(), true).expect("sealed");
        Self { ends: [one, two], layout, memory }
    }

    fn end(&self, which: usize) -> &ShmLane {
        &self.ends[which]
    }

    fn settle(&mut self) {}

    fn corrupt(&mut self, which: usize, what: Hostile) -> bool {
        // End `which` sends in direction `which` and receives in the other direction.
        let sends = BLOCK_START + which * BLOCK_BYTES;
        match what {
            Hostile::MessagesTaken(count) => {
                self.memory.word64(sends).store(count, Ordering::Release);
            }
            Hostile::BytesTaken(count) => {
                self.memory.word64(sends + 8).store(count, Ordering::Release);
            }
            Hostile::MessageLength(length) => {
                let slots = self.layout.slots as usize;
                for slot in 0..slots {
                    let place = SLOTS_START + ((1 - which) * slots + slot) * SLOT_BYTES;
                    let word = self.memory.word64(place);
                    let former = word.load(Ordering::Acquire);
                    if former != 0 {
                        let cleared = former & !(0xff << 32);
                        word.store(cleared | u64::from(length) << 32, Ordering::Release);
                    }
                }
            }
        }
        true
    }
}

lane_tests!(Lanes);

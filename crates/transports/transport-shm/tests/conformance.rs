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
use weft_transport_shm::{Parameters, ShmEndpoint, ShmTransport, open_bell};
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
    /// All regions are in place: the kernel copies, since the endpoints are of one process.
    InPlace,
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
        self == Self::InPlace
    }

    fn open(
        self,
        broker: LocalBroker,
        options: &EndpointOptions,
    ) -> Result<ShmEndpoint, OpenError> {
        let broker: Arc<dyn Connector> = match self {
            Self::SlowBroker => Arc::new(Slow(broker)),
            Self::Usual | Self::InPlace => Arc::new(broker),
        };
        let mut endpoint = ShmTransport::new(broker, Parameters::default()).open(options)?;
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

/// The cases of puts and gets alone, as no other operation reaches such memory.
mod in_place {
    use super::{SETUP, Setup, Shm};
    use weft_conformance::case_group;

    fn setup() {
        SETUP.set(Setup::InPlace);
    }

    case_group!(Shm, setup; rma:
        a_put_of_any_size_arrives_whole,
        a_put_from_a_region_arrives_whole,
        a_get_of_any_size_reads_the_region,
        every_offset_inside_a_cache_line_works,
        bytes_of_a_put_are_captured_by_the_call,
        a_fence_completes_after_everything_before_it,
        both_sides_put_and_get_at_once,
    );
    case_group!(Shm, setup; memory:
        a_range_outside_the_local_region_is_refused,
        an_operation_before_a_revocation_is_there_or_fails,
        a_new_grant_does_not_revive_an_old_key,
        two_keys_of_a_region_are_independent,
        a_key_that_was_never_granted_is_refused,
    );
    case_group!(Shm, setup; vector:
        a_vectored_put_writes_every_range_and_tells_it_once,
        a_vectored_put_writes_all_or_nothing,
        a_vectored_get_reads_every_range,
    );
    case_group!(Shm, setup; ordering:
        what_comes_after_an_order_takes_effect_after,
        a_message_after_an_order_tells_that_puts_arrived,
        a_quiet_operation_reports_errors_alone,
    );
    case_group!(Shm, setup; membership:
        a_key_of_one_peer_does_not_serve_its_successor,
    );
    case_group!(Shm, setup; notification:
        data_is_there_before_its_notification,
        a_get_has_its_data_before_its_notification,
        a_full_notification_queue_refuses_and_then_has_room,
        a_failed_operation_has_no_completer_notification,
    );
    weft_conformance::host_memory_tests!(Shm, setup);
}

impl HostBench for Shm {
    fn kinds() -> usize {
        if Setup::of_this_case().is_in_place() { 1 } else { 4 }
    }

    fn way(kind: usize, reach: Reach) -> Way {
        if !Setup::of_this_case().is_in_place() {
            return [reach.fresh, reach.descriptor, reach.adopted, reach.in_place][kind];
        }
        assert_eq!(reach.in_place, Way::Kernel);
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

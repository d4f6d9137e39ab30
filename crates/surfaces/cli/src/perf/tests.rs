//! Tests of the measuring logic over the simulator, where every figure is known.

use std::sync::Arc;
use std::thread;
use std::time::Instant;

use serde_json::Value;
use weft_fabric::{Endpoint, EndpointOptions, NodeId, Transport};
use weft_memory::CopyMode;
use weft_transport_shm::broker::Limits;
use weft_transport_shm::lane::{LaneLayout, ShmLane};
use weft_transport_shm::local_broker;
use weft_transport_shm::{Parameters, ShmTransport};

use super::initiator::Initiator;
use super::*;
use crate::arguments::{MemoryKind, MemoryWay};

fn arguments(test: PerfTest, transport: TransportName, size: u64) -> PerfArguments {
    PerfArguments {
        test,
        transport: Some(transport),
        provider: None,
        size: Some(size),
        over: None,
        memory: MemoryKind::Fresh,
        way: MemoryWay::Adopt,
        json: true,
        runs: 3,
        iterations: Some(50),
        unpinned: false,
        respond: None,
        to: None,
    }
}

fn measure(test: PerfTest, size: u64) -> Value {
    let arguments = arguments(test, TransportName::Sim, size);
    simulated::measure(&arguments, size).expect("a measurement").json()
}

/// The far end is a thread.
struct Beside {
    start: Instant,
}

impl Surroundings for Beside {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).expect("a short test")
    }

    fn idle(&mut self) -> anyhow::Result<()> {
        thread::yield_now();
        Ok(())
    }

    fn budget(&self) -> Budget {
        Budget { run_ns: 1_000_000, iterations_max: 100 }
    }
}

/// Measures over shared memory with both ends in this process.
fn measure_shm(test: PerfTest, size: u64) -> Value {
    let broker = Arc::new(local_broker(NodeId::LOCAL, Limits::default()));
    let transport = ShmTransport::new(broker, Parameters::default());
    let mut endpoint = transport.open(&EndpointOptions::default()).expect("an endpoint");
    let to = endpoint.address();
    let far = thread::spawn(move || {
        let mut endpoint = transport.open(&EndpointOptions::default()).expect("an endpoint");
        if test == PerfTest::Message {
            return answer(message::Responder::new(endpoint, to, size).expect("a responder"));
        }
        if test == PerfTest::Lane {
            let door = lane::OverEndpoint::opening(endpoint, to).expect("a door");
            return answer(lane::Responder::new(door, size));
        }
        let region = endpoint.register(region_bytes(size)).expect("memory");
        answer(responder::Responder::new(endpoint, region, to).expect("a responder"));
    });
    let beside = Beside { start: Instant::now() };
    let arguments = arguments(test, TransportName::Shm, size);
    let report = if test == PerfTest::Message {
        let initiator = message::Initiator::new(endpoint, beside, size).expect("an initiator");
        gather(&arguments, size, initiator, "threads")
    } else if test == PerfTest::Lane {
        let door = lane::OverEndpoint::waiting(endpoint);
        let initiator = lane::Initiator::new(door, beside, size).expect("an initiator");
        gather(&arguments, size, initiator, "threads")
    } else {
        let region = endpoint.register(region_bytes(size)).expect("memory");
        let initiator = Initiator::new(endpoint, region, beside).expect("an initiator");
        gather(&arguments, size, initiator, "threads")
    };
    let json = report.expect("a measurement").json();
    far.join().expect("no panic");
    json
}

/// Measures a lane in memory with both ends in this process.
fn measure_lane_in_memory(size: u64) -> Value {
    let layout = LaneLayout { slots: 16, sink_bytes: 65_536 };
    let (lane, memory) = ShmLane::create(layout, CopyMode::Plain).expect("a lane");
    let far = thread::spawn(move || {
        let door = lane::InMemory::given(memory);
        answer(lane::Responder::new(door.expect("a lane"), size));
    });
    let beside = Beside { start: Instant::now() };
    let initiator = lane::Initiator::new(lane::InMemory::made(lane), beside, size);
    let arguments = arguments(PerfTest::Lane, TransportName::Shm, size);
    let report = gather(&arguments, size, initiator.expect("an initiator"), "threads");
    far.join().expect("no panic");
    report.expect("a measurement").json()
}

/// Answers until it is over.
fn answer(mut responder: impl FarEnd) {
    while responder.step().expect("a step") != Progress::Over {
        thread::yield_now();
    }
}

#[test]
fn every_test_measures_over_shared_memory() {
    for (test, size) in [
        (PerfTest::Latency, 120),
        (PerfTest::Rate, 8),
        (PerfTest::Put, 65_536),
        (PerfTest::Get, 4_096),
        (PerfTest::Atomic, 8),
        (PerfTest::Message, 64),
        (PerfTest::Message, 100_000),
        (PerfTest::Lane, 120),
        (PerfTest::Lane, 1_000_003),
    ] {
        let json = measure_shm(test, size);
        assert!(json["median"].as_f64().is_some_and(|value| value > 0.0), "{json}");
        assert_eq!(json["transport"], "shm");
        let has_signal = json["signal_latency"]["median"].as_f64().is_some_and(|value| value > 0.0);
        assert_eq!(has_signal, test == PerfTest::Put, "{json}");
    }
}

#[test]
fn a_lane_in_memory_is_measured() {
    for size in [8, 121, 300_000] {
        let json = measure_lane_in_memory(size);
        assert!(json["median"].as_f64().is_some_and(|value| value > 0.0), "{json}");
        assert_eq!((&json["over"], &json["unit"]), (&"memory".into(), &"messages/s".into()));
        assert!(json["latency"]["median"].as_f64().is_some_and(|value| value > 0.0), "{json}");
    }
}

#[test]
fn figures_in_virtual_time_are_the_same_every_time() {
    for test in [PerfTest::Latency, PerfTest::Rate] {
        assert_eq!(measure(test, 64), measure(test, 64), "{test:?}");
    }
}

#[test]
fn every_test_measures_something() {
    for (test, size) in [
        (PerfTest::Latency, 8),
        (PerfTest::Rate, 120),
        (PerfTest::Put, 4_096),
        (PerfTest::Get, 65_536),
        (PerfTest::Atomic, 8),
        (PerfTest::Message, 300),
        (PerfTest::Message, 100_000),
        (PerfTest::Lane, 64),
        (PerfTest::Lane, 100_000),
    ] {
        let json = measure(test, size);
        for field in ["median", "p99"] {
            assert!(json[field].as_f64().is_some_and(|value| value > 0.0), "{json}");
        }
        assert_eq!(json["size"], size);
        assert_eq!(json["runs"], 3);
    }
}

#[test]
fn longer_messages_take_longer_over_a_link() {
    let latency = |size| measure(PerfTest::Latency, size)["median"].as_f64().expect("a number");
    assert!(latency(120) > latency(8));
}

#[test]
fn a_message_longer_than_a_slot_is_refused_with_advice() {
    let world = weft_transport_sim::SimWorld::new(weft_transport_sim::Settings::seeded(1));
    let transport = world.transport(NodeId(0), 1);
    let error = check_size(&transport, PerfTest::Latency, 121).expect_err("too long");
    assert!(error.to_string().contains("use `weft perf message` for 121"), "{error}");
    assert!(check_size(&transport, PerfTest::Put, 121).is_ok());
}

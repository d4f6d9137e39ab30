//! Runs operations of two endpoints in one process, so that their instructions can be counted:
//!
//! ```text
//! valgrind --tool=callgrind target/release/examples/instructions OPERATION N
//! ```
//!
//! The difference of two counts with different N is that of so many operations.
//! `bench/observing.py` does it.

use std::sync::Arc;

use weft_fabric::{
    Access, Audience, Blocking, Endpoint, EndpointOptions, Issued, LocalRange, MessageHeader,
    NodeId, Operation, PATIENCE, Source, Target, Transport, Value,
};
use weft_transport_shm::broker::Limits;
use weft_transport_shm::{Parameters, ShmTransport, local_broker};

fn main() {
    let mut words = std::env::args().skip(1);
    let operation = words.next().unwrap_or_default();
    let count: usize = words.next().and_then(|word| word.parse().ok()).unwrap_or(1000);
    let broker = Arc::new(local_broker(NodeId::LOCAL, Limits::default()));
    let transport = ShmTransport::new(broker, Parameters::default());
    let open = || transport.open(&EndpointOptions::default()).expect("a fresh broker");
    let (mut one, mut two) = (open(), open());
    let region = two.register(4096).expect("memory");
    let whole = LocalRange::whole(&region);
    let key = two.grant_within(whole, Audience::Partition, Access::all(), PATIENCE).expect("a key");
    let own = one.register(4096).expect("memory");
    let peer = one.connect_within(two.address(), PATIENCE).expect("it is there");
    two.poll(64, &mut |_| {});
    let target = Target::new(key, 0);
    for _ in 0..count {
        match operation.as_str() {
            "put" => {
                let put = one.put(peer, Source::Bytes(&[7; 8]), target, Operation::new(0));
                assert_eq!(put, Ok(Issued::Done(Value::Nothing)));
            }
            "get" => {
                let into = LocalRange { region: &own, offset: 0, length: 8 };
                let got = one.get(peer, target, into, Operation::new(0));
                assert_eq!(got, Ok(Issued::Done(Value::Nothing)));
            }
            "message" => {
                let word = [7; 8];
                while one.send_short(peer, MessageHeader::tag(1), &[&word]).is_err() {
                    two.poll(64, &mut |_| {});
                }
            }
            other => panic!("{other:?} is not put, get or message"),
        }
    }
}

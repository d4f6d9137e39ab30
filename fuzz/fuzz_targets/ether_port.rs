//! An Ethernet port whose peer sends arbitrary messages and whose device gives arbitrary packets.
#![no_main]

use std::sync::Arc;

use weft_transport_shm::broker::{Limits, local::LocalBroker};
use weft_transport_shm::{Parameters, ShmTransport};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let broker = LocalBroker::new(weft_fabric::NodeId::LOCAL, Limits::default());
    let transport = ShmTransport::new(Arc::new(broker), Parameters::default());
    weft_ether::hostile::fuzz_port(&transport, bytes);
});

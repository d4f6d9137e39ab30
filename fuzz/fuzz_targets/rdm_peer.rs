//! Reliable datagrams from a peer that sends arbitrary packets, over the simulator.
#![no_main]

use weft_transport_sim::{Settings, SimWorld};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let world = SimWorld::new(Settings::seeded(1));
    let transport = world.transport(weft_fabric::NodeId(0), 1000);
    let _ = weft_rdm::fuzz::fuzz_peer(&transport, bytes, &mut || world.advance(3_000));
});

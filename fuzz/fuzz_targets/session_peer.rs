//! Sessions with a peer that sends arbitrary frames, over the simulator.
#![no_main]

use weft_transport_sim::{Settings, SimWorld};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let world = SimWorld::new(Settings { mailbox_depth: 64, ..Settings::seeded(1) });
    let transport = world.transport(weft_fabric::NodeId(0), 1);
    let _ = weft_session::hostile::fuzz_peer(&transport, bytes, &mut || world.advance(3_000));
});

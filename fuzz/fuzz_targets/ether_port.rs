//! An Ethernet port whose peer sends arbitrary messages and whose device gives arbitrary packets,
//! where long packets are taken in place, and where they are fetched.
#![no_main]

use weft_ether::hostile::fuzz_port;

#[path = "../../crates/services/ether/tests/venue/mod.rs"]
mod venue;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz_port(&venue::Shm::default(), bytes);
    fuzz_port(&venue::Slow::default(), bytes);
});

//! A few clients send arbitrary messages to the broker.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weft_transport_shm::broker::fuzz_state(bytes));

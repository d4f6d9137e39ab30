//! A peer that writes arbitrary values anywhere while its victim polls.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weft_transport_shm::hostile::fuzz_endpoint(bytes));

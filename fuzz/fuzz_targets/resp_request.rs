//! Arbitrary bytes of a client of the Redis protocol.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weft_resp::fuzz::fuzz_request(bytes));

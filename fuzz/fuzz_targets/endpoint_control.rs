//! Arbitrary bytes as a control message about endpoints.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weft_wire::endpoint_control::fuzz_parse(bytes));

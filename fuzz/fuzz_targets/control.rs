//! Arbitrary bytes as a control message between a program and the node daemon.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weft_wire::control::fuzz_parse(bytes));

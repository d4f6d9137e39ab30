//! Arbitrary bytes as a message between two daemons that try the path between their hosts.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weft_wire::trials::fuzz_parse(bytes));

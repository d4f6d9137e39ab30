//! Arbitrary bytes as a message between two daemons that measure the way between their hosts.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weft_wire::ways::fuzz_parse(bytes));

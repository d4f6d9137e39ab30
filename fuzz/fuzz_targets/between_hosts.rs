//! Arbitrary bytes as a message between two daemons about connections between their hosts.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weft_wire::between_hosts::fuzz_parse(bytes));

//! Arbitrary messages in place of those of PEs of other hosts.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weft_pgas::far::fuzz::fuzz_far(bytes));

//! Arbitrary bytes of a launcher to a process that speaks PMI.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weft_pmi::fuzz::fuzz_client(bytes));

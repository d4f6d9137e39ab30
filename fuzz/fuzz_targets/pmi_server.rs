//! Arbitrary bytes of three processes to the launcher's side of PMI.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weft_pmi::fuzz::fuzz_server(bytes));

//! An NBD client that sends anything.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weft_block::fuzz::fuzz_nbd(bytes));

//! Arbitrary bytes as the journal of a transfer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weft_transfer::fuzz_journal(bytes));

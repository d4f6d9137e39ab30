//! Arbitrary text in place of what another PE tells of its memory.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weft_shmem::fuzz::fuzz_card(bytes));

//! SCSI commands with any data.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weft_block::fuzz::fuzz_scsi(bytes));

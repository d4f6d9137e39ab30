//! A stream over a lane that gives arbitrary answers.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weft_socket::fuzz::fuzz_stream(bytes));

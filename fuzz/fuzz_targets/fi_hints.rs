//! Arbitrary hints of a program that asks libfabric for a provider.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weft_fi::fuzz_hints(bytes));

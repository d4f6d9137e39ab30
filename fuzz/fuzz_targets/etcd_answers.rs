//! Arbitrary answers in place of those of etcd.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = weft_membership::fuzz_etcd_answers(bytes);
});

//! Arbitrary bytes as frames between the daemons of two hosts.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = weft_membership::fuzz_frames(bytes);
});

//! Both ends of a transfer with a peer that sends arbitrary frames.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = weft_transfer::hostile::fuzz_target(bytes);
    let _ = weft_transfer::hostile::fuzz_source(bytes);
    weft_transfer::hostile::fuzz_frames(bytes);
});

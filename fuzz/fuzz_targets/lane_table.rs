//! Two peers that send anything to a carrier of lanes, and a program that calls it in any order.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    weft_lane::fuzz::fuzz_message(input);
    weft_lane::fuzz::fuzz_table(input);
});

//! Replays the corpus of the fuzz target of this crate.

use std::path::Path;

#[test]
fn peers_that_send_anything_to_a_carrier() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/lane_table");
    let files = std::fs::read_dir(&folder).expect("the corpus is committed");
    let mut count = 0;
    for file in files {
        let input = std::fs::read(file.expect("a folder can be read").path());
        let input = input.expect("a file can be read");
        weft_lane::fuzz::fuzz_message(&input);
        weft_lane::fuzz::fuzz_table(&input);
        count += 1;
    }
    assert!(count > 0, "the corpus is empty");
}

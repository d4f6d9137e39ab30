//! Replays the committed corpus of the fuzz targets.

use std::path::Path;

use proptest::prelude::*;
use weft_socket::fuzz::fuzz_stream;

#[test]
fn streams_over_a_hostile_lane() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/socket_stream");
    let files = std::fs::read_dir(&folder).expect("the corpus is committed");
    let mut count = 0;
    for file in files {
        let path = file.expect("a folder can be read").path();
        fuzz_stream(&std::fs::read(&path).expect("a file can be read"));
        count += 1;
    }
    assert!(count > 0, "the corpus is empty");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn any_answers_of_a_lane_do(input in prop::collection::vec(any::<u8>(), 0..400)) {
        fuzz_stream(&input);
    }
}

//! Replays the committed corpus of the fuzz target.

use std::path::Path;

use proptest::prelude::*;
use weft_pmi::fuzz::fuzz_server;

#[test]
fn processes_of_the_corpus_are_answered() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/pmi_server");
    let files = std::fs::read_dir(&folder).expect("the corpus is committed");
    let mut count = 0;
    for file in files {
        let path = file.expect("a folder can be read").path();
        fuzz_server(&std::fs::read(&path).expect("a file can be read"));
        count += 1;
    }
    assert!(count > 0, "the corpus is empty");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5_000, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_do(input in prop::collection::vec(any::<u8>(), 0..400)) {
        fuzz_server(&input);
    }
}

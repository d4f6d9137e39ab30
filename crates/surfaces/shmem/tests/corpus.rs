//! Replays the committed corpus of the fuzz target.

use std::path::Path;

#[test]
fn cards_of_the_corpus_are_read_or_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/shmem_card");
    let files = std::fs::read_dir(&folder).expect("the corpus is committed");
    let mut count = 0;
    for file in files {
        let path = file.expect("a folder can be read").path();
        weft_shmem::fuzz::fuzz_card(&std::fs::read(&path).expect("a file can be read"));
        count += 1;
    }
    assert!(count > 0, "the corpus is empty");
}

//! Replays the committed corpus of the fuzz targets.

use std::path::Path;

use proptest::prelude::*;
use weft_pmi::fuzz::{fuzz_client, fuzz_server};

fn replay(target: &str, entry: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus").join(target);
    let files = std::fs::read_dir(&folder).expect("the corpus is committed");
    let mut count = 0;
    for file in files {
        let path = file.expect("a folder can be read").path();
        entry(&std::fs::read(&path).expect("a file can be read"));
        count += 1;
    }
    assert!(count > 0, "the corpus is empty");
}

#[test]
fn processes_of_the_corpus_are_answered() {
    replay("pmi_server", fuzz_server);
}

#[test]
fn launchers_of_the_corpus_are_read_or_refused() {
    replay("pmi_client", fuzz_client);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5_000, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_do(input in prop::collection::vec(any::<u8>(), 0..400)) {
        fuzz_server(&input);
        fuzz_client(&input);
    }
}

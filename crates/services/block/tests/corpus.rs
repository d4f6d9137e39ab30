//! Replays the committed corpora of the fuzz targets, and random input.

use std::path::Path;

use proptest::prelude::*;
use weft_block::fuzz::{fuzz_iscsi, fuzz_nbd, fuzz_scsi};

fn replay(name: &str, entry: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus").join(name);
    let mut count = 0;
    for file in std::fs::read_dir(&folder).expect("the corpus is committed") {
        let path = file.expect("a folder can be read").path();
        entry(&std::fs::read(&path).expect("a file can be read"));
        count += 1;
    }
    assert!(count > 0, "the corpus {name} is empty");
}

#[test]
fn initiators_of_the_corpus() {
    replay("block_iscsi", fuzz_iscsi);
}

#[test]
fn clients_of_the_corpus() {
    replay("block_nbd", fuzz_nbd);
}

#[test]
fn commands_of_the_corpus() {
    replay("block_scsi", fuzz_scsi);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn any_initiator(input in prop::collection::vec(any::<u8>(), 0..1500)) {
        fuzz_iscsi(&input);
    }

    #[test]
    fn any_client(input in prop::collection::vec(any::<u8>(), 0..1000)) {
        fuzz_nbd(&input);
    }

    #[test]
    fn any_commands(input in prop::collection::vec(any::<u8>(), 0..1000)) {
        fuzz_scsi(&input);
    }
}

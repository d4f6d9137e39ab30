//! Replays the committed corpora of the fuzz targets.
#![cfg(not(loom))]

use std::path::Path;

/// Runs `entry` on every file of the corpus of `target`.
fn replay(target: &str, entry: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus").join(target);
    let files = std::fs::read_dir(&folder).expect("the corpus is committed");
    let mut count = 0;
    for file in files {
        let path = file.expect("a folder can be read").path();
        entry(&std::fs::read(&path).expect("a file can be read"));
        count += 1;
    }
    assert!(count > 0, "the corpus of {target} is empty");
}

#[test]
fn control_messages_of_endpoints() {
    replay("endpoint_control", weft_wire::endpoint_control::fuzz_parse);
}

#[test]
fn requests_to_the_broker() {
    replay("broker_state", weft_transport_shm::broker::fuzz_state);
}

#[test]
fn peers_that_write_anything_anywhere() {
    replay("shm_endpoint", weft_transport_shm::hostile::fuzz_endpoint);
}

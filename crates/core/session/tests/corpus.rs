//! Replays the committed corpus of the fuzz target, and scripts at random.

use std::path::Path;

use proptest::prelude::*;
use weft_fabric::NodeId;
use weft_session::End;
use weft_transport_sim::{Settings, SimWorld};

fn run(script: &[u8]) -> Vec<End> {
    let world = SimWorld::new(Settings { mailbox_depth: 64, ..Settings::seeded(1) });
    let transport = world.transport(NodeId(0), 1);
    weft_session::hostile::fuzz_peer(&transport, script, &mut || world.advance(3_000))
}

#[test]
fn peers_that_send_anything() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/session_peer");
    let files = std::fs::read_dir(&folder).expect("the corpus is committed");
    let mut told = String::new();
    for file in files {
        let path = file.expect("a folder can be read").path();
        for end in run(&std::fs::read(&path).expect("a file can be read")) {
            told += &format!("{end:?}; ");
        }
    }
    for end in [
        "Malformed",
        "OutOfTurn",
        "TooMany { what: \"open requests\"",
        "TooMany { what: \"blocks in a pool\"",
        "NotAsked",
        "NotItsBlock",
        "Refused",
        "by_peer: true",
        "Down(Disconnected)",
        "Silent",
    ] {
        assert!(told.contains(end), "no script leads to {end}: {told}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300, failure_persistence: None, ..ProptestConfig::default()
    })]
    #[test]
    fn no_script_harms_the_victim(script in prop::collection::vec(any::<u8>(), 0..1024)) {
        run(&script);
    }
}

//! Replays the committed corpus of the fuzz target, and scripts at random.

use std::path::Path;

use proptest::prelude::*;
use weft_fabric::NodeId;
use weft_message::Offence;
use weft_transport_sim::{Settings, SimWorld};

fn run(script: &[u8]) -> Vec<Offence> {
    let world = SimWorld::new(Settings { mailbox_depth: 64, ..Settings::seeded(1) });
    let transport = world.transport(NodeId(0), 1);
    weft_message::hostile::fuzz_peer(&transport, script, &mut || world.advance(3_000))
}

#[test]
fn peers_that_send_anything() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/message_peer");
    let files = std::fs::read_dir(&folder).expect("the corpus is committed");
    let mut told = String::new();
    for file in files {
        let path = file.expect("a folder can be read").path();
        for offence in run(&std::fs::read(&path).expect("a file can be read")) {
            told += &format!("{offence:?}; ");
        }
    }
    for offence in [
        "Malformed",
        "CreditExceeded",
        "CreditOverflow",
        "OutOfTurn",
        "WrongPart",
        "NotAsked",
        "NothingToCancel",
        "Range(InvalidKey",
        "Range(OutOfBounds",
    ] {
        assert!(told.contains(offence), "no script leads to {offence}: {told}");
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

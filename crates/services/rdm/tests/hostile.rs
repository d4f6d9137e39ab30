//! A peer that sends anything: the committed corpus of the fuzz target, and scripts at random.

use std::path::Path;

use proptest::prelude::*;
use weft_fabric::NodeId;
use weft_rdm::Kind;
use weft_rdm::fuzz::fuzz_peer;
use weft_transport_sim::{Settings, SimWorld};

fn run(script: &[u8]) -> Vec<(Kind, bool)> {
    let world = SimWorld::new(Settings::seeded(1));
    let transport = world.transport(NodeId(0), 1000);
    fuzz_peer(&transport, script, &mut || world.advance(3_000))
}

#[test]
fn the_corpus_reaches_operations_of_each_kind() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/rdm_peer");
    let mut reached = Vec::new();
    for file in std::fs::read_dir(&folder).expect("the corpus is committed") {
        let path = file.expect("a folder can be read").path();
        reached.extend(run(&std::fs::read(&path).expect("a file can be read")));
    }
    for kind in [Kind::Receive, Kind::Send, Kind::Write, Kind::Read, Kind::Atomic] {
        assert!(reached.contains(&(kind, true)), "no script leads to a good {kind:?}");
        assert!(reached.contains(&(kind, false)), "no script leads to a failed {kind:?}");
    }
    for kind in [Kind::WrittenBy, Kind::ReadBy, Kind::ChangedBy] {
        assert!(reached.contains(&(kind, true)), "no script leads to {kind:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn no_script_harms_the_victim(script in proptest::collection::vec(any::<u8>(), 0..1500)) {
        run(&script);
    }
}

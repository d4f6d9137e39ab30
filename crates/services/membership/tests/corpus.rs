//! Replays the committed corpus of the fuzz target, which has a frame of each kind.

use std::path::{Path, PathBuf};

use weft_membership::{
    Greeting, Hello, Identity, Member, Message, NodeAbout, Numbering, Refusal, Roster, Versions,
    framed, fuzz_etcd_answers, fuzz_frames,
};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/daemon_frames")
}

#[test]
fn frames_between_daemons() {
    let files = std::fs::read_dir(folder()).expect("the corpus is committed");
    let mut parsed = 0;
    for file in files {
        let path = file.expect("a folder can be read").path();
        parsed += fuzz_frames(&std::fs::read(&path).expect("a file can be read"));
    }
    assert!(parsed >= kinds().len(), "a frame of each kind parses: {parsed}");
}

/// Answers of a real etcd: a lease, an empty directory, one with a table, a lease that has ended,
/// and one with garbage.
#[test]
fn answers_of_etcd() {
    let files = std::fs::read_dir(folder().join("../etcd_answers")).expect("it is committed");
    let read = |path: PathBuf| fuzz_etcd_answers(&std::fs::read(path).expect("readable"));
    let tables: usize = files.map(|file| read(file.expect("readable").path())).sum();
    assert!(tables >= 2, "tables are read: {tables}");
}

/// A frame of each kind, by the name of its file in the corpus.
fn kinds() -> Vec<(&'static str, Vec<u8>)> {
    let address = "10.9.0.1:7700".parse().expect("an address");
    let own = Identity([7; 32]);
    let about = NodeAbout {
        name: "a".to_owned(),
        address,
        release: "0.1.0".to_owned(),
        facts: vec!["provider=net".to_owned()],
    };
    let hello = Hello {
        fabric: "weft".to_owned(),
        incarnation: 77,
        number: Some(0),
        first: Some(own),
        about,
    };
    let name = "a".to_owned();
    let member = Member { number: 0, identity: own, name, address, is_expelled: false, former: 1 };
    let numbering = Numbering::Directory;
    let roster = Roster { revision: 3, first: own, members: vec![member], numbering };
    let greeting = Greeting { versions: Versions::own(), proof: [9; 32] };
    vec![
        ("greeting", greeting.emit()),
        ("hello", Message::Hello(hello).emit()),
        ("refused", Message::Refused(Refusal::Version(Versions::own())).emit()),
        ("roster", Message::Roster(roster).emit()),
        ("accepted", Message::Accepted { number: 1 }.emit()),
        ("ping", Message::Ping.emit()),
        ("pong", Message::Pong.emit()),
        ("user", Message::User(vec![1, 2, 3]).emit()),
    ]
}

/// The corpus was written by an earlier build. A form that changes gets another version
/// (`weft_wire::versions`), which the greeting in the corpus has, too.
#[test]
fn the_form_of_each_kind_is_that_of_the_corpus() {
    for (name, bytes) in kinds() {
        let path = folder().join(name);
        let kept = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert_eq!(kept, framed(&bytes), "{name}");
    }
}

//! Replays the committed corpora of the fuzz targets, and scripts at random.

use std::path::Path;

use proptest::prelude::*;
use weft_transfer::fuzz_journal;
use weft_transfer::hostile::{HostileEnd, fuzz_frames, fuzz_source, fuzz_target, scripted};
use weft_transfer::{
    Block, Entry, FileId, Frame, Hello, Kind, Leaf, Meeting, Message, Metadata, Role, SERVICES_MAX,
    Segment, Steadiness, Terms, TreePath, VERSION,
};

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus").join(name);
    let files = std::fs::read_dir(folder).expect("the corpus is committed");
    let read = |file: std::io::Result<std::fs::DirEntry>| {
        std::fs::read(file.expect("a folder can be read").path()).expect("a file can be read")
    };
    files.map(read).collect()
}

#[test]
fn ends_that_send_anything() {
    let mut told = String::new();
    for script in corpus("transfer_peer") {
        told += &format!("{:?}; {:?}; ", fuzz_target(&script), fuzz_source(&script));
        fuzz_frames(&script);
    }
    for offence in ["not granted", "not told", "out of order", "behind the end", "Invalid", "Over"]
    {
        assert!(told.contains(offence), "no script leads to {offence:?}: {told}");
    }
    for bytes in corpus("transfer_journal") {
        fuzz_journal(&bytes);
    }
}

fn entry(number: u64, path: &str, size: u64) -> Entry {
    Entry {
        number,
        path: TreePath::new(path).expect("a path"),
        metadata: Metadata::default(),
        kind: Kind::File(FileId { size, ..FileId::default() }),
    }
}

fn block(number: u64, offset: u64, length: u32) -> Frame {
    let leaf = Leaf { offset, length, hash: 1 };
    let segment = Segment { number, leaf, whole: None };
    Frame::Block(Block { is_last_credit: true, segments: vec![segment] })
}

#[test]
fn sources_that_break_the_protocol_are_refused() {
    let entries = |entries| scripted(&Frame::Message(Message::Entries(entries)));
    let one = || entries(vec![entry(0, "a", 10)]);
    let refused = [
        ("the number of an entry", entries(vec![entry(1, "a", 10)])),
        ("nothing", [one(), scripted(&block(0, 0, 5))].concat()),
        ("bytes behind the end", [one(), scripted(&block(0, 8, 5))].concat()),
        ("bytes of no entry", scripted(&block(3, 0, 5))),
    ];
    for (what, script) in refused {
        let end = fuzz_target(&[&[0][..], &script].concat());
        let is_fine = what == "nothing";
        assert_eq!(matches!(end, HostileEnd::Offence(_)), !is_fine, "{what}: {end:?}");
    }
    // A path that leads out is no frame at all.
    let mut bytes = entries(vec![entry(0, "aa/bb", 10)]);
    let at = bytes.windows(5).position(|part| part == b"aa/bb").expect("the path");
    bytes[at..at + 5].copy_from_slice(b"../bb");
    assert_eq!(fuzz_target(&[&[0][..], &bytes].concat()), HostileEnd::Invalid);
}

#[test]
fn targets_that_break_the_protocol_are_refused() {
    let grant = |blocks| scripted(&Frame::Message(Message::Grant { blocks }));
    assert_eq!(fuzz_source(&grant(8)), HostileEnd::Over);
    assert!(matches!(fuzz_source(&grant(9)), HostileEnd::Offence(_)));
    let ended = scripted(&Frame::Message(Message::Ended(vec![(0, 9)])));
    assert!(matches!(fuzz_source(&ended), HostileEnd::Offence(_)));
}

#[test]
fn a_flipped_bit_of_a_frame_is_never_read_as_another_frame() {
    let frames = [
        Frame::Message(Message::Entries(vec![entry(0, "name", 77)])),
        Frame::Message(Message::FileEnd {
            number: 1,
            leaves: 2,
            root: 3,
            steadiness: Steadiness::Same,
        }),
        block(0, 0, 5),
    ];
    for frame in frames {
        let bytes = frame.bytes();
        for bit in 0..bytes.len() * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            // A longer length waits for bytes that do not come.
            assert!(!matches!(Frame::parse(&other), Ok(Some(_))), "bit {bit} of {frame:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1_000, failure_persistence: None, ..ProptestConfig::default()
    })]
    #[test]
    fn no_script_harms_either_end(script in prop::collection::vec(any::<u8>(), 0..512)) {
        fuzz_target(&script);
        fuzz_source(&script);
        fuzz_frames(&script);
        fuzz_journal(&script);
    }
}

fn hello(meeting: Meeting) -> Frame {
    let terms = Terms {
        block_bytes: 4_096,
        streams: 1,
        is_recursive: true,
        keeps_all: true,
        verifies: true,
        resumes: true,
        is_dry: false,
        deletes: false,
        is_direct: false,
        bytes_per_second: 0,
        excludes: Vec::new(),
    };
    let (role, places) = (Role::Target, vec![b"place".to_vec()]);
    Frame::Message(Message::Hello(Hello { version: VERSION, role, terms, places, meeting }))
}

#[test]
fn a_hello_names_services_and_one_of_them_as_older_releases_read_it() {
    let service = |number| format!("cp.{number}@7");
    let services = |count| (0..count).map(service).collect::<Vec<_>>();
    let parsed = |frame: &Frame| Frame::parse(&frame.bytes());
    for count in [0, 1, 2, SERVICES_MAX] {
        for meeting in
            [Meeting::Here { also: services(count) }, Meeting::Nearby { at: services(count) }]
        {
            let frame = hello(meeting);
            let length = frame.bytes().len();
            assert_eq!(parsed(&frame), Ok(Some((frame, length))));
        }
    }
    let many = hello(Meeting::Nearby { at: services(SERVICES_MAX + 1) });
    assert!(parsed(&many).is_err());
    // A tag and one text; the tag alone.
    let bytes = hello(Meeting::Nearby { at: services(1) }).bytes();
    assert!(bytes.ends_with(b"\x03\x06\0\0\0cp.0@7"), "{bytes:?}");
    assert_eq!(hello(Meeting::Here { also: Vec::new() }).bytes().last(), Some(&0));
}

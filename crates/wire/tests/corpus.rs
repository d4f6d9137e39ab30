//! Replays the committed corpus of the fuzz targets.

use std::path::Path;

use weft_wire::control::{Control, fuzz_parse};

#[test]
fn control_messages_of_programs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/control");
    let files = std::fs::read_dir(&folder).expect("the corpus is committed");
    let mut parsed = 0;
    for file in files {
        let path = file.expect("a folder can be read").path();
        let bytes = std::fs::read(&path).expect("a file can be read");
        fuzz_parse(&bytes);
        parsed += usize::from(Control::parse(&bytes).is_ok());
    }
    assert!(parsed >= 13, "a message of each kind parses");
}

//! Replays the committed corpus of the fuzz targets.

use std::path::Path;

use weft_wire::between_hosts::{self, BetweenHosts};
use weft_wire::control::{Control, fuzz_parse};
use weft_wire::trials::{self, Trial};
use weft_wire::ways::{self, Measuring};

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus").join(target);
    let files = std::fs::read_dir(&folder).expect("the corpus is committed");
    let paths = files.map(|file| file.expect("a folder can be read").path());
    paths.map(|path| std::fs::read(path).expect("a file can be read")).collect()
}

#[test]
fn control_messages_of_programs() {
    let all = corpus("control");
    all.iter().for_each(|bytes| fuzz_parse(bytes));
    let parsed = all.iter().filter(|bytes| Control::parse(bytes).is_ok());
    assert!(parsed.count() >= 13, "a message of each kind parses");
}

#[test]
fn messages_between_hosts() {
    let all = corpus("between_hosts");
    all.iter().for_each(|bytes| between_hosts::fuzz_parse(bytes));
    let parsed = all.iter().filter(|bytes| BetweenHosts::parse(bytes).is_some());
    assert!(parsed.count() >= 4, "a message of each kind parses");
}

#[test]
fn messages_about_the_ways_between_hosts() {
    let all = corpus("ways");
    all.iter().for_each(|bytes| ways::fuzz_parse(bytes));
    let parsed = all.iter().filter(|bytes| Measuring::parse(bytes).is_some());
    assert!(parsed.count() >= 4, "a message of each kind parses");
}

#[test]
fn messages_about_the_paths_between_hosts() {
    let all = corpus("trials");
    all.iter().for_each(|bytes| trials::fuzz_parse(bytes));
    let parsed = all.iter().filter(|bytes| Trial::parse(bytes).is_some());
    assert!(parsed.count() >= 4, "a message of each kind parses");
}

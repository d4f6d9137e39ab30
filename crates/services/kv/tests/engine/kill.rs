//! Kills a process that writes, at moments that nobody chose, and opens its store again.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use rand::RngExt;
use weft_kv::engine::{Engine, Options, check_directory};
use weft_kv::store::{Change, Store};

use crate::model::{seeded, small};

const DIRECTORY: &str = "WEFT_KV_TEST_DIRECTORY";
const KEYS: u64 = 500;

fn options(turn: u64) -> Options {
    Options {
        threads: 2,
        level0_bytes: 30_000,
        segment_bytes: 40_000,
        is_durable: turn.is_multiple_of(3),
        boot: String::new(),
        ..small(false)
    }
}

fn value(number: u64) -> Vec<u8> {
    let bytes = [5, 60, 400][usize::try_from(number % 3).unwrap()];
    number.to_le_bytes().iter().copied().cycle().take(8 + bytes).collect()
}

/// Two keys in one batch: they always have the same value.
fn batch(number: u64) -> Vec<Change> {
    let key = number % KEYS;
    let put = |prefix: char| Change::Put {
        key: format!("{prefix}{key}").into_bytes(),
        value: value(number),
    };
    vec![put('a'), put('b')]
}

/// The process that is killed: it is this test, started by the one below.
#[test]
fn a_writer_says_what_was_acknowledged() {
    let Ok(directory) = std::env::var(DIRECTORY) else { return };
    let (directory, turn) = directory.split_once('|').unwrap();
    let engine = Engine::open(directory.as_ref(), options(turn.parse().unwrap())).unwrap();
    let mut number = engine.newest().0;
    // The numbers of batches are not dense here: the engine writes some itself.
    loop {
        number += 1;
        let lsn = engine.write(batch(number)).unwrap();
        engine.commit(lsn).unwrap();
        let mut out = std::io::stdout().lock();
        writeln!(out, "acknowledged {number}").unwrap();
        out.flush().unwrap();
    }
}

#[test]
fn a_killed_process_loses_nothing_that_was_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = seeded(70);
    // For each key the last number that was acknowledged, and the last that may be there.
    let mut acknowledged = vec![0; usize::try_from(KEYS).unwrap()];
    for turn in 0..8 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kill::a_writer_says_what_was_acknowledged", "--nocapture"])
            .env(DIRECTORY, format!("{}|{turn}", folder.path().display()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let reader = std::thread::spawn(move || {
            let mut numbers = Vec::new();
            for line in lines.map_while(Result::ok) {
                numbers.extend(
                    line.split_once("acknowledged ").and_then(|it| it.1.parse::<u64>().ok()),
                );
            }
            numbers
        });
        std::thread::sleep(Duration::from_millis(random.random_range(100..400)));
        child.kill().unwrap();
        child.wait().unwrap();
        for number in reader.join().unwrap() {
            acknowledged[usize::try_from(number % KEYS).unwrap()] = number;
        }
        let (damage, _) = check_directory(folder.path(), options(turn)).unwrap();
        assert_eq!(damage, Vec::<String>::new());
        let engine = Engine::open(folder.path(), options(turn)).unwrap();
        for (key, &number) in acknowledged.iter().enumerate() {
            let get = |prefix: char| engine.get(format!("{prefix}{key}").as_bytes()).unwrap();
            let found = get('a');
            assert_eq!(found, get('b'), "a batch is whole");
            let found = found.map_or(0, |value| u64::from_le_bytes(value[..8].try_into().unwrap()));
            assert!(found >= number, "key {key} has {found}, {number} was acknowledged");
        }
        engine.close().unwrap();
    }
    assert!(acknowledged.iter().any(|&number| number > 1_000), "the writers wrote");
}

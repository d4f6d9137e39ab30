//! Messages of PEs of other hosts that are wrong: the committed corpus of the fuzz target, and
//! messages that a seed cuts and changes.

use std::path::Path;
use std::sync::atomic::Ordering;

use weft_fabric::Atomic;
use weft_pgas::far::entry::{DATA_BYTES, Entry};
use weft_pgas::far::fuzz::{TOLD, fuzz_far};
use weft_pgas::far::{Place, Segment};

const SEEDS: u64 = 400;
/// The first step that is a message of a PE.
const MESSAGE: u8 = 16;

#[test]
fn messages_of_the_corpus_are_handled_or_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/far_messages");
    let files = std::fs::read_dir(&folder).expect("the corpus is committed");
    let mut count = 0;
    for file in files {
        let path = file.expect("a folder can be read").path();
        fuzz_far(&std::fs::read(&path).expect("a file can be read"));
        count += 1;
    }
    assert!(count > 0, "the corpus is empty");
}

/// Numbers of a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).expect("31 bits") % limit
    }

    fn byte(&mut self) -> u8 {
        u8::try_from(self.below(256)).expect("it is below 256")
    }

    /// A place that is there, mostly.
    fn place(&mut self) -> Place {
        let segment = if self.below(2) == 0 { Segment::Heap } else { Segment::Statics };
        Place { segment, offset: 8 * self.below(64) as u64 }
    }

    fn entry<'a>(&mut self, bytes: &'a [u8]) -> Entry<'a> {
        let (place, id) = (self.place(), u32::from(self.byte() % 8));
        let bytes = &bytes[..self.below(DATA_BYTES)];
        match self.below(9) {
            0 => Entry::Put { place, bytes },
            1 => Entry::Change { place, atomic: Atomic::fetch_add(1) },
            2 => Entry::Fetch { id, place, atomic: Atomic::fetch_add(1) },
            3 => Entry::Read { id, place, length: bytes.len() },
            4 => Entry::Confirm { id },
            5 => Entry::Answer { id, bytes: &bytes[..bytes.len().min(8)] },
            6 => Entry::Control { offset: id * 8, bytes },
            7 => Entry::Eager { place, bytes },
            _ => Entry::Taken { pieces: id },
        }
    }

    /// A message that is right, or cut, or has other bytes.
    fn message(&mut self) -> Vec<u8> {
        let mut message = Vec::new();
        for _ in 0..1 + self.below(3) {
            self.entry(&[7; DATA_BYTES]).write(&mut message);
        }
        match self.below(4) {
            0 => message.truncate(self.below(message.len())),
            1 => {
                let at = self.below(message.len());
                message[at] = self.byte();
            }
            2 => message.iter_mut().for_each(|byte| *byte = self.byte()),
            _ => {}
        }
        message.truncate(255);
        message
    }
}

#[test]
fn messages_that_are_cut_or_changed_are_refused_with_what_is_wrong() {
    for seed in 1..=SEEDS {
        let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut input = Vec::new();
        for _ in 0..40 {
            let is_message = numbers.below(2) == 0;
            let bytes = if is_message { numbers.message() } else { vec![numbers.byte(); 9] };
            let which = if is_message { MESSAGE } else { numbers.byte() % MESSAGE };
            let whose = numbers.byte() % 2;
            input.extend([which | whose, u8::try_from(bytes.len()).expect("it was cut")]);
            input.extend(bytes);
        }
        fuzz_far(&input);
    }
    assert!(TOLD.load(Ordering::Relaxed), "no message was wrong");
}

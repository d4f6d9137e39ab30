//! Memory that peers could reach and that was deregistered, until the endpoint is closed.
//!
//! Providers in software look at a registration when the head of an operation arrives, and copy to
//! and from its addresses from then on. Nothing but the end of the endpoint ends that: not the end
//! of the registration, not the removal of the peer. So the addresses stay mapped. When the program
//! has let go of the memory, its pages go back to the system, and the addresses stay as a [`Husk`].

use std::collections::{BTreeMap, VecDeque};

use weft_memory::{Husk, Memory};

/// Separate ranges of husks at most. Each takes a mapping of the process, of which Linux allows
/// 65,530. It unites those that are side by side, as they mostly are.
const RANGES_MAX: usize = 8192;
/// Bytes of husks at most: a quarter of the addresses of a process.
const BYTES_MAX: usize = 1 << 45;

/// The memory, and what is left of it.
#[derive(Debug, Default)]
pub struct Graveyard {
    /// The program may still have it.
    memories: VecDeque<Memory>,
    husks: Vec<Husk>,
    ranges: Ranges,
    /// Husks whose addresses are those of somebody else, by start and length. He keeps them mapped
    /// as long as the husk lives.
    adopted: BTreeMap<(usize, usize), Husk>,
}

impl Graveyard {
    /// Takes memory whose registration has ended. Not memory in place: its owner has promised to
    /// keep it mapped until the endpoint is closed.
    pub fn bury(&mut self, memory: &Memory) {
        if !memory.is_in_place() && !self.memories.iter().any(|buried| buried.is(memory)) {
            self.memories.push_back(memory.clone());
        }
    }

    /// Looks at the next few memories whether the program has let go of them.
    pub fn look(&mut self, count: usize) {
        for _ in 0..count.min(self.memories.len()) {
            let Some(memory) = self.memories.pop_front() else { return };
            match memory.into_husk() {
                Ok(husk) if husk.is_of_somebody_else() => {
                    self.adopted.insert((husk.start(), husk.length()), husk);
                }
                Ok(husk) => {
                    self.ranges.add(husk.start(), husk.length());
                    self.husks.push(husk);
                }
                Err(memory) => self.memories.push_back(memory),
            }
        }
    }

    /// Whether there is no room for more.
    pub fn is_full(&self) -> bool {
        self.ranges.ranges.len() >= RANGES_MAX || self.ranges.bytes >= BYTES_MAX
    }
}

/// Ranges of addresses. Those side by side are one.
#[derive(Debug, Default)]
struct Ranges {
    /// The end of each, by its start.
    ranges: BTreeMap<usize, usize>,
    bytes: usize,
}

impl Ranges {
    fn add(&mut self, start: usize, length: usize) {
        let length = length.next_multiple_of(rustix::param::page_size());
        self.bytes += length;
        let mut end = start + length;
        if let Some(further) = self.ranges.remove(&end) {
            end = further;
        }
        match self.ranges.range_mut(..start).next_back() {
            Some((_, before)) if *before == start => *before = end,
            _ => drop(self.ranges.insert(start, end)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_memory::MemoryOptions;

    #[test]
    fn ranges_side_by_side_are_one() {
        let page = rustix::param::page_size();
        let mut ranges = Ranges::default();
        for start in [10, 12, 14, 13, 11] {
            ranges.add(start * page, page - 1);
        }
        assert_eq!(ranges.ranges, BTreeMap::from([(10 * page, 15 * page)]));
        assert_eq!(ranges.bytes, 5 * page);
    }

    #[test]
    fn memory_is_kept_once_and_its_addresses_behind_the_program() {
        let mut graveyard = Graveyard::default();
        let memory = Memory::fresh(MemoryOptions::bytes(4096)).expect("memory");
        let start = memory.segment().base().addr().get();
        graveyard.bury(&memory);
        graveyard.bury(&memory.clone());
        graveyard.look(9);
        assert_eq!((graveyard.memories.len(), graveyard.husks.len()), (1, 0));
        drop(memory);
        graveyard.look(9);
        assert_eq!((graveyard.memories.len(), graveyard.husks.len()), (0, 1));
        assert_eq!((graveyard.husks[0].start(), graveyard.is_full()), (start, false));
    }

    #[test]
    fn many_separate_ranges_are_too_many() {
        let page = rustix::param::page_size();
        let mut graveyard = Graveyard::default();
        for range in 1..=RANGES_MAX {
            assert!(!graveyard.is_full());
            graveyard.ranges.add(2 * range * page, page);
        }
        assert!(graveyard.is_full());
    }

    /// A program grants and revokes fresh memory for days: no pages, and few mappings.
    #[test]
    fn many_husks_take_few_mappings() {
        let mut graveyard = Graveyard::default();
        let maps = || std::fs::read_to_string("/proc/self/maps").expect("proc is mounted");
        let mappings = || maps().lines().count();
        let before = mappings();
        for _ in 0..2000 {
            graveyard.bury(&Memory::fresh(MemoryOptions::bytes(1 << 16)).expect("memory"));
            graveyard.look(2);
        }
        assert_eq!(graveyard.husks.len(), 2000);
        assert!(graveyard.ranges.ranges.len() < 100 && mappings() < before + 100);
    }
}

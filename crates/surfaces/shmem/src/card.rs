//! A card: what a PE tells the others at the start, as a line of text for the launcher. PEs of
//! several hosts tell each other of their endpoints then ([`crate::far::opening`]).
//!
//! # Invariants
//! - A card of another process is untrusted: what it names is opened and checked
//!   ([`crate::mapping`]).
//! - A card has less than 900 bytes without spaces, which every launcher carries.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The first word of a card. It changes when cards of two releases cannot be compared.
const FORM: &str = "weft-shmem-2";
/// Longest name of a host or a program in a card.
const NAME_BYTES_MAX: usize = 130;

/// A file of memory of a PE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct File {
    /// The descriptor in the PE.
    pub number: i32,
    /// The number by which the kernel tells files apart.
    pub inode: u64,
    /// Its length.
    pub bytes: usize,
}

/// The statics of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// Its identity: that of its build, if the linker wrote one.
    pub build: String,
    /// Where its statics begin in it.
    pub offset: usize,
}

/// The facts that the others have to know of a PE.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Card {
    /// The run of a kernel: the same for all processes of a machine.
    pub machine: String,
    /// The name of the machine, for messages.
    pub host: String,
    /// The name that the option `fabric.host` gives to the host, or nothing.
    pub named: String,
    /// The name space of its process numbers.
    pub processes: String,
    /// Its process.
    pub process: u32,
    /// Heap and control area.
    pub heap: File,
    /// Bytes of the heap alone.
    pub heap_bytes: usize,
    /// Its statics, if they are shared.
    pub statics: Option<File>,
    /// Its program.
    pub program: Program,
}

/// A text that is no card.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{0:?} is no card of this release; have all PEs use the same release of the library")]
pub struct NoCard(String);

impl NoCard {
    /// A text that is no card.
    pub fn of(text: &str) -> Self {
        Self(text.chars().take(80).collect())
    }
}

/// A name without what a launcher cannot carry.
pub fn name(text: &str) -> String {
    let is_plain = |c: &char| c.is_ascii_graphic() && !matches!(c, ';' | '=');
    text.chars().filter(is_plain).take(NAME_BYTES_MAX).collect()
}

impl fmt::Display for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.number, self.inode, self.bytes)
    }
}

impl FromStr for File {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.split(':');
        let mut next = || parts.next().ok_or(());
        let number = next()?.parse().ok().filter(|number| *number >= 0).ok_or(())?;
        let inode = next()?.parse().map_err(drop)?;
        let bytes = next()?.parse().map_err(drop)?;
        if parts.next().is_some() { Err(()) } else { Ok(Self { number, inode, bytes }) }
    }
}

impl fmt::Display for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let statics = self.statics.map_or_else(|| "-".to_owned(), |file| file.to_string());
        write!(
            f,
            "{FORM};{};{};{};{};{};{};{};{statics};{};{}",
            name(&self.machine),
            name(&self.host),
            name(&self.named),
            name(&self.processes),
            self.process,
            self.heap,
            self.heap_bytes,
            name(&self.program.build),
            self.program.offset,
        )
    }
}

impl FromStr for Card {
    type Err = NoCard;

    fn from_str(text: &str) -> Result<Self, NoCard> {
        parse(text).ok_or_else(|| NoCard::of(text))
    }
}

fn parse(text: &str) -> Option<Card> {
    let parts: Vec<&str> = text.split(';').collect();
    let [FORM, machine, host, named, processes, process, heap, heap_bytes, statics, build, offset] =
        parts[..]
    else {
        return None;
    };
    let heap: File = heap.parse().ok()?;
    let statics = match statics {
        "-" => None,
        file => Some(file.parse().ok()?),
    };
    Some(Card {
        machine: machine.to_owned(),
        host: host.to_owned(),
        named: named.to_owned(),
        processes: processes.to_owned(),
        process: process.parse().ok()?,
        heap,
        heap_bytes: heap_bytes.parse().ok().filter(|bytes| *bytes <= heap.bytes)?,
        statics,
        program: Program { build: build.to_owned(), offset: offset.parse().ok()? },
    })
}

/// How a PE is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// It is on this host: its memory can be mapped.
    Memory,
    /// It is on another host.
    Fabric,
}

/// Why PEs cannot be in one job.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Apart {
    /// They are in two containers.
    #[error(
        "PE {pe} is in another container than PE {me}: they have different PID name spaces; start \
         all PEs in one container, or the containers with a common PID name space"
    )]
    Containers {
        /// The other PE.
        pe: usize,
        /// This PE.
        me: usize,
    },
    /// Their heaps differ.
    #[error(
        "PE {pe} has a symmetric heap of {theirs} bytes and PE {me} one of {mine}; set \
         SHMEM_SYMMETRIC_SIZE to one value for all PEs"
    )]
    Heaps {
        /// The other PE.
        pe: usize,
        /// Its heap.
        theirs: usize,
        /// This PE.
        me: usize,
        /// Its heap.
        mine: usize,
    },
    /// They run different programs.
    #[error(
        "PE {pe} runs another program than PE {me}, with other variables (builds {theirs} and \
         {mine}); start the same program file on all PEs"
    )]
    Programs {
        /// The other PE.
        pe: usize,
        /// Its build.
        theirs: String,
        /// This PE.
        me: usize,
        /// Its build.
        mine: String,
    },
}

impl Card {
    /// How another PE is reached.
    ///
    /// # Errors
    /// [`Apart`].
    pub fn compare(&self, me: usize, other: &Self, pe: usize) -> Result<Way, Apart> {
        let way = if self.is_of_host(other) { Way::Memory } else { Way::Fabric };
        if way == Way::Memory && self.processes != other.processes {
            return Err(Apart::Containers { pe, me });
        }
        if (self.heap_bytes, self.heap.bytes) != (other.heap_bytes, other.heap.bytes) {
            let (theirs, mine) = (other.heap_bytes, self.heap_bytes);
            return Err(Apart::Heaps { pe, theirs, me, mine });
        }
        let of = |card: &Self| (card.program.clone(), card.statics.map(|file| file.bytes));
        if of(self) != of(other) {
            let (theirs, mine) = (other.program.build.clone(), self.program.build.clone());
            return Err(Apart::Programs { pe, theirs, me, mine });
        }
        Ok(way)
    }

    /// Whether another PE is on the host of this one: on its machine, and under the same name if
    /// hosts were given names.
    pub fn is_of_host(&self, other: &Self) -> bool {
        (&self.machine, &self.named) == (&other.machine, &other.named)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn card() -> Card {
        Card {
            machine: "b00t".to_owned(),
            host: "node 1;".to_owned(),
            named: String::new(),
            processes: "pid:[1]".to_owned(),
            process: 77,
            heap: File { number: 5, inode: 123, bytes: 4096 },
            heap_bytes: 1024,
            statics: Some(File { number: 6, inode: 124, bytes: 8192 }),
            program: Program { build: "abc".to_owned(), offset: 16384 },
        }
    }

    #[test]
    fn a_card_is_read_as_it_was_written_without_what_launchers_cannot_carry() {
        let text = card().to_string();
        assert!(text.len() < 900 && !text.contains([' ', '=']));
        let read: Card = text.parse().expect("a card");
        assert_eq!(read, Card { host: "node1".to_owned(), ..card() });
        let without = Card { statics: None, ..read };
        assert_eq!(without.to_string().parse(), Ok(without));
    }

    #[test]
    fn long_names_leave_room() {
        let long = "x".repeat(10_000);
        let card = Card {
            machine: long.clone(),
            host: long.clone(),
            named: long.clone(),
            processes: long.clone(),
            program: Program { build: long, offset: usize::MAX },
            ..card()
        };
        assert!(card.to_string().len() < 900);
    }

    #[test]
    fn what_differs_is_told_with_both_pes() {
        let mine = card();
        let with = |change: fn(&mut Card)| {
            let mut other = card();
            change(&mut other);
            mine.compare(0, &other, 3)
        };
        assert_eq!(with(|_| {}), Ok(Way::Memory));
        assert_eq!(with(|c| c.machine.push('x')), Ok(Way::Fabric));
        assert_eq!(with(|c| c.named.push('x')), Ok(Way::Fabric));
        let on_another = |c: &mut Card| {
            c.machine.push('x');
            c.heap_bytes = 8;
        };
        assert!(matches!(with(on_another), Err(Apart::Heaps { .. })));
        assert!(matches!(with(|c| c.processes.push('x')), Err(Apart::Containers { .. })));
        assert!(matches!(with(|c| c.heap_bytes = 8), Err(Apart::Heaps { .. })));
        assert!(matches!(with(|c| c.program.offset = 8), Err(Apart::Programs { .. })));
        assert!(matches!(with(|c| c.statics = None), Err(Apart::Programs { .. })));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,300}") {
            let _ = text.parse::<Card>();
        }

        #[test]
        fn a_card_with_a_change_is_read_or_refused(at in 0_usize..120, with in ".{0,3}") {
            let mut text = card().to_string();
            let at = at.min(text.len());
            text.replace_range(at..(at + 1).min(text.len()), &with);
            if let Ok(card) = text.parse::<Card>() {
                prop_assert!(card.heap.number >= 0 && card.heap_bytes <= card.heap.bytes);
            }
        }
    }
}

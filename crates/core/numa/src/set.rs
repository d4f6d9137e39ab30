//! Sets of processors or nodes as the kernel writes them: `0-3,8,10-11`.

use std::fmt;
use std::str::FromStr;

/// The highest number that a set may name, so that a wrong file cannot fill the memory.
const NUMBER_MAX: u32 = 65_535;

/// Numbers of processors, in order, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessorSet(Vec<u32>);

/// A text that is no set of processors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no list of processors, such as 0-3,8")]
pub struct InvalidSet(pub String);

impl ProcessorSet {
    /// The numbers in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }

    /// How many processors there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the processor is in the set.
    #[must_use]
    pub fn contains(&self, processor: u32) -> bool {
        self.0.binary_search(&processor).is_ok()
    }

    /// The processors that both sets have.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        self.iter().filter(|processor| other.contains(*processor)).collect()
    }
}

impl FromIterator<u32> for ProcessorSet {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        let mut all: Vec<u32> = numbers.into_iter().collect();
        all.sort_unstable();
        all.dedup();
        Self(all)
    }
}

impl FromStr for ProcessorSet {
    type Err = InvalidSet;

    fn from_str(text: &str) -> Result<Self, InvalidSet> {
        let invalid = || InvalidSet(text.chars().take(64).collect());
        let mut all = Vec::new();
        for part in text.trim().split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first: u32 = first.parse().map_err(|_| invalid())?;
            let last: u32 = last.parse().map_err(|_| invalid())?;
            if first > last || last > NUMBER_MAX {
                return Err(invalid());
            }
            all.extend(first..=last);
        }
        Ok(all.into_iter().collect())
    }
}

impl fmt::Display for ProcessorSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_slice();
        let mut separator = "";
        while let Some(&first) = rest.first() {
            let run = (first..).zip(rest).take_while(|(expected, is)| expected == *is).count();
            let last = rest[run - 1];
            match run {
                1 => write!(formatter, "{separator}{first}")?,
                _ => write!(formatter, "{separator}{first}-{last}")?,
            }
            (rest, separator) = (&rest[run..], ",");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_and_written_as_the_kernel_writes_it() {
        for text in ["0", "0-1", "0-3,8,10-11", ""] {
            assert_eq!(text.parse::<ProcessorSet>().expect("valid").to_string(), text);
        }
        let set: ProcessorSet = "3,1,2,2\n".parse().expect("valid");
        assert_eq!((set.to_string(), set.len()), ("1-3".to_owned(), 3));
        assert!(set.contains(2) && !set.contains(4));
    }

    #[test]
    fn a_list_that_is_none_is_refused() {
        for text in ["x", "3-1", "0-", "0-99999999", "-1"] {
            assert!(text.parse::<ProcessorSet>().is_err(), "{text}");
        }
    }
}

//! How many blocks the target grants.
//!
//! It begins with a few. For each block that is free again it grants one more than was used, as
//! long as the source says that it had none left: the window doubles with each round trip until it
//! covers bandwidth × delay, and stays there (NUMA-RDMA#rftp, credits).

use crate::offence::Offence;

/// The window of a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    first: u32,
    maximum: u32,
    /// Blocks that are at the source, on their way or at the driver.
    granted: u32,
    /// Those of them at the driver.
    here: u32,
    /// Blocks that may be granted at a time now.
    size: u32,
    /// Blocks that came while the source had none left, and have not made the window larger yet.
    starved: u32,
}

impl Window {
    /// A window of `first` blocks that grows to `maximum`.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn new(first: u32, maximum: u32) -> Self {
        assert!(first > 0 && maximum > 0, "nothing moves without a block");
        let first = first.min(maximum);
        Self { first, maximum, granted: 0, here: 0, size: first, starved: 0 }
    }

    pub(crate) fn open(&mut self) -> u32 {
        self.granted = self.first;
        self.first
    }

    pub(crate) fn came(&mut self, is_last_credit: bool) -> Result<(), Offence> {
        if self.here == self.granted {
            return Err(Offence("a block that was not granted"));
        }
        self.here += 1;
        if is_last_credit {
            self.starved = self.size.min(self.maximum - self.size);
        }
        Ok(())
    }

    pub(crate) fn freed(&mut self) -> u32 {
        assert!(self.here > 0, "a block that was here");
        self.here -= 1;
        self.granted -= 1;
        if self.starved > 0 {
            self.starved -= 1;
            self.size = (self.size + 1).min(self.maximum);
        }
        let more = self.size.saturating_sub(self.granted).min(2);
        self.granted += more;
        more
    }

    pub(crate) fn granted_max(&self) -> u32 {
        self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_doubles_with_each_round_trip_while_the_source_starves() {
        let mut window = Window::new(4, 100);
        assert_eq!(window.open(), 4);
        let mut sizes = vec![4];
        for _ in 0..6 {
            let size = window.granted;
            for block in 0..size {
                window.came(block + 1 == size).expect("it was granted");
            }
            for _ in 0..size {
                window.freed();
            }
            sizes.push(window.granted);
        }
        assert_eq!(sizes, [4, 8, 16, 32, 64, 100, 100]);
    }

    #[test]
    fn a_window_stays_while_the_source_has_blocks_left() {
        let mut window = Window::new(4, 100);
        window.open();
        for _ in 0..50 {
            window.came(false).expect("it was granted");
            assert_eq!(window.freed(), 1);
        }
        assert_eq!(window.granted_max(), 4);
    }

    #[test]
    fn a_block_that_was_not_granted_is_an_offence() {
        let mut window = Window::new(1, 1);
        window.open();
        assert!(window.came(true).is_ok());
        assert!(window.came(true).is_err());
    }
}

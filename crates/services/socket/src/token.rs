//! Numbers by which the daemon knows the offers of a program.

use std::sync::atomic::{AtomicU64, Ordering};

/// A source of numbers that no other offer of the node has: the process's id above a count.
#[derive(Debug)]
pub struct Tokens(AtomicU64);

const COUNT_BITS: u32 = 32;

impl Tokens {
    /// A source that gave no number yet. 0 is not a token.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(1))
    }

    /// The next number of process `pid`.
    pub fn next(&self, pid: u32) -> u64 {
        u64::from(pid) << COUNT_BITS | self.0.fetch_add(1, Ordering::Relaxed)
    }

    /// The former program of process `pid` gave `token` to a connection that lives on after exec:
    /// no other connection gets it.
    pub fn keep(&self, pid: u32, token: u64) {
        if token >> COUNT_BITS == u64::from(pid) {
            let count = token & ((1 << COUNT_BITS) - 1);
            self.0.fetch_max(count + 1, Ordering::Relaxed);
        }
    }
}

impl Default for Tokens {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_was_inherited_is_not_given_again() {
        let former = Tokens::new();
        let inherited: Vec<u64> = (0..5).map(|_| former.next(7)).collect();
        let tokens = Tokens::new();
        inherited.iter().rev().for_each(|token| tokens.keep(7, *token));
        let next = tokens.next(7);
        assert!(!inherited.contains(&next), "{next} in {inherited:?}");
    }

    #[test]
    fn tokens_of_another_process_are_not_in_the_way() {
        let tokens = Tokens::new();
        tokens.keep(7, Tokens::new().next(8) + 100);
        assert_eq!(tokens.next(7), 7 << 32 | 1);
    }
}

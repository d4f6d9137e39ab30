//! The parts of every workload: random steps, taking events, deaths, and the checks at the end.

use rand_chacha::ChaCha8Rng;
use weft_fabric::EndpointAddress;

use crate::stage::Stage;

/// A group of programs that use the fabric, and know what it owes them.
pub(crate) trait Workload<E> {
    /// Does something at random.
    fn act(&mut self, stage: &mut Stage<'_, E>, random: &mut ChaCha8Rng) -> Result<(), String>;

    /// Takes up to `budget` events of a program, or of all, and checks them.
    fn poll(
        &mut self,
        stage: &mut Stage<'_, E>,
        program: Option<usize>,
        budget: usize,
    ) -> Result<(), String>;

    /// Kills a program. Another one takes its place.
    fn kill(&mut self, stage: &mut Stage<'_, E>, program: usize) -> Result<(), String>;

    /// Whether everything that was accepted has ended, and every waiter was woken.
    fn is_settled(&self) -> bool;

    /// Says what was not settled, lost or changed.
    fn check(&mut self, stage: &Stage<'_, E>) -> Result<(), String>;

    /// Keys that its programs have in force; `None` if they do not know.
    fn keys(&self) -> Option<usize>;

    /// Bytes of the regions that its programs hold; `None` if they do not know.
    fn region_bytes(&self) -> Option<u64>;

    /// The address of a program. `None` if it has no endpoint now.
    fn address(&mut self, program: usize) -> Option<EndpointAddress>;

    /// Messages that arrived and operations that ended.
    fn done(&self) -> u64;
}

/// Bytes that belong to a number: another number has others.
pub(crate) fn pattern(number: u64, length: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

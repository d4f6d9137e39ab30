//! SANITIZE: erases a whole unit, and lets nobody use it meanwhile.
//!
//! Source: SBC-3 sections 4.11 and 5.24. CRYPTO ERASE does not exist here, since no store is
//! encrypted by the unit.

use std::sync::Arc;

use super::BLOCK_BYTES;
use super::job::Work;
use super::sense::Sense;
use super::unit::{Sanitizing, Unit};
use crate::store::{Store, StoreError};

/// Bytes that are erased between two reports of progress.
const STEP_BYTES: u64 = 4 << 20;

/// The way of each block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Erasure {
    /// It is given back, and reads as zeros.
    Blocks,
    /// It is written with a pattern, several times.
    Overwrite {
        /// A block of the pattern.
        pattern: Vec<u8>,
        /// How often.
        passes: u8,
        /// Whether every second time the pattern is inverted.
        inverts: bool,
    },
    /// Nothing: a failed sanitize is forgotten.
    ExitFailure,
}

/// The work of a command, before its parameters are there.
pub fn work(command: &[u8; 16]) -> Result<Work, Sense> {
    const OVERWRITE: u8 = 1;
    let action = command[1] & 0x1f;
    let parameters = usize::from(u16::from_be_bytes([command[7], command[8]]));
    let fits = match action {
        OVERWRITE => (5..=BLOCK_BYTES as usize + 4).contains(&parameters),
        _ => parameters == 0,
    };
    if !fits {
        return Err(Sense::field(7));
    }
    Ok(Work::Sanitize { action, parameters, at_once: command[1] & 0x80 != 0 })
}

/// The request, from the parameters.
pub fn erasure(action: u8, data: &[u8]) -> Result<Erasure, Sense> {
    match action {
        1 => {
            let (head, pattern) = data.split_at_checked(4).ok_or(Sense::PARAMETER_LENGTH)?;
            let (passes, inverts) = (head[0] & 0x1f, head[0] & 0x80 != 0);
            let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
            if passes == 0 {
                return Err(Sense::parameter(0));
            }
            if length == 0 || length > BLOCK_BYTES as usize || length > pattern.len() {
                return Err(Sense::parameter(2));
            }
            let pattern = pattern[..length].iter().copied().cycle();
            let pattern = pattern.take(BLOCK_BYTES as usize).collect();
            Ok(Erasure::Overwrite { pattern, passes, inverts })
        }
        2 => Ok(Erasure::Blocks),
        _ => Ok(Erasure::ExitFailure),
    }
}

/// Erases the unit. It is marked as being sanitized already.
pub fn run(unit: &Arc<Unit>, erasure: &Erasure) -> Result<(), StoreError> {
    let store = unit.store();
    let done = match erasure {
        Erasure::ExitFailure => Ok(()),
        Erasure::Blocks => {
            steps(unit, store.bytes(), 0, 1, |at, length| store.zero(at, length, true))
        }
        Erasure::Overwrite { pattern, passes, inverts } => {
            overwrite(unit, &*store, pattern, *passes, *inverts)
        }
    };
    let done = done.and_then(|()| store.flush());
    unit.state.lock().sanitizing = if done.is_ok() { Sanitizing::No } else { Sanitizing::Failed };
    done
}

fn overwrite(
    unit: &Unit,
    store: &dyn Store,
    pattern: &[u8],
    passes: u8,
    inverts: bool,
) -> Result<(), StoreError> {
    let step = usize::try_from(STEP_BYTES).expect("a few MiB");
    let plain: Vec<u8> = pattern.iter().copied().cycle().take(step).collect();
    let inverse: Vec<u8> = plain.iter().map(|byte| !byte).collect();
    for pass in 0..passes {
        let bytes = if inverts && pass % 2 == 1 { &inverse } else { &plain };
        steps(unit, store.bytes(), pass.into(), passes.into(), |at, length| {
            let length = usize::try_from(length).expect("one step");
            store.write(at, &bytes[..length])
        })?;
    }
    Ok(())
}

/// Does work on all steps of a pass, and tells the progress.
fn steps(
    unit: &Unit,
    bytes: u64,
    pass: u64,
    passes: u64,
    mut work: impl FnMut(u64, u64) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut at = 0;
    while at < bytes {
        let part = u128::from(pass) * u128::from(bytes) + u128::from(at);
        let whole = u128::from(passes) * u128::from(bytes);
        let progress = u16::try_from((part << 16) / whole).unwrap_or(u16::MAX);
        unit.state.lock().sanitizing = Sanitizing::Runs(progress);
        let length = STEP_BYTES.min(bytes - at);
        work(at, length)?;
        at += length;
    }
    Ok(())
}

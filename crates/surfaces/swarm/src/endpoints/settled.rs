//! The checks when everything has settled: no program waits, nothing was lost, memory has the bytes
//! that it should have.

use weft_fabric::{Endpoint, Region};

use super::Endpoints;
use super::keys::check_revoked;
use super::messages::Multicast;
use super::operations::Sum;
use super::program::{OWN_BYTES, Program, bytes_of, own_number, size, word_of};
use crate::ledger::Life;
use crate::workload::pattern;

impl<E: Endpoint> Endpoints<E> {
    pub(super) fn check_settled(&self) -> Result<(), String> {
        self.programs.iter().try_for_each(Program::check)?;
        self.ledger.check()?;
        self.slots.keys().try_for_each(|slot| self.check_slot(*slot))?;
        self.check_sums()?;
        self.check_told()?;
        self.check_groups()
    }

    /// Every word has the additions that ended well, and no more than were begun.
    fn check_sums(&self) -> Result<(), String> {
        for ((writer, owner), sum) in &self.sums {
            let Some(program) = self.program(*owner) else { continue };
            let offset = size(word_of(*writer));
            let value = program.region.load(offset).map_err(|error| error.to_string())?;
            let Sum { begun, well, .. } = sum;
            if !(*well..=*begun).contains(&value) {
                return Err(format!(
                    "{owner:?}: the word of {writer:?} is {value}; {well} to {begun} were added"
                ));
            }
        }
        Ok(())
    }

    /// Every put that asked for it and ended well was told.
    fn check_told(&self) -> Result<(), String> {
        let is_excused = |(from, to, pair): &(Life, Life, u16)| {
            self.dead.contains(from)
                || self.dead.contains(to)
                || self.ended_pairs.contains(&(*from, *pair))
        };
        let untold = self
            .owed
            .iter()
            .find(|(number, ends)| !self.told.contains(number) && !is_excused(ends));
        if let Some((number, (from, to, _))) = untold {
            return Err(format!("{to:?}: was never told of put {number} of {from:?}"));
        }
        Ok(())
    }

    /// Every message to a group arrived at all that were reachable.
    fn check_groups(&self) -> Result<(), String> {
        for ((from, number), multicast) in &self.multicasts {
            let Multicast { receivers, arrived, sent_ns } = multicast;
            let is_excused = self.disturbed_ns.is_some_and(|at| at >= *sent_ns);
            if arrived < receivers && !is_excused {
                return Err(format!(
                    "message {number} of {from:?} to a group arrived at {arrived} of {receivers}"
                ));
            }
        }
        Ok(())
    }
}

impl<E: Endpoint> Program<E> {
    /// Checks what a program waits for, and the memory that only it writes.
    fn check(&self) -> Result<(), String> {
        let own = self.life;
        if let Some((context, (peer, pending))) = self.pending.first_key_value() {
            return Err(format!("{own:?}: {pending:?} ({context}, {peer:?}) never ended"));
        }
        let waits = self.links.iter().find(|(_, link)| link.waits);
        if let Some((peer, link)) = waits {
            return Err(format!("{own:?}: waits for room at {:?} ({peer:?}) for ever", link.to));
        }
        if let Some(group) = self.waits_for_group.first() {
            return Err(format!("{own:?}: waits for room in {group:?} for ever"));
        }
        let there = bytes_of(&self.region, 0, OWN_BYTES)?;
        if there != pattern(own_number(own), OWN_BYTES) {
            return Err(format!("{own:?}: bytes changed that only it writes"));
        }
        self.extras.iter().try_for_each(|extra| check_revoked(own, extra))
    }
}

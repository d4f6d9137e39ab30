//! Keys that come and go, and puts with keys that may be void.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use weft_fabric::{
    Access, Audience, Blocking, Endpoint, GrantError, LocalRange, Operation, OperationError, Peer,
    Region, RegisterError, RemoteKey, Source, Target,
};

use super::Endpoints;
use super::operations::Pending;
use super::program::{SOON, bytes_of};
use crate::ledger::Life;
use crate::workload::pattern;

/// Bytes of a region whose key is revoked in the run.
pub(super) const EXTRA_BYTES: u64 = 256;
/// Such regions of a program at most.
const EXTRAS_MAX: usize = 3;

/// A region whose key comes and goes.
pub(super) struct Extra<R> {
    pub region: R,
    pub key: RemoteKey,
    /// The bytes at the end of the revocation.
    pub revoked: Option<Vec<u8>>,
}

impl<E: Endpoint> Endpoints<E> {
    /// Grants a further key, revokes one, or lets its region go.
    pub(super) fn churn(&mut self, from: usize, random: &mut ChaCha8Rng) -> Result<(), String> {
        let program = &mut self.programs[from];
        let place = random.random_range(0..EXTRAS_MAX);
        let life = program.life;
        let Some(extra) = program.extras.get_mut(place) else {
            let failed = |error: &dyn std::error::Error| format!("{life:?}: a region: {error}");
            let region = match program.endpoint.register(EXTRA_BYTES) {
                // The program has no memory now.
                Err(RegisterError::Exhausted { .. }) => return Ok(()),
                other => other.map_err(|error| failed(&error))?,
            };
            let whole = LocalRange::whole(&region);
            let access = Access::READ | Access::WRITE;
            let key = program.endpoint.grant_within(whole, Audience::Partition, access, SOON);
            let key = match key {
                Err(GrantError::Exhausted { .. }) => return Ok(()),
                other => other.map_err(|error| failed(&error))?,
            };
            program.extras.push(Extra { region, key, revoked: None });
            return Ok(());
        };
        if extra.revoked.is_none() {
            let revoked = program.endpoint.revoke_within(extra.key, SOON);
            revoked.map_err(|error| format!("{life:?}: a key in force: {error}"))?;
            extra.revoked = Some(bytes_of(&extra.region, 0, index(EXTRA_BYTES))?);
        } else {
            let extra = program.extras.swap_remove(place);
            check_revoked(life, &extra)?;
        }
        Ok(())
    }

    /// Puts with a key that may be void.
    pub(super) fn stray(
        &mut self,
        (from, to, peer): (usize, usize, Peer),
        random: &mut ChaCha8Rng,
    ) -> Result<(), String> {
        if self.programs[to].extras.is_empty() {
            return Ok(());
        }
        let place = random.random_range(0..self.programs[to].extras.len());
        let target = Target::new(self.programs[to].extras[place].key, 0);
        let program = &mut self.programs[from];
        let bytes = pattern(random.random(), 200);
        let operation = Operation::new(program.next);
        let answer = program.endpoint.put(peer, Source::Bytes(&bytes), target, operation);
        if answer == Err(OperationError::InvalidKey) {
            return Ok(());
        }
        self.begun((from, peer), answer, Pending::Stray)
    }
}

pub(super) fn check_revoked<R: Region>(life: Life, extra: &Extra<R>) -> Result<(), String> {
    let Some(then) = &extra.revoked else { return Ok(()) };
    if bytes_of(&extra.region, 0, then.len())? != *then {
        return Err(format!("{life:?}: bytes appeared by a key after its revocation"));
    }
    Ok(())
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("it is small")
}

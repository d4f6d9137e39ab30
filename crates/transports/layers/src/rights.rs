//! Keys: granted in shared memory, and offered to the peers of the port under the same number.

use weft_fabric::{
    Access, Audience, Endpoint, GrantError, Issued, LocalRange, OperationError, Peer, RemoteKey,
};
use weft_transport_ofi::Cards;

use crate::calls::{Granted, Half, Kind};
use crate::endpoint::{LayeredEndpoint, Way, way};
use crate::region::{self, LayeredRegion};

impl<C: Cards + 'static> LayeredEndpoint<C> {
    pub(crate) fn do_grant(
        &mut self,
        range: LocalRange<'_, LayeredRegion>,
        audience: Audience,
        access: Access,
        context: u64,
    ) -> Result<Issued, GrantError> {
        if !range.region.is_of(&self.mark) {
            return Err(GrantError::ForeignRegion);
        }
        let kind = match audience {
            Audience::Partition => Kind::Grant(Granted {
                memory: range.region.memory().clone(),
                start: range.offset,
                length: range.length,
                access,
            }),
            Audience::Peer(peer) => match way(peer) {
                Way::Near(_) => Kind::Plain,
                Way::Far(peer) => return self.grant_far(range, peer, access, context),
            },
        };
        let number = self.calls.begin(context, kind);
        let issued = self.near.grant(region::near(range), audience, access, number);
        self.calls.issued(number, Half::Near, issued.map_err(OperationError::Grant));
        self.result_of(number).map_err(|error| match error {
            OperationError::Grant(error) => error,
            other => GrantError::Broker { reason: other.to_string() },
        })
    }

    /// Grants a key to a peer of the port alone. Shared memory has no such peer.
    fn grant_far(
        &mut self,
        range: LocalRange<'_, LayeredRegion>,
        peer: Peer,
        access: Access,
        context: u64,
    ) -> Result<Issued, GrantError> {
        let Some(far) = self.door.open() else { return Err(GrantError::Peer) };
        let provider =
            |error: weft_fabric::RegisterError| GrantError::Provider { reason: error.to_string() };
        let range = region::far(range, far).map_err(provider)?;
        far.grant(range, Audience::Peer(peer), access, context)
    }

    /// A key is in force: peers of the port may use it, too.
    pub(crate) fn granted(&mut self, key: RemoteKey, granted: Granted) {
        if let Some(far) = self.door.open() {
            far.offer(key, &granted.memory, (granted.start, granted.length), granted.access);
        }
        self.grants.insert(key, granted);
    }

    pub(crate) fn do_revoke(&mut self, key: RemoteKey, context: u64) -> Result<Issued, GrantError> {
        self.grants.remove(&key);
        let number = self.calls.begin(context, Kind::Revoke);
        let near = self.near.revoke(key, number);
        let far = self.door.open().filter(|far| far.has_key(key));
        let is_far_alone = far.is_some() && near == Err(GrantError::UnknownKey);
        if !is_far_alone {
            self.calls.issued(number, Half::Near, near.map_err(OperationError::Grant));
        }
        if let Some(far) = far {
            let revoked = far.revoke(key, number).map_err(OperationError::Grant);
            self.calls.issued(number, Half::Far, revoked);
        }
        self.result_of(number).map_err(|error| match error {
            OperationError::Grant(error) => error,
            other => GrantError::Broker { reason: other.to_string() },
        })
    }
}

//! The things that a world holds, by number, for tests of leaks.

use crate::world::{SimWorld, WorldState};

/// The things that a world holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Census {
    /// Endpoints that are open.
    pub endpoints: usize,
    /// Regions that somebody holds, be it a program or a key.
    pub regions: usize,
    /// Bytes of these regions.
    pub region_bytes: u64,
    /// Keys in force.
    pub keys: usize,
    /// Operations that have not ended.
    pub operations: usize,
    /// Calls of membership and rights that have not ended.
    pub controls: usize,
    /// Events that no program has taken.
    pub events: usize,
    /// Memberships of groups.
    pub memberships: usize,
    /// Packets on their way, held at a cut, or held by a receiver until earlier ones come.
    pub packets: usize,
}

impl SimWorld {
    /// Counts the things that the world holds.
    #[must_use]
    pub fn census(&self) -> Census {
        self.lock().census()
    }
}

impl WorldState {
    fn census(&self) -> Census {
        let mut census = Census {
            endpoints: self.addresses.len(),
            keys: self.keys.len(),
            memberships: self.groups.values().map(|members| members.len()).sum(),
            packets: self.packets(),
            ..Census::default()
        };
        for endpoint in &self.endpoints {
            let regions = endpoint.regions.iter().filter_map(std::sync::Weak::upgrade);
            for region in regions {
                census.regions += 1;
                census.region_bytes += region.length();
            }
            census.operations += endpoint.pending.len();
            census.controls += endpoint.controls.len();
            census.events += endpoint.events.len();
        }
        census
    }
}

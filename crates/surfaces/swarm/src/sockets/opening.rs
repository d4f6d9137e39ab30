//! The lanes of a connection, and how they are made before it begins.

use std::os::fd::AsFd;
use std::time::Duration;

use weft_fabric::{Blocking, Endpoint};
use weft_lane::{Carrier, EndpointLane, Layout, Refusal, Settings, Told};
use weft_memory::CopyMode;
use weft_transport_shm::lane::{LaneLayout, ShmLane};

use super::lanes::LANES;
use super::plan::Plan;

/// Control calls end within it.
const SOON: Duration = Duration::from_secs(1);

/// Both ends of each lane. The connection has the lanes one after another.
pub enum Lanes<E: Endpoint> {
    /// Of shared memory: the two programs are on one host.
    Memory(Vec<(ShmLane, ShmLane)>),
    /// Over endpoints.
    Network(Ends<E>),
}

/// The carriers of the two programs, and the lanes between them.
pub struct Ends<E: Endpoint> {
    pub carriers: [Carrier<E>; 2],
    pub lanes: Vec<[EndpointLane<E>; 2]>,
}

/// Lanes over endpoints that are being made.
pub struct Opening<E: Endpoint> {
    carriers: [Carrier<E>; 2],
    ends: [Vec<(u64, EndpointLane<E>)>; 2],
}

/// The state of lanes that are being made.
pub enum Opened<E: Endpoint> {
    NotYet(Opening<E>),
    All(Ends<E>),
    /// There will be none.
    Refused(Refusal),
}

/// Lanes of shared memory.
///
/// # Errors
/// Text, if the operating system gives no memory.
pub fn memory<E: Endpoint>(plan: &Plan) -> Result<Lanes<E>, String> {
    let Layout { slots, sink_bytes } = plan.layout();
    let layout = LaneLayout { slots, sink_bytes };
    let lane = || {
        let (one, file) = ShmLane::create(layout, CopyMode::Plain).map_err(|e| e.to_string())?;
        let two = ShmLane::open(file.as_fd(), 1, CopyMode::Plain).map_err(|e| e.to_string())?;
        Ok((one, two))
    };
    Ok(Lanes::Memory((0..LANES).map(|_| lane()).collect::<Result<_, String>>()?))
}

impl<E: Endpoint> Opening<E> {
    /// Begins to make the lanes of a connection between two endpoints. `None` if they do not reach
    /// each other.
    pub fn begin(plan: &Plan, endpoints: [E; 2]) -> Option<Self> {
        let lanes_max = u32::try_from(LANES).expect("a few lanes");
        let settings = Settings { layout: plan.layout(), lanes_max, ..Settings::default() };
        let carriers = endpoints.map(|endpoint| Carrier::new(endpoint, settings));
        let address = carriers[1].with_endpoint(|endpoint| endpoint.address());
        let peer = carriers[0].with_endpoint(|endpoint| endpoint.connect_within(address, SOON));
        let peer = peer.ok()?;
        for token in 0..LANES {
            let token = u64::try_from(token).expect("a few lanes");
            carriers[0].open(peer, token).expect("the carrier has room for its lanes");
        }
        Some(Self { carriers, ends: [Vec::new(), Vec::new()] })
    }

    /// The carrier of one of the two.
    pub fn carrier(&self, number: usize) -> &Carrier<E> {
        &self.carriers[number]
    }

    /// Takes what the carriers tell.
    ///
    /// # Errors
    /// Text, if one says that the other misbehaved.
    pub fn poll(mut self) -> Result<Opened<E>, String> {
        for (carrier, ends) in self.carriers.iter().zip(&mut self.ends) {
            carrier.poll();
            while let Some(told) = carrier.told() {
                match told {
                    Told::Offered(offer) => drop(carrier.accept(offer)),
                    Told::Opened { token, lane } => ends.push((token, lane)),
                    Told::Refused { why, .. } => return Ok(Opened::Refused(why)),
                    Told::Rung(..) => {}
                    Told::Misbehaved { how, .. } => return Err(format!("told that {how}")),
                }
            }
        }
        if self.ends.iter().any(|ends| ends.len() < LANES) {
            return Ok(Opened::NotYet(self));
        }
        let Self { carriers, mut ends } = self;
        ends.iter_mut().for_each(|ends| ends.sort_by_key(|(token, _)| *token));
        let [left, right] = ends;
        let pairs = left.into_iter().zip(right);
        let lanes = pairs.map(|((_, left), (_, right))| [left, right]).collect();
        Ok(Opened::All(Ends { carriers, lanes }))
    }
}

//! How PEs of several hosts meet: each opens an endpoint at the daemon of its host, and connects to
//! those of other hosts.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use weft_fabric::{
    Access, Audience, Blocking, ConnectError, Endpoint, EndpointAddress, HostMemory, Issued,
    LocalRange, NodeId, OperationError, PATIENCE, Peer, RemoteKey, Vpid,
};
use weft_memory::{Memory, MemoryOptions};
use weft_open::{Driver, Opening, Source};
use weft_pgas::far::{LANDING_BYTES, Regions};

use super::Port;
use crate::card::NoCard;

/// Memory of the endpoint.
pub type PortRegion = <Port as Endpoint>::Region;

/// The first word of a card.
const FORM: &str = "weft-shmem-far-2";
/// How long daemons have to tell each other of new endpoints.
const FOUND_WITHIN: Duration = Duration::from_secs(10);
/// How soon an endpoint that is not known yet is asked for again.
const AGAIN: Duration = Duration::from_millis(5);

/// The facts that PEs of other hosts have to know of a PE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FarCard {
    /// Its endpoint.
    pub address: EndpointAddress,
    /// The key of its heap.
    pub heap: RemoteKey,
    /// The key of its variables, if they are shared.
    pub statics: Option<RemoteKey>,
}

impl fmt::Display for FarCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (node, vpid) = (self.address.node.0, self.address.vpid.0);
        let statics = self.statics.map_or_else(|| "-".to_owned(), |key| key.0.to_string());
        write!(f, "{FORM};{node};{vpid};{};{statics}", self.heap.0)
    }
}

impl FromStr for FarCard {
    type Err = NoCard;

    fn from_str(text: &str) -> Result<Self, NoCard> {
        parse(text).ok_or_else(|| NoCard::of(text))
    }
}

fn parse(text: &str) -> Option<FarCard> {
    let parts: Vec<&str> = text.split(';').collect();
    let [FORM, node, vpid, heap, statics] = parts[..] else { return None };
    let address = EndpointAddress::new(NodeId(node.parse().ok()?), Vpid(vpid.parse().ok()?));
    let key = |text: &str| text.parse().ok().map(RemoteKey);
    let statics = if statics == "-" { None } else { Some(key(statics)?) };
    let is_exact = address.is_exact() && address.node <= NodeId::MAX;
    is_exact.then_some(FarCard { address, heap: key(heap)?, statics })
}

/// An endpoint that is open.
pub struct Opened {
    /// The endpoint.
    pub endpoint: Port,
    /// Its memory.
    pub regions: Regions<PortRegion>,
    /// The card for others.
    pub card: FarCard,
}

/// Opens the endpoint of a PE, for so many peers. Others may read and write the first `heap_bytes`
/// of the heap, and the variables.
///
/// # Errors
/// A text that says why, and what to do.
pub fn open(
    peers: usize,
    (heap, heap_bytes): (&Memory, usize),
    statics: Option<&Memory>,
) -> Result<Opened, String> {
    let text = |error: &dyn fmt::Display| error.to_string();
    let opening = Opening::named("OpenSHMEM").map_err(|error| text(&error))?;
    let opening = opening.source(Source::Joined).peers(peers);
    // The library has a thread that polls.
    let opening = opening.driven_by(Driver::Polling).without_signals();
    let mut endpoint = opening.open_far().map_err(|error| text(&error))?;
    let mut offer = |memory: &Memory, bytes: usize| {
        let region = endpoint.register_memory(memory).map_err(|error| text(&error))?;
        let range = LocalRange::new(&region, 0, bytes as u64);
        let access = Access::READ | Access::WRITE;
        let key = endpoint.grant_within(range, Audience::Partition, access, PATIENCE);
        key.map(|key| (region, key)).map_err(|error| text(&error))
    };
    let (heap, heap_key) = offer(heap, heap_bytes)?;
    let statics = statics.map(|memory| offer(memory, memory.segment().length())).transpose()?;
    let (statics, statics_key) = statics.unzip();
    let landing =
        Memory::fresh(MemoryOptions::bytes(LANDING_BYTES)).map_err(|error| text(&error))?;
    let landing = endpoint.register_memory(&landing).map_err(|error| text(&error))?;
    let card = FarCard { address: endpoint.address(), heap: heap_key, statics: statics_key };
    Ok(Opened { endpoint, regions: Regions { heap, statics, landing }, card })
}

/// Connects to PEs of other hosts, and gives their handles in the same order.
///
/// # Errors
/// A text that names the PE that was not reached.
pub fn connect(
    endpoint: &mut Port,
    others: &[(usize, EndpointAddress)],
) -> Result<Vec<Peer>, String> {
    let end = Instant::now() + FOUND_WITHIN;
    let begun: Vec<_> =
        others.iter().map(|(pe, address)| endpoint.connect(*address, *pe as u64)).collect();
    let mut peers = Vec::new();
    for ((pe, address), mut issued) in others.iter().zip(begun) {
        peers.push(loop {
            let result = match issued {
                Ok(Issued::Done(handle)) => Ok(handle),
                Ok(Issued::Pending) => match endpoint.finish(*pe as u64, PATIENCE) {
                    Some(Ok(handle)) => Ok(handle),
                    Some(Err(OperationError::Connect(error))) => Err(error),
                    Some(Err(error)) => Err(ConnectError::Broker { reason: error.to_string() }),
                    None => Err(ConnectError::Broker { reason: "no answer came".to_owned() }),
                },
                Err(error) => Err(error),
            };
            match result {
                Ok(handle) => break Peer::of_value(handle),
                // Its daemon may not have told that of this host yet.
                Err(_) if Instant::now() < end => {
                    std::thread::sleep(AGAIN);
                    issued = endpoint.connect(*address, *pe as u64);
                }
                Err(error) => {
                    return Err(format!(
                        "PE {pe} at {address} of the fabric is not reached: {error}; look with \
                         `weft fabric nodes` on both hosts whether each is up at the other"
                    ));
                }
            }
        });
    }
    Ok(peers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_card_is_read_as_it_was_written() {
        let address = EndpointAddress::new(NodeId(3), Vpid(7));
        for statics in [None, Some(RemoteKey(u64::MAX))] {
            let card = FarCard { address, heap: RemoteKey(12), statics };
            assert_eq!(card.to_string().parse(), Ok(card));
        }
        for text in [
            "weft-shmem-far-2;4294967295;1;2;3",
            "weft-shmem-far-2;1;65535;2;3",
            "weft-shmem-far-2;1;2;3",
            "weft-shmem-far-2;1;2;x;-",
            "weft-shmem-1;1;2;3;4",
        ] {
            assert!(text.parse::<FarCard>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,100}") {
            let _ = text.parse::<FarCard>();
        }
    }
}

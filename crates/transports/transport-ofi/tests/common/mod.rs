//! Two endpoints over a seeded network.

use std::sync::Arc;

use weft_broker::local::LocalBroker;
use weft_broker::{Limits, no_bells};
use weft_fabric::{Blocking, Endpoint, EndpointOptions, NodeId, PATIENCE, Peer, Transport};
use weft_options::ServicePolicy;
use weft_transport_ofi::seeded::{SeededNet, SeededNic};
use weft_transport_ofi::{OfiEndpoint, OfiTransport, Parameters};

/// Two endpoints that never spin, and the first one's handle for the second.
pub fn pair(net: &SeededNet) -> ([OfiEndpoint<SeededNic>; 2], Peer) {
    let (limits, policy) = (Limits::default(), ServicePolicy::default());
    let broker = LocalBroker::new(NodeId::LOCAL, limits, policy, no_bells);
    let parameters = Parameters { spins: 0, yields: 0, ..Parameters::default() };
    let mut endpoints = [0, 1].map(|_| {
        let transport = OfiTransport::new(net.clone(), Arc::new(broker.clone()), parameters);
        transport.open(&EndpointOptions::default()).expect("room")
    });
    let address = endpoints[1].address();
    let peer = endpoints[0].connect_within(address, PATIENCE).expect("it is there");
    (endpoints, peer)
}

//! Cases: addresses, and which endpoints can be found.

use weft_fabric::{
    ConnectError, Endpoint, EndpointAddress, EndpointOptions, Group, MessageHeader, OpenError,
    Operation, OperationError, Partition, PartitionId, Peer, RemoteKey, SendError, Source, Target,
    Vpid,
};

use crate::{Bench, Rig, Seen};

/// An open endpoint knows its address, which can name a target.
pub fn an_address_is_exact_and_its_own<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let (first, second) = (rig.address(0), rig.address(1));
    assert!(first.is_exact() && second.is_exact());
    assert_ne!(first, second);
    let peer = rig.connect(0, 1);
    assert_eq!(rig.endpoint(0).peer_address(peer), Some(second));
}

/// [`Vpid::ANY`] takes a free number each time.
pub fn a_wildcard_open_takes_free_vpids<B: Bench>() {
    let mut bench = B::new();
    let options = EndpointOptions::default();
    let endpoints: Vec<_> = (0..8).map(|_| bench.open(&options).expect("free")).collect();
    let mut addresses: Vec<_> = endpoints.iter().map(Endpoint::address).collect();
    addresses.sort_unstable();
    addresses.dedup();
    assert_eq!(addresses.len(), 8);
}

/// The requested VPID is the VPID of the endpoint.
pub fn an_exact_open_gets_the_requested_vpid<B: Bench>() {
    let mut bench = B::new();
    let options = EndpointOptions { vpid: Vpid(77), ..EndpointOptions::default() };
    let endpoint = bench.open(&options).expect("free");
    assert_eq!(endpoint.address().vpid, Vpid(77));
}

/// Two endpoints of a node never share a VPID. The VPID of a closed endpoint is free again.
pub fn a_vpid_in_use_is_refused_until_its_owner_closes<B: Bench>() {
    let mut rig = Rig::<B>::new(0);
    let options = EndpointOptions { vpid: Vpid(5), ..EndpointOptions::default() };
    let first = rig.bench.open(&options).expect("free");
    let address = first.address();
    let refused = rig.bench.open(&options);
    assert_eq!(refused.err(), Some(OpenError::AddressInUse(address)));
    drop(first);
    let mut again = None;
    rig.until("the VPID of a closed endpoint", |rig| {
        again = rig.bench.open(&options).ok();
        again.is_some()
    });
    assert_eq!(again.map(|endpoint| endpoint.address()), Some(address));
}

/// All VPIDs of a node can be used. The next open reports that none is free.
pub fn a_node_without_free_vpids_reports_it<B: Bench>() {
    let mut bench = B::new();
    let options = EndpointOptions::default();
    let first = bench.open(&options).expect("free");
    let maximum = first.capabilities().vpids;
    assert!(maximum >= 256, "a transport offers at least Extoll's 256 VPIDs");
    let mut endpoints = vec![first];
    for _ in 1..maximum {
        endpoints.push(bench.open(&options).expect("a VPID is free"));
    }
    assert_eq!(bench.open(&options).err(), Some(OpenError::Exhausted { maximum }));
}

/// An address with a wildcard is not a target.
pub fn a_wildcard_cannot_be_connected<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let other = rig.address(1);
    let any_vpid = EndpointAddress::new(other.node, Vpid::ANY);
    for address in [EndpointAddress::ANY, any_vpid] {
        let refused = rig.try_connect(0, address);
        assert_eq!(refused, Err(ConnectError::NotExact(address)));
    }
}

/// The address of no endpoint is not found.
pub fn an_address_nobody_has_is_not_found<B: Bench>() {
    let mut rig = Rig::<B>::new(1);
    let nobody = EndpointAddress::new(rig.address(0).node, Vpid(211));
    assert_eq!(rig.try_connect(0, nobody), Err(ConnectError::NotFound(nobody)));
}

/// Connecting twice to an endpoint returns the same handle.
pub fn the_same_address_has_the_same_handle<B: Bench>() {
    let mut rig = Rig::<B>::new(3);
    let first = rig.connect(0, 1);
    let other = rig.connect(0, 2);
    assert_ne!(first, other);
    assert_eq!(rig.connect(0, 1), first);
    assert_eq!(rig.connect(0, 2), other);
}

/// A handle that was never returned fails in every call, and has no effect.
pub fn an_unknown_handle_is_refused_everywhere<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    rig.connect(0, 1);
    let unknown = OperationError::UnknownPeer;
    let place = Target::new(RemoteKey(1), 0);
    for number in [1, 7, u32::MAX] {
        let peer = Peer(number);
        assert_eq!(rig.endpoint(0).peer_address(peer), None);
        let sent = rig.endpoint(0).send_short(peer, MessageHeader::default(), &[b"x"]);
        assert_eq!(sent, Err(SendError::UnknownPeer));
        let put = rig.endpoint(0).put(peer, Source::Bytes(b"x"), place, Operation::new(1));
        assert_eq!(put, Err(unknown.clone()));
        let put = rig.endpoint(0).put_immediate(peer, 1, 8, place, Operation::new(1));
        assert_eq!(put, Err(unknown.clone()));
        assert_eq!(rig.endpoint(0).put_notification(peer, 1, 1), Err(unknown.clone()));
        assert_eq!(rig.endpoint(0).fence(peer, 1), Err(unknown.clone()));
        assert!(rig.endpoint(0).window(peer, RemoteKey(1)).is_err());
    }
    rig.settle();
    assert_eq!(rig.seen(1), &[]);
}

/// Endpoints of another partition of the same user cannot be found.
pub fn another_partition_is_not_found<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let partition = Partition::Numbered(PartitionId::of_user_named(rig.bench.user(), 9));
    let apart = EndpointOptions { partition, ..EndpointOptions::default() };
    let hidden = rig.bench.open(&apart).expect("the user's own partition");
    let hidden = rig.add(hidden);
    let (open, concealed) = (rig.address(0), rig.address(hidden));
    let found = rig.try_connect(0, concealed);
    assert_eq!(found, Err(ConnectError::NotFound(concealed)));
    let found = rig.try_connect(hidden, open);
    assert_eq!(found, Err(ConnectError::NotFound(open)));
    let second = rig.bench.open(&apart).expect("the user's own partition");
    let second = rig.add(second);
    let peer = rig.connect(hidden, second);
    rig.send(hidden, peer, MessageHeader::tag(3), &[b"among us"]);
    assert_eq!(rig.messages(second, 1)[0].payload, b"among us");
    rig.settle();
    assert!(!rig.seen(0).iter().any(|seen| matches!(seen, Seen::Message(_))));
}

/// A partition of another user cannot be opened.
pub fn a_partition_of_another_user_is_forbidden<B: Bench>() {
    let mut bench = B::new();
    let foreign = PartitionId::of_user(bench.user().wrapping_add(1));
    let partition = Partition::Numbered(foreign);
    let refused = bench.open(&EndpointOptions { partition, ..EndpointOptions::default() });
    assert_eq!(refused.err(), Some(OpenError::Forbidden { partition: foreign.0 }));
}

/// Endpoints of two users do not find each other, and do not share groups.
pub fn another_user_is_not_found<B: Bench>() {
    let mut rig = Rig::<B>::new(1);
    let other = rig.bench.user().wrapping_add(1);
    let options = EndpointOptions::default();
    let Some(opened) = rig.bench.open_as(other, &options) else { return };
    let foreign = rig.add(opened.expect("the user's own partition"));
    let (own, address) = (rig.address(0), rig.address(foreign));
    assert_eq!(rig.try_connect(0, address), Err(ConnectError::NotFound(address)));
    assert_eq!(rig.try_connect(foreign, own), Err(ConnectError::NotFound(own)));
    let header = MessageHeader::default();
    assert_eq!(rig.multicast(0, Group::BROADCAST, header, &[b"x"]), Ok(0));
}

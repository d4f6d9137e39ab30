//! Cases: a transport's limits are at least Extoll's, and hold.

use weft_fabric::{
    Access, Capabilities, Endpoint, Group, LocalRange, MessageHeader, Operation, Region, Source,
    Target,
};

use crate::{Bench, Rig, pattern};

/// No transport offers less than the Extoll NIC.
pub fn no_limit_is_below_extolls<B: Bench>() {
    let mut rig = Rig::<B>::new(1);
    let offered = rig.endpoint(0).capabilities();
    let least = Capabilities::extoll(offered.transport);
    assert!(offered.message_bytes_max >= least.message_bytes_max, "{offered:?}");
    assert!(offered.mtu_bytes >= least.mtu_bytes, "{offered:?}");
    assert!(offered.descriptor_bytes_max >= least.descriptor_bytes_max, "{offered:?}");
    assert!(offered.vpids >= least.vpids, "{offered:?}");
    assert!(offered.groups >= least.groups, "{offered:?}");
    assert!(offered.intervals >= least.intervals, "{offered:?}");
    assert!(offered.locks >= least.locks, "{offered:?}");
}

/// One endpoint can join every group at once. A message names the group by which it came.
pub fn an_endpoint_can_be_in_every_group<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let groups = rig.endpoint(0).capabilities().groups;
    let all: Vec<Group> = (0..groups).filter_map(Group::new).collect();
    assert_eq!(all.len(), usize::from(groups));
    for group in all.iter().filter(|group| **group != Group::BROADCAST) {
        assert_eq!(rig.join(1, *group), Ok(()));
    }
    for (tag, group) in (0..).zip(&all) {
        let header = MessageHeader::tag(tag);
        assert_eq!(rig.endpoint(0).send_multicast(*group, header, &[b"to all"]), Ok(1));
    }
    rig.settle();
    let reached: Vec<_> = rig.take_messages(1).iter().map(|mail| mail.group).collect();
    assert_eq!(reached, all.into_iter().map(Some).collect::<Vec<_>>());
}

/// The transport splits an operation that is longer than a descriptor and no multiple of a packet.
pub fn more_than_a_descriptor_goes_in_one_call<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let limit = rig.endpoint(0).capabilities().descriptor_bytes_max;
    let length = limit + 4097;
    let (region, key) = rig.share(1, length, Access::READ | Access::WRITE);
    let bytes = pattern(11, usize::try_from(length).expect("some MiB"));
    let target = Target::new(key, 0);
    let put = rig.run(0, |endpoint, context| {
        endpoint.put(peer, Source::Bytes(&bytes), target, Operation::new(context))
    });
    assert!(put.is_ok(), "{put:?}");
    let mut found = vec![0; bytes.len()];
    region.read(0, &mut found).expect("inside");
    assert!(found == bytes, "the put changed the bytes");
    let into = rig.endpoint(0).register(length).expect("memory");
    let got = rig.run(0, |endpoint, context| {
        endpoint.get(peer, target, LocalRange::new(&into, 0, length), Operation::new(context))
    });
    assert!(got.is_ok(), "{got:?}");
    into.read(0, &mut found).expect("inside");
    assert!(found == bytes, "the get changed the bytes");
}

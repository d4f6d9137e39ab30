//! Cases: memory of the host of each kind, for transports that offer
//! [`weft_fabric::HostMemory`].

use weft_fabric::{
    Access, Addressable, Atomic, Endpoint, HostMemory, LocalRange, MessageHeader, Operation,
    OperationError, Region, RegisterError, Source, Target, Value, Way,
};

use crate::{HostBench, Rig, pattern};

const LENGTH: usize = 64 * 1024;

/// Memory of each kind keeps its bytes when it is registered, and peers read and write them.
pub fn memory_of_each_kind_keeps_its_bytes<B: HostBench>()
where
    B::Endpoint: HostMemory,
{
    for kind in 0..B::kinds() {
        let mut rig = Rig::<B>::new(2);
        let peer = rig.connect(0, 1);
        let bytes = pattern(1, LENGTH);
        let memory = B::memory(kind, &bytes);
        let region = register(&mut rig, 1, &memory).expect("there is room");
        assert_eq!((region.length(), contents(&region)), (LENGTH as u64, bytes.clone()));
        let key = rig.grant(1, &region, Access::all()).expect("a grant");
        let local = rig.local(0, &vec![0; LENGTH]);
        let got = rig.run(0, |endpoint, context| {
            let into = LocalRange::whole(&local);
            endpoint.get(peer, Target::new(key, 0), into, Operation::new(context))
        });
        assert_eq!((got, contents(&local) == bytes), (Ok(Value::Nothing), true), "kind {kind}");
        let put = rig.run(0, |endpoint, context| {
            let target = Target::new(key, 100);
            endpoint.put(peer, Source::Bytes(&[7; 5000]), target, Operation::new(context))
        });
        let added = rig.run(0, |endpoint, context| {
            let target = Target::new(key, 8192);
            endpoint.atomic(peer, target, Atomic::fetch_add(1), Operation::new(context))
        });
        let word = u64::from_le_bytes(bytes[8192..8200].try_into().expect("8 bytes"));
        let way = B::way(kind, rig.endpoint(0).reach(peer).expect("the peer lives"));
        let (adds, change) = match way {
            Way::Kernel => (0, Err(OperationError::NotMapped)),
            Way::Direct | Way::Refused => (1, Ok(Value::Word(word))),
        };
        assert_eq!((put, added), (Ok(Value::Nothing), change), "kind {kind}");
        let mut expected = bytes;
        expected[100..5100].fill(7);
        expected[8192..8200].copy_from_slice(&word.wrapping_add(adds).to_le_bytes());
        assert_eq!(B::bytes(&memory), expected, "the program sees what peers wrote");
    }
}

/// Memory of each kind can be the local side of a put and of a get.
pub fn memory_of_each_kind_is_a_source_and_a_sink<B: HostBench>()
where
    B::Endpoint: HostMemory,
{
    for kind in 0..B::kinds() {
        let mut rig = Rig::<B>::new(2);
        let peer = rig.connect(0, 1);
        let (far, key) = rig.share(1, LENGTH as u64, Access::READ | Access::WRITE);
        let bytes = pattern(2, LENGTH);
        let memory = B::memory(kind, &bytes);
        let region = register(&mut rig, 0, &memory).expect("there is room");
        let put = rig.run(0, |endpoint, context| {
            let source = Source::Region(LocalRange::whole(&region));
            endpoint.put(peer, source, Target::new(key, 0), Operation::new(context))
        });
        assert_eq!((put, contents(&far) == bytes), (Ok(Value::Nothing), true), "kind {kind}");
        far.write(10, b"from afar").expect("inside");
        let got = rig.run(0, |endpoint, context| {
            let into = LocalRange::new(&region, 3, 9);
            endpoint.get(peer, Target::new(key, 10), into, Operation::new(context))
        });
        assert_eq!(
            (got, &B::bytes(&memory)[3..12]),
            (Ok(Value::Nothing), &b"from afar"[..]),
            "kind {kind}"
        );
    }
}

/// A revoked key of memory of each kind is worthless, and the memory keeps its bytes and its
/// address.
pub fn memory_of_each_kind_survives_a_revocation<B: HostBench>()
where
    B::Endpoint: HostMemory,
{
    for kind in 0..B::kinds() {
        let mut rig = Rig::<B>::new(2);
        let peer = rig.connect(0, 1);
        let memory = B::memory(kind, &pattern(3, LENGTH));
        let region = register(&mut rig, 1, &memory).expect("there is room");
        let base = region.base();
        for round in 0..3_u8 {
            let key = rig.grant(1, &region, Access::all()).expect("a grant");
            let mut put = |byte: u8| {
                rig.run(0, |endpoint, context| {
                    let target = Target::new(key, 0);
                    let source = Source::Bytes(std::slice::from_ref(&byte));
                    endpoint.put(peer, source, target, Operation::new(context))
                })
            };
            // Several times, so that the transport may remember where the key leads.
            assert_eq!(
                [put(9), put(9), put(9), put(round)],
                [Ok(Value::Nothing), Ok(Value::Nothing), Ok(Value::Nothing), Ok(Value::Nothing)]
            );
            rig.revoke(1, key).expect("it is in force");
            let late = rig.run(0, |endpoint, context| {
                let target = Target::new(key, 0);
                endpoint.put(peer, Source::Bytes(b"x"), target, Operation::new(context))
            });
            assert_eq!(late, Err(OperationError::InvalidKey));
            let mut expected = pattern(3, LENGTH);
            expected[0] = round;
            assert_eq!(B::bytes(&memory), expected, "kind {kind}, round {round}");
            assert_eq!(region.base(), base, "kind {kind}");
        }
    }
}

/// One memory may be registered by several endpoints. Each grants keys of its own, and they live as
/// long as their endpoints.
pub fn one_memory_serves_several_endpoints<B: HostBench>()
where
    B::Endpoint: HostMemory,
{
    for kind in 0..B::kinds() {
        let mut rig = Rig::<B>::new(3);
        let memory = B::memory(kind, &pattern(4, LENGTH));
        let mut keys = Vec::new();
        for owner in [1, 2] {
            let region = register(&mut rig, owner, &memory).expect("there is room");
            let peer = rig.connect(0, owner);
            let key = rig.grant(owner, &region, Access::all()).expect("a grant");
            keys.push((peer, key));
        }
        let put = |rig: &mut Rig<B>, (peer, key), byte: u8| {
            rig.run(0, |endpoint, context| {
                let target = Target::new(key, 0);
                endpoint.put(peer, Source::Bytes(&[byte]), target, Operation::new(context))
            })
        };
        let there = |byte| assert_eq!(B::bytes(&memory)[0], byte, "kind {kind}");
        assert_eq!(put(&mut rig, keys[0], 1), Ok(Value::Nothing));
        there(1);
        assert_eq!(put(&mut rig, keys[1], 2), Ok(Value::Nothing));
        there(2);
        rig.revoke(1, keys[0].1).expect("it is in force");
        assert_eq!(put(&mut rig, keys[0], 3), Err(OperationError::InvalidKey));
        assert_eq!(put(&mut rig, keys[1], 4), Ok(Value::Nothing));
        there(4);
        let first = rig.remove(1);
        drop(first);
        assert_eq!(put(&mut rig, keys[1], 5), Ok(Value::Nothing));
        there(5);
    }
}

/// Windows, puts and gets reach memory of each kind in the way that the endpoint names.
pub fn memory_of_each_kind_is_reached_as_the_endpoint_says<B: HostBench>()
where
    B::Endpoint: HostMemory,
{
    for kind in 0..B::kinds() {
        let mut rig = Rig::<B>::new(2);
        let peer = rig.connect(0, 1);
        let memory = B::memory(kind, &pattern(5, LENGTH));
        let region = register(&mut rig, 1, &memory).expect("there is room");
        let key = rig.grant(1, &region, Access::all()).expect("a grant");
        let way = B::way(kind, rig.endpoint(0).reach(peer).expect("the peer lives"));
        assert_ne!(way, Way::Refused, "kind {kind}");
        let window = rig.endpoint(0).window(peer, key);
        match way {
            Way::Direct => assert!(window.is_ok(), "kind {kind}"),
            _ => assert_eq!(window.err(), Some(OperationError::NotMapped), "kind {kind}"),
        }
        let context = rig.context();
        let target = Target::new(key, 9);
        let put = |endpoint: &mut B::Endpoint| {
            endpoint.put(peer, Source::Bytes(b"there"), target, Operation::new(context))
        };
        let issued = put(rig.endpoint(0));
        // Nobody polls in between.
        let is_there = &B::bytes(&memory)[9..14] == b"there";
        assert!(issued.is_ok(), "kind {kind}");
        if rig.endpoint(0).capabilities().completes_inline {
            assert!(is_there, "kind {kind}");
        }
        assert_eq!(rig.finish(0, context, issued), Ok(Value::Nothing), "kind {kind}");
        assert_eq!(&B::bytes(&memory)[9..14], b"there", "kind {kind}");
        let unknown = rig.endpoint(0).reach(weft_fabric::Peer(u32::MAX));
        assert_eq!(unknown, Err(OperationError::UnknownPeer));
    }
}

/// Regions of memory of these kinds, of endpoint 1, with their keys.
fn regions_of_kinds<B: HostBench>(
    rig: &mut Rig<B>,
    kinds: impl IntoIterator<Item = usize>,
) -> Vec<(<B::Endpoint as Endpoint>::Region, weft_fabric::RemoteKey)>
where
    B::Endpoint: HostMemory,
{
    let mut regions = Vec::new();
    for kind in kinds {
        let memory = B::memory(kind, &vec![0; LENGTH]);
        let region = register(rig, 1, &memory).expect("there is room");
        let key = rig.grant(1, &region, Access::all()).expect("a grant");
        regions.push((region, key));
    }
    regions
}

/// A vectored put and get may use memory of all kinds that are reached in one way, and is refused
/// whole.
pub fn one_operation_reaches_memory_of_different_kinds<B: HostBench>()
where
    B::Endpoint: HostMemory,
{
    for way in [Way::Direct, Way::Kernel] {
        let mut rig = Rig::<B>::new(2);
        let peer = rig.connect(0, 1);
        let reach = rig.endpoint(0).reach(peer).expect("the peer lives");
        let kinds = (0..B::kinds()).filter(|kind| B::way(*kind, reach) == way);
        let regions = regions_of_kinds(&mut rig, kinds.flat_map(|kind| [kind, kind]));
        if !regions.is_empty() {
            one_operation_reaches(&mut rig, peer, &regions);
        }
    }
}

fn one_operation_reaches<B: HostBench>(
    rig: &mut Rig<B>,
    peer: weft_fabric::Peer,
    regions: &[(<B::Endpoint as Endpoint>::Region, weft_fabric::RemoteKey)],
) where
    B::Endpoint: HostMemory,
{
    let bytes = pattern(6, LENGTH - 100);
    let mut ranges: Vec<_> = regions
        .iter()
        .map(|(_, key)| (Source::Bytes(&bytes[..]), Target::new(*key, 100)))
        .collect();
    let put = rig
        .run(0, |endpoint, context| endpoint.put_vectored(peer, &ranges, Operation::new(context)));
    assert_eq!(put, Ok(Value::Nothing));
    for (region, _) in regions {
        assert_eq!(contents(region)[100..], bytes[..]);
        region.write(0, &[0; LENGTH]).expect("inside");
    }
    let local = rig.local(0, &vec![0; regions.len() * LENGTH]);
    for (region, _) in regions {
        region.write(0, &pattern(7, LENGTH)).expect("inside");
    }
    let gets: Vec<_> = regions
        .iter()
        .zip(0..)
        .map(|((_, key), number)| {
            let into = LocalRange::new(&local, number * LENGTH as u64, LENGTH as u64);
            (Target::new(*key, 0), into)
        })
        .collect();
    let got =
        rig.run(0, |endpoint, context| endpoint.get_vectored(peer, &gets, Operation::new(context)));
    assert_eq!(
        (got, contents(&local)),
        (Ok(Value::Nothing), pattern(7, LENGTH).repeat(regions.len()))
    );
    // The last range leaves its region.
    ranges.last_mut().expect("some").1.offset = 101;
    let refused = rig
        .run(0, |endpoint, context| endpoint.put_vectored(peer, &ranges, Operation::new(context)));
    let (length, region) = (LENGTH as u64 - 100, LENGTH as u64);
    assert_eq!(refused, Err(OperationError::OutOfBounds { offset: 101, length, region }));
    for (region, _) in regions {
        assert_eq!(contents(region), pattern(7, LENGTH), "nothing was written");
    }
}

/// An operation behind an order takes effect after those before, whatever the memory.
pub fn operations_on_memory_of_different_kinds_keep_their_order<B: HostBench>()
where
    B::Endpoint: HostMemory,
{
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let regions = regions_of_kinds(&mut rig, 0..B::kinds());
    for round in 1..=4_u8 {
        let mut pending = Vec::new();
        for (_, key) in &regions {
            let bytes = vec![round; LENGTH];
            let context = rig.context();
            let mut issued = Err(OperationError::WouldBlock);
            rig.until("room for a put", |rig| {
                let target = Target::new(*key, 0);
                let put = Operation::new(context);
                issued = rig.endpoint(0).put(peer, Source::Bytes(&bytes), target, put);
                issued != Err(OperationError::WouldBlock)
            });
            rig.endpoint(0).order(peer).expect("the peer lives");
            pending.push((context, issued));
        }
        rig.send(0, peer, MessageHeader::tag(round), &[]);
        rig.messages(1, 1);
        for (region, _) in &regions {
            assert_eq!(contents(region), vec![round; LENGTH], "the message tells of it");
        }
        for (context, issued) in pending {
            assert_eq!(rig.finish(0, context, issued), Ok(Value::Nothing));
        }
    }
}

/// Operations on memory of each kind that are pending end when their peer is given up, before the
/// report, and a new pair works.
pub fn operations_on_memory_of_each_kind_end_with_the_pair<B: HostBench>()
where
    B::Endpoint: HostMemory,
{
    for kind in 0..B::kinds() {
        let mut rig = Rig::<B>::new(2);
        let peer = rig.connect(0, 1);
        let memory = B::memory(kind, &vec![0; LENGTH]);
        let region = register(&mut rig, 1, &memory).expect("there is room");
        let key = rig.grant(1, &region, Access::all()).expect("a grant");
        let bytes = pattern(8, LENGTH);
        let put = |rig: &mut Rig<B>, peer| {
            rig.run(0, |endpoint, context| {
                let (source, target) = (Source::Bytes(&bytes[..]), Target::new(key, 0));
                endpoint.put(peer, source, target, Operation::new(context))
            })
        };
        assert_eq!(put(&mut rig, peer), Ok(Value::Nothing));
        let mut pending = Vec::new();
        for _ in 0..8 {
            let context = rig.context();
            let (source, target) = (Source::Bytes(&bytes[..]), Target::new(key, 0));
            let issued = rig.endpoint(0).put(peer, source, target, Operation::new(context));
            pending.push((context, issued));
        }
        rig.endpoint(0).disconnect(peer).expect("the peer lives");
        for (context, issued) in pending {
            let end = rig.finish(0, context, issued);
            assert!(
                matches!(end, Ok(Value::Nothing) | Err(OperationError::PeerDown)),
                "kind {kind}: {end:?}"
            );
        }
        assert_eq!(put(&mut rig, peer), Err(OperationError::PeerDown), "kind {kind}");
        let there = rig.address(1);
        rig.until("the ends of the pair", |rig| rig.downs(0).len() == 1 && rig.downs(1).len() == 1);
        let peer = rig.try_connect(0, there).expect("it is open");
        assert_eq!((put(&mut rig, peer), contents(&region) == bytes), (Ok(Value::Nothing), true));
    }
}

fn register<B: HostBench>(
    rig: &mut Rig<B>,
    number: usize,
    memory: &<B::Endpoint as HostMemory>::Memory,
) -> Result<<B::Endpoint as Endpoint>::Region, RegisterError>
where
    B::Endpoint: HostMemory,
{
    rig.endpoint(number).register_memory(memory)
}

fn contents<R: Region>(region: &R) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(region.length()).expect("a length in memory")];
    region.read(0, &mut bytes).expect("inside");
    bytes
}

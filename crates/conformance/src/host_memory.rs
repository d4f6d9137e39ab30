//! Cases: memory of the host of each kind, for transports that offer
//! [`weft_fabric::HostMemory`].

use weft_fabric::{
    Access, Atomic, Endpoint, HostMemory, LocalRange, Operation, OperationError, Region,
    RegisterError, Source, Target,
};

use crate::{HostBench, Rig, pattern};

const LENGTH: usize = 64 * 1024;

/// Memory of each kind keeps its bytes when it is registered, and peers read and write them.
pub fn memory_of_each_kind_keeps_its_bytes<B: HostBench>()
where
    B::Endpoint: HostMemory,
{
    for kind in 0..B::KINDS {
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
        assert_eq!((got, contents(&local) == bytes), (Ok(0), true), "kind {kind}");
        let put = rig.run(0, |endpoint, context| {
            let target = Target::new(key, 100);
            endpoint.put(peer, Source::Bytes(&[7; 5000]), target, Operation::new(context))
        });
        let added = rig.run(0, |endpoint, context| {
            let target = Target::new(key, 8192);
            endpoint.atomic(peer, target, Atomic::fetch_add(1), Operation::new(context))
        });
        let word = u64::from_le_bytes(bytes[8192..8200].try_into().expect("8 bytes"));
        assert_eq!((put, added), (Ok(0), Ok(word)), "kind {kind}");
        let mut expected = bytes;
        expected[100..5100].fill(7);
        expected[8192..8200].copy_from_slice(&word.wrapping_add(1).to_le_bytes());
        assert_eq!(B::bytes(&memory), expected, "the program sees what peers wrote");
    }
}

/// Memory of each kind can be the local side of a put and of a get.
pub fn memory_of_each_kind_is_a_source_and_a_sink<B: HostBench>()
where
    B::Endpoint: HostMemory,
{
    for kind in 0..B::KINDS {
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
        assert_eq!((put, contents(&far) == bytes), (Ok(0), true), "kind {kind}");
        far.write(10, b"from afar").expect("inside");
        let got = rig.run(0, |endpoint, context| {
            let into = LocalRange::new(&region, 3, 9);
            endpoint.get(peer, Target::new(key, 10), into, Operation::new(context))
        });
        assert_eq!((got, &B::bytes(&memory)[3..12]), (Ok(0), &b"from afar"[..]), "kind {kind}");
    }
}

/// A revoked key of memory of each kind is worthless, and the memory keeps its bytes and its
/// address.
pub fn memory_of_each_kind_survives_a_revocation<B: HostBench>()
where
    B::Endpoint: HostMemory,
{
    for kind in 0..B::KINDS {
        let mut rig = Rig::<B>::new(2);
        let peer = rig.connect(0, 1);
        let memory = B::memory(kind, &pattern(3, LENGTH));
        let region = register(&mut rig, 1, &memory).expect("there is room");
        let base = B::Endpoint::base(&region);
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
            assert_eq!([put(9), put(9), put(9), put(round)], [Ok(0), Ok(0), Ok(0), Ok(0)]);
            rig.revoke(1, key).expect("it is in force");
            let late = rig.run(0, |endpoint, context| {
                let target = Target::new(key, 0);
                endpoint.put(peer, Source::Bytes(b"x"), target, Operation::new(context))
            });
            assert_eq!(late, Err(OperationError::InvalidKey));
            let mut expected = pattern(3, LENGTH);
            expected[0] = round;
            assert_eq!(B::bytes(&memory), expected, "kind {kind}, round {round}");
            assert_eq!(B::Endpoint::base(&region), base, "kind {kind}");
        }
    }
}

/// One memory may be registered by several endpoints. Each grants keys of its own, and they live as
/// long as their endpoints.
pub fn one_memory_serves_several_endpoints<B: HostBench>()
where
    B::Endpoint: HostMemory,
{
    for kind in 0..B::KINDS {
        let mut rig = Rig::<B>::new(3);
        let memory = B::memory(kind, &pattern(4, LENGTH));
        let mut keys = Vec::new();
        for owner in [1, 2] {
            let region = register(&mut rig, owner, &memory).expect("there is room");
            let peer = rig.connect(0, owner);
            let key = rig.grant(owner, &region, Access::all()).expect("a grant");
            keys.push((peer, key));
        }
        let add = |rig: &mut Rig<B>, (peer, key)| {
            rig.run(0, |endpoint, context| {
                let add = Atomic::fetch_add(1);
                endpoint.atomic(peer, Target::new(key, 0), add, Operation::new(context))
            })
        };
        let start = u64::from_le_bytes(pattern(4, 8).try_into().expect("8 bytes"));
        assert_eq!(add(&mut rig, keys[0]), Ok(start));
        assert_eq!(add(&mut rig, keys[1]), Ok(start.wrapping_add(1)));
        rig.revoke(1, keys[0].1).expect("it is in force");
        assert_eq!(add(&mut rig, keys[0]), Err(OperationError::InvalidKey));
        assert_eq!(add(&mut rig, keys[1]), Ok(start.wrapping_add(2)));
        let first = rig.remove(1);
        drop(first);
        assert_eq!(add(&mut rig, keys[1]), Ok(start.wrapping_add(3)));
        let seen = B::bytes(&memory);
        let word = u64::from_le_bytes(seen[..8].try_into().expect("8 bytes"));
        assert_eq!(word, start.wrapping_add(4), "kind {kind}");
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

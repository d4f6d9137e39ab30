//! Cases: regions, keys, rights and bounds.

use weft_fabric::{
    Access, Atomic, Command, Endpoint, EndpointOptions, GrantError, Issued, LocalRange, Operation,
    OperationError, Partition, PartitionId, Peer, Region, RegionError, RegisterError, RemoteKey,
    Revoked, Source, Target, Value,
};

use crate::{Bench, Rig, pattern};

/// New memory is zero, and keeps the bytes that its owner writes.
pub fn a_fresh_region_is_zero_and_keeps_what_is_written<B: Bench>() {
    let mut rig = Rig::<B>::new(1);
    let region = rig.endpoint(0).register(10_000).expect("memory is available");
    assert_eq!(region.length(), 10_000);
    let mut bytes = vec![0xff; 10_000];
    region.read(0, &mut bytes).expect("inside");
    assert!(bytes.iter().all(|byte| *byte == 0));
    let written = pattern(1, 777);
    region.write(1234, &written).expect("inside");
    let mut read = vec![0; 777];
    region.clone().read(1234, &mut read).expect("inside");
    assert_eq!(read, written);
    region.store(64, 0x0102_0304_0506_0708).expect("aligned");
    assert_eq!(region.load(64), Ok(0x0102_0304_0506_0708));
    let mut word = [0; 8];
    region.read(64, &mut word).expect("inside");
    assert_eq!(u64::from_le_bytes(word), 0x0102_0304_0506_0708);
}

/// The bounds hold for the owner, too, including offsets that overflow.
pub fn an_owner_cannot_access_bytes_outside_its_region<B: Bench>() {
    let mut rig = Rig::<B>::new(1);
    let region = rig.endpoint(0).register(64).expect("memory is available");
    let mut byte = [0; 2];
    for offset in [63, 64, 1 << 40, u64::MAX - 1, u64::MAX] {
        let refused = Err(RegionError::OutOfBounds { offset, length: 2, region: 64 });
        assert_eq!(region.read(offset, &mut byte), refused);
        assert_eq!(region.write(offset, &byte), refused);
    }
    assert_eq!(region.read(62, &mut byte), Ok(()));
    assert_eq!(region.read(64, &mut []), Ok(()));
    assert!(matches!(region.load(64), Err(RegionError::OutOfBounds { .. })));
    assert!(matches!(region.store(u64::MAX - 7, 1), Err(RegionError::OutOfBounds { .. })));
    assert_eq!(region.load(4), Err(RegionError::Misaligned { offset: 4, alignment: 8 }));
    assert_eq!(region.store(1, 1), Err(RegionError::Misaligned { offset: 1, alignment: 8 }));
}

/// A region needs at least one byte.
pub fn an_empty_region_cannot_be_registered<B: Bench>() {
    let mut rig = Rig::<B>::new(1);
    assert_eq!(rig.endpoint(0).register(0).err(), Some(RegisterError::Empty));
}

/// A grant must not be empty, and atomics need read and write as well.
pub fn an_invalid_grant_is_refused<B: Bench>() {
    let mut rig = Rig::<B>::new(1);
    let region = rig.endpoint(0).register(64).expect("memory is available");
    for access in [
        Access::empty(),
        Access::ATOMIC,
        Access::ATOMIC | Access::READ,
        Access::ATOMIC | Access::WRITE,
    ] {
        let refused = GrantError::InvalidAccess { access: access.bits() };
        assert_eq!(rig.grant(0, &region, access), Err(refused));
    }
    assert!(rig.grant(0, &region, Access::all()).is_ok());
}

/// An endpoint cannot grant another endpoint's region.
pub fn a_foreign_region_cannot_be_granted<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let region = rig.endpoint(0).register(64).expect("memory is available");
    assert_eq!(rig.grant(1, &region, Access::READ), Err(GrantError::ForeignRegion));
}

/// Each right is necessary and sufficient for its operations.
pub fn each_right_allows_what_it_names_and_nothing_else<B: Bench>() {
    let grants = [Access::READ, Access::WRITE, Access::READ | Access::WRITE, Access::all()];
    for access in grants {
        let mut rig = Rig::<B>::new(2);
        let peer = rig.connect(0, 1);
        let (_region, key) = rig.share(1, 64, access);
        for command in [Command::Put, Command::ImmediatePut, Command::Get, Command::Atomic] {
            let needed = match command {
                Command::Get => Access::READ,
                Command::Atomic => Access::ATOMIC,
                _ => Access::WRITE,
            };
            let expected = if access.contains(needed) {
                Ok(())
            } else {
                Err(OperationError::AccessDenied { command })
            };
            let result = attempt(&mut rig, peer, command, Target::new(key, 8)).map(drop);
            assert_eq!(result, expected, "{command:?} with {access:?}");
        }
    }
}

/// An operation outside the region is refused and writes nothing.
pub fn what_leaves_a_region_is_refused<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, key) = rig.share(1, 100, Access::all());
    let local = rig.local(0, &[7; 128]);
    let outside = [
        (93, 8),
        (100, 1),
        (0, 101),
        (101, 0),
        (1 << 40, 8),
        (u64::MAX, 1),
        (u64::MAX - 7, 8),
        (u64::MAX, 128),
    ];
    for (offset, length) in outside {
        let refused = OperationError::OutOfBounds { offset, length, region: 100 };
        let target = Target::new(key, offset);
        let source = || Source::Region(LocalRange { region: &local, offset: 0, length });
        let put = rig.run(0, |endpoint, context| {
            endpoint.put(peer, source(), target, Operation::new(context))
        });
        assert_eq!(put, Err(refused.clone()), "put");
        let get = rig.run(0, |endpoint, context| {
            endpoint.get(peer, target, LocalRange::new(&local, 0, length), Operation::new(context))
        });
        assert_eq!(get, Err(refused), "get");
    }
    for (offset, command) in [(96, Command::Atomic), (93, Command::ImmediatePut)] {
        let refused = OperationError::OutOfBounds { offset, length: 8, region: 100 };
        let result = attempt(&mut rig, peer, command, Target::new(key, offset));
        assert_eq!(result, Err(refused), "{command:?}");
    }
    let mut bytes = [1; 100];
    region.read(0, &mut bytes).expect("inside");
    assert_eq!(bytes, [0; 100], "nothing was written");
}

/// The range of the local region is checked as well.
pub fn a_range_outside_the_local_region_is_refused<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (_region, key) = rig.share(1, 4096, Access::all());
    let local = rig.local(0, &[7; 64]);
    for (offset, length) in [(60, 8), (65, 0), (u64::MAX, 1), (u64::MAX - 7, 8)] {
        let refused = RegionError::OutOfBounds { offset, length, region: 64 };
        let target = Target::new(key, 0);
        let put = rig.run(0, |endpoint, context| {
            let source = Source::Region(LocalRange { region: &local, offset, length });
            endpoint.put(peer, source, target, Operation::new(context))
        });
        assert_eq!(put, Err(OperationError::Local(refused.clone())));
        let get = rig.run(0, |endpoint, context| {
            endpoint.get(
                peer,
                target,
                LocalRange::new(&local, offset, length),
                Operation::new(context),
            )
        });
        assert_eq!(get, Err(OperationError::Local(refused)));
    }
}

/// A revoked key is invalid at once, for peers and for its owner.
pub fn a_revoked_key_is_worthless<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, key) = rig.share(1, 64, Access::all());
    for command in COMMANDS {
        assert!(attempt(&mut rig, peer, command, Target::new(key, 0)).is_ok());
    }
    region.write(0, &[0; 64]).expect("inside");
    assert_eq!(rig.revoke(1, key), Ok(Revoked::Published));
    for command in COMMANDS {
        let result = attempt(&mut rig, peer, command, Target::new(key, 0));
        assert_eq!(result, Err(OperationError::InvalidKey), "{command:?}");
    }
    assert!(rig.endpoint(0).window(peer, key).is_err());
    assert_eq!(region.load(0), Ok(0), "nothing was written");
    assert_eq!(rig.revoke(1, key), Err(GrantError::UnknownKey));
}

/// A revocation is a fence: when it is over, each operation before it is in the region and ends
/// well, or ends with an error, and the region does not change any more.
pub fn an_operation_before_a_revocation_is_there_or_fails<B: Bench>() {
    const EACH: usize = 1024;
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, key) = rig.share(1, 64 * EACH as u64, Access::WRITE);
    let bytes = pattern(15, EACH);
    let mut started = Vec::new();
    for number in 0..64 {
        let context = rig.context();
        let (source, target) = (Source::Bytes(&bytes), Target::new(key, number * EACH as u64));
        let issued = rig.endpoint(0).put(peer, source, target, Operation::new(context));
        started.push((context, issued));
    }
    assert_eq!(rig.revoke(1, key), Ok(Revoked::Published));
    let read = || {
        let mut all = vec![0; 64 * EACH];
        region.read(0, &mut all).expect("inside");
        all
    };
    let after = read();
    for (part, (context, issued)) in after.chunks(EACH).zip(started) {
        match rig.finish(0, context, issued) {
            Ok(_) => assert_eq!(part, bytes, "a put that ended well is there"),
            Err(OperationError::InvalidKey) => assert_eq!(part, vec![0; EACH]),
            Err(other) => panic!("{other}"),
        }
    }
    rig.settle();
    assert_eq!(read(), after, "nothing appeared later");
}

/// A region can be granted again. The new key works, and the old one stays invalid.
pub fn a_new_grant_does_not_revive_an_old_key<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, old) = rig.share(1, 64, Access::all());
    assert!(attempt(&mut rig, peer, Command::Put, Target::new(old, 0)).is_ok());
    for _ in 0..100 {
        let key = rig.grant(1, &region, Access::all()).expect("the grant is valid");
        assert_ne!(key, old);
        assert!(attempt(&mut rig, peer, Command::Put, Target::new(key, 0)).is_ok());
        rig.revoke(1, key).expect("the key was granted");
    }
    rig.revoke(1, old).expect("the key was granted");
    rig.grant(1, &region, Access::all()).expect("the grant is valid");
    let result = attempt(&mut rig, peer, Command::Put, Target::new(old, 0));
    assert_eq!(result, Err(OperationError::InvalidKey));
}

/// Two keys of one region have separate rights and are revoked separately.
pub fn two_keys_of_a_region_are_independent<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, reads) = rig.share(1, 64, Access::READ);
    let writes = rig.grant(1, &region, Access::WRITE).expect("the grant is valid");
    let denied = OperationError::AccessDenied { command: Command::Put };
    let result = attempt(&mut rig, peer, Command::Put, Target::new(reads, 0));
    assert_eq!(result, Err(denied));
    assert!(attempt(&mut rig, peer, Command::Put, Target::new(writes, 0)).is_ok());
    rig.revoke(1, writes).expect("the key was granted");
    assert!(attempt(&mut rig, peer, Command::Get, Target::new(reads, 0)).is_ok());
}

/// Numbers that are no keys are refused and have no effect.
pub fn a_key_that_was_never_granted_is_refused<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, key) = rig.share(1, 64, Access::all());
    for number in [0, !key.0, key.0 ^ (1 << 63), key.0 ^ (1 << 31), u64::MAX] {
        for command in COMMANDS {
            let result = attempt(&mut rig, peer, command, Target::new(RemoteKey(number), 0));
            assert_eq!(result, Err(OperationError::InvalidKey), "{command:?} {number:#x}");
        }
    }
    assert_eq!(rig.revoke(1, RemoteKey(!key.0)), Err(GrantError::UnknownKey));
    assert_eq!(region.load(0), Ok(0), "nothing was written");
}

/// A key is valid only in the partition of its owner.
pub fn a_key_of_another_partition_is_refused<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let partition = Partition::Numbered(PartitionId::of_user_named(rig.bench.user(), 9));
    let options = EndpointOptions { partition, ..EndpointOptions::default() };
    let hidden = rig.bench.open(&options).expect("the user's own partition");
    let hidden = rig.add(hidden);
    let (region, key) = rig.share(hidden, 64, Access::all());
    for command in COMMANDS {
        let result = attempt(&mut rig, peer, command, Target::new(key, 0));
        assert_eq!(result, Err(OperationError::InvalidKey), "{command:?}");
    }
    assert_eq!(region.load(0), Ok(0), "nothing was written");
}

const COMMANDS: [Command; 4] = [Command::Put, Command::ImmediatePut, Command::Get, Command::Atomic];

/// Attempts one operation on 8 bytes.
fn attempt<B: Bench>(
    rig: &mut Rig<B>,
    peer: Peer,
    command: Command,
    target: Target,
) -> Result<Value, OperationError> {
    let local = rig.local(0, &[0; 8]);
    let start = |endpoint: &mut B::Endpoint, context| -> Result<Issued, OperationError> {
        match command {
            Command::Put => {
                endpoint.put(peer, Source::Bytes(&[9; 8]), target, Operation::new(context))
            }
            Command::ImmediatePut => {
                endpoint.put_immediate(peer, 9, 8, target, Operation::new(context))
            }
            Command::Get => {
                endpoint.get(peer, target, LocalRange::new(&local, 0, 8), Operation::new(context))
            }
            Command::Atomic => {
                endpoint.atomic(peer, target, Atomic::fetch_add(1), Operation::new(context))
            }
            Command::NotificationPut => unreachable!("it names no region"),
        }
    };
    rig.run(0, start)
}

//! Cases: keys that an initiator has just used, several times in a row. A transport may remember
//! where such a key leads, and must look at it as it looked the first time.

use weft_fabric::{
    Access, Atomic, Audience, Command, Endpoint, LocalRange, Operation, OperationError, Peer,
    Region, RegionError, Register, RemoteKey, Source, Target, Value,
};

use crate::{Bench, Rig, pattern};

/// Uses in a row.
const USES: usize = 4;
const COMMANDS: [Command; 3] = [Command::Put, Command::Get, Command::Atomic];

/// A familiar key reaches its range and no byte outside.
pub fn a_familiar_key_keeps_to_its_range<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let bytes = pattern(1, 256);
    let region = rig.local(1, &bytes);
    let range = LocalRange::new(&region, 64, 64);
    let key = rig.grant_range(1, range, Audience::Partition, Access::all()).expect("a grant");
    for command in COMMANDS {
        use_often(&mut rig, peer, key, command);
        for offset in [57, 64, 184, 1 << 40, u64::MAX - 7] {
            let refused = OperationError::OutOfBounds { offset, length: 8, region: 64 };
            let result = attempt(&mut rig, peer, command, Target::new(key, offset));
            let misaligned = OperationError::Misaligned { offset, alignment: 8 };
            assert!(
                result == Err(refused) || result == Err(misaligned),
                "{command:?} at {offset}: {result:?}"
            );
        }
        assert_eq!(attempt(&mut rig, peer, command, Target::new(key, 56)).map(drop), Ok(()));
    }
    let mut seen = vec![0; 256];
    region.read(0, &mut seen).expect("inside");
    assert_eq!((&seen[..64], &seen[128..]), (&bytes[..64], &bytes[128..]));
}

/// A familiar key allows what it grants and nothing else.
pub fn a_familiar_key_allows_what_it_grants<B: Bench>() {
    for (access, familiar) in [
        (Access::READ, Command::Get),
        (Access::WRITE, Command::Put),
        (Access::READ | Access::WRITE, Command::Put),
    ] {
        let mut rig = Rig::<B>::new(2);
        let peer = rig.connect(0, 1);
        let (region, key) = rig.share(1, 64, access);
        use_often(&mut rig, peer, key, familiar);
        let before = region.load(32);
        for command in COMMANDS {
            let needed = match command {
                Command::Get => Access::READ,
                Command::Atomic => Access::ATOMIC,
                _ => Access::WRITE,
            };
            let result = attempt(&mut rig, peer, command, Target::new(key, 32)).map(drop);
            if access.contains(needed) {
                assert_eq!(result, Ok(()), "{command:?} with {access:?}");
            } else {
                assert_eq!(result, Err(OperationError::AccessDenied { command }), "{access:?}");
                assert_eq!(region.load(32), before, "{command:?} with {access:?}");
            }
            region.store(32, before.clone().expect("inside")).expect("inside");
        }
    }
}

/// A familiar key is worthless once it is revoked.
pub fn a_familiar_key_that_was_revoked_is_worthless<B: Bench>() {
    for command in COMMANDS {
        let mut rig = Rig::<B>::new(2);
        let peer = rig.connect(0, 1);
        let (region, key) = rig.share(1, 64, Access::all());
        use_often(&mut rig, peer, key, command);
        rig.revoke(1, key).expect("it is in force");
        region.store(8, 77).expect("inside");
        for _ in 0..USES {
            let result = attempt(&mut rig, peer, command, Target::new(key, 8));
            assert_eq!(result, Err(OperationError::InvalidKey), "{command:?}");
        }
        assert_eq!(region.load(8), Ok(77), "{command:?}");
        let again = rig.grant(1, &region, Access::all()).expect("a grant");
        use_often(&mut rig, peer, again, command);
    }
}

/// Familiar keys of one memory and of one peer lead each to their own bytes, in turn and one after
/// another.
pub fn familiar_keys_are_told_apart<B: Bench>() {
    let mut rig = Rig::<B>::new(3);
    let peers = [rig.connect(0, 1), rig.connect(0, 2)];
    let (one, first) = rig.share(1, 64, Access::all());
    let (two, second) = rig.share(1, 64, Access::all());
    let (three, third) = rig.share(2, 64, Access::all());
    let shared = [(peers[0], first, &one), (peers[0], second, &two), (peers[1], third, &three)];
    let mut value = 0;
    for row in [1, USES] {
        for _ in 0..2 {
            for (peer, key, region) in shared {
                for _ in 0..row {
                    value += 1;
                    assert_eq!(
                        put(&mut rig, peer, Target::new(key, 16), value),
                        Ok(Value::Nothing)
                    );
                    assert_eq!(region.load(16), Ok(value));
                }
            }
        }
    }
    // A key of one peer is none of another, however familiar.
    use_often(&mut rig, peers[0], first, Command::Put);
    for command in COMMANDS {
        let result = attempt(&mut rig, peers[1], command, Target::new(first, 16));
        assert_eq!(result, Err(OperationError::InvalidKey), "{command:?}");
    }
}

/// A familiar key of a peer that is gone is refused because the peer is gone.
pub fn a_familiar_key_of_a_dead_peer_is_refused<B: Bench>() {
    for command in COMMANDS {
        let mut rig = Rig::<B>::new(2);
        let peer = rig.connect(0, 1);
        let (_region, key) = rig.share(1, 64, Access::all());
        use_often(&mut rig, peer, key, command);
        rig.kill(1);
        rig.until("the peer is down", |rig| !rig.downs(0).is_empty());
        let result = attempt(&mut rig, peer, command, Target::new(key, 16));
        assert_eq!(result, Err(OperationError::PeerDown), "{command:?}");
    }
}

/// Operations by a familiar key are counted as all others.
pub fn operations_by_a_familiar_key_are_counted<B: Bench>() {
    let uses = u64::try_from(USES).expect("small");
    for (command, register, bytes) in [
        (Command::Put, Register::Puts, Some(Register::PutBytes)),
        (Command::Get, Register::Gets, Some(Register::GetBytes)),
        (Command::Atomic, Register::Atomics, None),
    ] {
        let mut rig = Rig::<B>::new(2);
        let peer = rig.connect(0, 1);
        let (_region, key) = rig.share(1, 64, Access::all());
        for turn in 1..=3 {
            use_often(&mut rig, peer, key, command);
            assert_eq!(rig.endpoint(0).register_value(register), turn * uses, "{command:?}");
            if let Some(bytes) = bytes {
                assert_eq!(rig.endpoint(0).register_value(bytes), turn * uses * 8, "{command:?}");
            }
        }
    }
}

/// A range outside the local region is refused also where the remote one is familiar.
pub fn a_familiar_key_reaches_no_local_bytes_outside<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (_region, key) = rig.share(1, 256, Access::all());
    use_often(&mut rig, peer, key, Command::Put);
    let local = rig.local(0, &[7; 64]);
    for offset in [57, 64, u64::MAX] {
        let outside = RegionError::OutOfBounds { offset, length: 8, region: 64 };
        let outside = OperationError::Local(outside);
        let range = LocalRange::new(&local, offset, 8);
        let put = rig.run(0, |endpoint, context| {
            let source = Source::Region(range);
            endpoint.put(peer, source, Target::new(key, 0), Operation::new(context))
        });
        let got = rig.run(0, |endpoint, context| {
            endpoint.get(peer, Target::new(key, 0), range, Operation::new(context))
        });
        assert_eq!([put, got], [Err(outside.clone()), Err(outside)]);
    }
}

fn put<B: Bench>(
    rig: &mut Rig<B>,
    peer: Peer,
    target: Target,
    value: u64,
) -> Result<Value, OperationError> {
    rig.run(0, |endpoint, context| {
        let bytes = value.to_le_bytes();
        endpoint.put(peer, Source::Bytes(&bytes), target, Operation::new(context))
    })
}

/// An operation on the word of a target.
fn attempt<B: Bench>(
    rig: &mut Rig<B>,
    peer: Peer,
    command: Command,
    target: Target,
) -> Result<Value, OperationError> {
    match command {
        Command::Get => {
            let local = rig.local(0, &[0; 8]);
            rig.run(0, |endpoint, context| {
                let into = LocalRange::whole(&local);
                endpoint.get(peer, target, into, Operation::new(context))
            })
        }
        Command::Atomic => rig.run(0, |endpoint, context| {
            endpoint.atomic(peer, target, Atomic::fetch_add(1), Operation::new(context))
        }),
        _ => put(rig, peer, target, 5),
    }
}

/// Makes a key familiar by an operation that it allows.
fn use_often<B: Bench>(rig: &mut Rig<B>, peer: Peer, key: RemoteKey, command: Command) {
    for _ in 0..USES {
        let done = attempt(rig, peer, command, Target::new(key, 0)).map(drop);
        assert_eq!(done, Ok(()), "{command:?}");
    }
}

//! A write that fails although its key is in force ends its pair: a word that was put behind it
//! must not arrive over a new connection and tell of bytes that are not there.

mod common;

use weft_fabric::{
    Access, Audience, Blocking, DownReason, Endpoint, Event, LocalRange, Operation, OperationError,
    PATIENCE, Region, Source, Target,
};
use weft_transport_ofi::seeded::{SeededNet, Settings};

const BYTES: usize = 5_000;

/// The word is called for at once, or when the program has heard that the write failed.
fn the_word_never_arrives(calls_at_once: bool) {
    let net = SeededNet::new(Settings::default());
    let ([mut one, mut two], peer) = common::pair(&net);
    let region = two.register(8 + BYTES as u64).expect("memory");
    let range = LocalRange::whole(&region);
    let key = two.grant_within(range, Audience::Partition, Access::all(), PATIENCE);
    let key = key.expect("a key");
    // The key is known before the write is lost.
    one.resolve_within(peer, key, PATIENCE).expect("a key");
    net.lose_write();
    let (source, target) = (Source::Bytes(&[7; BYTES]), Target::new(key, 8));
    assert!(one.put(peer, source, target, Operation::new(1)).is_ok());
    let mut is_called = false;
    let (mut failed, mut down) = (None, None);
    for _ in 0..20_000 {
        if !is_called && (calls_at_once || failed.is_some()) {
            let word = Operation::new(2).quiet().ordered();
            is_called = true;
            // It may be refused already.
            let _ = one.put_immediate(peer, 1, 8, Target::new(key, 0), word);
        }
        net.step();
        one.poll(64, &mut |event| match event {
            Event::Completion(ended) if ended.context == 1 => failed = ended.result.err(),
            Event::PeerDown { reason, .. } => down = Some(reason),
            _ => {}
        });
        two.poll(64, &mut |_| {});
    }
    // The key is in force: the peer was not reached.
    assert_eq!((failed, is_called), (Some(OperationError::PeerDown), true));
    assert_eq!(region.load(0), Ok(0), "a word tells of bytes that are not there");
    assert_eq!(down, Some(DownReason::Unreachable));
}

#[test]
fn a_word_that_waits_for_a_write_is_lost_with_it() {
    the_word_never_arrives(true);
}

#[test]
fn a_word_behind_a_write_that_was_lost_never_arrives() {
    the_word_never_arrives(false);
}

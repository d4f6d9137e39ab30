//! Cases: windows.

use weft_fabric::{
    Access, Audience, Command, Endpoint, LocalRange, OperationError, Region, RemoteKey, Window,
    Word,
};

use crate::{Bench, Rig, pattern};

/// A stored value is in the region when the call returns, and a load reads the region.
pub fn a_window_stores_and_loads<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, key) = rig.share(1, 10_000, Access::READ | Access::WRITE);
    let Some(window) = rig.window(0, peer, key) else { return };
    assert_eq!(window.length(), 10_000);
    for (offset, size) in [(0, 8), (3, 1), (17, 500), (1, 9_999), (10_000, 0), (9_999, 1)] {
        let bytes = pattern(offset, size);
        assert_eq!(window.store(offset, &bytes), Ok(()));
        let mut found = vec![0; size];
        region.read(offset, &mut found).expect("inside");
        assert_eq!(found, bytes);
        region.write(offset, &pattern(!offset, size)).expect("inside");
        assert_eq!(window.load(offset, &mut found), Ok(()));
        assert_eq!(found, pattern(!offset, size));
    }
}

/// A window ends where the region ends.
pub fn a_window_keeps_to_its_region<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (_region, key) = rig.share(1, 100, Access::all());
    let Some(window) = rig.window(0, peer, key) else { return };
    let mut bytes = [0; 8];
    for offset in [93, 100, 1 << 40, u64::MAX - 7, u64::MAX] {
        let refused = Err(OperationError::OutOfBounds { offset, length: 8, region: 100 });
        assert_eq!(window.load(offset, &mut bytes), refused);
        assert_eq!(window.store(offset, &bytes), refused);
    }
}

/// A word of each width is loaded and stored whole, and leaves its neighbours alone.
pub fn a_window_loads_and_stores_words_of_each_width<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, key) = rig.share(1, 64, Access::READ | Access::WRITE);
    let Some(window) = rig.window(0, peer, key) else { return };
    check_words::<u8>(&window, &region);
    check_words::<u16>(&window, &region);
    check_words::<u32>(&window, &region);
    check_words::<u64>(&window, &region);
}

fn check_words<W: Word>(window: &impl Window, region: &impl Region) {
    const VALUE: u64 = 0x8182_8384_8586_8788;
    let width = usize::from(W::BYTES);
    for at in (0..64).step_by(width) {
        let offset = usize::try_from(at).expect("small");
        let mut expected = pattern(at, 64);
        region.write(0, &expected).expect("inside");
        assert_eq!(window.store_word(at, W::of_value(VALUE)), Ok(()));
        expected[offset..offset + width].copy_from_slice(&VALUE.to_ne_bytes()[..width]);
        let mut found = [0; 64];
        region.read(0, &mut found).expect("inside");
        assert_eq!(found[..], expected, "{width} bytes at {offset}");
        let loaded = window.load_word::<W>(at).map(Word::value);
        assert_eq!(loaded, Ok(W::of_value(VALUE).value()));
    }
}

/// A word must lie inside its window, at a multiple of its size in memory, and the key must allow
/// it.
pub fn a_word_that_is_misplaced_or_not_allowed_is_refused<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, _) = rig.share(1, 64, Access::all());
    let key = rig.run(1, |endpoint, context| {
        let range = LocalRange::new(&region, 2, 16);
        Ok(endpoint.grant(range, Audience::Partition, Access::READ, context)?)
    });
    let key = key.expect("a grant").key().expect("the value of a grant is a key");
    let Some(window) = rig.window(0, peer, key) else { return };
    assert_eq!(window.load_word::<u64>(6), Ok(0), "the place in memory counts");
    let misaligned = |offset, alignment| OperationError::Misaligned { offset, alignment };
    assert_eq!(window.load_word::<u64>(8), Err(misaligned(8, 8)));
    assert_eq!(window.load_word::<u32>(4), Err(misaligned(4, 4)));
    assert_eq!(window.load_word::<u16>(5), Err(misaligned(5, 2)));
    let outside = OperationError::OutOfBounds { offset: 14, length: 8, region: 16 };
    assert_eq!(window.load_word::<u64>(14), Err(outside));
    let denied = OperationError::AccessDenied { command: Command::Put };
    assert_eq!(window.store_word(6, 1_u64), Err(denied));
    rig.revoke(1, key).expect("the key was granted");
    assert_eq!(window.load_word::<u64>(6), Err(OperationError::InvalidKey));
    assert_eq!(window.store_word(6, 1_u64), Err(OperationError::InvalidKey));
}

/// A window permits what its key permits.
pub fn a_window_gives_the_rights_of_its_key<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (_reads, key) = rig.share(1, 64, Access::READ);
    let Some(window) = rig.window(0, peer, key) else { return };
    let mut bytes = [0; 8];
    assert_eq!(window.load(0, &mut bytes), Ok(()));
    let denied = Err(OperationError::AccessDenied { command: Command::Put });
    assert_eq!(window.store(0, &bytes), denied);
    let (_writes, key) = rig.share(1, 64, Access::WRITE);
    let Some(window) = rig.window(0, peer, key) else { return };
    assert_eq!(window.store(0, &bytes), Ok(()));
    let denied = Err(OperationError::AccessDenied { command: Command::Get });
    assert_eq!(window.load(0, &mut bytes), denied);
}

/// An invalid key opens no window.
pub fn a_window_needs_a_valid_key<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (_region, key) = rig.share(1, 64, Access::READ);
    let opened = rig.endpoint(0).window(peer, RemoteKey(!key.0));
    assert_eq!(opened.err(), Some(OperationError::InvalidKey));
    rig.revoke(1, key).expect("the key was granted");
    let opened = rig.endpoint(0).window(peer, key);
    assert_eq!(opened.err(), Some(OperationError::InvalidKey));
}

/// A window cannot be used after its key was revoked.
pub fn a_window_dies_with_its_key<B: Bench>() {
    let mut rig = Rig::<B>::new(2);
    let peer = rig.connect(0, 1);
    let (region, key) = rig.share(1, 64, Access::all());
    let Some(window) = rig.window(0, peer, key) else { return };
    assert_eq!(window.store(0, &[1; 8]), Ok(()));
    rig.revoke(1, key).expect("the key was granted");
    let mut bytes = [0; 8];
    assert_eq!(window.store(0, &[2; 8]), Err(OperationError::InvalidKey));
    assert_eq!(window.load(0, &mut bytes), Err(OperationError::InvalidKey));
    assert_eq!(region.load(0), Ok(0x0101_0101_0101_0101), "nothing was written");
}

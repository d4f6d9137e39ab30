//! Cases: windows.

use weft_fabric::{Access, Command, Endpoint, OperationError, Region, RemoteKey, Window};

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

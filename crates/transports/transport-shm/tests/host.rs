//! The offers of this transport beyond the core: copies by the kernel, and windows at an address.
#![cfg(not(loom))]

use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::MemfdFlags;
use weft_fabric::{
    Access, Addressable, Audience, Blocking, Endpoint, EndpointOptions, HostMemory, HostWindow,
    LocalRange, NodeId, Operation, OperationError, PATIENCE, Peer, Region, RemoteKey, Source,
    Target, Transport, Window,
};
use weft_memory::{Memory, MemoryOptions, Reservation};
use weft_transport_shm::broker::Limits;
use weft_transport_shm::door::{Door, on_passing};
use weft_transport_shm::local_broker;
use weft_transport_shm::{Parameters, ShmEndpoint, ShmRegion, ShmTransport};

fn endpoints<const N: usize>() -> [ShmEndpoint; N] {
    let broker = Arc::new(local_broker(NodeId::LOCAL, Limits::default()));
    let transport = ShmTransport::new(broker, Parameters::default());
    std::array::from_fn(|_| transport.open(&EndpointOptions::default()).expect("a fresh broker"))
}

fn page() -> usize {
    rustix::param::page_size()
}

/// A key to a range of a region for a peer, and the handle by which the peer uses it.
fn share(
    owner: &mut ShmEndpoint,
    range: LocalRange<'_, ShmRegion>,
    access: Access,
    of: &mut ShmEndpoint,
) -> (Peer, RemoteKey) {
    let to = of.connect_within(owner.address(), PATIENCE).expect("there");
    let key = owner.grant_within(range, Audience::Partition, access, PATIENCE);
    (to, key.expect("a grant"))
}

fn file(bytes: &[u8]) -> OwnedFd {
    let file = rustix::fs::memfd_create("file", MemfdFlags::CLOEXEC).expect("memory");
    assert_eq!(rustix::io::pwrite(&file, bytes, 0), Ok(bytes.len()));
    file
}

fn contents(region: &ShmRegion, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    region.read(offset, &mut bytes).expect("inside");
    bytes
}

/// The word at an offset of memory that has an address, read as a program reads it.
fn word_at(base: NonNull<u8>, offset: usize) -> &'static AtomicU64 {
    // SAFETY: the tests use the word while its mapping exists, and at a multiple of 8.
    unsafe { AtomicU64::from_ptr(base.as_ptr().add(offset).cast()) }
}

#[test]
fn the_kernel_copies_between_regions_windows_files_and_sockets() {
    let [mut owner, mut peer] = endpoints();
    let region = owner.register(8192).expect("memory");
    let range = LocalRange::new(&region, 100, 1000);
    let (to, key) = share(&mut owner, range, Access::READ | Access::WRITE, &mut peer);
    let window = peer.window(to, key).expect("a valid key");
    let from = file(b"0123456789");
    let mut head = [0; 2];
    assert_eq!(region.fill(&mut head, 100, 5, from.as_fd(), Some(1)).expect("a file"), 7);
    assert_eq!((&head, &contents(&region, 100, 6)[..]), (b"12", &b"34567\0"[..]));
    assert_eq!(window.fill(&mut head, 10, 100, from.as_fd(), Some(4)).expect("a file"), 6);
    assert_eq!((&head, &contents(&region, 110, 5)[..]), (b"45", &b"6789\0"[..]));
    let into = file(b"");
    assert_eq!(window.pour(b"h:", 0, 5, into.as_fd(), Some(3)).expect("a file"), 7);
    assert_eq!(region.pour(&[], 110, 4, into.as_fd(), Some(10)).expect("a file"), 4);
    let mut written = [9; 20];
    assert_eq!(rustix::io::pread(&into, &mut written, 0), Ok(14));
    assert_eq!(&written[..14], b"\0\0\0h:345676789");
    let (near, far) = UnixStream::pair().expect("a pair");
    assert_eq!(region.pour(b"to ", 100, 5, near.as_fd(), None).expect("a socket"), 8);
    assert_eq!(window.fill(&mut head, 500, 90, far.as_fd(), None).expect("a socket"), 8);
    assert_eq!((&head, &contents(&region, 600, 7)[..]), (b"to", &b" 34567\0"[..]));
    let no_position = region.pour(&[], 0, 5, near.as_fd(), Some(0)).map_err(|e| e.raw_os_error());
    assert_eq!(no_position, Err(Some(rustix::io::Errno::SPIPE.raw_os_error())));
}

#[test]
fn a_copy_by_the_kernel_keeps_to_bounds_and_rights() {
    let [mut owner, mut peer] = endpoints();
    let region = owner.register(4096).expect("memory");
    let (to, key) = share(&mut owner, LocalRange::new(&region, 0, 64), Access::READ, &mut peer);
    let window = peer.window(to, key).expect("a valid key");
    let some = file(&[1; 100]);
    for (offset, length) in [(60, 5), (64, 1), (u64::MAX, 2)] {
        let poured = window.pour(&[], offset, length, some.as_fd(), None);
        assert_eq!(poured.map_err(|error| error.kind()), Err(ErrorKind::InvalidInput));
    }
    for (offset, length) in [(4095, 2), (4097, 0), (u64::MAX, 2)] {
        let poured = region.pour(&[], offset, length, some.as_fd(), None);
        assert_eq!(poured.map_err(|error| error.kind()), Err(ErrorKind::InvalidInput));
        let filled = region.fill(&mut [], offset, length, some.as_fd(), None);
        assert_eq!(filled.map_err(|error| error.kind()), Err(ErrorKind::InvalidInput));
    }
    let filled = window.fill(&mut [], 0, 4, some.as_fd(), Some(0));
    assert_eq!(filled.map_err(|error| error.kind()), Err(ErrorKind::InvalidInput), "read-only");
    assert_eq!(contents(&region, 0, 4), [0; 4]);
    owner.revoke_within(key, PATIENCE).expect("in force");
    let poured = window.pour(&[], 0, 4, some.as_fd(), Some(0));
    assert_eq!(poured.map_err(|error| error.kind()), Err(ErrorKind::InvalidInput), "revoked");
}

#[test]
fn memory_of_all_peers_lies_in_one_range_by_arithmetic() {
    const PEERS: usize = 3;
    let stride = 4 * page();
    let reservation = Reservation::reserve(PEERS * stride).expect("addresses");
    let [mut own, mut left, mut right] = endpoints();
    let heap = MemoryOptions::bytes(2 * page());
    let memory = Memory::fresh_at(heap, &reservation, 0).expect("free");
    let region = own.register_memory(&memory).expect("room");
    let base = region.base();
    assert_eq!(base, reservation.base());
    let mut windows = Vec::new();
    let mut regions = Vec::new();
    for (slot, peer) in (1..).zip([&mut left, &mut right]) {
        let theirs = peer.register(2 * page() as u64).expect("memory");
        let whole = LocalRange::whole(&theirs);
        let (to, key) = share(peer, whole, Access::READ | Access::WRITE, &mut own);
        let window = own.window(to, key).expect("a valid key");
        windows.push(window.at(&reservation, slot * stride).expect("free"));
        regions.push(theirs);
    }
    for (slot, (window, theirs)) in (1..).zip(windows.iter().zip(&regions)) {
        let word = word_at(base, slot * stride + page());
        word.store(slot as u64, Ordering::Release);
        assert_eq!(theirs.load(page() as u64), Ok(slot as u64));
        assert_eq!(window.load_word::<u64>(page() as u64), Ok(slot as u64));
        theirs.store(8, 7).expect("inside");
        assert_eq!(word_at(base, slot * stride + 8).load(Ordering::Acquire), 7);
        assert_eq!(window.confirm(), Ok(()));
    }
}

#[test]
fn a_window_has_its_place_for_itself_and_gives_it_back() {
    let [mut owner, mut peer] = endpoints();
    let region = owner.register(3 * page() as u64).expect("memory");
    // The range begins inside the second page.
    let range = LocalRange::new(&region, page() as u64 + 24, page() as u64);
    let (to, key) = share(&mut owner, range, Access::READ, &mut peer);
    let window = peer.window(to, key).expect("a valid key");
    let reservation = Reservation::reserve(4 * page()).expect("addresses");
    let placed = window.at(&reservation, page()).expect("free");
    let start = reservation.base().addr().get() + page() + 24;
    assert_eq!(placed.base().addr().get(), start);
    for offset in [0, 8, page(), 2 * page(), 3 * page(), usize::MAX] {
        let refused = window.at(&reservation, offset).map(drop);
        assert_eq!(refused.map_err(|error| error.kind()), Err(ErrorKind::InvalidInput));
    }
    region.store(page() as u64 + 24, 5).expect("inside");
    drop(window);
    assert_eq!(word_at(placed.base(), 0).load(Ordering::Acquire), 5);
    assert_eq!((placed.load_word(0), placed.length()), (Ok(5_u64), page() as u64));
    let denied = placed.store_word(0, 1_u64);
    assert!(matches!(denied, Err(OperationError::AccessDenied { .. })), "{denied:?}");
    drop(placed);
    let again = peer.window(to, key).expect("a valid key").at(&reservation, page());
    assert_eq!(again.expect("it is free again").load_word(0), Ok(5_u64));
}

/// How a window loses its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Loss {
    Revoked,
    Moved,
    Dead,
}

#[test]
fn what_is_mapped_stays_memory_whatever_the_peer_does() {
    for loss in [Loss::Revoked, Loss::Moved, Loss::Dead] {
        let [mut owner, mut peer, mut other] = endpoints();
        let region = owner.register(2 * page() as u64).expect("memory");
        let whole = LocalRange::whole(&region);
        let (to, key) = share(&mut owner, whole, Access::all(), &mut peer);
        let (at, lost) = share(&mut owner, whole, Access::all(), &mut other);
        let put = other.put(at, Source::Bytes(b"used"), Target::new(lost, 0), Operation::new(0));
        assert!(put.is_ok(), "{put:?}");
        let reservation = Reservation::reserve(2 * page()).expect("addresses");
        let window = peer.window(to, key).expect("a valid key").at(&reservation, 0).expect("free");
        let word = word_at(window.base(), 64);
        word.store(1, Ordering::Release);
        assert_eq!(window.confirm(), Ok(()));
        let mut owner = Some(owner);
        match (loss, &mut owner) {
            (Loss::Revoked, Some(owner)) => drop(owner.revoke_within(key, PATIENCE)),
            (Loss::Moved, Some(owner)) => drop(owner.revoke_within(lost, PATIENCE)),
            _ => {
                owner.take().expect("alive").vanish();
                peer.poll(16, &mut |_| {});
            }
        }
        // A store from before is in the region. A later one stays in the memory mapped here.
        word.store(2, Ordering::Release);
        assert_eq!(word.load(Ordering::Acquire), 2, "{loss:?}");
        let ended = match loss {
            Loss::Dead => OperationError::PeerDown,
            Loss::Revoked => OperationError::InvalidKey,
            Loss::Moved => OperationError::Interrupted,
        };
        assert_eq!(window.confirm(), Err(ended), "{loss:?}");
        let called = match loss {
            Loss::Dead => OperationError::PeerDown,
            Loss::Revoked | Loss::Moved => OperationError::InvalidKey,
        };
        assert_eq!(window.load_word::<u64>(64), Err(called), "{loss:?}");
        if loss != Loss::Dead {
            assert_eq!(region.load(64), Ok(1), "{loss:?}");
        }
        drop(window);
        if loss == Loss::Moved {
            let window = further(&mut peer, to, key).at(&reservation, 0).expect("free again");
            let word = word_at(window.base(), 64);
            assert_eq!(word.load(Ordering::Acquire), 1);
            word.store(3, Ordering::Release);
            assert_eq!((window.confirm(), region.load(64)), (Ok(()), Ok(3)));
        }
    }
}

/// A further window, when the owner has published where the memory is.
fn further(peer: &mut ShmEndpoint, to: Peer, key: RemoteKey) -> weft_transport_shm::ShmWindow {
    loop {
        match peer.window(to, key) {
            Ok(window) => return window,
            Err(OperationError::WouldBlock) => drop(peer.poll(16, &mut |_| {})),
            Err(other) => panic!("a valid key: {other}"),
        }
    }
}

/// Has this thread revoke a key of `owner` the first time that it passes `door`.
fn revoke_at(door: Door, owner: ShmEndpoint, key: RemoteKey) {
    let mut owner = Some(owner);
    on_passing(move |passed| {
        if passed == door
            && let Some(mut owner) = owner.take()
        {
            owner.revoke_within(key, PATIENCE).expect("in force");
        }
    });
}

#[test]
fn a_copy_by_the_kernel_that_meets_a_revocation_is_refused() {
    for (door, fills) in
        [Door::Before, Door::Behind].map(|door| [(door, false), (door, true)]).as_flattened()
    {
        let [mut owner, mut peer] = endpoints();
        let region = owner.register(4096).expect("memory");
        let whole = LocalRange::whole(&region);
        let (to, key) = share(&mut owner, whole, Access::READ | Access::WRITE, &mut peer);
        let window = peer.window(to, key).expect("a valid key");
        let other = file(&[1; 8]);
        revoke_at(*door, owner, key);
        let copied = match fills {
            true => window.fill(&mut [], 0, 8, other.as_fd(), Some(0)),
            false => window.pour(&[], 0, 8, other.as_fd(), Some(0)),
        };
        on_passing(|_| {});
        assert_eq!(copied.map_err(|error| error.kind()), Err(ErrorKind::InvalidInput), "{door:?}");
        let is_there = *door == Door::Behind && *fills;
        assert_eq!(contents(&region, 0, 8), [u8::from(is_there); 8], "{door:?}");
    }
}

#[test]
fn a_word_that_meets_a_revocation_is_there_or_refused() {
    for door in [Door::Before, Door::Behind] {
        let [mut owner, mut peer] = endpoints();
        let region = owner.register(4096).expect("memory");
        let whole = LocalRange::whole(&region);
        let (to, key) = share(&mut owner, whole, Access::READ | Access::WRITE, &mut peer);
        let window = peer.window(to, key).expect("a valid key");
        revoke_at(door, owner, key);
        assert_eq!(window.store_word(8, 1_u32), Err(OperationError::InvalidKey), "{door:?}");
        on_passing(|_| {});
        let expected = if door == Door::Before { 0 } else { 1 };
        assert_eq!(region.load(8), Ok(expected), "{door:?}");
    }
}

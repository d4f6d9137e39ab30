//! One thread drives a carrier for others: it is woken for what their calls found, and a lane that
//! its peer closed is not taken for one that was lost.

mod fabrics;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use weft_fabric::{Armed, Carry, SendCursor, Standing, WaitFor, Wake};
use weft_lane::{Carrier, EndpointLane, Falling, Layout, Settings, Told};
use weft_transport_shm::ShmEndpoint;

use fabrics::{Fabric, Shm};

const SMALL: Layout = Layout { slots: 16, sink_bytes: 4096 };
/// Polls within which everything has happened in shared memory.
const POLLS: u32 = 10_000;

type Ends = [EndpointLane<ShmEndpoint>; 2];

fn pair() -> (Shm, [Carrier<ShmEndpoint>; 2], Ends) {
    let fabric = Shm::new();
    let settings = Settings { layout: SMALL, lanes_max: 4, ..Settings::default() };
    let carriers = [0, 1].map(|node| Carrier::new(fabric.open(node), settings));
    let ends = fabrics::lane(&fabric, &carriers, 7);
    (fabric, carriers, ends)
}

/// Counts alarms.
fn alarms(carrier: &Carrier<ShmEndpoint>) -> Arc<AtomicU32> {
    let count = Arc::new(AtomicU32::new(0));
    let counts = Arc::clone(&count);
    carrier.set_alarm(Box::new(move || {
        counts.fetch_add(1, Ordering::Relaxed);
    }));
    count
}

/// Sleeps as the driving thread does, as soon as nothing is left to do.
fn fall_asleep(carrier: &Carrier<ShmEndpoint>) {
    for _ in 0..POLLS {
        carrier.poll();
        while carrier.told().is_some() {}
        if carrier.sleep() == Armed::Sleep {
            return;
        }
    }
    panic!("it never sleeps: {carrier:?}");
}

#[test]
fn the_driving_thread_is_woken_for_a_ring_that_another_thread_found() {
    let (_fabric, [left, right], [from, to]) = pair();
    let count = alarms(&right);
    fall_asleep(&right);
    to.arm(WaitFor::Data);
    from.send(&mut SendCursor::default(), 1, &[b"x"]).expect("room");
    left.poll();
    // A call of another thread on another lane.
    right.poll();
    assert_eq!(count.load(Ordering::Relaxed), 1);
    assert!(matches!(right.told(), Some(Told::Rung(_, WaitFor::Data))));
    right.poll();
    assert_eq!(count.load(Ordering::Relaxed), 1, "it is awake, and needs no further alarm");
}

#[test]
fn the_driving_thread_is_woken_when_another_ends_the_arming_but_not_while_it_rests() {
    let (_fabric, [_left, right], _ends) = pair();
    let count = alarms(&right);
    fall_asleep(&right);
    right.poll();
    assert_eq!(count.load(Ordering::Relaxed), 1, "nobody else would see what arrives");
    assert!(right.rest(false));
    right.poll();
    assert_eq!(count.load(Ordering::Relaxed), 1, "it looks again by itself, soon");
}

/// Falls asleep as a thread of the program, as soon as nothing is left to do.
fn thread_sleeps(carrier: &Carrier<ShmEndpoint>, thread: u64) -> Falling {
    for _ in 0..POLLS {
        carrier.poll();
        match carrier.falls_asleep(thread) {
            Falling::LookAgain => {}
            falling => return falling,
        }
    }
    panic!("it never sleeps: {carrier:?}");
}

#[test]
fn a_thread_that_sleeps_alone_takes_what_arrives_and_wakes_nobody() {
    let (_fabric, [left, right], [from, to]) = pair();
    let count = alarms(&right);
    right.poll();
    assert!(right.rest(false));
    to.arm(WaitFor::Data);
    let Falling::Watches(sleep) = thread_sleeps(&right, 1) else { panic!("it sleeps alone") };
    from.send(&mut SendCursor::default(), 1, &[b"x"]).expect("room");
    left.poll();
    assert_eq!(right.woke(sleep), [to.number()]);
    assert_eq!(count.load(Ordering::Relaxed), 0);
}

#[test]
fn a_second_sleeper_is_woken_by_the_driving_thread_when_the_watcher_has_left() {
    let (_fabric, [_left, right], _ends) = pair();
    let count = alarms(&right);
    right.poll();
    assert!(right.rest(false));
    let Falling::Watches(first) = thread_sleeps(&right, 1) else { panic!("it sleeps alone") };
    let Falling::IsWatched(second) = thread_sleeps(&right, 2) else { panic!("two sleep") };
    assert!(right.is_watched() && !right.is_wanted());
    // The poll of the second ended the arming on which the first sleeps.
    assert_eq!(count.swap(0, Ordering::Relaxed), 1);
    assert!(right.rest(true), "armed again for the first");
    assert!(right.woke(first).is_empty());
    assert_eq!(count.load(Ordering::Relaxed), 1, "the driving thread has to watch");
    assert!(right.is_wanted());
    assert!(right.woke(second).is_empty());
    assert!(!right.is_wanted());
}

#[test]
fn a_lane_that_its_peer_closed_is_closed_also_for_an_end_that_still_posts() {
    let (_fabric, [left, right], [from, to]) = pair();
    drop(to);
    // The peer's key goes; its word that it closed lies in this end's endpoint, unread.
    (0..POLLS).for_each(|_| right.poll());
    from.post(3, 9);
    for _ in 0..POLLS {
        if from.is_over() {
            break;
        }
        left.poll();
        right.poll();
    }
    assert_eq!(from.standing(), Standing::Closed);
}

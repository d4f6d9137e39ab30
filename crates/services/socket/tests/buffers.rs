//! Buffers with sizes that the program set: fewer bytes are on their way, and all of them arrive.

use weft_socket::{Limits, ReceiveSide, SendSide, Side, WriteError};
use weft_transport_shm::lane::ShmLane;

mod ends;

const LIMITS: Limits = Limits { eager_bytes: 0, chunk_bytes: 4096 };

/// Writes until the lane is full, and returns the number of bytes written.
fn fill(side: &mut SendSide, lane: &ShmLane) -> usize {
    let mut total = 0;
    loop {
        match side.write(lane, &[&[7; 100_000]], LIMITS) {
            Ok(written) => total += written.bytes,
            Err(WriteError::Full) => return total,
            Err(error) => panic!("{error:?}"),
        }
    }
}

#[test]
fn no_more_is_on_its_way_than_both_fixed_buffers_hold() {
    let (server, client) = ends::memory();
    let (mut from_server, mut from_client) = (SendSide::default(), SendSide::default());
    from_server.fix_buffers(&server, 0, 5000);
    from_client.fix_buffers(&client, 3000, 0);
    assert!(from_client.switch(&client, Side::Connected));
    let sent = fill(&mut from_client, &client);
    assert!((6000..=8000).contains(&sent), "{sent}");
    assert!(!from_client.writable(&client));

    let mut receive = ReceiveSide::default();
    receive.origin(&server);
    let mut target = vec![0; 100_000];
    let read = receive.read(&server, &mut target, false).expect("data");
    assert_eq!(read.bytes, sent);
    assert!(from_client.writable(&client));
    assert!(fill(&mut from_client, &client) > 0);
}

#[test]
fn a_buffer_that_only_one_side_fixed_limits_nothing() {
    for (send, receive) in [(3000, 0), (0, 3000)] {
        let (server, client) = ends::memory();
        let (mut from_server, mut from_client) = (SendSide::default(), SendSide::default());
        from_server.fix_buffers(&server, 0, receive);
        from_client.fix_buffers(&client, send, 0);
        assert!(from_client.switch(&client, Side::Connected));
        assert!(fill(&mut from_client, &client) > 30_000);
    }
}

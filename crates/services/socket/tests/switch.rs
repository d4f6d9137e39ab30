//! The switch and the half close: which end may ring its peer, in the cases that a driver meets.

use std::os::fd::AsFd;

use weft_fabric::{Carry, WaitFor, Wake};
use weft_socket::{
    Leave, Limits, Origin, ReadError, ReceiveSide, SendSide, Side, WriteError, closed,
};
use weft_transport_shm::lane::ShmLane;

mod ends;

#[test]
fn an_end_that_was_shut_on_tcp_takes_the_other_direction_from_the_lane() {
    for has_lane in [true, false] {
        let (server, client) = ends::memory();
        let (mut from_server, mut from_client) = (SendSide::default(), SendSide::default());
        if has_lane {
            assert_eq!(from_server.shut(&server, Side::Accepted), None);
        } else {
            from_server.shut_without_lane();
            from_server.tell_former_end(&server);
        }
        SendSide::attach(&client);
        assert!(!from_server.switch(&server, Side::Accepted), "the kernel has ended it");
        let mut receive = ReceiveSide::default();
        assert_eq!(receive.origin(&server), Origin::Tcp { at_most: None });
        assert!(!from_client.switch(&client, Side::Connected), "nobody rings for room");
        assert!(from_client.switch_for_data(&client, Side::Connected));
        assert!(!SendSide::peer_can_ring(&client));
        assert!(ReceiveSide::ended_on_tcp(&client));
        assert_eq!(receive.origin(&server), Origin::Lane);
        // A writer that finds no room goes back, and comes again.
        assert!(from_client.leave(&client, Side::Connected, Leave::ForNow).is_some());
        assert_eq!(ends::back(&mut from_client, &client, usize::MAX), [0_u8; 0]);
        assert_eq!(receive.origin(&server), Origin::Return);
        receive.return_to_tcp(&server);
        assert!(from_client.switch_for_data(&client, Side::Connected));
    }
}

#[test]
fn a_reader_on_its_way_to_the_lane_is_seen_to_take() {
    let (server, client) = ends::memory();
    let (mut send, mut receive) = (SendSide::default(), ReceiveSide::default());
    send.begin_tcp();
    send.wrote_tcp(100);
    assert!(send.switch(&client, Side::Connected));
    let mut former = send.taken_by_peer(&client);
    for left in [60, 20] {
        receive.begin_tcp();
        receive.took_tcp(40);
        assert_eq!(receive.origin(&server), Origin::Tcp { at_most: Some(left) });
        let now = send.taken_by_peer(&client);
        assert!(now > former, "a writer must not take it for one that does not read");
        former = now;
    }
}

#[test]
fn an_end_that_is_shut_after_the_other_attached_is_shut_on_the_lane() {
    let (server, client) = ends::memory();
    let (mut from_server, mut from_client) = (SendSide::default(), SendSide::default());
    from_server.begin_tcp();
    from_server.wrote_tcp(3);
    SendSide::attach(&client);
    client.arm(WaitFor::Data);
    assert_eq!(from_server.shut(&server, Side::Accepted), Some(true));
    let mut receive = ReceiveSide::default();
    assert_eq!(receive.origin(&client), Origin::Tcp { at_most: Some(3) });
    assert_eq!(receive.data_of(&client, 4), 3, "the last is a wakeup");
    receive.begin_tcp();
    receive.took_tcp(3);
    assert_eq!(receive.origin(&client), Origin::Lane);
    assert!(receive.ended(&client).is_some());
    assert!(from_client.switch(&client, Side::Connected), "wakeups can come");
}

#[test]
fn a_half_close_claims_one_wakeup_for_one_byte() {
    let (server, client) = ends::memory();
    let mut from_client = SendSide::default();
    assert!(from_client.switch(&client, Side::Connected));
    server.arm(WaitFor::Data);
    server.arm(WaitFor::Room);
    assert_eq!(from_client.shut(&client, Side::Connected), Some(true));
    assert!(server.disarm(WaitFor::Data));
    assert!(!server.disarm(WaitFor::Room), "a writer does not care, and would count a wakeup");
}

#[test]
fn chunks_of_no_bytes_do_not_stop_a_writer() {
    let (_server, client) = ends::memory();
    let mut from_client = SendSide::default();
    assert!(from_client.switch(&client, Side::Connected));
    let limits = Limits { eager_bytes: 0, chunk_bytes: 0 };
    let written = from_client.write(&client, &[&[1; 200]], limits).expect("room");
    assert!(written.bytes >= 1);
}

#[test]
fn a_reset_after_a_half_close_is_read_as_that_end() {
    let (server, client) = ends::memory();
    let (mut from_client, mut from_server) = (SendSide::default(), SendSide::default());
    assert!(from_client.switch(&client, Side::Connected));
    assert_eq!(from_client.shut(&client, Side::Connected), Some(false));
    let mut receive = ReceiveSide::default();
    assert_eq!(receive.origin(&server), Origin::Lane);
    from_client.close(&client, closed::RESET);
    assert_eq!(receive.read(&server, &mut [0], false), Err(ReadError::Ended));
    SendSide::attach(&client);
    assert!(from_server.switch(&server, Side::Accepted));
    let written = from_server.write(&server, &[&[1]], Limits::default());
    assert_eq!(written, Err(WriteError::Closed));
    assert!(closed::is_reset(ReceiveSide::peer_closed(&server)));
}

/// Reads all `wanted` bytes that are there.
fn read_all(receive: &mut ReceiveSide, lane: &ShmLane, wanted: usize) {
    let mut bytes = vec![0; wanted];
    assert_eq!(receive.read(lane, &mut bytes, false).map(|reading| reading.bytes), Ok(wanted));
}

#[test]
fn a_direction_goes_to_the_lane_and_back_as_often_as_it_likes() {
    let (server, client) = ends::memory();
    let (mut send, mut receive) = (SendSide::default(), ReceiveSide::default());
    let data = |bytes: u64| Origin::Tcp { at_most: Some(bytes) };
    for _ in 0..3 {
        send.begin_tcp();
        send.wrote_tcp(5);
        assert!(send.switch(&client, Side::Connected));
        assert!(send.write(&client, &[&[1; 300]], Limits::default()).is_ok());
        send.begin_tcp();
        send.wrote_wakeups(1);
        assert_eq!(send.leave(&client, Side::Connected, Leave::ForNow), Some(false));
        assert_eq!(ends::back(&mut send, &client, 200), [1; 200], "the kernel takes no more");
        assert!(!send.switch(&client, Side::Connected), "the reader has not come back");
        send.begin_tcp();
        send.wrote_tcp(7);

        assert_eq!(receive.origin(&server), data(5));
        receive.begin_tcp();
        receive.took_tcp(5);
        assert_eq!(receive.origin(&server), Origin::Lane);
        assert_eq!(receive.wakeups_of(&server, 8), 1, "behind it are copies");
        read_all(&mut receive, &server, 300);
        assert_eq!(receive.read(&server, &mut [0], false), Err(ReadError::Return));
        assert_eq!(receive.origin(&server), Origin::Return);
        receive.return_to_tcp(&server);
        assert_eq!(receive.origin(&server), Origin::Wakeups(201));
        receive.begin_tcp();
        receive.took_wakeups(201);
        assert_eq!(receive.origin(&server), Origin::Tcp { at_most: None });
        receive.begin_tcp();
        receive.took_tcp(7);
    }
}

#[test]
fn an_end_that_leaves_rings_who_waits_and_warns_who_would() {
    let (server, client) = ends::memory();
    let mut send = SendSide::default();
    assert!(send.switch(&client, Side::Connected));
    server.arm(WaitFor::Room);
    assert!(SendSide::peer_can_ring(&server));
    assert_eq!(send.leave(&client, Side::Connected, Leave::ForNow), Some(true));
    assert!(!SendSide::peer_can_ring(&server), "wakeups end here");
    send.begin_tcp();
    send.wrote_wakeups(1);
    assert_eq!(ends::back(&mut send, &client, usize::MAX), [0_u8; 0]);
    assert!(!SendSide::peer_can_ring(&server));
    assert!(!send.rings_for_room(&client, Side::Connected), "it could not ring");
}

#[test]
fn an_end_that_leaves_for_good_calls_the_other_back() {
    let (server, client) = ends::memory();
    let (mut from_server, mut from_client) = (SendSide::default(), SendSide::default());
    SendSide::attach(&client);
    assert!(from_server.switch(&server, Side::Accepted));
    assert_eq!(from_server.leave_to_follow(&server), None);
    assert!(from_client.leave(&client, Side::Connected, Leave::ForGood).is_some());
    assert_eq!(ends::back(&mut from_client, &client, usize::MAX), [0_u8; 0]);
    assert!(from_client.is_back_for_good());
    assert_eq!(from_server.leave_to_follow(&server), Some(Leave::ForGood));
    assert!(from_server.leave(&server, Side::Accepted, Leave::ForGood).is_some());
    assert_eq!(ends::back(&mut from_server, &server, usize::MAX), [0_u8; 0]);
    assert!(!from_server.switch(&server, Side::Accepted));
}

#[test]
fn both_ends_leave_a_lane_that_the_daemon_recalls() {
    let (word, bit) = weft_socket::route::RECALL;
    let (server, client, file) = ends::memory_and_file();
    let (mut from_server, mut from_client) = (SendSide::default(), SendSide::default());
    let mut at_server = ReceiveSide::default();
    SendSide::attach(&client);
    assert!(from_client.switch(&client, Side::Connected));
    from_client.write(&client, &[b"before"], Limits::default()).expect("room");
    ShmLane::raise(file.as_fd(), word, bit).expect("a lane");
    assert!(!from_server.switch(&server, Side::Accepted), "it comes to the lane no more");
    assert!(!at_server.is_given_back(&server), "the other end has not left by itself");
    assert_eq!(from_client.leave_to_follow(&client), Some(Leave::ForGood));
    assert!(from_client.leave(&client, Side::Connected, Leave::ForGood).is_some());
    assert_eq!(ends::back(&mut from_client, &client, usize::MAX), b"before");
    assert_eq!(from_client.leave_to_follow(&client), None);
    // An end that posts its word removes the bit from it; the one that left is enough then.
    assert_eq!(from_server.leave_to_follow(&server), Some(Leave::ForGood));
    assert!(from_server.leave(&server, Side::Accepted, Leave::ForGood).is_some());
    assert_eq!(at_server.origin(&server), Origin::Lane);
    let taken = at_server.read(&server, &mut [0; 16], false).expect("it was written before");
    assert_eq!((taken.bytes, at_server.origin(&server)), (6, Origin::Return));
    at_server.return_to_tcp(&server);
    assert!(!at_server.is_given_back(&server), "the copies lie on TCP");
    at_server.begin_tcp();
    at_server.took_wakeups(6);
    assert!(at_server.is_given_back(&server) && from_client.is_back_for_good());
}

#[test]
fn a_lane_that_both_ends_give_back_is_followed_by_another() {
    let (server, client) = ends::memory();
    let (mut from_server, mut from_client) = (SendSide::default(), SendSide::default());
    let mut at_server = ReceiveSide::default();
    from_client.begin_tcp();
    from_client.wrote_tcp(2);
    SendSide::attach(&client);
    assert!(from_server.switch(&server, Side::Accepted));
    assert!(from_client.switch(&client, Side::Connected));
    from_client.write(&client, &[b"a"], Limits::default()).expect("room");
    at_server.begin_tcp();
    at_server.took_tcp(2);
    assert!(from_client.leave(&client, Side::Connected, Leave::GivingBack).is_some());
    assert_eq!(ends::back(&mut from_client, &client, usize::MAX), b"a");
    assert!(from_client.has_given_back());
    assert!(!from_client.is_back_for_good(), "only this lane is left for good");
    assert!(!from_client.switch(&client, Side::Connected));
    assert!(!at_server.is_given_back(&server), "there is a byte to read");
    assert_eq!(at_server.read(&server, &mut [0; 4], false).expect("it is there").bytes, 1);
    assert_eq!(at_server.origin(&server), Origin::Return);
    at_server.return_to_tcp(&server);
    at_server.begin_tcp();
    at_server.took_wakeups(1);
    assert!(at_server.is_given_back(&server));
    assert_eq!(from_server.leave_to_follow(&server), Some(Leave::GivingBack));
    assert!(from_server.leave(&server, Side::Accepted, Leave::GivingBack).is_some());
    assert_eq!(ends::back(&mut from_server, &server, usize::MAX), [0_u8; 0]);

    from_client.forget_lane();
    from_server.forget_lane();
    at_server.forget_lane();
    let (server, client) = ends::memory();
    SendSide::attach(&client);
    from_client.begin_tcp();
    from_client.wrote_tcp(3);
    assert!(from_client.switch(&client, Side::Connected));
    from_client.write(&client, &[b"b"], Limits::default()).expect("room");
    assert_eq!(at_server.origin(&server), Origin::Tcp { at_most: Some(3) });
    at_server.begin_tcp();
    at_server.took_tcp(3);
    assert_eq!(at_server.origin(&server), Origin::Lane);
    let mut byte = [0];
    at_server.read(&server, &mut byte, false).expect("it is there");
    assert_eq!(byte, *b"b");
}

#[test]
fn who_ended_its_direction_keeps_the_lane() {
    let (server, client) = ends::memory();
    let (mut from_server, mut from_client) = (SendSide::default(), SendSide::default());
    SendSide::attach(&client);
    assert!(from_client.switch(&client, Side::Connected));
    assert!(from_server.switch(&server, Side::Accepted));
    assert!(from_server.shut(&server, Side::Accepted).is_some());
    assert!(from_client.leave(&client, Side::Connected, Leave::GivingBack).is_some());
    assert!(from_server.leave(&server, Side::Accepted, Leave::GivingBack).is_some());
    assert_eq!(ends::back(&mut from_server, &server, usize::MAX), [0_u8; 0]);
    assert!(!from_server.has_given_back(), "another lane would not know of the end");
}

#[test]
fn who_died_between_the_kernel_and_its_count_leaves_a_direction_that_crosses_no_more() {
    let (_server, client) = ends::memory();
    let mut on_tcp = SendSide::default();
    on_tcp.begin_tcp();
    on_tcp.begin_tcp();
    on_tcp.wrote_tcp(1);
    assert!(!on_tcp.switch(&client, Side::Connected));
    let mut on_lane = SendSide::default();
    assert!(on_lane.switch(&client, Side::Connected));
    on_lane.begin_tcp();
    assert_eq!(on_lane.leave(&client, Side::Connected, Leave::ForNow), None);
}

/// Sends messages and chunks, reads `read` bytes, and leaves for good. Returns the bytes that are
/// sent again over TCP, and the bytes that should be.
fn resent(read: usize) -> (Vec<u8>, Vec<u8>) {
    let (server, client) = ends::memory();
    let (mut send, mut receive) = (SendSide::default(), ReceiveSide::default());
    assert!(send.switch(&client, Side::Connected));
    let data: Vec<u8> = (0..40_000u32).map(|number| (number % 251) as u8).collect();
    let (mut rest, mut length) = (&data[..], 1);
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(length.min(rest.len()));
        let written = send.write(&client, &[piece], Limits::default()).expect("room");
        assert_eq!(written.bytes, piece.len());
        (rest, length) = (behind, length * 3);
    }
    assert_eq!(receive.origin(&server), Origin::Lane);
    if read > 0 {
        read_all(&mut receive, &server, read);
    }
    let mut back = SendSide::default();
    receive.request_resend(&server);
    assert!(!receive.has_data(&server) && receive.available(&server) == 0);
    let is_unread = read < data.len();
    assert_eq!(receive.has_unread(&server), is_unread, "the peer may die before it answers");
    assert_eq!(
        receive.read(&server, &mut [0], false),
        Err(ReadError::Empty),
        "till it is answered"
    );
    assert!(back.leave(&server, Side::Accepted, Leave::ForGood).is_some());
    assert_eq!(ends::back(&mut back, &server, usize::MAX), [0_u8; 0]);
    assert_eq!(send.leave_to_follow(&client), Some(Leave::ForGood));
    assert!(send.leave(&client, Side::Connected, Leave::ForGood).is_some());
    let unread = ends::back(&mut send, &client, usize::MAX);
    assert!(!send.unread_by_peer(&client), "it lies in the kernel now");
    assert_eq!(receive.origin(&server), Origin::Return);
    receive.return_to_tcp(&server);
    assert_eq!(receive.origin(&server), Origin::Tcp { at_most: None });
    (unread, data[read..].to_vec())
}

#[test]
fn what_was_not_read_on_the_lane_is_sent_again_over_tcp() {
    for read in [0, 1, 2, 3, 4, 100, 363, 364, 1000, 1093, 5000, 9841, 20_000, 39_999, 40_000] {
        let (unread, expected) = resent(read);
        assert!(unread == expected, "{read} bytes were read: {} are sent again", unread.len());
    }
}

/// Lets a reader on TCP leave for good while its peer goes to the lane and sends `wakeups` wakeups.
fn resent_ahead(wakeups: u64) {
    let (server, client) = ends::memory();
    let (mut send, mut receive) = (SendSide::default(), ReceiveSide::default());
    send.begin_tcp();
    send.wrote_tcp(50);
    assert_eq!(receive.origin(&server), Origin::Tcp { at_most: None });
    receive.request_resend(&server);
    assert!(send.switch(&client, Side::Connected));
    assert!(send.write(&client, &[&[7; 300]], Limits::default()).is_ok());
    send.begin_tcp();
    send.wrote_wakeups(wakeups);
    let mut back = SendSide::default();
    assert!(back.leave(&server, Side::Accepted, Leave::ForGood).is_some());
    assert_eq!(receive.origin(&server), Origin::Tcp { at_most: Some(50) });
    assert_eq!(receive.is_all_on_tcp(&server), None, "300 bytes lie on the lane");
    assert!(send.leave(&client, Side::Connected, Leave::ForGood).is_some());
    assert_eq!(receive.is_all_on_tcp(&server), None, "it only said that it leaves");
    assert_eq!(ends::back(&mut send, &client, usize::MAX), [7; 300]);
    let all = Some(wakeups == 0);
    assert_eq!(receive.is_all_on_tcp(&server), all, "a wakeup lies behind the 50 bytes");
    // A reader that goes on nevertheless finds each byte once.
    receive.begin_tcp();
    receive.took_tcp(50);
    assert_eq!(receive.origin(&server), Origin::Lane);
    assert!(!receive.has_data(&server));
    assert_eq!(receive.read(&server, &mut [0], false), Err(ReadError::Return));
    receive.return_to_tcp(&server);
    if wakeups > 0 {
        assert_eq!(receive.origin(&server), Origin::Wakeups(wakeups));
        receive.begin_tcp();
        receive.took_wakeups(1);
    }
    assert_eq!(receive.origin(&server), Origin::Tcp { at_most: None });
}

#[test]
fn what_a_reader_never_saw_on_the_lane_is_sent_again_over_tcp() {
    resent_ahead(0);
    resent_ahead(1);
}

/// A writer that found no room left for now with 500 bytes unread, of which the kernel took `most`,
/// and 9 bytes followed on TCP. The reader reads some, and is then to leave for good.
fn left_before_it_was_asked(read: usize, most: usize) {
    let (server, client) = ends::memory();
    let (mut send, mut receive) = (SendSide::default(), ReceiveSide::default());
    assert!(send.switch(&client, Side::Connected));
    assert!(send.write(&client, &[&[7; 400]], Limits::default()).is_ok());
    assert!(send.write(&client, &[&[8; 100]], Limits::default()).is_ok());
    send.begin_tcp();
    send.wrote_wakeups(1);
    assert_eq!(receive.origin(&server), Origin::Lane);
    assert!(send.leave(&client, Side::Connected, Leave::ForNow).is_some());
    let copies = ends::back(&mut send, &client, most);
    send.begin_tcp();
    send.wrote_tcp(9);
    read_all(&mut receive, &server, read);
    receive.request_resend(&server);
    let mut back = SendSide::default();
    assert!(back.leave(&server, Side::Accepted, Leave::ForGood).is_some());
    if copies.len() < 500 {
        assert_eq!(receive.origin(&server), Origin::Lane, "no other place has them");
        return;
    }
    assert_eq!(receive.origin(&server), Origin::Return, "though bytes lie on the lane");
    receive.return_to_tcp(&server);
    // The skipped bytes are the wakeup and the copies of bytes that were read.
    assert_eq!(receive.origin(&server), Origin::Wakeups(1 + read as u64));
    receive.begin_tcp();
    receive.took_wakeups(1 + read);
    assert_eq!(receive.origin(&server), Origin::Tcp { at_most: None });
    assert!(!receive.has_unread(&server), "nobody reads them on the lane");
    // The writer sees that the reader left, and sends nothing twice.
    assert!(!send.switch(&client, Side::Connected));
    assert_eq!(send.leave_to_follow(&client), Some(Leave::ForGood));
    assert!(send.leave(&client, Side::Connected, Leave::ForGood).is_some());
    assert_eq!(ends::back(&mut send, &client, usize::MAX), [0_u8; 0]);
}

#[test]
fn what_a_full_direction_left_on_the_lane_lies_on_tcp_too() {
    for read in [0, 1, 130, 399, 400, 450, 500] {
        left_before_it_was_asked(read, usize::MAX);
    }
    for read in [0, 130, 499] {
        left_before_it_was_asked(read, 499);
    }
}

#[test]
fn a_writer_that_left_for_now_and_never_looked_again_has_sent_all() {
    let (server, client) = ends::memory();
    let (mut send, mut receive) = (SendSide::default(), ReceiveSide::default());
    send.begin_tcp();
    send.wrote_tcp(50);
    assert!(send.switch(&client, Side::Connected));
    assert!(send.write(&client, &[&[7; 300]], Limits::default()).is_ok());
    assert!(send.leave(&client, Side::Connected, Leave::ForNow).is_some());
    assert_eq!(ends::back(&mut send, &client, usize::MAX), [7; 300]);
    assert_eq!(receive.origin(&server), Origin::Tcp { at_most: Some(50) });
    receive.request_resend(&server);
    assert_eq!(receive.is_all_on_tcp(&server), Some(true), "it cannot come to the lane again");
}

#[test]
fn places_that_make_no_sense_are_not_sent_from() {
    for (messages, bytes, rest) in
        [(9, 0, 0), (0, 1 << 40, 0), (0, 0, 200), (1, 0, 5 << 8), (0, 0, 1 << 40), (u64::MAX, 0, 0)]
    {
        let (server, client) = ends::memory();
        let mut send = SendSide::default();
        assert!(send.switch(&client, Side::Connected));
        assert!(send.write(&client, &[&[7; 300]], Limits::default()).is_ok());
        for (word, value) in [(8, messages), (9, bytes), (10, rest | 1 << 63)] {
            server.post(word, value);
        }
        assert!(send.leave(&client, Side::Connected, Leave::ForGood).is_some());
        let again = send.to_send_again(&client);
        assert!(!again.is_requested, "{messages} {bytes} {rest}");
        assert_eq!(again.bytes, [7; 300]);
    }
}

#[test]
fn a_reset_by_wakeups_alone_is_told_from_one_by_data() {
    let (server, client) = ends::memory();
    let (mut send, mut receive) = (SendSide::default(), ReceiveSide::default());
    send.begin_tcp();
    send.wrote_tcp(5);
    // The peer's process ends with 5 bytes unread on TCP.
    receive.end_with_process(&server, Side::Accepted);
    assert!(send.switch(&client, Side::Connected));
    send.begin_tcp();
    send.wrote_wakeups(1);
    assert!(!send.only_wakeups_unread(&client), "data lie there unread, too");
    // The process had taken these bytes, but did not see the lane.
    receive.begin_tcp();
    receive.took_tcp(5);
    receive.end_with_process(&server, Side::Accepted);
    assert!(send.only_wakeups_unread(&client), "the wakeup came behind all that is unread");
    assert_eq!(send.leave(&client, Side::Connected, Leave::ForNow), Some(false));
    assert_eq!(ends::back(&mut send, &client, usize::MAX), [0_u8; 0]);
    assert!(!send.only_wakeups_unread(&client), "what follows the wakeup are data");
}

#[test]
fn a_reset_of_a_reader_that_is_on_the_lane_is_by_wakeups_alone() {
    let (server, client) = ends::memory();
    let (mut send, mut receive) = (SendSide::default(), ReceiveSide::default());
    assert!(!send.only_wakeups_unread(&client), "on TCP it never rings");
    assert!(send.switch(&client, Side::Connected));
    assert_eq!(receive.origin(&server), Origin::Lane);
    assert!(send.only_wakeups_unread(&client), "it took all that was on TCP");
}

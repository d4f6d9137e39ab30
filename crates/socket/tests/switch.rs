//! The switch and the half close: who may ring whom, in the cases that a driver meets.

use weft_fabric::{Lane, WaitFor};
use weft_socket::stream::Origin;
use weft_socket::{Limits, ReceiveSide, SendSide, Side};
use weft_transport_sim::{LaneSettings, Settings, SimLane, SimWorld};

fn pair() -> (SimLane, SimLane) {
    let settings = LaneSettings { latency_ns: 0, jitter_ns: 0, ..LaneSettings::default() };
    SimWorld::new(Settings::seeded(1)).lane(settings)
}

#[test]
fn an_end_that_was_shut_on_tcp_keeps_the_other_direction_there() {
    let (server, client) = pair();
    let (mut from_server, mut from_client) = (SendSide::default(), SendSide::default());
    assert_eq!(from_server.shut(&server, Side::Accepted), None);
    SendSide::attach(&client);
    assert!(!from_client.switch(&client, Side::Connected), "nobody could ring for room");
    assert!(!from_server.switch(&server, Side::Accepted), "the kernel has ended it");
    assert_eq!(ReceiveSide::default().origin(&server), Origin::Tcp { at_most: None });
}

#[test]
fn an_end_that_is_shut_after_the_other_attached_is_shut_on_the_lane() {
    let (server, client) = pair();
    let (mut from_server, mut from_client) = (SendSide::default(), SendSide::default());
    from_server.wrote_tcp(3);
    SendSide::attach(&client);
    client.arm(WaitFor::Data);
    assert_eq!(from_server.shut(&server, Side::Accepted), Some(true));
    let mut receive = ReceiveSide::default();
    assert_eq!(receive.origin(&client), Origin::Tcp { at_most: Some(3) });
    assert_eq!(receive.took_tcp(&client, 3, false), 3);
    assert_eq!(receive.origin(&client), Origin::Lane);
    assert!(receive.ended(&client).is_some());
    assert!(from_client.switch(&client, Side::Connected), "bells can come");
}

#[test]
fn a_half_close_claims_one_bell_for_one_byte() {
    let (server, client) = pair();
    let mut from_client = SendSide::default();
    assert!(from_client.switch(&client, Side::Connected));
    server.arm(WaitFor::Data);
    server.arm(WaitFor::Room);
    assert_eq!(from_client.shut(&client, Side::Connected), Some(true));
    assert!(server.disarm(WaitFor::Data));
    assert!(!server.disarm(WaitFor::Room), "a writer does not care, and would count a bell");
}

#[test]
fn chunks_of_no_bytes_do_not_stop_a_writer() {
    let (_server, client) = pair();
    let mut from_client = SendSide::default();
    assert!(from_client.switch(&client, Side::Connected));
    let limits = Limits { eager_bytes: 0, chunk_bytes: 0 };
    let written = from_client.write(&client, &[&[1; 200]], limits).expect("room");
    assert!(written.bytes >= 1);
}

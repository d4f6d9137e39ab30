"""Messages, notifications and groups."""

from __future__ import annotations

import pytest
from conftest import PATIENCE, Pair

import weft


def test_a_message_arrives_and_is_answered(pair: Pair) -> None:
    pair.there.send(b"ping", tag=7, kind=2)
    message = pair.two.receive(PATIENCE)
    assert (message.payload, message.tag, message.kind) == (b"ping", 7, 2)
    assert message.source == pair.one.address and message.group is None
    assert bytes(message) == b"ping" and len(message) == 4
    message.peer.send(bytearray(b"pong"))
    answer = pair.one.receive(PATIENCE, peer=pair.there)
    assert answer.payload == b"pong" and answer.peer == pair.there
    assert hash(answer.peer) == hash(pair.there)


def test_messages_arrive_in_order_and_are_chosen_by_tag(pair: Pair) -> None:
    for number in range(100):
        pair.there.send(bytes([number]), tag=number % 2)
    odd = [pair.two.receive(PATIENCE, tag=1).payload[0] for _ in range(50)]
    even = [pair.two.receive(PATIENCE).payload[0] for _ in range(50)]
    assert odd == list(range(1, 100, 2)) and even == list(range(0, 100, 2))
    assert pair.two.receive_nowait() is None


def test_a_full_mailbox_is_told(pair: Pair) -> None:
    sent = 0
    while pair.there.send_nowait(b"x"):
        sent += 1
    assert sent >= 1
    with pytest.raises(weft.TimedOut):
        pair.there.send(b"x", timeout=0.01)
    for _ in range(sent):
        pair.two.receive(PATIENCE)
    pair.there.send(b"room again", timeout=PATIENCE)
    assert pair.two.receive(PATIENCE).payload == b"room again"


def test_a_full_inbox_is_told_and_loses_nothing() -> None:
    with weft.Endpoint(inbox=4) as two, weft.Endpoint() as one:
        there = one.connect(two.address)
        for number in range(10):
            there.send(bytes([number]), tag=1)
        there.send(b"wanted", tag=2)
        with pytest.raises(weft.InboxFull, match="4 messages"):
            two.receive(PATIENCE, tag=2)
        assert [two.receive(PATIENCE).payload[0] for _ in range(10)] == list(range(10))
        assert two.receive(PATIENCE, tag=2).payload == b"wanted"


def test_wrong_messages_are_refused(pair: Pair) -> None:
    with pytest.raises(weft.TooLong, match="120"):
        pair.there.send(bytes(121))
    with pytest.raises(weft.Error, match="two bits"):
        pair.there.send(b"", kind=4)
    with pytest.raises(OverflowError):
        pair.there.send(b"", tag=256)
    with pytest.raises(TypeError):
        pair.there.send("text")  # type: ignore[arg-type]
    with pytest.raises(BufferError):
        pair.there.send(memoryview(b"abcdef")[::2])
    with pytest.raises(ValueError):
        pair.two.receive(-1)
    with pytest.raises(ValueError, match="another endpoint"):
        pair.two.receive(0, peer=pair.there)


def test_notifications_need_no_memory(pair: Pair) -> None:
    pair.there.notify(9, 1 << 60)
    told = pair.two.notification(PATIENCE, tag=9)
    assert (told.tag, told.value, told.command) == (9, 1 << 60, "notification")
    assert told.source == pair.one.address


def test_a_message_goes_to_all_members_of_a_group(pair: Pair) -> None:
    with weft.Endpoint() as third:
        pair.two.join(5)
        third.join(5)
        assert pair.one.multicast(b"to all", 5, tag=3, timeout=PATIENCE) == 2
        for endpoint in (pair.two, third):
            message = endpoint.receive(PATIENCE)
            assert (message.payload, message.group, message.tag) == (b"to all", 5, 3)
        third.leave(5)
        assert pair.one.multicast(b"to one", 5, timeout=PATIENCE) == 1
    with pytest.raises(ValueError, match="0 to 63"):
        pair.one.join(64)


def test_endpoints_are_found_by_address_and_by_name(pair: Pair) -> None:
    assert pair.one.connect(pair.two.address) == pair.there
    with pytest.raises(weft.NotFound):
        pair.one.connect("0:65000")
    for text in ["", "x", "1:2:3", "0:-1", "0:70000"]:
        with pytest.raises(ValueError):
            pair.one.connect(text)
    with pytest.raises(ValueError, match="needs an address"):
        pair.one.connect()
    with weft.Endpoint(offer="a-test.python") as server:
        with weft.Endpoint(service="a-test.python") as client:
            assert client.host == server.address
            assert client.connect() == client.connect(server.address)
            client.connect().send(b"hello")
            assert server.receive(PATIENCE).payload == b"hello"
    with pytest.raises(weft.NotFound):
        weft.Endpoint(service="a-test.python")


def test_events_of_all_kinds_come_in_order(pair: Pair) -> None:
    pair.there.send(b"first")
    pair.there.notify(1)
    pair.one.close()
    message, told, down = (pair.two.event(PATIENCE) for _ in range(3))
    assert isinstance(message, weft.Message) and isinstance(told, weft.Notification)
    assert isinstance(down, weft.PeerDown) and down.reason == "ended"


def test_what_an_endpoint_counts_and_can(pair: Pair) -> None:
    pair.there.send(b"12345678")
    counters = pair.one.counters()
    assert counters["messages_sent"] == 1 and counters["message_bytes_sent"] == 8
    assert pair.one.capabilities()["message_bytes_max"] == 120


def test_a_closed_endpoint_refuses(pair: Pair) -> None:
    pair.one.close()
    pair.one.close()
    assert pair.one.closed and "closed" in repr(pair.one)
    for call in [pair.one.poll, pair.one.fileno, lambda: pair.there.send(b""), pair.there.fence]:
        with pytest.raises(weft.Closed):
            call()


def test_without_a_daemon_the_error_says_what_to_do(tmp_path: object) -> None:
    with pytest.raises(weft.NoDaemon, match="weft daemon"):
        weft.Endpoint(socket=f"{tmp_path}/none.sock")

"""Memory, keys, put, get and atomics."""

from __future__ import annotations

import gc

import pytest
from conftest import PATIENCE, Pair

import weft

ALL = weft.Access.READ | weft.Access.WRITE | weft.Access.ATOMIC


def test_a_put_is_visible_when_it_ends(pair: Pair) -> None:
    memory = pair.two.register(4096)
    key = memory.grant()
    pair.there.put(b"data", key, 100, notify=5, value=6, timeout=PATIENCE)
    assert bytes(memoryview(memory)[100:104]) == b"data"
    told = pair.two.notification(PATIENCE)
    assert (told.offset, told.length, told.tag, told.value) == (100, 4, 5, 6)
    assert told.key == int(key) and told.command == "put"
    assert pair.there.get(int(key), 99, length=6, timeout=PATIENCE) == b"\0data\0"
    pair.there.put(b"", key)
    pair.there.put(b"x", key, ordered=True)
    pair.there.order()
    pair.there.fence(PATIENCE)
    pair.one.fence(PATIENCE)


@pytest.mark.parametrize("length", [0, 1, 16 << 10, (256 << 10) - 1, (256 << 10) + 1, 3 << 20])
def test_gets_of_any_length(pair: Pair, length: int) -> None:
    content = bytes(number * number % 251 for number in range(1000)) * (length // 1000 + 1)
    content = content[:length]
    memory = pair.two.register(length + 8)
    memoryview(memory)[8:] = content
    key = memory.grant(weft.Access.READ)
    plain = bytearray(length)
    pair.there.get(key, 8, into=plain, timeout=PATIENCE)
    assert plain == content
    assert pair.there.get(key, 8, length=length, timeout=PATIENCE) == content
    own = pair.one.register(length + 1)
    pair.there.get(key, 8, into=memoryview(own)[1:], timeout=PATIENCE)
    assert memoryview(own)[1:] == content


def test_operations_go_on_beside_the_program(pair: Pair) -> None:
    here, there = pair.one.register(1 << 16), pair.two.register(1 << 16)
    key = there.grant(ALL)
    view = memoryview(here)
    view[:4] = b"abcd"
    operation = pair.there.start_put(view[:4], key, 8)
    assert operation.wait(PATIENCE) is None and operation.done
    operation = pair.there.start_get(key, 8, into=view[100:104])
    operation.wait(PATIENCE)
    assert bytes(view[100:104]) == b"abcd"
    with pytest.raises(BufferError, match="Memory of this endpoint"):
        pair.there.start_get(key, 0, into=bytearray(4))
    operation.cancel()
    assert pair.one.start_connect(pair.two.address).wait(PATIENCE) == pair.there
    with pytest.raises(weft.NotFound):
        pair.one.start_connect("0:65000").wait(PATIENCE)


def test_words_are_changed_whole(pair: Pair) -> None:
    memory = pair.two.register(64)
    key = memory.grant(ALL)
    assert pair.there.fetch_add(key, 8, 5) == 0
    assert pair.there.swap(key, 8, 2**64 - 1) == 5
    assert pair.there.fetch_add(key, 8, 3) == 2**64 - 1
    assert pair.there.compare_swap(key, 8, 2, 9) == 2
    assert pair.there.compare_swap(key, 8, 2, 10) == 9
    assert pair.there.fetch(key, 8) == memory.load(8) == 9
    memory.store(8, 1 << 40)
    assert pair.there.fetch_add(key, 12, 1, bits=32) == 256
    with pytest.raises(weft.Misaligned):
        pair.there.fetch(key, 4)
    with pytest.raises(ValueError, match="32 or 64"):
        pair.there.fetch(key, 0, bits=16)


def test_keys_give_what_they_grant_and_no_more(pair: Pair) -> None:
    memory = pair.two.register(4096)
    key = memory.grant(weft.Access.READ, offset=1000, length=10)
    assert (key.length, key.access, key.memory) == (10, weft.Access.READ, memory)
    assert pair.there.get(key, length=10) == bytes(10)
    with pytest.raises(weft.OutOfBounds):
        pair.there.get(key, 1, length=10)
    with pytest.raises(weft.AccessDenied):
        pair.there.put(b"x", key)
    with pytest.raises(weft.InvalidKey):
        pair.there.get(12345, length=1)
    with pytest.raises(weft.OutOfBounds):
        memory.grant(offset=4000, length=97)
    with pytest.raises(ValueError, match="bits"):
        memory.grant(8)
    with pytest.raises(weft.Error):
        memory.grant(weft.Access.ATOMIC)
    key.revoke()
    with pytest.raises(weft.InvalidKey):
        pair.there.get(key, length=1)
    with pytest.raises(weft.InvalidKey):
        key.revoke()


def test_a_key_of_one_peer_is_not_for_others(pair: Pair) -> None:
    memory = pair.two.register(8)
    back = pair.two.connect(pair.one.address)
    key = memory.grant(peer=back)
    pair.there.put(b"mine", key)
    with weft.Endpoint() as third:
        with pytest.raises(weft.InvalidKey):
            third.connect(pair.two.address).put(b"not", key)
    with pytest.raises(ValueError, match="another endpoint"):
        memory.grant(peer=pair.there)


def test_views_keep_memory_alive_and_closed_memory_refuses(pair: Pair) -> None:
    memory = pair.two.register(4096)
    view = memoryview(memory)
    with pytest.raises(BufferError, match="release them"):
        memory.close()
    view.release()
    key = memory.grant()
    memory.close()
    memory.close()
    assert memory.closed and "closed" in repr(memory)
    with pytest.raises(BufferError, match="closed"):
        memoryview(memory)
    with pytest.raises(BufferError):
        memory.load(0)
    with pytest.raises(BufferError):
        memory.grant()
    with pytest.raises(weft.InvalidKey):
        pair.there.put(b"x", key)


def test_a_view_outlives_memory_and_endpoint() -> None:
    endpoint = weft.Endpoint()
    view = memoryview(endpoint.register(1 << 20))
    view[5] = 7
    endpoint.close()
    del endpoint
    gc.collect()
    assert view[5] == 7
    view[-1] = 1
    with weft.Endpoint() as endpoint, endpoint.register(10) as memory:
        assert len(memory) == memory.nbytes == 10
    assert memory.closed


def test_wrong_memory_is_refused(pair: Pair) -> None:
    with pytest.raises(weft.Error, match="0 bytes"):
        pair.one.register(0)
    for length in (2**64 - 1, 2**62):
        with pytest.raises(weft.Error):
            pair.one.register(length)
    with pytest.raises(OverflowError):
        pair.one.register(-1)
    key = pair.two.register(8).grant()
    with pytest.raises(BufferError, match="not be written"):
        pair.there.get(key, into=b"constant")
    with pytest.raises(TypeError):
        pair.there.get(key)  # type: ignore[call-overload]
    with pytest.raises(weft.OutOfBounds):
        pair.there.put(b"x", key, 2**64 - 1)
    with pytest.raises(OverflowError):
        pair.there.get(key, length=2**63)

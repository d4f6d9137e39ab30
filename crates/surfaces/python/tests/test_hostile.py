"""Nothing that a program or a peer does ends the interpreter: calls with any arguments, in any
order, on objects in any state. Each ends within its timeout, with a value or an exception."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Pair

import weft
from weft import aio

pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("TEST_PYTHON_EXAMPLES", "150"))
FUZZ = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))

INTEGERS = st.one_of(
    st.integers(-2, 130),
    st.sampled_from([2**n + d for n in (8, 16, 31, 32, 62, 63, 64) for d in (-1, 0, 1)]),
    st.integers(),
)
FLOATS = st.floats(allow_nan=True, allow_infinity=True)
BUFFERS = st.one_of(
    st.binary(max_size=200),
    st.builds(bytearray, st.integers(0, 200)),
    st.builds(lambda size, step: memoryview(bytearray(size))[::step], st.integers(0, 99),
              st.sampled_from([1, 2, -1])),
    st.builds(lambda rows: memoryview(bytes(4 * rows)).cast("B", (rows, 4)), st.integers(1, 9)),
    st.builds(lambda size: memoryview(bytearray(8 * size)).cast("d"), st.integers(1, 99)),
)
ANYTHING = st.one_of(st.none(), st.booleans(), INTEGERS, FLOATS, st.text(max_size=20), BUFFERS)
# Never without end.
TIMEOUTS = st.one_of(st.sampled_from([0, 0.0, 0.002, -1, float("nan"), -0.0]), st.text(max_size=3))
USUAL = {
    "address": st.builds("{}:{}".format, st.integers(-1, 3), st.integers(-1, 70000)),
    "length": st.one_of(st.integers(0, 1 << 20), INTEGERS),
    "offset": st.one_of(st.integers(0, 5000), INTEGERS),
    "data": BUFFERS,
    "into": BUFFERS,
    "tag": st.integers(0, 255),
    "kind": st.integers(0, 4),
    "bits": st.sampled_from([32, 64, 8]),
    "group": st.integers(0, 64),
    "access": st.integers(0, 8),
}


def methods(kind: type) -> list[str]:
    return [name for name in dir(kind) if not name.startswith("_") or name in
            ("__repr__", "__len__", "__hash__", "__int__", "__bytes__", "__exit__")]


def one_of(objects: list[Any]) -> st.SearchStrategy[Any]:
    """One of these, of which a view cannot be hashed."""
    return st.integers(0, len(objects) - 1).map(lambda place: objects[place])


def call(data: st.DataObject, target: Any, name: str, objects: list[Any]) -> Any:
    """Calls a method with arguments of any kind, or reads a property."""
    member = getattr(type(target), name)
    if not callable(member):
        return getattr(target, name)
    try:
        parameters = list(inspect.signature(member).parameters.values())[1:]
    except ValueError:
        parameters = []
    positional, named = [], {}
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            continue
        if parameter.name == "timeout":
            value = data.draw(TIMEOUTS)
        else:
            if parameter.default is not parameter.empty and data.draw(st.booleans()):
                continue
            usual = USUAL.get(parameter.name, ANYTHING)
            value = data.draw(st.one_of(usual, usual, ANYTHING, one_of(objects)))
        if parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(value)
        else:
            named[parameter.name] = value
    return getattr(target, name)(*positional, **named)


def down() -> weft.PeerDown:
    with weft.Endpoint() as one:
        with weft.Endpoint() as two:
            one.connect(two.address)
        told = one.event(5)
    assert isinstance(told, weft.PeerDown)
    return told


@FUZZ
@given(st.data())
def test_calls_of_all_kinds_in_any_order(data: st.DataObject) -> None:
    pair = Pair()
    memory = pair.two.register(4096)
    key = memory.grant(7)
    pair.there.send(b"a message")
    pair.there.notify(1, 2)
    pair.there.put(b"put", key, notify=1)
    operation = pair.there.start_put(b"put", key)
    objects: list[Any] = [
        pair.one, pair.two, pair.there, memory, key, operation, pair.two.receive(5),
        pair.two.notification(5), memoryview(memory), down(),
    ]
    del memory, key, operation
    try:
        for _ in range(data.draw(st.integers(1, 12))):
            target = data.draw(one_of(objects))
            if isinstance(target, memoryview):
                continue
            name = data.draw(st.sampled_from(methods(type(target))))
            try:
                found = call(data, target, name, objects)
            except SystemError:
                raise
            except Exception:
                # A panic is none of these, nor is an exit.
                continue
            if type(found).__module__ == "weft" and len(objects) < 30:
                objects.append(found)
            del target
        # Nothing that is left needs what went before it.
        for place in data.draw(st.permutations(range(len(objects)))):
            objects[place] = None
    finally:
        pair.close()


@FUZZ
@given(
    st.one_of(st.text(max_size=300), st.just("\0"), st.just("x" * 5000)),
    st.dictionaries(
        st.sampled_from(["node", "socket", "vpid", "offer", "service", "inbox", "peers"]),
        st.one_of(ANYTHING, st.integers(0, 300)),
        max_size=2,
    ),
)
def test_endpoints_of_any_arguments(name: str, options: dict[str, Any]) -> None:
    try:
        endpoint = weft.Endpoint(name, **options)
    except SystemError:
        raise
    except Exception:
        return
    endpoint.close()


@FUZZ
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4200), st.integers(0, 4200)),
                max_size=40))
def test_a_peer_that_revokes_writes_and_ends_in_between(steps: list[tuple[int, int, int]]) -> None:
    pair = Pair()
    memory = pair.two.register(4096)
    key = memory.grant(7)
    view = memoryview(memory)
    own = memoryview(pair.one.register(4096))
    try:
        for what, offset, length in steps:
            try:
                if what == 0:
                    pair.there.put(bytes(length), key, offset, timeout=1)
                elif what == 1:
                    pair.there.get(key, offset, into=own[:length], timeout=1)
                elif what == 2:
                    key.revoke(timeout=1)
                elif what == 3:
                    key = memory.grant(offset % 8, offset=offset, timeout=1)
                elif what == 4:
                    view[offset % 4096] = length % 256
                elif length > 4000:
                    pair.two.close()
            except weft.Error:
                pass
    finally:
        pair.close()
    assert len(view) == 4096 and view[0] in range(256)


@FUZZ
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 300)), max_size=25))
def test_tasks_that_are_cancelled_at_any_time(steps: list[tuple[int, int]]) -> None:
    async def main() -> None:
        one, two = aio.Endpoint(), aio.Endpoint()
        peer = await one.connect(two.address)
        memory = two.register(4096)
        key = memory.grant()
        tasks: list[asyncio.Task[Any]] = []
        calls: list[Callable[[int], Any]] = [
            lambda n: one.send(peer, bytes(n % 120)),
            lambda n: two.receive(),
            lambda n: two.notification(),
            lambda n: one.put(peer, bytes(n), key, notify=n % 256),
            lambda n: one.get(peer, key, n, into=bytearray(n)),
            lambda n: one.connect(two.address),
        ]
        for what, number in steps:
            if what < len(calls):
                tasks.append(asyncio.ensure_future(calls[what](number)))
            elif what == 6 and tasks:
                tasks[number % len(tasks)].cancel()
            elif what == 7:
                await asyncio.sleep(0)
            elif number > 280:
                two.close()
        await asyncio.sleep(0)
        for endpoint in (two, one):
            endpoint.close()
        ends = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
        for end in ends:
            known = (weft.Error, asyncio.CancelledError, weft.Message, weft.Notification, weft.Peer)
            assert end is None or isinstance(end, known), end

    asyncio.run(main())


@FUZZ
@given(st.text(max_size=200))
def test_metrics_of_any_text(text: str) -> None:
    from weft import metrics

    try:
        list(metrics.parse(text))
    except ValueError:
        pass

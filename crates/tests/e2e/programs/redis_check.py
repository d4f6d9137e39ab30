"""Writes keys of many sizes to a redis server, singly and in pipelines, and reads them back.

usage: redis_check.py PORT KEYS
"""

import hashlib
import random
import socket
import sys


def command(*words: bytes) -> bytes:
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


def value_of(key: int) -> bytes:
    numbers = random.Random(key)
    # One value in fifty is longer than any buffer on its way.
    size = numbers.choice([300_000, 70_000]) if key % 50 == 0 else numbers.randrange(0, 3000)
    seed = hashlib.sha256(b"%d" % key).digest()
    return (seed * (size // len(seed) + 1))[:size]


def reply(stream) -> bytes:
    line = stream.readline()
    if line[:1] != b"$":
        return line.strip()
    size = int(line[1:])
    body = stream.read(size + 2)
    assert body[-2:] == b"\r\n", (line, body[-10:])
    return body[:-2]


def main() -> None:
    port, keys = int(sys.argv[1]), int(sys.argv[2])
    connection = socket.create_connection(("127.0.0.1", port))
    stream = connection.makefile("rb")
    for begin in range(0, keys, 100):
        batch = range(begin, min(begin + 100, keys))
        if begin % 200 == 0:
            for key in batch:
                connection.sendall(command(b"SET", b"key%d" % key, value_of(key)))
                assert reply(stream) == b"+OK"
        else:
            lines = [command(b"SET", b"key%d" % key, value_of(key)) for key in batch]
            connection.sendall(b"".join(lines))
            for key in batch:
                assert reply(stream) == b"+OK"
    order = list(range(keys))
    random.Random(7).shuffle(order)
    for key in order:
        connection.sendall(command(b"GET", b"key%d" % key))
        found = reply(stream)
        assert found == value_of(key), f"key {key}: {len(found)} bytes"
    connection.sendall(command(b"DBSIZE"))
    assert reply(stream) == b":%d" % keys
    print(f"{keys} keys are as written")


main()

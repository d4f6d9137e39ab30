"""One connection that sends bytes both ways and compares them, in difficult conditions.

usage: exchange.py server FILE [OPTION...]     writes its port to FILE, or - for standard output
       exchange.py client PORT [OPTION...]

options: --close-all     closes every descriptor from 3 on at the start
         --close-after   closes all other descriptors again, between two exchanges
         --twice         makes two exchanges
         --exec          the second exchange is by EXCHANGE_PROGRAM, which inherits the connection
         --greedy        opens files until no descriptor is left; closes them after the exchange
"""

import os
import resource
import socket
import sys

SIZE = 300_000


def pattern(seed):
    return bytes((place * seed + place // 7) % 251 for place in range(SIZE))


def exactly(connection, count):
    parts = []
    while count:
        part = connection.recv(min(count, 65_536))
        assert part, f"{count} bytes are missing"
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def close_all_but(kept):
    # As daemons do that are older than close_range.
    last = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 65_536)
    for number in range(3, last):
        if number != kept:
            try:
                os.close(number)
            except OSError:
                pass


def exchange(connection, serves):
    if serves:
        assert exactly(connection, SIZE) == pattern(3)
        connection.sendall(pattern(5))
    else:
        connection.sendall(pattern(3))
        assert exactly(connection, SIZE) == pattern(5)


def main():
    role, where, *options = sys.argv[1:]
    if "--close-all" in options:
        close_all_but(-1)
        os.closerange(3, 65_536)
    if role == "server":
        listener = socket.create_server(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
        if where == "-":
            print(port, flush=True)
        else:
            with open(where + ".new", "w") as file:
                file.write(port)
            os.rename(where + ".new", where)
        connection = listener.accept()[0]
        listener.close()
    else:
        connection = socket.create_connection(("127.0.0.1", int(where)))
    held = []
    if "--greedy" in options:
        try:
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
    exchange(connection, role == "server")
    if "--close-after" in options:
        close_all_but(connection.fileno())
    if "--exec" in options:
        os.set_inheritable(connection.fileno(), True)
        program = os.environ["EXCHANGE_PROGRAM"]
        os.execv(program, [program, "on", str(connection.fileno())])
    if "--close-after" in options or "--twice" in options:
        exchange(connection, role == "server")
    for number in held:
        os.close(number)
    connection.shutdown(socket.SHUT_WR)
    assert connection.recv(10) == b""
    connection.close()
    print("exchanged", flush=True)


main()

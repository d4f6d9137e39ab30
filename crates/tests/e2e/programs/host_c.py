"""Programs in C between hosts: host_c.py WEFT CASE DIRECTORY PROGRAMS.

As hosts.py, whose machine this has, too. PROGRAMS is the directory of the compiled examples.
"""

import pathlib
import sys

from two_hosts import LIMIT, WEFT, hosts, run_case, text_of, until

PROGRAMS = pathlib.Path(sys.argv[4])


def c_programs():
    """Messages, remote memory with a notification and atomics, and an end that is killed."""
    one, two = hosts()
    ping_pong, memory = str(PROGRAMS / "ping_pong"), str(PROGRAMS / "memory")
    service, log = two.start(ping_pong, "serve")
    until("the service is there", lambda: "serving" in text_of(log))
    until("it is known on the other host", lambda: "c-ping" in one.run(WEFT, "status"))
    said = one.run(ping_pong, "c-ping@1", "200")
    assert "200 round trips with 1:" in said, said
    until("the end of the client is told", lambda: "a client has ended" in text_of(log))
    client, said = one.start(ping_pong, "c-ping@1", "1000000000")
    until("the client is connected", lambda: "c-ping" in one.run(WEFT, "status"))
    service.kill()
    assert client.wait(LIMIT) != 0, text_of(said)
    words = ("the service has ended", "the peer is down", "nobody offers", "no endpoint")
    assert any(told in text_of(said) for told in words), text_of(said)

    owner, log = two.start(memory, "own")
    until("the owner is there", lambda: "waiting" in text_of(log))
    until("it is known on the other host", lambda: "c-memory" in one.run(WEFT, "status"))
    said = one.run(memory, "c-memory@1")
    assert "read back: written by another program" in said, said
    assert owner.wait(LIMIT) == 0, text_of(log)
    assert "with the number 42\nthe counter is 7\n" in text_of(log), text_of(log)


run_case(globals())

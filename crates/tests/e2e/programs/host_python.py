"""The package for Python between hosts: host_python.py WEFT CASE DIRECTORY PACKAGE.

As hosts.py, whose machine this has, too. PACKAGE is the directory in which the package is.
"""

import os
import signal
import sys

from two_hosts import LIMIT, WEFT, hosts, run_case, text_of, until

os.environ["PYTHONPATH"] = sys.argv[4]
SIZE = 256 << 10

SERVER = f"""
import weft
endpoint = weft.Endpoint("a server", offer="python")
memory = endpoint.register(2 * {SIZE})
view = memoryview(memory)
view[:{SIZE}] = b"1" * {SIZE}
key = int(memory.grant(7)).to_bytes(8, "little")
print("serving", flush=True)
while True:
    try:
        message = endpoint.receive()
    except weft.PeerDied as error:
        print("told of", error.reason, flush=True)
        continue
    message.peer.send(key)
"""

CLIENT = f"""
import os, signal, sys, time, weft
server = int(sys.argv[1])
endpoint = weft.Endpoint("a client", service="python@1")
peer = endpoint.connect(timeout=30)
peer.send(b"where?")
key = int.from_bytes(endpoint.receive(30).payload, "little")
peer.put(b"2" * {SIZE}, key, {SIZE}, timeout=30)
into = bytearray({SIZE})
os.kill(server, signal.SIGSTOP)
# Each of its threads goes on until it sees the signal, and one that progresses would answer.
tasks = f"/proc/{{server}}/task"
while any(open(f"{{tasks}}/{{task}}/stat").read().rsplit(")", 1)[1].split()[0] != "T"
          for task in os.listdir(tasks)):
    time.sleep(0.01)
try:
    peer.get(key, 0, into=into, timeout=0.1)
except weft.TimedOut:
    print("given up")
os.kill(server, signal.SIGCONT)
# None of these has bytes that the first get left behind.
for _ in range(20):
    peer.get(key, {SIZE}, into=into, timeout=30)
    assert into == b"2" * {SIZE}
    assert peer.get(key, 8, length=3, timeout=30) == b"111"
before = peer.fetch_add(key, 0, 1, timeout=30)
assert peer.fetch_add(key, 0, 1, timeout=30) == before + 1
print("ready", flush=True)
try:
    endpoint.receive(120, peer=peer)
except weft.PeerDied as error:
    print("raised", error.reason, flush=True)
"""


def python():
    """Messages, memory and atomics, a get that is given up, and ends that are killed."""
    one, two = hosts()
    server, log = two.start(sys.executable, "-c", SERVER)
    until("the service is there", lambda: "serving" in text_of(log))
    until("it is known on the other host", lambda: "python" in one.run(WEFT, "status"))
    client, said = one.start(sys.executable, "-c", CLIENT, str(server.pid))
    until("all was done", lambda: "ready" in text_of(said))
    assert "given up" in text_of(said), text_of(said)
    client.kill()
    until("the end of the client is told", lambda: "told of" in text_of(log))
    client, said = one.start(sys.executable, "-c", CLIENT, str(server.pid))
    until("all was done", lambda: "ready" in text_of(said))
    server.kill()
    assert client.wait(LIMIT) == 0, text_of(said)
    assert "raised" in text_of(said), text_of(said)


run_case(globals())

"""A process at the daemon's socket that is not a daemon of this release.

usage: fake_daemon.py SOCKET version|silent|noise|closes
"""

import socket
import struct
import sys

place, manner = sys.argv[1:]
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(place)
listener.listen(50)
print("ready", flush=True)
held = []
while True:
    channel = listener.accept()[0]
    held.append(channel)
    try:
        if manner == "closes":
            channel.close()
        elif manner == "noise":
            channel.send(bytes(range(200)))
        elif manner == "version":
            # The answer has another version, whatever the request.
            channel.send(struct.pack("<4sHH", b"weft", 77, 2) + bytes(5))
    except BrokenPipeError:
        # The command only checked whether a daemon is here.
        pass

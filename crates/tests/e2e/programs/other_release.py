"""A program of another release that greets the daemon of this one.

usage: other_release.py SOCKET

Prints the version in the answer's header, and the words of the answer. Ends when the daemon has
closed the line.
"""

import socket
import struct
import sys

line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.settimeout(30)
line.connect(sys.argv[1])
HELLO = 1
line.send(struct.pack("<4sHHI", b"weft", 77, HELLO, 1) + b"other")
answer = line.recv(2048)
magic, version, _ = struct.unpack("<4sHH", answer[:8])
assert magic == b"weft", answer
print(version, answer[8:].decode(errors="replace"))
assert line.recv(2048) == b""

"""An epoll set that registers descriptors by io_uring where the kernel has it, as libuv does."""

import ctypes
import mmap
import struct

SETUP, ENTER = 425, 426
EPOLL_CTL = 29
SQES = 0x10000000

LIBC = ctypes.CDLL(None, use_errno=True)


class Registrar:
    def __init__(self, epoll):
        self.epoll = epoll
        parameters = bytearray(120)
        buffer = (ctypes.c_char * 120).from_buffer(parameters)
        self.ring = LIBC.syscall(SETUP, 4, buffer)
        if self.ring < 0:
            return
        entries = struct.unpack_from("I", parameters, 0)[0]
        _, self.tail, self.mask, _, _, _, self.array, _ = struct.unpack_from("8I", parameters, 40)
        self.queue = mmap.mmap(self.ring, self.array + 4 * entries, mmap.MAP_SHARED)
        self.entries = mmap.mmap(self.ring, 64 * entries, mmap.MAP_SHARED, offset=SQES)

    def register(self, fd, events):
        if self.ring < 0:
            self.epoll.register(fd, events)
            return
        event = ctypes.create_string_buffer(struct.pack("=IQ", events, fd), 12)
        entry = struct.pack("=BBHiQQI", EPOLL_CTL, 0, 0, self.epoll.fileno(), fd,
                            ctypes.addressof(event), 1)
        tail = struct.unpack_from("I", self.queue, self.tail)[0]
        mask = struct.unpack_from("I", self.queue, self.mask)[0]
        self.entries[64 * (tail & mask) : 64 * (tail & mask) + 64] = entry.ljust(64, b"\0")
        struct.pack_into("I", self.queue, self.array + 4 * (tail & mask), tail & mask)
        struct.pack_into("I", self.queue, self.tail, tail + 1)
        done = LIBC.syscall(ENTER, self.ring, 1, 1, 1, None, 0)
        assert done == 1, ctypes.get_errno()

"""Arrays of NumPy as memory."""

from __future__ import annotations

import gc

import pytest

import weft

numpy = pytest.importorskip("numpy")


def test_arrays_of_numpy_are_memory() -> None:
    with weft.Endpoint() as one, weft.Endpoint() as two:
        memory = two.register(8 * 1000)
        array = numpy.frombuffer(memory, dtype=numpy.float64)
        key = memory.grant()
        there = one.connect(two.address)
        there.put(numpy.arange(1000.0), key)
        assert (array == numpy.arange(1000.0)).all()
        into = numpy.zeros((10, 10), dtype=numpy.float64)
        there.get(key, 8, into=into)
        assert into[9, 9] == 100.0
        with pytest.raises(BufferError, match="one piece"):
            there.put(into.T, key)
        with pytest.raises(BufferError, match="one piece"):
            there.get(key, into=into[:, ::2])
        array += 1
        assert there.get(key, length=8) == numpy.float64(1).tobytes()
        with pytest.raises(BufferError):
            memory.close()
        del array
        gc.collect()
        memory.close()

"""A process of a job of MPICH, by its C library: ranks are added up over all processes."""

import ctypes

mpi = ctypes.CDLL("libmpich.so.12")
# Handles of MPICH for the world, for int, and for the sum.
WORLD, INT, SUM = 0x44000000, 0x4C000405, 0x58000003
rank, size, total = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
assert mpi.MPI_Init(None, None) == 0
mpi.MPI_Comm_rank(WORLD, ctypes.byref(rank))
mpi.MPI_Comm_size(WORLD, ctypes.byref(size))
assert mpi.MPI_Allreduce(ctypes.byref(rank), ctypes.byref(total), 1, INT, SUM, WORLD) == 0
print(f"rank {rank.value} of {size.value}: {total.value}", flush=True)
mpi.MPI_Finalize()

/* Writes a dataset of parallel HDF5 by all ranks at once, reads it, and checks the rows of a
 * neighbour. The file is the first argument. */
#include <hdf5.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 64, COLUMNS = 4096 };

static int rows[ROWS][COLUMNS];

int main(int argc, char **argv)
{
    int rank, ranks, wrong = 0, all;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    hid_t access = H5Pcreate(H5P_FILE_ACCESS), together = H5Pcreate(H5P_DATASET_XFER);
    H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL);
    H5Pset_dxpl_mpio(together, H5FD_MPIO_COLLECTIVE);
    hid_t file = H5Fcreate(argv[1], H5F_ACC_TRUNC, H5P_DEFAULT, access);
    /* Rows take turns among the ranks, so that the collective buffering has to exchange them. */
    hsize_t whole[] = {(hsize_t)ROWS * ranks, COLUMNS}, mine[] = {ROWS, COLUMNS};
    hsize_t first[] = {rank, 0}, stride[] = {ranks, 1};
    hid_t space = H5Screate_simple(2, whole, NULL), memory = H5Screate_simple(2, mine, NULL);
    hid_t set = H5Dcreate(file, "rows", H5T_NATIVE_INT, space, H5P_DEFAULT, H5P_DEFAULT,
                           H5P_DEFAULT);
    for (int row = 0; row < ROWS; row++)
        for (int column = 0; column < COLUMNS; column++)
            rows[row][column] = (row * ranks + rank) * COLUMNS + column;
    H5Sselect_hyperslab(space, H5S_SELECT_SET, first, stride, mine, NULL);
    wrong += H5Dwrite(set, H5T_NATIVE_INT, memory, space, together, rows) < 0;
    int other = (rank + 1) % ranks;
    first[0] = other;
    H5Sselect_hyperslab(space, H5S_SELECT_SET, first, stride, mine, NULL);
    wrong += H5Dread(set, H5T_NATIVE_INT, memory, space, together, rows) < 0;
    for (int row = 0; row < ROWS; row++)
        for (int column = 0; column < COLUMNS; column++)
            wrong += rows[row][column] != (row * ranks + other) * COLUMNS + column;
    H5Dclose(set);
    H5Fclose(file);
    MPI_Reduce(&wrong, &all, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d ranks: %d values are wrong\n", ranks, all);
    MPI_Finalize();
    return wrong != 0;
}

/* mpi: messages between all pairs of ranks and collective operations, from 1 byte to 1 MiB, with every
 * byte of every result compared. Ends with 1 at the first that is wrong. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int rank, ranks;

static void compare(const char *what, int right)
{
	if (right)
		return;
	fprintf(stderr, "rank %d: wrong data after %s\n", rank, what);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

/* What byte `at` of a rank's memory is. */
static unsigned char pattern(int of, size_t at)
{
	return (unsigned char)((size_t)of * 31 + at * 7 + at / 256);
}

static void messages(size_t length)
{
	size_t all = length * (size_t)ranks;
	unsigned char *mine = malloc(all), *theirs = malloc(all);
	int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks, right = 1;

	for (size_t i = 0; i < all; i++)
		mine[i] = pattern(rank, i);
	MPI_Alltoall(mine, (int)length, MPI_BYTE, theirs, (int)length, MPI_BYTE, MPI_COMM_WORLD);
	for (int peer = 0; peer < ranks; peer++)
		for (size_t i = 0; i < length; i++)
			right &= theirs[(size_t)peer * length + i] == pattern(peer, (size_t)rank * length + i);
	compare("MPI_Alltoall", right);
	MPI_Sendrecv(mine, (int)length, MPI_BYTE, next, 1, theirs, (int)length, MPI_BYTE, before, 1, MPI_COMM_WORLD,
		     MPI_STATUS_IGNORE);
	for (size_t i = 0; i < length; i++)
		right &= theirs[i] == pattern(before, i);
	compare("MPI_Sendrecv", right);
	free(mine);
	free(theirs);
}

static void sums(int count)
{
	double *mine = malloc((size_t)count * sizeof *mine), *sum = malloc((size_t)count * sizeof *sum);
	int right = 1;

	for (int i = 0; i < count; i++)
		mine[i] = rank + i;
	MPI_Allreduce(mine, sum, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < count; i++)
		right &= sum[i] == ranks * (double)i + ranks * (ranks - 1) / 2.0;
	compare("MPI_Allreduce", right);
	free(mine);
	free(sum);
}

static void roots(void)
{
	for (int root = 0; root < 100; root++) {
		int number = rank == root % ranks ? root : -1;

		MPI_Bcast(&number, 1, MPI_INT, root % ranks, MPI_COMM_WORLD);
		compare("MPI_Bcast", number == root);
		MPI_Barrier(MPI_COMM_WORLD);
	}
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 1;
	double times[3] = { 0 };

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	/* The first round, which connects the ranks, does not count where there are more. */
	for (int round = 0; round < rounds; round++) {
		double begun = MPI_Wtime(), then = begun;

		if (round == 1)
			times[0] = times[1] = times[2] = 0;
		for (size_t length = 1; length <= 1 << 20; length *= 4)
			messages(length);
		times[0] += (then = MPI_Wtime()) - begun;
		for (int count = 1; count <= 1 << 16; count *= 16)
			sums(count);
		times[1] += MPI_Wtime() - then;
		then = MPI_Wtime();
		roots();
		times[2] += MPI_Wtime() - then;
	}
	if (rank == 0)
		printf("%d ranks agree: messages %f s, sums %f s, barriers %f s\n", ranks, times[0], times[1], times[2]);
	MPI_Finalize();
	return 0;
}

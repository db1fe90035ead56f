/* Sets of `select` that are larger than fd_set, and counts that are larger than sets. */
#include "sockets.h"
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>

enum { PORT = 7400, FAR = 1500, BITS = 8 * sizeof(long), WORDS = 32 };

static bool has(const unsigned long *set, int fd)
{
	return set[fd / BITS] >> (fd % BITS) & 1;
}

static void add(unsigned long *set, int fd)
{
	set[fd / BITS] |= 1UL << (fd % BITS);
}

static int reads(int count, void *set)
{
	struct timeval now = { 0 };
	return select(count, set, NULL, NULL, &now);
}

/* Programs pass getdtablesize(), with sets of the usual size. Behind this one is no memory. */
static void small(int fd)
{
	long page = sysconf(_SC_PAGESIZE);
	char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	fd_set *set = (fd_set *)(pages + page) - 1;
	mprotect(pages + page, page, PROT_NONE);
	FD_SET(fd, set);
	HOLDS(reads(1 << 20, set) == 1);
	HOLDS(FD_ISSET(fd, set));
	munmap(pages, 2 * page);
}

static void large(int fd)
{
	struct rlimit limit;
	unsigned long *set = calloc(WORDS, sizeof *set);
	char byte;
	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	EXPECT(0, setrlimit(RLIMIT_NOFILE, &limit));
	HOLDS(dup2(fd, FAR) == FAR);
	add(set, fd);
	add(set, FAR);
	HOLDS(reads(FAR + 1, set) == 2);
	HOLDS(has(set, fd) && has(set, FAR));
	/* Words behind the last one that is named are the program's. */
	add(set, 1600);
	HOLDS(reads(FAR, set) == 1);
	HOLDS(has(set, fd) && !has(set, FAR) && has(set, 1600));
	add(set, FAR);
	HOLDS(read(fd, &byte, 1) == 1);
	HOLDS(reads(FAR + 1, set) == 0);
	HOLDS(!has(set, fd) && !has(set, FAR) && has(set, 1600));
	free(set);
}

void sets(void)
{
	int ends[2];
	connect_ends(PORT, ends);
	HOLDS(send(ends[1], "x", 1, 0) == 1);
	HOLDS(poll(&(struct pollfd){ .fd = ends[0], .events = POLLIN }, 1, 5000) == 1);
	small(ends[0]);
	large(ends[0]);
}

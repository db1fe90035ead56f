/* A setuid-root program that any user may run. It watches one of its own pages for a moment.
 *
 * A client of the daemon registers this very address, then execs this program while a peer
 * writes to it. The page is root's now and must not change. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ADDRESS ((unsigned char *)0x6fff00000000)
enum { CANARY = 0x5a, PAGE = 4096 };

int main(void)
{
	unsigned char *page = mmap(ADDRESS, PAGE, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	int changed = 0;

	if (page != ADDRESS)
		return 3;
	memset(page, CANARY, PAGE);
	printf("watching as user %d\n", (int)geteuid());
	fflush(stdout);
	for (int ms = 0; ms < 2000; ms++, usleep(1000))
		for (int i = 0; i < PAGE; i++)
			changed |= page[i] != CANARY;
	printf("the page is %s\n", changed ? "CHANGED" : "intact");
	return changed;
}

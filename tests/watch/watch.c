/* A program with more rights than its user, by a setuid bit or by file capabilities, that any user
 * may run. It watches one of its own pages for a moment.
 *
 * A client of the daemon registers this very address, then execs this program while a peer
 * writes to it. The page is another program's now and must not change, even though this one says
 * that it has no secrets (PR_SET_DUMPABLE). */
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ADDRESS ((unsigned char *)0x6fff00000000)
enum { CANARY = 0x5a, PAGE = 4096 };

int main(void)
{
	unsigned char *page = mmap(ADDRESS, PAGE, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct caps[2] = { 0 };
	int changed = 0;

	if (page != ADDRESS || prctl(PR_SET_DUMPABLE, 1))
		return 3;
	memset(page, CANARY, PAGE);
	syscall(SYS_capget, &head, caps);
	printf("watching as user %d with capabilities %x\n", (int)geteuid(), caps[0].effective);
	fflush(stdout);
	for (int ms = 0; ms < 2000; ms++, usleep(1000))
		for (int i = 0; i < PAGE; i++)
			changed |= page[i] != CANARY;
	printf("the page is %s\n", changed ? "CHANGED" : "intact");
	return changed;
}

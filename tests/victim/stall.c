/* A client whose registered memory never becomes present. */
#define _GNU_SOURCE
#include "victim.h"
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/userfaultfd.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096 };

/* Goes on as the user that STALL_AS names: only root may have page faults of the kernel wait. */
static void become_user(void)
{
	const char *name = getenv("STALL_AS");
	unsigned id = name ? (unsigned)atoi(name) : 0;

	if (id && (setgroups(0, NULL) || setresgid(id, id, id) || setresuid(id, id, id) ||
		   prctl(PR_SET_DUMPABLE, 1)))
		die("user %u: %s", id, strerror(errno));
}

/* Sends from a page of a file whose contents never come. */
static int sends_file(const struct rc_options *opt, const char *name)
{
	static struct pair pair;
	struct rc_place target;
	struct ibv_sge sge = { .length = PAGE };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE }, *bad;
	int fd = open(name, O_RDWR);
	unsigned char *page;
	struct ibv_mr *mr;

	pair_make(&pair, opt);
	page = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
	if (fd < 0 || page == MAP_FAILED)
		die("%s: %s", name, strerror(errno));
	mr = ibv_reg_mr(pair.a.pd, page, PAGE, 0);
	if (!mr)
		die("ibv_reg_mr: %s", strerror(errno));
	target = pair.at_b;
	sge.addr = (uintptr_t)page;
	sge.lkey = mr->lkey;
	wr.wr.rdma.remote_addr = target.addr;
	wr.wr.rdma.rkey = target.rkey;
	if (ibv_post_send(pair.a.qp, &wr, &bad))
		die("ibv_post_send failed");
	say("posted");
	pause();
	return 0;
}

int stalls(const struct rc_options *opt)
{
	static struct pair pair;
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register range = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	struct rc_place target;
	unsigned char *page;
	struct ibv_mr *mr;
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);

	if (opt->host)
		return sends_file(opt, opt->host);
	if (fd < 0 || ioctl(fd, UFFDIO_API, &api))
		die("userfaultfd: %s", strerror(errno));
	become_user();
	pair_make(&pair, opt);
	page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(page, 1, PAGE);
	mr = ibv_reg_mr(pair.b.pd, page, PAGE, ALL_ACCESS);
	if (!mr)
		die("ibv_reg_mr: %s", strerror(errno));
	range.range.start = (uintptr_t)page;
	range.range.len = PAGE;
	if (madvise(page, PAGE, MADV_DONTNEED) || ioctl(fd, UFFDIO_REGISTER, &range))
		die("userfaultfd: %s", strerror(errno));
	target = pair.at_b;
	target.addr = (uintptr_t)page;
	target.rkey = mr->rkey;
	if (rc_post_send(&pair.a, IBV_WR_RDMA_WRITE, 1, 0, PAGE, &target))
		die("ibv_post_send failed");
	/* Returns when the engine touches the page; the page fault is never resolved. */
	if (read(fd, &(struct uffd_msg){ 0 }, sizeof(struct uffd_msg)) < 0)
		die("no page was asked for: %s", strerror(errno));
	say("the engine waits");
	pause();
	return 0;
}

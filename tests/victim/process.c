/* fork, exec, threads that end, and process ids that are used again. */
#include "victim.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static struct pair pair;

static void ends_at_once(void)
{
	_exit(0);
}

static void ends_in_order(void)
{
	exit(0);
}

static void destroys(void)
{
	ibv_destroy_qp(pair.a.qp);
	ibv_destroy_qp(pair.b.qp);
	ibv_dereg_mr(pair.a.mr);
	ibv_dereg_mr(pair.b.mr);
	ibv_destroy_cq(pair.a.send_cq);
	ibv_dealloc_pd(pair.a.pd);
	ibv_close_device(pair.a.ctx);
	exit(0);
}

/* The queues' memory is not inherited, as with hardware: the child may crash, but only the child. */
static void uses(void)
{
	struct ibv_wc wc;

	for (int i = 0; i < 1000; i++) {
		rc_post_send(&pair.a, IBV_WR_RDMA_WRITE, 1, 0, 64, &pair.at_b);
		ibv_poll_cq(pair.a.send_cq, 1, &wc);
	}
	exit(0);
}

static void closes(void)
{
	for (int fd = 3; fd < 1024; fd++)
		close(fd);
	exit(0);
}

static void opens_its_own(void)
{
	struct rc_options opt = pair.a.opt;
	struct pair own;

	pair_make(&own, &opt);
	pair_transfer(&own, 20);
	exit(0);
}

int forks(const struct rc_options *opt)
{
	static const struct {
		const char *name;
		void (*run)(void);
		bool must_succeed;
	} children[] = {
		{ "ends at once", ends_at_once, true },	   { "ends in order", ends_in_order, true },
		{ "destroys", destroys, false },	   { "uses", uses, false },
		{ "closes every descriptor", closes, true }, { "opens its own", opens_its_own, true },
	};

	pair_make(&pair, opt);
	for (size_t i = 0; i < sizeof children / sizeof *children; i++) {
		int status;
		pid_t child = fork();

		if (!child) {
			alarm(10);
			children[i].run();
		}
		if (child < 0 || waitpid(child, &status, 0) != child)
			die("fork: %s", strerror(errno));
		if (children[i].must_succeed && status)
			die("the child that %s ended with status %#x", children[i].name, (unsigned)status);
		if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
			die("the child that %s hangs", children[i].name);
		pair_transfer(&pair, 20);
		say("child that %s: ended with %#x, parent goes on", children[i].name, (unsigned)status);
	}
	return 0;
}

int orphan(const struct rc_options *opt)
{
	pair_make(&pair, opt);
	pair_transfer(&pair, 10);
	if (!fork())
		for (;;)
			pause();
	say("ready");
	for (;;)
		pause();
}

int becomes_another(const struct rc_options *opt)
{
	pair_make(&pair, opt);
	pair_transfer(&pair, 10);
	say("ready");
	/* The test asks the daemon what we have, then lets us go. */
	usleep(500 * 1000);
	execlp("sleep", "sleep", "60", (char *)NULL);
	die("exec: %s", strerror(errno));
}

static void wait_until_zombie(void)
{
	char path[64], line[256], state = 0;

	snprintf(path, sizeof path, "/proc/self/task/%d/stat", getpid());
	while (state != 'Z') {
		FILE *f = fopen(path, "r");

		if (!f || !fgets(line, sizeof line, f) || sscanf(line, "%*d (%*[^)]) %c", &state) != 1)
			die("cannot read %s", path);
		fclose(f);
	}
}

static void *goes_on(void *opt)
{
	struct pair fresh;

	wait_until_zombie();
	pair_transfer(&pair, 100);
	pair_make(&fresh, opt);
	pair_transfer(&fresh, 100);
	say("ok");
	exit(0);
}

int loses_main_thread(const struct rc_options *opt)
{
	static struct rc_options kept;
	pthread_t thread;

	kept = *opt;
	pair_make(&pair, opt);
	pair_transfer(&pair, 10);
	if (pthread_create(&thread, NULL, goes_on, &kept))
		die("pthread_create failed");
	pthread_exit(NULL);
}

/* The address at which both the dying client and the unrelated process have memory. */
#define SHARED_ADDRESS ((unsigned char *)0x6fff00000000)
enum { CANARY = 0x5a, PAGE = 4096 };

static unsigned char *canary_page(void)
{
	unsigned char *page = mmap(SHARED_ADDRESS, PAGE, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	if (page != SHARED_ADDRESS)
		die("mmap: %s", strerror(errno));
	memset(page, CANARY, PAGE);
	return page;
}

/* The client whose process id is used again: registers the page, sends its address, dies. */
static void registers_and_dies(const struct rc_options *opt, int in, int out)
{
	struct rc rc = { 0 };
	struct rc_place mine, peer;
	struct ibv_mr *mr;

	rc_make(&rc, opt, PAGE);
	mr = ibv_reg_mr(rc.pd, canary_page(), PAGE, ALL_ACCESS);
	if (!mr)
		die("ibv_reg_mr: %s", strerror(errno));
	mine = rc_place(&rc);
	mine.addr = (uintptr_t)SHARED_ADDRESS;
	mine.rkey = mr->rkey;
	if (write(out, &mine, sizeof mine) != sizeof mine || read(in, &peer, sizeof peer) != sizeof peer)
		die("the parent is gone");
	rc_connect(&rc, &peer);
	if (write(out, &mine, sizeof mine) != sizeof mine)
		die("the parent is gone");
	/* A child's copy of the socket must not keep the session alive. */
	if (!fork()) {
		sleep(4);
		_exit(0);
	}
	for (;;)
		pause();
}

static void set_last_pid(pid_t pid)
{
	FILE *f = fopen("/proc/sys/kernel/ns_last_pid", "w");

	if (!f || fprintf(f, "%d", pid - 1) < 0 || fclose(f))
		die("cannot choose a process id: %s", strerror(errno));
}

/* An unrelated process with the dead client's process id; reports whether its page was written to. */
static void is_a_stranger(int ready)
{
	unsigned char *page = canary_page();
	int changed = 0;

	if (write(ready, "r", 1) != 1)
		_exit(3);
	for (int ms = 0; ms < 1000; ms++, usleep(1000))
		for (int i = 0; i < PAGE; i++)
			changed |= page[i] != CANARY;
	_exit(changed);
}

static pid_t stranger_with(pid_t pid, int ready)
{
	for (int attempt = 0; attempt < 100; attempt++) {
		pid_t child;

		set_last_pid(pid);
		child = fork();
		if (!child) {
			if (getpid() != pid)
				_exit(4);
			is_a_stranger(ready);
		}
		if (child == pid)
			return child;
		waitpid(child, NULL, 0);
	}
	die("process id %d is in use by another program", pid);
}

int is_reborn(const struct rc_options *opt)
{
	int up[2], down[2], status = 0;
	struct rc rc = { 0 };
	struct rc_place mine, client;
	struct rc_options quick = *opt;
	struct ibv_wc wc;
	pid_t pid;
	char byte;

	if (pipe(up) || pipe(down))
		die("pipe: %s", strerror(errno));
	pid = fork();
	if (!pid)
		registers_and_dies(opt, down[0], up[1]);
	quick.timeout = 10;
	rc_make(&rc, &quick, PAGE);
	memset(rc.buf, 0xee, PAGE);
	mine = rc_place(&rc);
	if (read(up[0], &client, sizeof client) != sizeof client || write(down[1], &mine, sizeof mine) != sizeof mine)
		die("the client is gone");
	rc_connect(&rc, &client);
	if (read(up[0], &client, sizeof client) != sizeof client)
		die("the client is gone");
	if (rc_post_send(&rc, IBV_WR_RDMA_WRITE, 1, 0, PAGE, &client) || !rc_wait(rc.send_cq, &wc, 5000) || wc.status)
		die("the client's memory must be writable while it lives");
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	stranger_with(pid, up[1]);
	if (read(up[0], &byte, 1) != 1)
		die("the unrelated process has ended");
	if (rc_post_send(&rc, IBV_WR_RDMA_WRITE, 2, 0, PAGE, &client) || !rc_wait(rc.send_cq, &wc, 5000))
		die("no completion after the client's death");
	waitpid(pid, &status, 0);
	say("process id %d came again: write %s, unrelated process's page %s", pid, wc_name(wc.status), status ? "CHANGED" : "intact");
	return status || !wc.status;
}

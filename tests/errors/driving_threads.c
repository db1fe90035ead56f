/* What the threads of a program do while their polls turn the engine that is in them (docs/functions.md, "Which thread turns the engine"). */
#define _GNU_SOURCE
#include "driving.h"
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096 };

static atomic_bool begun, over;

static void *polls_behind_a_filter(void *unused)
{
	struct ibv_cq *cq = cq_of_this_thread();

	allow_few_system_calls();
	begun = true;
	/* On a CPU that is shared, polls sleep. */
	for (double i = 0, until = now() + 2; i < 200000 && now() < until; i++)
		poll_in_vain(cq);
	over = true;
	/* Its end would take other system calls. */
	for (;;)
		usleep(10000);
	return unused;
}

/* One thread drives. Another one polls, which may do less. */
static void driving_thread_filtered(void)
{
	pthread_t thread;
	int good = 0;

	ready_to_drive();
	start(&thread, NULL, polls_behind_a_filter);
	while (!over && message())
		good++;
	say("%s", over && good ? "lives" : "a message is lost");
}

/* The thread forbids itself most system calls once it has polled: it must not drive (RNIC_DRIVE=off). */
static void driving_forbidden(void)
{
	int before;

	bench_ready(&bench);
	before = messages();
	allow_few_system_calls();
	say("%d and %d messages", before, messages());
}

static void reset(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };

	if (ibv_modify_qp(bench.a.qp, &attr, IBV_QP_STATE) || ibv_modify_qp(bench.b.qp, &attr, IBV_QP_STATE))
		die("ibv_modify_qp failed");
	bench_connect(&bench);
}

static void let_faults(int how)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGSEGV);
	sigaddset(&set, SIGBUS);
	pthread_sigmask(how, &set, NULL);
}

/* Some time before the memory goes, and after the thread has begun to drive. */
static bool blocks_faults;
/* The fewest messages that were right meanwhile. */
static int good_while_blocked = MESSAGES;

/* How a WRITE ends whose source, or whose destination, is gone. */
static const char *write_without_memory(bool is_source)
{
	unsigned char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr = ibv_reg_mr(bench.a.pd, pages, 2 * PAGE, ALL_ACCESS);
	struct ibv_sge sge = { .addr = (uintptr_t)bench.a.buf, .length = PAGE, .lkey = bench.a.mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { bench.at_b.addr, bench.at_b.rkey } }, *bad;
	struct ibv_wc wc;

	if (!mr)
		die("ibv_reg_mr: %s", strerror(errno));
	if (is_source) {
		sge.addr = (uintptr_t)pages + PAGE;
		sge.lkey = mr->lkey;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)pages + PAGE;
		wr.wr.rdma.rkey = mr->rkey;
	}
	drive();
	if (blocks_faults) {
		int good;

		let_faults(SIG_BLOCK);
		good = messages();
		if (good < good_while_blocked)
			good_while_blocked = good;
	}
	munmap(pages + PAGE, PAGE);
	if (ibv_post_send(bench.a.qp, &wr, &bad) || !rc_wait(bench.a.send_cq, &wc, 5000))
		die("no completion");
	if (blocks_faults)
		let_faults(SIG_UNBLOCK);
	reset();
	if (ibv_dereg_mr(mr))
		die("ibv_dereg_mr failed");
	munmap(pages, PAGE);
	return wc_name(wc.status);
}

enum { SOURCES = 4 };

/* In the words of all; "different" where they are not the same each time. */
static void write_sources_and_destinations(const char *ends[2])
{
	for (int i = 0; i < 2 * SOURCES; i++) {
		const char *end = write_without_memory(i % 2 == 0), **kept = &ends[i % 2];

		*kept = !*kept || !strcmp(*kept, end) ? end : "different";
	}
}

static void *writes_with_blocked_signals(void *ends)
{
	let_faults(SIG_BLOCK);
	cq_of_this_thread();
	write_sources_and_destinations(ends);
	over = true;
	return NULL;
}

/* Memory goes while its keys stay, also under a thread that no handler could help: another one drives then. */
static void driving_unmapped(void)
{
	const char *ends[2] = { 0 }, *blocked[2] = { 0 };
	struct ibv_cq *cq;
	pthread_t thread;

	ready_to_drive();
	write_sources_and_destinations(ends);
	cq = cq_of_this_thread();
	drive();
	if (pthread_create(&thread, NULL, writes_with_blocked_signals, blocked))
		die("pthread_create failed");
	while (!over)
		poll_in_vain(cq);
	pthread_join(thread, NULL);
	say("source %s, destination %s; signals blocked: source %s, destination %s", ends[0], ends[1], blocked[0],
	    blocked[1]);
}

/* The thread that drives blocks the signals of faults then. */
static void driving_blocks_faults(void)
{
	const char *ends[2] = { 0 };

	ready_to_drive();
	blocks_faults = true;
	write_sources_and_destinations(ends);
	say("%d messages, source %s, destination %s", good_while_blocked, ends[0], ends[1]);
}

static void *drives_and_moves(void *unused)
{
	cq_of_this_thread();
	drive();
	say("%d messages", messages());
	return unused;
}

static void driving_small_stack(void)
{
	pthread_attr_t attr;
	pthread_t thread;

	bench_ready(&bench);
	pthread_attr_init(&attr);
	if (pthread_attr_setstacksize(&attr, (size_t)PTHREAD_STACK_MIN + OF_EACH_THREAD))
		die("pthread_attr_setstacksize failed");
	start(&thread, &attr, drives_and_moves);
	pthread_join(thread, NULL);
}

static atomic_bool computing;
static double posted_at;

static void post_a_mark(void)
{
	posted_at = now();
	if (rc_post_send(&bench.a, IBV_WR_RDMA_WRITE, 1, PAGE, LENGTH, &bench.at_b))
		die("ibv_post_send failed");
}

static void *posts_meanwhile(void *unused)
{
	while (!computing)
		usleep(100);
	post_a_mark();
	return unused;
}

/* Whether a WRITE arrives within 5 ms while the thread that drives does not poll. */
static bool arrives_without_polls(unsigned char mark, bool is_own_post)
{
	volatile unsigned char *last = bench.b.buf + PAGE + LENGTH - 1;
	double arrived = 0, began;
	struct ibv_wc wc;
	pthread_t thread;

	memset(bench.a.buf + PAGE, mark, LENGTH);
	computing = false;
	if (!is_own_post)
		start(&thread, NULL, posts_meanwhile);
	drive();
	began = now();
	computing = true;
	if (is_own_post)
		post_a_mark();
	while (now() < began + (arrived ? 0.02 : 1))
		if (!arrived && *last == mark)
			arrived = now();
	if (!is_own_post)
		pthread_join(thread, NULL);
	if (!arrived || !rc_wait(bench.a.send_cq, &wc, 5000) || wc.status)
		die("a WRITE does not arrive");
	return arrived - posted_at < 0.005;
}

/* Other work on the machine may make some late. */
static int enough_arrive(bool is_own_post)
{
	enum { ENOUGH = 4, TRIES = 15 };
	static unsigned char mark;
	int good = 0;

	for (int i = 0; i < TRIES && good < ENOUGH; i++)
		good += arrives_without_polls(++mark, is_own_post);
	return good;
}

/* The engine's own thread takes over. */
static void driving_computes(void)
{
	int own, others;

	ready_to_drive();
	own = enough_arrive(true);
	others = enough_arrive(false);
	say("in time: %d posted by itself, %d by another thread", own, others);
}

/* Whether so many WRITEs, one so many seconds after the other, begin to arrive while they are posted, without a poll. */
static bool arrive_by_posts(int posts, double apart)
{
	volatile unsigned char *last = bench.b.buf + PAGE + LENGTH - 1;
	struct ibv_sge sge = { (uintptr_t)bench.a.buf + PAGE, LENGTH, bench.a.mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = { bench.at_b.addr + PAGE, bench.at_b.rkey } }, *bad;
	static unsigned char mark;
	struct ibv_wc wc;
	bool arrived;

	memset(bench.a.buf + PAGE, ++mark, LENGTH);
	drive();
	for (double next = now(); posts--; next += apart) {
		while (now() < next)
			;
		wr.send_flags = posts ? 0 : IBV_SEND_SIGNALED;
		if (ibv_post_send(bench.a.qp, &wr, &bad))
			die("ibv_post_send failed");
	}
	arrived = *last == mark;
	if (!rc_wait(bench.a.send_cq, &wc, 5000) || wc.status || *last != mark)
		die("a WRITE does not arrive");
	return arrived;
}

/* How many of some do so, until enough do. The alarm of the engine's own thread rings later than the last post. Where
 * something else had the CPU posts make no turns for a second. */
static int enough_posts(int posts, double apart)
{
	enum { ENOUGH = 4 };
	int good = 0;

	for (double until = now() + 8; now() < until && good < ENOUGH;)
		good += arrive_by_posts(posts, apart);
	return good;
}

/* Posts make turns where many come without a poll, or where some come for long. */
static void driving_posts(void)
{
	int many, slow;

	options.depth = 512;
	ready_to_drive();
	many = enough_posts(256, 0);
	slow = enough_posts(40, 5e-6);
	say("in time: %d of many at once, %d of some for long", many, slow);
}

static void *polls_until_cancelled(void *unused)
{
	struct ibv_cq *cq = cq_of_this_thread();

	begun = true;
	for (;;) {
		poll_in_vain(cq);
		pthread_testcancel();
	}
	return unused;
}

/* A thread is cancelled that drives, or is about to. */
static void driving_cancelled(void)
{
	int rounds = 0, moved = 0;
	pthread_t thread;

	ready_to_drive();
	for (; rounds < 10; rounds++) {
		begun = false;
		start(&thread, NULL, polls_until_cancelled);
		while (!begun)
			usleep(100);
		for (double until = now() + 0.005; now() < until;)
			if (!message())
				die("a message is lost");
		usleep(10000 + 100 * (unsigned)rounds);
		pthread_cancel(thread);
		pthread_join(thread, NULL);
		moved += messages();
	}
	say("%d messages after %d threads", moved, rounds);
}

static atomic_bool polled;

static void *polls_although_cancelled(void *cq)
{
	pthread_cancel(pthread_self());
	for (int i = 0; i < 5000; i++)
		poll_in_vain(cq);
	polled = true;
	pthread_testcancel();
	return cq;
}

/* It ends where it says so, and not within a poll, which has the queue's lock. */
static void driving_polls_are_not_cancelled(void)
{
	struct ibv_cq *cq;
	pthread_t thread;
	int err;

	ready_to_drive();
	cq = cq_of_this_thread();
	err = pthread_create(&thread, NULL, polls_although_cancelled, cq);
	if (err)
		die("pthread_create: %s", strerror(err));
	pthread_join(thread, NULL);
	err = ibv_destroy_cq(cq);
	say("%s, %d messages", polled && !err ? "polled" : "cancelled in a poll", messages());
}

static struct ibv_comp_channel *channel;

static void *waits_for_completions(void *unused)
{
	struct ibv_cq *cq;
	void *cq_context;

	begun = true;
	ibv_get_cq_event(channel, &cq, &cq_context);
	return unused;
}

static void *waits_for_events(void *unused)
{
	struct ibv_async_event event;

	begun = true;
	ibv_get_async_event(bench.a.ctx, &event);
	return unused;
}

/* A wait for events is where a thread ends that is cancelled. */
static void driving_waits_are_cancelled(void)
{
	void *(*const waits[])(void *) = { waits_for_completions, waits_for_events };
	int cancelled = 0;

	ready_to_drive();
	channel = ibv_create_comp_channel(bench.a.ctx);
	if (!channel)
		die("ibv_create_comp_channel: %s", strerror(errno));
	for (int i = 0; i < 2; i++) {
		pthread_t thread;
		void *end;

		begun = false;
		start(&thread, NULL, waits[i]);
		while (!begun)
			usleep(100);
		usleep(10000);
		pthread_cancel(thread);
		pthread_join(thread, &end);
		cancelled += end == PTHREAD_CANCELED;
	}
	say("%d cancelled, %s, %d messages", cancelled, ibv_destroy_comp_channel(channel) ? "busy" : "destroyed", messages());
}

static void *sends_soon(void *unused)
{
	usleep(1500);
	if (rc_post_send(&bench.a, IBV_WR_SEND, 1, 0, LENGTH, &bench.at_b))
		die("a send is refused");
	return unused;
}

/* The only message comes when its polls are about to turn the engine. Then the device is closed, and the program
 * stays. */
static void driving_ends_before_it_begins(void)
{
	pthread_t thread;
	struct ibv_wc wc;

	bench_ready(&bench);
	if (rc_post_recv(&bench.b, 1, 0, LENGTH))
		die("a receive is refused");
	usleep(100000); /* The engine's thread sleeps, and wakes up for the message. */
	start(&thread, NULL, sends_soon);
	while (!ibv_poll_cq(bench.b.recv_cq, 1, &wc))
		;
	pthread_join(thread, NULL);
	if (wc.status)
		die("status %d", wc.status);
	ibv_destroy_qp(bench.a.qp);
	ibv_destroy_qp(bench.b.qp);
	ibv_close_device(bench.a.ctx);
	say("closed");
	for (;;)
		pause();
}

const struct mistake driving_threads[] = {
	{ "driving_thread_filtered", driving_thread_filtered },
	{ "driving_forbidden", driving_forbidden },
	{ "driving_unmapped", driving_unmapped },
	{ "driving_blocks_faults", driving_blocks_faults },
	{ "driving_small_stack", driving_small_stack },
	{ "driving_computes", driving_computes },
	{ "driving_posts", driving_posts },
	{ "driving_cancelled", driving_cancelled },
	{ "driving_polls_are_not_cancelled", driving_polls_are_not_cancelled },
	{ "driving_waits_are_cancelled", driving_waits_are_cancelled },
	{ "driving_ends_before_it_begins", driving_ends_before_it_begins },
	{ 0 },
};

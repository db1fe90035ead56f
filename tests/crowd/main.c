/* crowd [-d device] [-g gid index]: many threads, one context. Each makes, uses, resizes and destroys objects of its
 * own, and all of them post to one pair of queue pairs and poll its completion queue, which changes its size
 * meanwhile; and children are forked, which destroy what they inherit. Every completion must come once. */
#include "rc.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 6
#define MESSAGES 10000 /* of each thread, over the shared pair */
#define ROUNDS 40     /* of each thread, with objects of its own */
#define OWN 40        /* messages of a round */
#define SEND (1ull << 32)
#define SMALLEST 128 /* CQEs of the shared completion queue */
#define LIMIT 90 /* seconds */

const char *program = "crowd";

static struct rc left, right;
static struct rc_place right_place;
static atomic_uchar seen[2][THREADS * MESSAGES];
static atomic_uint posted, completions;
static atomic_bool over;
static double began;

static void check(int err, const char *what)
{
	if (err)
		die("%s: %s", what, strerror(err));
}

static void in_time(void)
{
	if (now() - began > LIMIT)
		die("stuck after %u completions", completions);
}

/* Takes what there is of the shared completion queue, from any thread. */
static void poll_shared(void)
{
	struct ibv_wc wc[8];
	int n = ibv_poll_cq(left.send_cq, 8, wc);

	if (n < 0)
		die("ibv_poll_cq: %s", strerror(-n));
	for (int i = 0; i < n; i++) {
		if (wc[i].status)
			die("a completion with %s", wc_name(wc[i].status));
		if (atomic_exchange(&seen[wc[i].wr_id >= SEND][wc[i].wr_id % SEND], 1))
			die("completion %llx came twice", (unsigned long long)wc[i].wr_id);
	}
	atomic_fetch_add(&completions, (unsigned)n);
	in_time();
}

static void share(unsigned first)
{
	for (unsigned i = 0; i < MESSAGES; i++) {
		int err;

		/* The library lets a program post more than its completion queue has room for. */
		while (posted - completions > SMALLEST - 2 * THREADS)
			poll_shared();
		posted += 2;
		while ((err = rc_post_recv(&right, first + i, 0, 64)) == ENOMEM)
			poll_shared();
		check(err, "ibv_post_recv");
		while ((err = rc_post_send(&left, IBV_WR_SEND, SEND | (first + i), 0, 64, &right_place)) == ENOMEM)
			poll_shared();
		check(err, "ibv_post_send");
	}
	while (completions < 2 * THREADS * MESSAGES)
		poll_shared();
}

/* Completions of one queue of our own, in order. */
static void expect(struct ibv_cq *cq, unsigned first, unsigned count)
{
	for (unsigned i = first; i < first + count; i++) {
		struct ibv_wc wc;

		if (!rc_wait(cq, &wc, LIMIT * 1000))
			die("no completion %u", i);
		if (wc.status || wc.wr_id != i)
			die("completion %u is %llu with %s", i, (unsigned long long)wc.wr_id, wc_name(wc.status));
	}
}

static void unmake(struct rc *rc)
{
	check(ibv_destroy_qp(rc->qp), "ibv_destroy_qp");
	check(ibv_destroy_cq(rc->send_cq), "ibv_destroy_cq");
	check(ibv_destroy_cq(rc->recv_cq), "ibv_destroy_cq");
	check(ibv_dereg_mr(rc->mr), "ibv_dereg_mr");
	free(rc->buf);
}

static void own_objects(unsigned round)
{
	struct rc a = { .ctx = left.ctx }, b = { .ctx = left.ctx, .pd = left.pd };
	struct rc_place at_a, at_b;
	struct ibv_port_attr port;

	rc_make(&a, &left.opt, 8192);
	rc_make(&b, &left.opt, 8192);
	at_a = rc_place(&a);
	at_b = rc_place(&b);
	rc_connect(&a, &at_b);
	rc_connect(&b, &at_a);
	memset(a.buf, (int)round + 1, a.len);
	for (unsigned i = 0; i < OWN; i++) {
		check(rc_post_recv(&b, i, 0, 8192), "ibv_post_recv");
		check(rc_post_send(&a, IBV_WR_SEND, i, 0, 8192, &at_b), "ibv_post_send");
		if (i % 8 == 0)
			check(ibv_resize_cq(b.recv_cq, 64 << i / 8), "ibv_resize_cq");
	}
	expect(a.send_cq, 0, OWN / 2);
	check(ibv_resize_cq(a.send_cq, 64), "ibv_resize_cq");
	expect(a.send_cq, OWN / 2, OWN - OWN / 2);
	expect(b.recv_cq, 0, OWN);
	if (memcmp(a.buf, b.buf, a.len))
		die("other bytes arrived");
	check(ibv_query_port(a.ctx, 1, &port), "ibv_query_port");
	unmake(&a);
	unmake(&b);
	check(ibv_dealloc_pd(a.pd), "ibv_dealloc_pd");
}

static void *thread(void *number)
{
	unsigned k = (unsigned)(uintptr_t)number;

	for (unsigned round = 0; round < ROUNDS / 2; round++)
		own_objects(k + round);
	share(k * MESSAGES);
	for (unsigned round = ROUNDS / 2; round < ROUNDS; round++)
		own_objects(k + round);
	return NULL;
}

static void *resize(void *unused)
{
	for (unsigned i = 0; !over; i++) {
		check(ibv_resize_cq(left.send_cq, SMALLEST << i % 4), "ibv_resize_cq");
		usleep(500);
	}
	return unused;
}

static void *fork_children(void *unused)
{
	unsigned children = 0;

	for (; !over; children++) {
		int status;
		pid_t child = fork();

		if (child < 0)
			die("fork: %s", strerror(errno));
		if (!child) {
			ibv_destroy_qp(left.qp);
			ibv_dereg_mr(left.mr);
			ibv_destroy_cq(left.send_cq);
			ibv_close_device(left.ctx);
			_exit(0);
		}
		if (waitpid(child, &status, 0) != child || status)
			die("a child ended with %x", (unsigned)status);
		usleep(20000);
	}
	say("%u children", children);
	return unused;
}

int main(int argc, char **argv)
{
	struct rc_options opt = rc_defaults;
	pthread_t threads[THREADS], others[2];
	struct rc_place left_place;

	rc_parse(&opt, argc, argv);
	began = now();
	rc_make(&left, &opt, 4096);
	right = (struct rc){ .ctx = left.ctx, .pd = left.pd, .send_cq = left.send_cq, .recv_cq = left.send_cq };
	rc_make(&right, &opt, 4096);
	left_place = rc_place(&left);
	right_place = rc_place(&right);
	rc_connect(&left, &right_place);
	rc_connect(&right, &left_place);
	for (uintptr_t k = 0; k < THREADS; k++)
		check(pthread_create(&threads[k], NULL, thread, (void *)k), "pthread_create");
	check(pthread_create(&others[0], NULL, resize, NULL), "pthread_create");
	check(pthread_create(&others[1], NULL, fork_children, NULL), "pthread_create");
	for (unsigned k = 0; k < THREADS; k++)
		pthread_join(threads[k], NULL);
	over = true;
	for (unsigned k = 0; k < 2; k++)
		pthread_join(others[k], NULL);
	say("%u completions in %.1f s", completions, now() - began);
	return 0;
}

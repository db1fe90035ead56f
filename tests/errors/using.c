/* Unusual but correct use: verbs called in the middle of others, and the errno of refused verbs. */
#define _GNU_SOURCE
#include "errors.h"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct bench bench;

/* The bench, with the requester's send queue completing to an extended queue. */
static struct ibv_cq_ex *ready_with_extended(uint32_t cqe)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = cqe, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = cqe, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_cq_ex *cq;

	bench_make(&bench, &options, &options);
	cq = ibv_create_cq_ex(bench.a.ctx, &attr);
	if (!cq)
		die("ibv_create_cq_ex: %s", strerror(errno));
	init.send_cq = ibv_cq_ex_to_cq(cq);
	init.recv_cq = bench.a.recv_cq;
	bench.a.qp = ibv_create_qp(bench.a.pd, &init);
	if (!bench.a.qp)
		die("ibv_create_qp: %s", strerror(errno));
	bench.at_a = rc_place(&bench.a);
	bench_connect(&bench);
	return cq;
}

static void post_write(uint64_t wr_id)
{
	if (rc_post_send(&bench.a, IBV_WR_RDMA_WRITE, wr_id, 0, 8, &bench.at_b))
		die("ibv_post_send failed");
}

static void start_walk(struct ibv_cq_ex *cq)
{
	struct ibv_poll_cq_attr attr = { 0 };

	while (ibv_start_poll(cq, &attr) == ENOENT)
		;
}

static void armed_in_a_walk(void)
{
	struct ibv_cq_ex *cq = ready_with_extended(64);

	post_write(1);
	start_walk(cq);
	say("%s", error_name(ibv_req_notify_cq(ibv_cq_ex_to_cq(cq), 0)));
	ibv_end_poll(cq);
}

static void reset_and_destroyed_in_a_walk(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	struct ibv_cq_ex *cq = ready_with_extended(64);
	int reset, destroyed;

	post_write(1);
	post_write(2);
	start_walk(cq);
	reset = ibv_modify_qp(bench.a.qp, &attr, IBV_QP_STATE);
	destroyed = ibv_destroy_qp(bench.a.qp);
	say("%s %s, then %s", error_name(reset), error_name(destroyed), error_name(ibv_next_poll(cq)));
	ibv_end_poll(cq);
}

/* Posts a new request for each completion polled, all in one walk much longer than the queue. */
static void posted_again_in_a_walk(void)
{
	enum { DEPTH = 16, ALL = 1000 };
	struct ibv_cq_ex *cq = ready_with_extended(DEPTH);
	uint64_t posted = 0, done = 0;

	while (posted < DEPTH)
		post_write(posted++);
	start_walk(cq);
	for (double until = now() + 10; now() < until;) {
		if (cq->status)
			die("%s after %lu", wc_name(cq->status), (unsigned long)done);
		if (++done == ALL)
			break;
		if (posted < ALL)
			post_write(posted++);
		while (ibv_next_poll(cq) == ENOENT && now() < until)
			;
	}
	ibv_end_poll(cq);
	say("%lu completed, events %s", (unsigned long)done, events_of(bench.a.ctx, 50));
}

/* The peer's mistake fails a queue pair that has nothing posted: neither a completion nor a call reports it. */
static void receive_after_an_unseen_error(void)
{
	struct rc_place wrong;
	struct ibv_wc sent, received;

	bench_ready(&bench);
	wrong = bench.at_a;
	wrong.rkey ^= 0x5a5a5a00;
	if (rc_post_send(&bench.b, IBV_WR_RDMA_WRITE, 1, 0, 8, &wrong) || !rc_wait(bench.b.send_cq, &sent, 5000))
		die("the peer's request does not fail");
	if (rc_post_recv(&bench.a, 2, 0, 64))
		die("ibv_post_recv failed");
	if (!rc_wait(bench.a.recv_cq, &received, 3000))
		die("the receive is never flushed");
	say("%s, %s", wc_name(sent.status), wc_name(received.status));
}

/* A refused verb returns an errno value and sets errno as well. */
static void errno_of_refusals(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad;
	const char *first;

	bench_make(&bench, &options, &options);
	errno = 0;
	if (ibv_modify_qp(bench.a.qp, &attr, IBV_QP_STATE) != errno)
		die("ibv_modify_qp");
	first = error_name(errno);
	errno = 0;
	if (ibv_post_send(bench.a.qp, &wr, &bad) != errno)
		die("ibv_post_send");
	say("%s %s", first, error_name(errno));
}

/* Public handles that the program has overwritten name no object. */
static void garbled_handles(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_qp_init_attr init;
	int modified, queried, destroyed, notified, freed;

	bench_ready(&bench);
	bench.a.qp->handle ^= 0xff;
	bench.a.send_cq->handle ^= 0xff;
	modified = ibv_modify_qp(bench.a.qp, &attr, IBV_QP_STATE);
	queried = ibv_query_qp(bench.a.qp, &attr, IBV_QP_STATE, &init);
	destroyed = ibv_destroy_qp(bench.a.qp);
	notified = ibv_req_notify_cq(bench.a.send_cq, 0);
	freed = ibv_destroy_cq(bench.a.send_cq);
	say("%s %s %s %s %s", error_name(modified), error_name(queried), error_name(destroyed), error_name(notified),
	    error_name(freed));
}

/* A daemon that closes all descriptors when it starts, after it has opened the device. */
static void descriptors_closed(void)
{
	struct ibv_wc wc;

	bench_unanswered(&bench);
	if (rc_post_send(&bench.a, IBV_WR_RDMA_WRITE, 1, 0, 8, &bench.at_b))
		die("ibv_post_send failed");
	close_range(3, ~0U, 0);
	if (!rc_wait(bench.a.send_cq, &wc, 5000))
		die("polls stay empty");
	say("%s", wc_name(wc.status));
}

/* The same, and the program's own files get the numbers: the library must neither write to nor close them. */
static void descriptors_taken(void)
{
	enum { FILES = 64 };
	struct stat stat;
	struct ibv_wc wc;
	int files[FILES], written = 0, closed = 0, flushed;

	bench_ready(&bench);
	usleep(200000); /* The engine sleeps: a post writes to its eventfd. */
	close_range(3, ~0U, 0);
	for (int i = 0; i < FILES; i++)
		files[i] = (int)syscall(SYS_memfd_create, "own", 0);
	if (rc_post_send(&bench.a, IBV_WR_RDMA_WRITE, 1, 0, 8, &bench.at_b))
		die("ibv_post_send failed");
	flushed = rc_wait(bench.a.send_cq, &wc, 5000) && wc.status == IBV_WC_WR_FLUSH_ERR;
	if (ibv_reg_mr(bench.a.pd, bench.a.buf, 64, 0))
		die("memory is registered although the connection is closed");
	ibv_destroy_qp(bench.a.qp);
	ibv_destroy_cq(bench.a.send_cq);
	ibv_close_device(bench.a.ctx);
	for (int i = 0; i < FILES; i++) {
		if (fstat(files[i], &stat))
			closed++;
		else if (stat.st_size)
			written++;
	}
	say("%s, %d files written to, %d closed", flushed ? "flushed" : "polls stay empty", written, closed);
}

void allow_few_system_calls(void)
{
	static const unsigned allowed[] = { SYS_write, SYS_sched_yield, SYS_futex, SYS_getcpu, SYS_newfstatat,
#ifdef SYS_fstat
		SYS_fstat,
#endif
#ifdef SYS_poll
		SYS_poll,
#endif
		SYS_ppoll,
		/* This program's. */
		SYS_clock_gettime, SYS_clock_nanosleep, SYS_nanosleep, SYS_exit_group };
	enum { COUNT = sizeof allowed / sizeof *allowed };
	struct sock_filter code[COUNT + 3];
	struct sock_fprog filter = { .len = COUNT + 3, .filter = code };

	code[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (unsigned i = 0; i < COUNT; i++)
		code[i + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i],
			(unsigned char)(COUNT - i), 0);
	code[COUNT + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	code[COUNT + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
		die("no filter: %s", strerror(errno));
}

/* Data moves although the program may make few system calls. The engine sleeps now and then and must be woken. */
static void few_system_calls(void)
{
	struct ibv_wc wc, recv;
	int done = 0;

	bench_ready(&bench);
	allow_few_system_calls();
	for (uint64_t i = 0; i < 200; i++) {
		if (rc_post_recv(&bench.b, i, 0, 64) ||
		    rc_post_send(&bench.a, IBV_WR_SEND, i, 0, 64, &bench.at_b))
			die("a request is refused");
		done += rc_wait(bench.a.send_cq, &wc, 5000) && !wc.status &&
			rc_wait(bench.b.recv_cq, &recv, 5000) && !recv.status;
		if (i % 50 == 0)
			usleep(50000);
	}
	/* Enough empty polls to make the library check that the daemon is alive. */
	for (int i = 0; i < 5000; i++)
		ibv_poll_cq(bench.a.send_cq, 1, &wc);
	say("%d messages", done);
}

/* What each thread has of its own: more than the small stacks of the library's threads. */
static __thread volatile char of_each_thread[OF_EACH_THREAD];

static void at_the_end(void)
{
	struct ibv_wc wc;

	post_write(1);
	of_each_thread[0] = 1;
	say("%s", rc_wait(bench.a.send_cq, &wc, 5000) ? wc_name(wc.status) : "polls stay empty");
}

/* Verbs in what runs at the end of the program, as destructors of C++ do that were registered before any verb. */
static void used_at_the_end(void)
{
	atexit(at_the_end);
	bench_ready(&bench);
}

const struct mistake using[] = {
	{ "armed_in_a_walk", armed_in_a_walk },
	{ "reset_and_destroyed_in_a_walk", reset_and_destroyed_in_a_walk },
	{ "posted_again_in_a_walk", posted_again_in_a_walk },
	{ "receive_after_an_unseen_error", receive_after_an_unseen_error },
	{ "errno_of_refusals", errno_of_refusals },
	{ "garbled_handles", garbled_handles },
	{ "descriptors_closed", descriptors_closed },
	{ "descriptors_taken", descriptors_taken },
	{ "few_system_calls", few_system_calls },
	{ "used_at_the_end", used_at_the_end },
	{ 0 },
};

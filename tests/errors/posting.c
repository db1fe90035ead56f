/* Mistakes that ibv_post_send and ibv_post_recv refuse. */
#include "errors.h"
#include <errno.h>

static struct bench bench;

static struct ibv_send_wr write_wr(struct ibv_sge *sge)
{
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED };

	*sge = (struct ibv_sge){ .addr = (uintptr_t)bench.a.buf, .length = 64, .lkey = bench.a.mr->lkey };
	wr.wr.rdma.remote_addr = bench.at_b.addr;
	wr.wr.rdma.rkey = bench.at_b.rkey;
	return wr;
}

/* Posts one WR and prints the result, and whether bad_wr points to a refused one. */
static void post(struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad = NULL;
	int err = ibv_post_send(bench.a.qp, wr, &bad);

	say("%s%s", error_name(err), err && bad != wr ? ", BAD_WR WRONG" : "");
}

static void post_one(void)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = write_wr(&sge);

	post(&wr);
}

static void send_in_reset(void)
{
	bench_make(&bench, &options, &options);
	post_one();
}

static void send_in_init(void)
{
	bench_make(&bench, &options, &options);
	rc_to_init(&bench.a);
	post_one();
}

static void send_in_rtr(void)
{
	bench_make(&bench, &options, &options);
	rc_to_init(&bench.a);
	rc_to_rtr(&bench.a, &bench.at_b);
	post_one();
}

static void recv_in_reset(void)
{
	bench_make(&bench, &options, &options);
	say("%s", error_name(rc_post_recv(&bench.a, 1, 0, 64)));
}

static void recv_in_init(void)
{
	bench_make(&bench, &options, &options);
	rc_to_init(&bench.a);
	say("%s", error_name(rc_post_recv(&bench.a, 1, 0, 64)));
}

static uint32_t granted_sends(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	if (ibv_query_qp(qp, &attr, IBV_QP_CAP, &init))
		die("ibv_query_qp failed");
	return attr.cap.max_send_wr;
}

/* A list one longer than the queue: all but the last are posted, and bad_wr points to the last. */
static void send_queue_full(void)
{
	struct ibv_sge sge;
	struct ibv_send_wr *list, *bad = NULL;
	uint32_t room;
	int err;

	bench_unanswered(&bench);
	room = granted_sends(bench.a.qp);
	list = calloc(room + 1, sizeof *list);
	for (uint32_t i = 0; i <= room; i++) {
		list[i] = write_wr(&sge);
		list[i].next = i < room ? &list[i + 1] : NULL;
	}
	err = ibv_post_send(bench.a.qp, list, &bad);
	say("%s at %s", error_name(err), bad == &list[room] ? "the first too many" : "another");
}

static void recv_queue_full(void)
{
	uint32_t count = 0;
	int err;

	bench_ready(&bench);
	while (!(err = rc_post_recv(&bench.b, count, 0, 64)) && count < 100000)
		count++;
	say("%s%s", error_name(err), count < options.depth ? " too early" : "");
}

static void too_many_sges(void)
{
	struct ibv_sge sges[256];
	struct ibv_send_wr wr;

	bench_ready(&bench);
	wr = write_wr(&sges[0]);
	for (int i = 1; i < 256; i++)
		sges[i] = sges[0];
	wr.num_sge = 256;
	post(&wr);
}

static void too_many_recv_sges(void)
{
	struct ibv_sge sges[256] = { { 0 } };
	struct ibv_recv_wr wr = { .sg_list = sges, .num_sge = 256 }, *bad;

	bench_ready(&bench);
	say("%s", error_name(ibv_post_recv(bench.b.qp, &wr, &bad)));
}

static void negative_sges(void)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;

	bench_ready(&bench);
	wr = write_wr(&sge);
	wr.num_sge = -1;
	post(&wr);
}

static void inline_too_long(void)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;

	bench_ready(&bench);
	wr = write_wr(&sge);
	wr.send_flags |= IBV_SEND_INLINE;
	sge.length = 65000;
	post(&wr);
}

static void inline_read(void)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;

	bench_ready(&bench);
	wr = write_wr(&sge);
	wr.opcode = IBV_WR_RDMA_READ;
	wr.send_flags |= IBV_SEND_INLINE;
	post(&wr);
}

static void no_such_opcode(void)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr;

	bench_ready(&bench);
	wr = write_wr(&sge);
	wr.opcode = 77;
	post(&wr);
}

/* WRs of a list behind a bad one are not posted. */
static void bad_in_a_list(void)
{
	struct ibv_sge sge;
	struct ibv_send_wr list[3], *bad = NULL;
	struct ibv_wc wc;
	int err, done = 0;

	bench_ready(&bench);
	for (int i = 0; i < 3; i++) {
		list[i] = write_wr(&sge);
		list[i].next = i < 2 ? &list[i + 1] : NULL;
	}
	list[1].opcode = 77;
	err = ibv_post_send(bench.a.qp, list, &bad);
	while (rc_wait(bench.a.send_cq, &wc, 100))
		done++;
	say("%s at %ld, %d completed", error_name(err), (long)(bad - list), done);
}

static void flushed_in_error(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_sge sge;
	struct ibv_send_wr wr, *bad;
	struct ibv_wc send, recv;
	int err;

	bench_ready(&bench);
	if (ibv_modify_qp(bench.a.qp, &attr, IBV_QP_STATE))
		die("the error state can be entered from everywhere");
	wr = write_wr(&sge);
	wr.send_flags = 0;
	err = ibv_post_send(bench.a.qp, &wr, &bad) | rc_post_recv(&bench.a, 2, 0, 64);
	if (!rc_wait(bench.a.send_cq, &send, 1000) || !rc_wait(bench.a.recv_cq, &recv, 1000))
		die("no flushed completion");
	say("%s, send %s, receive %s", error_name(err), wc_name(send.status), wc_name(recv.status));
}

const struct mistake posting[] = {
	{ "send_in_reset", send_in_reset },
	{ "send_in_init", send_in_init },
	{ "send_in_rtr", send_in_rtr },
	{ "recv_in_reset", recv_in_reset },
	{ "recv_in_init", recv_in_init },
	{ "send_queue_full", send_queue_full },
	{ "recv_queue_full", recv_queue_full },
	{ "too_many_sges", too_many_sges },
	{ "too_many_recv_sges", too_many_recv_sges },
	{ "negative_sges", negative_sges },
	{ "inline_too_long", inline_too_long },
	{ "inline_read", inline_read },
	{ "no_such_opcode", no_such_opcode },
	{ "bad_in_a_list", bad_in_a_list },
	{ "flushed_in_error", flushed_in_error },
	{ 0 },
};

/* Mistakes between the two ends: rights of the QP, no peer, nothing posted, overflow. */
#include "errors.h"
#include <errno.h>

static struct bench bench;

static void one(enum ibv_wr_opcode opcode, uint32_t length)
{
	int err = rc_post_send(&bench.a, opcode, 1, 0, length, &bench.at_b);

	if (err)
		say("%s", error_name(err));
	else
		bench_outcome(&bench, true);
}

static void qp_without(unsigned access, enum ibv_wr_opcode opcode)
{
	struct rc_options b = options;

	b.qp_access = ALL_ACCESS & ~access;
	bench_make(&bench, &options, &b);
	bench_connect(&bench);
	one(opcode, 8);
}

static void qp_without_write(void)
{
	qp_without(IBV_ACCESS_REMOTE_WRITE, IBV_WR_RDMA_WRITE);
}

static void qp_without_read(void)
{
	qp_without(IBV_ACCESS_REMOTE_READ, IBV_WR_RDMA_READ);
}

static void qp_without_atomic(void)
{
	qp_without(IBV_ACCESS_REMOTE_ATOMIC, IBV_WR_ATOMIC_FETCH_AND_ADD);
}

static void responder_takes_no_read(void)
{
	struct rc_options b = options;

	b.dest_rd_atomic = 0;
	bench_make(&bench, &options, &b);
	bench_connect(&bench);
	one(IBV_WR_RDMA_READ, 8);
}

static void requester_may_not_read(void)
{
	struct rc_options a = options;

	a.rd_atomic = 0;
	bench_make(&bench, &a, &options);
	bench_connect(&bench);
	one(IBV_WR_RDMA_READ, 8);
}

static void nothing_received(enum ibv_wr_opcode opcode)
{
	struct rc_options a = options;

	a.rnr_retry = 2;
	bench_make(&bench, &a, &options);
	bench_connect(&bench);
	one(opcode, 100);
}

static void send_without_receive(void)
{
	nothing_received(IBV_WR_SEND);
}

static void write_imm_without_receive(void)
{
	nothing_received(IBV_WR_RDMA_WRITE_WITH_IMM);
}

/* b does not answer after `vanish`. */
static void nobody_answers(void (*vanish)(void))
{
	struct rc_options a = options;

	a.timeout = 10;
	a.retry = 2;
	bench_make(&bench, &a, &options);
	bench_connect(&bench);
	vanish();
	one(IBV_WR_RDMA_WRITE, 100);
}

static void to_error(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	ibv_modify_qp(bench.b.qp, &attr, IBV_QP_STATE);
}

static void to_reset(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };

	ibv_modify_qp(bench.b.qp, &attr, IBV_QP_STATE);
}

static void peer_in_error(void)
{
	nobody_answers(to_error);
}

static void peer_in_reset(void)
{
	nobody_answers(to_reset);
}

static void peer_does_not_exist(void)
{
	struct rc_options a = options;
	struct rc_place nowhere;

	a.timeout = 10;
	a.retry = 2;
	bench_make(&bench, &a, &options);
	nowhere = bench.at_b;
	nowhere.qpn ^= 0x5a5a5a;
	rc_connect(&bench.a, &nowhere);
	rc_connect(&bench.b, &bench.at_a);
	one(IBV_WR_RDMA_WRITE, 100);
}

/* WQEs behind a failed one are flushed, signaled or not. */
static void flushed_behind_an_error(void)
{
	struct ibv_sge sge = { .length = 8 };
	struct ibv_send_wr list[3] = { { 0 } }, *bad;
	struct ibv_wc wc[3];

	bench_ready(&bench);
	sge.addr = (uintptr_t)bench.a.buf;
	sge.lkey = bench.a.mr->lkey;
	for (int i = 0; i < 3; i++) {
		list[i] = (struct ibv_send_wr){ .wr_id = (uint64_t)i, .sg_list = &sge, .num_sge = 1,
			.opcode = IBV_WR_RDMA_WRITE, .next = i < 2 ? &list[i + 1] : NULL };
		list[i].wr.rdma.remote_addr = bench.at_b.addr;
		list[i].wr.rdma.rkey = i ? bench.at_b.rkey : bench.at_b.rkey ^ 0x5a5a5a00;
	}
	if (ibv_post_send(bench.a.qp, list, &bad))
		die("ibv_post_send failed");
	for (int i = 0; i < 3; i++)
		if (!rc_wait(bench.a.send_cq, &wc[i], 5000) || wc[i].wr_id != (uint64_t)i)
			die("completion %d is missing or out of order", i);
	say("%s %s %s", wc_name(wc[0].status), wc_name(wc[1].status), wc_name(wc[2].status));
}

static void cq_overflow(void)
{
	struct rc_options a = options;

	a.cqe = 4;
	a.depth = 1024;
	bench_make(&bench, &a, &options);
	bench_connect(&bench);
	for (uint64_t i = 0; i < 1000; i++)
		if (rc_post_send(&bench.a, IBV_WR_RDMA_WRITE, i, 0, 8, &bench.at_b))
			break;
	say("events %s", events_of(bench.a.ctx, 500));
}

static void keys_are_not_used_again(void)
{
	uint32_t first = 0, same = 0;

	bench_make(&bench, &options, &options);
	for (int i = 0; i < 300; i++) {
		struct ibv_mr *mr = ibv_reg_mr(bench.a.pd, bench.a.buf, ZONE, ALL_ACCESS);

		if (!mr)
			die("ibv_reg_mr: %s", strerror(errno));
		if (!i)
			first = mr->rkey;
		else
			same += mr->rkey == first;
		ibv_dereg_mr(mr);
	}
	say("%u of 299 registrations had the first one's key", same);
}

const struct mistake breaking[] = {
	{ "qp_without_write", qp_without_write },
	{ "qp_without_read", qp_without_read },
	{ "qp_without_atomic", qp_without_atomic },
	{ "responder_takes_no_read", responder_takes_no_read },
	{ "requester_may_not_read", requester_may_not_read },
	{ "send_without_receive", send_without_receive },
	{ "write_imm_without_receive", write_imm_without_receive },
	{ "peer_in_error", peer_in_error },
	{ "peer_in_reset", peer_in_reset },
	{ "peer_does_not_exist", peer_does_not_exist },
	{ "flushed_behind_an_error", flushed_behind_an_error },
	{ "cq_overflow", cq_overflow },
	{ "keys_are_not_used_again", keys_are_not_used_again },
	{ 0 },
};

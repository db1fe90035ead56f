/* refusals [-d device] [-g gid index] [-p port] [-T timeout] WHAT [HOST]
 *
 * Two processes, one operation that the responder must refuse or cannot serve at once. Without
 * HOST it is the responder. Each prints the result of the operation at its end. */
#include "rc.h"
#include <errno.h>
#include <unistd.h>

const char *program = "refusals";

enum { ZONE = 65536, LATE_MS = 300, GONE_TIMEOUT = 12 };

/* What the responder does about receiving. */
enum receive { NONE, READY, READY_BAD_KEY, LATE, GONE };

struct refusal {
	const char *name;
	enum ibv_wr_opcode opcode;
	uint32_t length, offset;
	uint32_t wrong_key; /* bits of the rkey that are changed */
	unsigned mr_access, qp_access;
	enum receive receive;
	uint32_t receive_length;
};

#define LOCAL IBV_ACCESS_LOCAL_WRITE
static const struct refusal refusals[] = {
	{ "nothing", IBV_WR_RDMA_WRITE, 100, 0, 0, ALL_ACCESS, ALL_ACCESS, NONE, 0 },
	{ "wrong_key_write", IBV_WR_RDMA_WRITE, 100, 0, 0x5a5a00, ALL_ACCESS, ALL_ACCESS, NONE, 0 },
	{ "wrong_key_read", IBV_WR_RDMA_READ, 100, 0, 0x5a5a00, ALL_ACCESS, ALL_ACCESS, NONE, 0 },
	{ "wrong_key_atomic", IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 0, 0x5a5a00, ALL_ACCESS, ALL_ACCESS, NONE, 0 },
	{ "wrong_key_empty_write", IBV_WR_RDMA_WRITE, 0, 0, 0x5a5a00, ALL_ACCESS, ALL_ACCESS, NONE, 0 },
	{ "write_behind_the_end", IBV_WR_RDMA_WRITE, 3000, ZONE - 2000, 0, ALL_ACCESS, ALL_ACCESS, NONE, 0 },
	{ "read_behind_the_end", IBV_WR_RDMA_READ, 3000, ZONE - 2000, 0, ALL_ACCESS, ALL_ACCESS, NONE, 0 },
	{ "write_without_right", IBV_WR_RDMA_WRITE, 100, 0, 0, LOCAL | IBV_ACCESS_REMOTE_READ, ALL_ACCESS, NONE, 0 },
	{ "read_without_right", IBV_WR_RDMA_READ, 100, 0, 0, LOCAL | IBV_ACCESS_REMOTE_WRITE, ALL_ACCESS, NONE, 0 },
	{ "atomic_without_right", IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 0, 0, LOCAL | IBV_ACCESS_REMOTE_WRITE, ALL_ACCESS, NONE, 0 },
	{ "qp_without_write", IBV_WR_RDMA_WRITE, 100, 0, 0, ALL_ACCESS, ALL_ACCESS & ~IBV_ACCESS_REMOTE_WRITE, NONE, 0 },
	{ "qp_without_read", IBV_WR_RDMA_READ, 100, 0, 0, ALL_ACCESS, ALL_ACCESS & ~IBV_ACCESS_REMOTE_READ, NONE, 0 },
	{ "send_too_long", IBV_WR_SEND, 3000, 0, 0, ALL_ACCESS, ALL_ACCESS, READY, 1500 },
	{ "receive_key_wrong", IBV_WR_SEND, 100, 0, 0, ALL_ACCESS, ALL_ACCESS, READY_BAD_KEY, 100 },
	{ "receiver_late", IBV_WR_SEND, 3000, 0, 0, ALL_ACCESS, ALL_ACCESS, LATE, 3000 },
	{ "receiver_never", IBV_WR_SEND, 3000, 0, 0, ALL_ACCESS, ALL_ACCESS, NONE, 0 },
	{ "peer_gone", IBV_WR_RDMA_WRITE, 3000, 0, 0, ALL_ACCESS, ALL_ACCESS, GONE, 0 },
	{ 0 },
};

static const struct refusal *find(const char *name)
{
	for (const struct refusal *r = refusals; name && r->name; r++)
		if (!strcmp(r->name, name))
			return r;
	die("no refusal is called %s", name ? name : "nothing at all");
}

static void post_receive(struct rc *rc, const struct refusal *r)
{
	struct ibv_sge sge = { .addr = (uintptr_t)rc->buf, .length = r->receive_length,
		.lkey = rc->mr->lkey ^ (r->receive == READY_BAD_KEY ? 0x5a5a00 : 0) };
	struct ibv_recv_wr wr = { .wr_id = 7, .sg_list = &sge, .num_sge = 1 }, *bad;

	if (ibv_post_recv(rc->qp, &wr, &bad))
		die("ibv_post_recv failed");
}

/* Both ends have come to the same point. */
static void meet(int oob)
{
	char token = 'x';

	oob_swap(oob, &token, &token, 1);
}

static void respond(struct rc *rc, const struct refusal *r, int oob)
{
	struct ibv_mr *mr = ibv_reg_mr(rc->pd, rc->buf, ZONE, (int)r->mr_access);
	struct rc_place mine = rc_place(rc), peer;
	struct ibv_wc wc;

	if (!mr)
		die("ibv_reg_mr: %s", strerror(errno));
	mine.rkey = mr->rkey ^ r->wrong_key;
	mine.addr += r->offset;
	oob_swap(oob, &mine, &peer, sizeof mine);
	rc_connect(rc, &peer);
	if (r->receive == READY || r->receive == READY_BAD_KEY)
		post_receive(rc, r);
	if (r->receive == GONE)
		ibv_destroy_qp(rc->qp);
	meet(oob);
	if (r->receive == LATE) {
		usleep(LATE_MS * 1000);
		post_receive(rc, r);
	}
	meet(oob);
	say("receive %s", rc_wait(rc->recv_cq, &wc, 200) ? wc_name(wc.status) : "none");
}

static void post(struct rc *rc, const struct refusal *r, const struct rc_place *peer)
{
	struct ibv_sge sge = { .addr = (uintptr_t)rc->buf, .length = r->length, .lkey = rc->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = r->length ? 1 : 0, .opcode = r->opcode,
		.send_flags = IBV_SEND_SIGNALED }, *bad;
	int err;

	if (r->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = peer->addr;
		wr.wr.atomic.rkey = peer->rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = peer->addr;
		wr.wr.rdma.rkey = peer->rkey;
	}
	err = ibv_post_send(rc->qp, &wr, &bad);
	if (err)
		die("ibv_post_send: %s", strerror(err));
}

static void request(struct rc *rc, const struct refusal *r, int oob)
{
	struct rc_place mine = rc_place(rc), peer;
	struct ibv_wc wc;
	bool completed;

	oob_swap(oob, &mine, &peer, sizeof mine);
	rc_connect(rc, &peer);
	meet(oob);
	post(rc, r, &peer);
	completed = rc_wait(rc->send_cq, &wc, 20000);
	say("send %s", completed ? wc_name(wc.status) : "none");
	meet(oob);
}

int main(int argc, char **argv)
{
	struct rc_options opt = rc_defaults;
	struct rc rc = { 0 };
	char **words = rc_parse(&opt, argc, argv);
	const struct refusal *r = find(words[0]);
	int oob;

	opt.host = words[1];
	if (opt.host) {
		opt.rnr_retry = r->receive == NONE ? 2 : 7;
		if (r->receive == GONE) {
			opt.timeout = GONE_TIMEOUT;
			opt.retry = 2;
		}
	} else {
		opt.qp_access = r->qp_access;
	}
	oob = oob_open(&opt);
	rc_make(&rc, &opt, ZONE);
	if (opt.host)
		request(&rc, r, oob);
	else
		respond(&rc, r, oob);
	return 0;
}

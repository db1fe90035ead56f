/* refusals [-d device] [-g gid index] [-p port] [-T timeout] WHAT [HOST]
 *
 * Two processes, one operation that the responder must refuse or cannot serve at once, or that is
 * not one of a reliable connection. Without HOST it is the responder. Each prints the result of the operation at its end. */
#include "others.h"
#include <errno.h>
#include <unistd.h>

const char *program = "refusals";

enum { ZONE = 65536, WINDOW = 4096, LATE_MS = 300, GONE_TIMEOUT = 12 };

/* What the responder does about receiving. */
enum receive { NONE, READY, READY_BAD_KEY, LATE, GONE };

/* What the requester's key belongs to: the region, or a window of its first WINDOW bytes, and how that
 * ends before the operation. */
enum window { REGION, TYPE_1, TYPE_2, TYPE_2_UNTIL_LOCAL_INV, TYPE_2_UNTIL_SEND_INV };

struct refusal {
	const char *name;
	enum ibv_wr_opcode opcode;
	uint32_t length, offset;
	uint32_t wrong_key; /* bits of the rkey that are changed */
	unsigned mr_access, qp_access;
	enum receive receive;
	uint32_t receive_length;
	enum window window;
};

#define LOCAL IBV_ACCESS_LOCAL_WRITE
#define ALL_REMOTE (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)
static const struct refusal refusals[] = {
	{ "nothing", IBV_WR_RDMA_WRITE, 100, 0, 0, ALL_ACCESS, ALL_ACCESS, NONE, 0, REGION },
	{ "wrong_key_write", IBV_WR_RDMA_WRITE, 100, 0, 0x5a5a00, ALL_ACCESS, ALL_ACCESS, NONE, 0, REGION },
	{ "wrong_key_read", IBV_WR_RDMA_READ, 100, 0, 0x5a5a00, ALL_ACCESS, ALL_ACCESS, NONE, 0, REGION },
	{ "wrong_key_atomic", IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 0, 0x5a5a00, ALL_ACCESS, ALL_ACCESS, NONE, 0, REGION },
	{ "wrong_key_empty_write", IBV_WR_RDMA_WRITE, 0, 0, 0x5a5a00, ALL_ACCESS, ALL_ACCESS, NONE, 0, REGION },
	{ "write_behind_the_end", IBV_WR_RDMA_WRITE, 3000, ZONE - 2000, 0, ALL_ACCESS, ALL_ACCESS, NONE, 0, REGION },
	{ "read_behind_the_end", IBV_WR_RDMA_READ, 3000, ZONE - 2000, 0, ALL_ACCESS, ALL_ACCESS, NONE, 0, REGION },
	{ "write_without_right", IBV_WR_RDMA_WRITE, 100, 0, 0, LOCAL | IBV_ACCESS_REMOTE_READ, ALL_ACCESS, NONE, 0, REGION },
	{ "read_without_right", IBV_WR_RDMA_READ, 100, 0, 0, LOCAL | IBV_ACCESS_REMOTE_WRITE, ALL_ACCESS, NONE, 0, REGION },
	{ "atomic_without_right", IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 0, 0, LOCAL | IBV_ACCESS_REMOTE_WRITE, ALL_ACCESS, NONE, 0, REGION },
	{ "qp_without_write", IBV_WR_RDMA_WRITE, 100, 0, 0, ALL_ACCESS, ALL_ACCESS & ~IBV_ACCESS_REMOTE_WRITE, NONE, 0, REGION },
	{ "qp_without_read", IBV_WR_RDMA_READ, 100, 0, 0, ALL_ACCESS, ALL_ACCESS & ~IBV_ACCESS_REMOTE_READ, NONE, 0, REGION },
	{ "send_too_long", IBV_WR_SEND, 3000, 0, 0, ALL_ACCESS, ALL_ACCESS, READY, 1500, REGION },
	{ "receive_key_wrong", IBV_WR_SEND, 100, 0, 0, ALL_ACCESS, ALL_ACCESS, READY_BAD_KEY, 100, REGION },
	{ "receiver_late", IBV_WR_SEND, 3000, 0, 0, ALL_ACCESS, ALL_ACCESS, LATE, 3000, REGION },
	{ "receiver_never", IBV_WR_SEND, 3000, 0, 0, ALL_ACCESS, ALL_ACCESS, NONE, 0, REGION },
	{ "peer_gone", IBV_WR_RDMA_WRITE, 3000, 0, 0, ALL_ACCESS, ALL_ACCESS, GONE, 0, REGION },
	{ "window_1_write", IBV_WR_RDMA_WRITE, 3000, 0, 0, IBV_ACCESS_REMOTE_WRITE, ALL_ACCESS, NONE, 0, TYPE_1 },
	{ "window_2_write", IBV_WR_RDMA_WRITE, 3000, 0, 0, IBV_ACCESS_REMOTE_WRITE, ALL_ACCESS, NONE, 0, TYPE_2 },
	{ "window_2_read", IBV_WR_RDMA_READ, 3000, 0, 0, IBV_ACCESS_REMOTE_READ, ALL_ACCESS, NONE, 0, TYPE_2 },
	{ "window_2_without_right", IBV_WR_RDMA_WRITE, 3000, 0, 0, IBV_ACCESS_REMOTE_READ, ALL_ACCESS, NONE, 0, TYPE_2 },
	{ "window_2_behind_the_end", IBV_WR_RDMA_WRITE, 100, WINDOW - 50, 0, ALL_REMOTE, ALL_ACCESS, NONE, 0, TYPE_2 },
	{ "window_2_after_local_inv", IBV_WR_RDMA_WRITE, 100, 0, 0, ALL_REMOTE, ALL_ACCESS, NONE, 0,
	  TYPE_2_UNTIL_LOCAL_INV },
	{ "window_2_after_send_inv", IBV_WR_RDMA_WRITE, 100, 0, 0, ALL_REMOTE, ALL_ACCESS, READY, 100,
	  TYPE_2_UNTIL_SEND_INV },
	{ 0 },
};

/* What is not one request of a reliable connection. */
static const struct other {
	const char *name;
	void (*request)(struct rc *rc, int oob);
	void (*respond)(struct rc *rc, int oob);
} others[] = {
	{ "datagram_with_imm", send_datagram, receive_datagram },
	{ "xrc_to_rc", send_xrc, receive_xrc },
	{ "unreliable", send_unreliable, receive_unreliable },
	{ 0 },
};

static const struct other *find_other(const char *name)
{
	for (const struct other *o = others; name && o->name; o++)
		if (!strcmp(o->name, name))
			return o;
	return NULL;
}

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

/* Executes one work request of the own queue pair. */
static void execute(struct rc *rc, struct ibv_send_wr *wr, const char *what)
{
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	wr->send_flags = IBV_SEND_SIGNALED;
	if (ibv_post_send(rc->qp, wr, &bad))
		die("%s: %s", what, strerror(errno));
	if (!rc_wait(rc->send_cq, &wc, 5000) || wc.status != IBV_WC_SUCCESS)
		die("%s did not succeed", what);
}

/* Binds a window with the rights of the case; its key. */
static uint32_t bind_window(struct rc *rc, const struct refusal *r, struct ibv_mr *mr)
{
	struct ibv_mw *mw = ibv_alloc_mw(rc->pd, r->window == TYPE_1 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
	struct ibv_mw_bind_info info = { .mr = mr, .addr = (uintptr_t)rc->buf, .length = WINDOW,
		.mw_access_flags = r->mr_access };
	struct ibv_mw_bind type_1 = { .send_flags = IBV_SEND_SIGNALED, .bind_info = info };
	struct ibv_send_wr bind = { .opcode = IBV_WR_BIND_MW }, invalidate = { .opcode = IBV_WR_LOCAL_INV };
	struct ibv_wc wc;

	if (!mw)
		die("ibv_alloc_mw: %s", strerror(errno));
	if (r->window == TYPE_1) {
		if (ibv_bind_mw(rc->qp, mw, &type_1))
			die("ibv_bind_mw: %s", strerror(errno));
		if (!rc_wait(rc->send_cq, &wc, 5000) || wc.status != IBV_WC_SUCCESS)
			die("the window was not bound");
		return mw->rkey;
	}
	bind.bind_mw.mw = mw;
	bind.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
	bind.bind_mw.bind_info = info;
	execute(rc, &bind, "BIND_MW");
	invalidate.invalidate_rkey = bind.bind_mw.rkey;
	if (r->window == TYPE_2_UNTIL_LOCAL_INV)
		execute(rc, &invalidate, "LOCAL_INV");
	return bind.bind_mw.rkey;
}

/* The result of the receive. One of SEND with invalidate must name the key. */
static const char *received(struct rc *rc, const struct refusal *r, uint32_t rkey)
{
	struct ibv_wc wc;

	if (!rc_wait(rc->recv_cq, &wc, 200))
		return "none";
	if (r->window == TYPE_2_UNTIL_SEND_INV && wc.status == IBV_WC_SUCCESS &&
	    (!(wc.wc_flags & IBV_WC_WITH_INV) || wc.invalidated_rkey != rkey))
		return "without the key";
	return wc_name(wc.status);
}

static void respond(struct rc *rc, const struct refusal *r, int oob)
{
	unsigned access = r->window == REGION ? r->mr_access : ALL_ACCESS | IBV_ACCESS_MW_BIND;
	struct ibv_mr *mr = ibv_reg_mr(rc->pd, rc->buf, ZONE, (int)access);
	struct rc_place mine = rc_place(rc), peer;

	if (!mr)
		die("ibv_reg_mr: %s", strerror(errno));
	oob_swap(oob, &mine, &peer, sizeof mine);
	rc_connect(rc, &peer);
	mine.rkey = (r->window == REGION ? mr->rkey : bind_window(rc, r, mr)) ^ r->wrong_key;
	mine.addr += r->offset;
	if (r->receive == READY || r->receive == READY_BAD_KEY)
		post_receive(rc, r);
	if (r->receive == GONE)
		ibv_destroy_qp(rc->qp);
	oob_swap(oob, &mine, &peer, sizeof mine);
	if (r->receive == LATE) {
		usleep(LATE_MS * 1000);
		post_receive(rc, r);
	}
	meet(oob);
	say("receive %s", received(rc, r, mine.rkey));
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
	/* Now with the key of the operation. */
	oob_swap(oob, &mine, &peer, sizeof mine);
	if (r->window == TYPE_2_UNTIL_SEND_INV) {
		struct ibv_send_wr invalidate = { .opcode = IBV_WR_SEND_WITH_INV };

		invalidate.invalidate_rkey = peer.rkey;
		execute(rc, &invalidate, "SEND_WITH_INV");
	}
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
	const struct other *other = find_other(words[0]);
	const struct refusal *r = other ? NULL : find(words[0]);
	int oob;

	opt.host = words[1];
	if (other) {
		opt.timeout = GONE_TIMEOUT;
		opt.retry = 2;
	} else if (opt.host) {
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
	if (other)
		(opt.host ? other->request : other->respond)(&rc, oob);
	else
		(opt.host ? request : respond)(&rc, r, oob);
	return 0;
}

/* One RC queue pair: made, connected, posted to. */
#include "rc.h"
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <time.h>
#include <unistd.h>

const struct rc_options rc_defaults = { .port = 18700, .depth = 64, .cqe = 256, .qp_access = ALL_ACCESS, .timeout = 14,
	.retry = 7, .rnr_retry = 7, .rd_atomic = 4, .dest_rd_atomic = 4, .mtu = IBV_MTU_1024 };

char **rc_parse(struct rc_options *opt, int argc, char **argv)
{
	int c;

	while ((c = getopt(argc, argv, "d:g:p:T:r:")) != -1) {
		switch (c) {
		case 'd': opt->device = optarg; break;
		case 'g': opt->gid_index = atoi(optarg); break;
		case 'p': opt->port = atoi(optarg); break;
		case 'T': opt->timeout = (unsigned)atoi(optarg); break;
		case 'r': opt->retry = (unsigned)atoi(optarg); break;
		default: die("usage: %s WHAT [-d device] [-g gid index] [-p port] [-T timeout] [-r retries] [host]", program);
		}
	}
	return argv + optind;
}

struct ibv_context *rc_open_device(const char *name)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);
	struct ibv_context *ctx = NULL;

	for (int i = 0; list && i < n && !ctx; i++)
		if (!name || !strcmp(ibv_get_device_name(list[i]), name))
			ctx = ibv_open_device(list[i]);
	if (list)
		ibv_free_device_list(list);
	if (!ctx)
		die("cannot open device %s", name ? name : "(first)");
	return ctx;
}

void rc_make(struct rc *rc, const struct rc_options *opt, size_t len)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = opt->depth, .max_recv_wr = opt->depth, .max_send_sge = 2, .max_recv_sge = 2,
			 .max_inline_data = 64 } };

	rc->opt = *opt;
	rc->psn = 0xfffff0 ^ (uint32_t)(getpid() & 0xf);
	if (!rc->ctx)
		rc->ctx = rc_open_device(opt->device);
	if (!rc->pd && !(rc->pd = ibv_alloc_pd(rc->ctx)))
		die("ibv_alloc_pd: %s", strerror(errno));
	rc->len = len;
	if (posix_memalign((void **)&rc->buf, 4096, len))
		die("out of memory");
	memset(rc->buf, 0, len);
	rc->mr = ibv_reg_mr(rc->pd, rc->buf, len, ALL_ACCESS);
	if (!rc->mr)
		die("ibv_reg_mr: %s", strerror(errno));
	if (!rc->send_cq && !(rc->send_cq = ibv_create_cq(rc->ctx, (int)opt->cqe, rc, rc->channel, 0)))
		die("ibv_create_cq: %s", strerror(errno));
	if (!rc->recv_cq && !(rc->recv_cq = ibv_create_cq(rc->ctx, (int)opt->cqe, rc, rc->channel, 0)))
		die("ibv_create_cq: %s", strerror(errno));
	attr.send_cq = rc->send_cq;
	attr.recv_cq = rc->recv_cq;
	rc->qp = ibv_create_qp(rc->pd, &attr);
	if (!rc->qp)
		die("ibv_create_qp: %s", strerror(errno));
}

struct rc_place rc_place(const struct rc *rc)
{
	struct rc_place place = { .qpn = rc->qp->qp_num, .psn = rc->psn, .rkey = rc->mr->rkey, .addr = (uintptr_t)rc->buf };

	if (ibv_query_gid(rc->ctx, 1, rc->opt.gid_index, &place.gid))
		die("no GID at index %d", rc->opt.gid_index);
	return place;
}

int rc_to_init(struct rc *rc)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = rc->opt.qp_access };

	return ibv_modify_qp(rc->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

int rc_to_rtr(struct rc *rc, const struct rc_place *peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = rc->opt.mtu, .dest_qp_num = peer->qpn,
		.rq_psn = peer->psn, .max_dest_rd_atomic = (uint8_t)rc->opt.dest_rd_atomic, .min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .sgid_index = (uint8_t)rc->opt.gid_index, .hop_limit = 64, .dgid = peer->gid } } };

	return ibv_modify_qp(rc->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

int rc_to_rts(struct rc *rc)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .timeout = (uint8_t)rc->opt.timeout,
		.retry_cnt = (uint8_t)rc->opt.retry, .rnr_retry = (uint8_t)rc->opt.rnr_retry, .sq_psn = rc->psn,
		.max_rd_atomic = (uint8_t)rc->opt.rd_atomic };

	return ibv_modify_qp(rc->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

void rc_connect(struct rc *rc, const struct rc_place *peer)
{
	int err = rc_to_init(rc);

	if (!err)
		err = rc_to_rtr(rc, peer);
	if (!err)
		err = rc_to_rts(rc);
	if (err)
		die("ibv_modify_qp: %s", strerror(err));
}

int rc_post_recv(struct rc *rc, uint64_t wr_id, size_t offset, uint32_t len)
{
	struct ibv_sge sge = { .addr = (uintptr_t)rc->buf + offset, .length = len, .lkey = rc->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;

	return ibv_post_recv(rc->qp, &wr, &bad);
}

int rc_post_send(struct rc *rc, enum ibv_wr_opcode opcode, uint64_t wr_id, size_t offset, uint32_t len,
		 const struct rc_place *peer)
{
	struct ibv_sge sge = { .addr = (uintptr_t)rc->buf + offset, .length = len, .lkey = rc->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED }, *bad;

	wr.wr.rdma.remote_addr = peer->addr + offset;
	wr.wr.rdma.rkey = peer->rkey;
	return ibv_post_send(rc->qp, &wr, &bad);
}

bool rc_wait(struct ibv_cq *cq, struct ibv_wc *wc, int ms)
{
	double until = now() + ms / 1e3;
	int n;

	while (!(n = ibv_poll_cq(cq, 1, wc)))
		if (now() > until)
			return false;
	if (n < 0)
		die("ibv_poll_cq failed");
	return true;
}

double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void say(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
}

/* Device, memory, queue pair. */
#include "checker.h"
#include <errno.h>
#include <unistd.h>

static void *zone(size_t len)
{
	void *p = NULL;

	if (posix_memalign(&p, 4096, len))
		die("out of memory");
	memset(p, 0, len);
	return p;
}

static struct ibv_mr *reg(struct side *s, void *p, size_t len, int access)
{
	struct ibv_mr *mr = ibv_reg_mr(s->pd, p, len, access);

	if (!mr)
		die("ibv_reg_mr of %zu bytes: %s", len, strerror(errno));
	return mr;
}

static struct ibv_context *open_device(const char *name)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);
	struct ibv_context *ctx = NULL;

	if (!list || !n)
		die("no RDMA device");
	for (int i = 0; i < n && !ctx; i++)
		if (!name || !strcmp(ibv_get_device_name(list[i]), name))
			ctx = ibv_open_device(list[i]);
	ibv_free_device_list(list);
	if (!ctx)
		die("cannot open device %s", name ? name : "(first)");
	return ctx;
}

static void make_memory(struct side *s)
{
	const struct options *opt = s->opt;
	size_t all;

	s->stride = (opt->max_size + 2 * GUARD + 64 + 63) & ~(size_t)63;
	all = s->stride * opt->depth;
	s->slots = zone(all);
	s->recv = zone(all);
	s->out = zone(all);
	s->sink = zone(all);
	s->source = zone(opt->max_size + 64);
	s->atomic = zone(4096);
	s->credit = zone(4096);
	s->slots_mr = reg(s, s->slots, all, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	s->recv_mr = reg(s, s->recv, all, IBV_ACCESS_LOCAL_WRITE);
	s->out_mr = reg(s, s->out, all, 0);
	s->sink_mr = reg(s, s->sink, all, IBV_ACCESS_LOCAL_WRITE);
	s->source_mr = reg(s, s->source, opt->max_size + 64, IBV_ACCESS_REMOTE_READ);
	s->atomic_mr = reg(s, s->atomic, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
	s->credit_mr = reg(s, (void *)s->credit, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	fill_pattern(s->source, opt->max_size + 64, s->my_seed, 0);
}

static void make_queues(struct side *s)
{
	const struct options *opt = s->opt;
	/* Each message may be followed by one credit WRITE. */
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4 * opt->depth + 8, .max_recv_wr = opt->depth,
			 .max_send_sge = opt->max_sge, .max_recv_sge = opt->max_sge, .max_inline_data = 128 },
		.qp_type = IBV_QPT_RC,
	};

	if (opt->events && !(s->channel = ibv_create_comp_channel(s->ctx)))
		die("ibv_create_comp_channel: %s", strerror(errno));
	s->send_cq = ibv_create_cq(s->ctx, 4 * opt->depth + 64, s, s->channel, 0);
	s->recv_cq = ibv_create_cq(s->ctx, opt->depth + 16, s, s->channel, 0);
	if (!s->send_cq || !s->recv_cq)
		die("ibv_create_cq: %s", strerror(errno));
	attr.send_cq = s->send_cq;
	attr.recv_cq = s->recv_cq;
	s->qp = ibv_create_qp(s->pd, &attr);
	if (!s->qp)
		die("ibv_create_qp: %s", strerror(errno));
	s->max_inline = attr.cap.max_inline_data;
	s->sq_depth = attr.cap.max_send_wr;
	s->notes = calloc(s->sq_depth, sizeof *s->notes);
	s->arrivals = calloc(opt->depth, sizeof *s->arrivals);
	s->expected = calloc(opt->depth, sizeof *s->expected);
}

static void describe(struct side *s)
{
	union ibv_gid gid;
	struct peer_info *mine = &s->mine;

	if (ibv_query_gid(s->ctx, 1, s->opt->gid_index, &gid))
		die("no GID at index %d", s->opt->gid_index);
	memcpy(mine->gid, gid.raw, 16);
	mine->qpn = s->qp->qp_num;
	/* Close to the end, so that the PSN wraps early in every run. */
	mine->psn = 0xfffff0 ^ (mix(s->my_seed) & 0xf);
	mine->slots_addr = (uintptr_t)s->slots;
	mine->slots_rkey = s->slots_mr->rkey;
	mine->source_addr = (uintptr_t)s->source;
	mine->source_rkey = s->source_mr->rkey;
	mine->atomic_addr = (uintptr_t)s->atomic;
	mine->atomic_rkey = s->atomic_mr->rkey;
	mine->credit_addr = (uintptr_t)s->credit;
	mine->credit_rkey = s->credit_mr->rkey;
}

void side_open(struct side *s, const struct options *opt)
{
	s->opt = opt;
	s->oob = oob_connect(opt);
	s->my_seed = mix(opt->seed + (opt->server ? 1 : 2));
	s->peer_seed = mix(opt->seed + (opt->server ? 2 : 1));
	s->ctx = open_device(opt->device);
	s->pd = ibv_alloc_pd(s->ctx);
	if (!s->pd)
		die("ibv_alloc_pd: %s", strerror(errno));
	make_memory(s);
	make_queues(s);
	describe(s);
}

static void modify(struct side *s, struct ibv_qp_attr *attr, int mask, const char *to)
{
	int err = ibv_modify_qp(s->qp, attr, mask);

	if (err)
		die("ibv_modify_qp to %s: %s", to, strerror(err));
}

static void to_rtr(struct side *s)
{
	const struct options *opt = s->opt;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = opt->mtu,
		.dest_qp_num = s->peer.qpn,
		.rq_psn = s->peer.psn,
		.max_dest_rd_atomic = opt->rd_atomic,
		.min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = opt->gid_index, .hop_limit = 64 } },
	};

	memcpy(attr.ah_attr.grh.dgid.raw, s->peer.gid, 16);
	modify(s, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
	       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER, "RTR");
}

void side_connect(struct side *s)
{
	const struct options *opt = s->opt;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

	oob_exchange(s->oob, &s->mine, &s->peer, sizeof s->mine);
	modify(s, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT");
	to_rtr(s);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = opt->timeout, .retry_cnt = opt->retry,
		.rnr_retry = 7, .sq_psn = s->mine.psn, .max_rd_atomic = opt->rd_atomic };
	modify(s, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
	       IBV_QP_MAX_QP_RD_ATOMIC, "RTS");
}

void side_close(struct side *s)
{
	struct ibv_mr *mrs[] = { s->slots_mr, s->recv_mr, s->source_mr, s->out_mr, s->sink_mr, s->atomic_mr, s->credit_mr };
	int err = ibv_destroy_qp(s->qp);

	if (!err)
		err = ibv_destroy_cq(s->send_cq) | ibv_destroy_cq(s->recv_cq);
	for (unsigned i = 0; i < sizeof mrs / sizeof *mrs && !err; i++)
		err = ibv_dereg_mr(mrs[i]);
	if (!err && s->channel)
		err = ibv_destroy_comp_channel(s->channel);
	if (!err)
		err = ibv_dealloc_pd(s->pd) | ibv_close_device(s->ctx);
	if (err)
		die("destroying the objects failed: %s", strerror(err));
	close(s->oob);
}

/* Mistakes in creating, registering and destroying. */
#include "errors.h"
#include <errno.h>
#include <sys/mman.h>

static struct bench bench;

static struct ibv_device_attr limits(struct ibv_context *ctx)
{
	struct ibv_device_attr attr;

	if (ibv_query_device(ctx, &attr))
		die("ibv_query_device failed");
	return attr;
}

/* A QP like the bench's but for what `spoil` changes. */
static void qp_with(void (*spoil)(struct ibv_qp_init_attr *attr, const struct ibv_device_attr *limits))
{
	struct ibv_device_attr attr;
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };

	bench_make(&bench, &options, &options);
	attr = limits(bench.a.ctx);
	init.send_cq = bench.a.send_cq;
	init.recv_cq = bench.a.recv_cq;
	spoil(&init, &attr);
	say("%s", null_errno(ibv_create_qp(bench.a.pd, &init)));
}

static void spoil_send_wr(struct ibv_qp_init_attr *init, const struct ibv_device_attr *limits)
{
	init->cap.max_send_wr = (uint32_t)limits->max_qp_wr + 1;
}

static void spoil_recv_wr(struct ibv_qp_init_attr *init, const struct ibv_device_attr *limits)
{
	init->cap.max_recv_wr = (uint32_t)limits->max_qp_wr + 1;
}

static void spoil_send_sge(struct ibv_qp_init_attr *init, const struct ibv_device_attr *limits)
{
	init->cap.max_send_sge = (uint32_t)limits->max_sge + 1;
}

static void spoil_recv_sge(struct ibv_qp_init_attr *init, const struct ibv_device_attr *limits)
{
	init->cap.max_recv_sge = (uint32_t)limits->max_sge + 1;
}

static void spoil_inline(struct ibv_qp_init_attr *init, const struct ibv_device_attr *limits)
{
	(void)limits;
	init->cap.max_inline_data = 1 << 20;
}

static void spoil_cq(struct ibv_qp_init_attr *init, const struct ibv_device_attr *limits)
{
	(void)limits;
	init->recv_cq = NULL;
}

static void spoil_type(struct ibv_qp_init_attr *init, const struct ibv_device_attr *limits)
{
	(void)limits;
	init->qp_type = 77;
}

static void qp_too_many_send_wr(void)
{
	qp_with(spoil_send_wr);
}

static void qp_too_many_recv_wr(void)
{
	qp_with(spoil_recv_wr);
}

static void qp_too_many_send_sge(void)
{
	qp_with(spoil_send_sge);
}

static void qp_too_many_recv_sge(void)
{
	qp_with(spoil_recv_sge);
}

static void qp_too_much_inline(void)
{
	qp_with(spoil_inline);
}

static void qp_without_cq(void)
{
	qp_with(spoil_cq);
}

static void qp_of_no_type(void)
{
	qp_with(spoil_type);
}

static void cq_with(int cqe, int vector)
{
	struct ibv_context *ctx = rc_open_device(options.device);

	say("%s", null_errno(ibv_create_cq(ctx, cqe, NULL, NULL, vector)));
}

static void cq_of_zero(void)
{
	cq_with(0, 0);
}

static void cq_negative(void)
{
	cq_with(-1, 0);
}

static void cq_too_large(void)
{
	struct ibv_context *ctx = rc_open_device(options.device);

	cq_with(limits(ctx).max_cqe + 1, 0);
}

static void cq_bad_vector(void)
{
	cq_with(16, 10000);
}

static void cq_shrunk_below_content(void)
{
	bench_ready(&bench);
	for (uint64_t i = 0; i < 40; i++)
		if (rc_post_send(&bench.a, IBV_WR_RDMA_WRITE, i, 0, 8, &bench.at_b))
			die("ibv_post_send failed");
	events_of(bench.a.ctx, 200);
	say("%s", error_name(ibv_resize_cq(bench.a.send_cq, 4)));
}

static void mr_with(void *addr, size_t len, int access)
{
	struct ibv_context *ctx = rc_open_device(options.device);

	say("%s", null_errno(ibv_reg_mr(ibv_alloc_pd(ctx), addr, len, access)));
}

static unsigned char page[4096];

static void mr_remote_write_only(void)
{
	mr_with(page, sizeof page, IBV_ACCESS_REMOTE_WRITE);
}

static void mr_remote_atomic_only(void)
{
	mr_with(page, sizeof page, IBV_ACCESS_REMOTE_ATOMIC);
}

static void mr_empty(void)
{
	mr_with(page, 0, IBV_ACCESS_LOCAL_WRITE);
}

static void mr_wraps(void)
{
	mr_with((void *)(UINTPTR_MAX - 100), 4096, IBV_ACCESS_LOCAL_WRITE);
}

static void mr_unmapped(void)
{
	void *gone = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	munmap(gone, 8192);
	mr_with(gone, 8192, IBV_ACCESS_LOCAL_WRITE);
}

static void mr_unmapped_in_the_middle(void)
{
	unsigned char *zone = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	munmap(zone + 4096, 4096);
	mr_with(zone, 3 * 4096, IBV_ACCESS_LOCAL_WRITE);
}

static void mr_read_only_memory(void)
{
	void *zone = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	mr_with(zone, 4096, IBV_ACCESS_LOCAL_WRITE);
}

static void busy_cq(void)
{
	bench_make(&bench, &options, &options);
	say("%s", error_name(ibv_destroy_cq(bench.a.send_cq)));
}

static void busy_pd(void)
{
	bench_make(&bench, &options, &options);
	ibv_destroy_qp(bench.a.qp);
	ibv_destroy_qp(bench.b.qp);
	ibv_dereg_mr(bench.a.mr);
	say("%s", error_name(ibv_dealloc_pd(bench.a.pd)));
}

static struct ibv_srq *srq(uint32_t max_wr, uint32_t max_sge)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = max_wr, .max_sge = max_sge } };

	bench_make(&bench, &options, &options);
	return ibv_create_srq(bench.a.pd, &init);
}

static void srq_too_many_wr(void)
{
	say("%s", null_errno(srq(1 << 30, 1)));
}

static void srq_too_many_sge(void)
{
	say("%s", null_errno(srq(8, 1 << 20)));
}

static void srq_with(struct ibv_srq_attr attr, int mask)
{
	struct ibv_srq *shared = srq(8, 1);

	if (!shared)
		die("ibv_create_srq failed");
	say("%s", error_name(ibv_modify_srq(shared, &attr, mask)));
}

static void srq_limit_too_high(void)
{
	srq_with((struct ibv_srq_attr){ .srq_limit = 1 << 20 }, IBV_SRQ_LIMIT);
}

static void srq_resized(void)
{
	srq_with((struct ibv_srq_attr){ .max_wr = 16 }, IBV_SRQ_MAX_WR);
}

/* A QP on a shared receive queue, which is then destroyed, or passed by. */
static void on_srq(bool destroy)
{
	struct ibv_srq *shared = srq(8, 1);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .srq = shared, .send_cq = bench.a.send_cq,
		.recv_cq = bench.a.recv_cq, .cap = { .max_send_wr = 4, .max_send_sge = 1 } };
	struct ibv_qp *qp = shared ? ibv_create_qp(bench.a.pd, &init) : NULL;
	struct ibv_recv_wr wr = { 0 }, *bad;

	if (!qp)
		die("no QP on a shared receive queue");
	say("%s", error_name(destroy ? ibv_destroy_srq(shared) : ibv_post_recv(qp, &wr, &bad)));
}

static void busy_srq(void)
{
	on_srq(true);
}

static void recv_beside_srq(void)
{
	on_srq(false);
}

static void ah_with(bool global, uint8_t port, uint8_t sgid_index)
{
	struct ibv_ah_attr attr = { .is_global = global, .port_num = port, .grh = { .sgid_index = sgid_index, .hop_limit = 1 } };

	bench_make(&bench, &options, &options);
	attr.grh.dgid = bench.at_a.gid;
	say("%s", null_errno(ibv_create_ah(bench.a.pd, &attr)));
}

static void ah_not_global(void)
{
	ah_with(false, 1, 0);
}

static void ah_bad_port(void)
{
	ah_with(true, 9, 0);
}

static void ah_bad_gid_index(void)
{
	ah_with(true, 1, 200);
}

const struct mistake creating[] = {
	{ "qp_too_many_send_wr", qp_too_many_send_wr },
	{ "qp_too_many_recv_wr", qp_too_many_recv_wr },
	{ "qp_too_many_send_sge", qp_too_many_send_sge },
	{ "qp_too_many_recv_sge", qp_too_many_recv_sge },
	{ "qp_too_much_inline", qp_too_much_inline },
	{ "qp_without_cq", qp_without_cq },
	{ "qp_of_no_type", qp_of_no_type },
	{ "cq_of_zero", cq_of_zero },
	{ "cq_negative", cq_negative },
	{ "cq_too_large", cq_too_large },
	{ "cq_bad_vector", cq_bad_vector },
	{ "cq_shrunk_below_content", cq_shrunk_below_content },
	{ "mr_remote_write_only", mr_remote_write_only },
	{ "mr_remote_atomic_only", mr_remote_atomic_only },
	{ "mr_empty", mr_empty },
	{ "mr_wraps", mr_wraps },
	{ "mr_unmapped", mr_unmapped },
	{ "mr_unmapped_in_the_middle", mr_unmapped_in_the_middle },
	{ "mr_read_only_memory", mr_read_only_memory },
	{ "busy_cq", busy_cq },
	{ "busy_pd", busy_pd },
	{ "srq_too_many_wr", srq_too_many_wr },
	{ "srq_too_many_sge", srq_too_many_sge },
	{ "srq_limit_too_high", srq_limit_too_high },
	{ "srq_resized", srq_resized },
	{ "busy_srq", busy_srq },
	{ "recv_beside_srq", recv_beside_srq },
	{ "ah_not_global", ah_not_global },
	{ "ah_bad_port", ah_bad_port },
	{ "ah_bad_gid_index", ah_bad_gid_index },
	{ 0 },
};

/* Device memory, and memory on demand: mistakes, and what is right. */
#define _GNU_SOURCE
#include "errors.h"
#include <errno.h>
#include <sys/mman.h>

static struct bench bench;

enum { DM = 4096, ON_DEMAND = ALL_ACCESS | IBV_ACCESS_ON_DEMAND };

static struct ibv_dm *dm_of(size_t length)
{
	struct ibv_alloc_dm_attr attr = { .length = length };

	return ibv_alloc_dm(bench.a.ctx, &attr);
}

static struct ibv_mr *reg_dm(struct ibv_dm *dm, struct ibv_pd *pd, uint64_t offset, size_t length, int access)
{
	return ibv_reg_dm_mr(pd, dm, offset, length, (unsigned)access);
}

static struct ibv_dm *ready_with_dm(void)
{
	struct ibv_dm *dm;

	bench_ready(&bench);
	dm = dm_of(DM);
	if (!dm)
		die("ibv_alloc_dm: %s", strerror(errno));
	return dm;
}

static void dm_too_large(void)
{
	struct ibv_device_attr_ex attr;

	bench_make(&bench, &options, &options);
	if (ibv_query_device_ex(bench.a.ctx, NULL, &attr) || !attr.max_dm_size)
		die("no device memory");
	say("%s", null_errno(dm_of(attr.max_dm_size + 1)));
}

static void dm_of_nothing(void)
{
	bench_make(&bench, &options, &options);
	say("%s", null_errno(dm_of(0)));
}

static void dm_copied_beyond_the_end(void)
{
	struct ibv_dm *dm = ready_with_dm();
	char bytes[16] = { 0 };
	int to = ibv_memcpy_to_dm(dm, DM - 8, bytes, 16), from = ibv_memcpy_from_dm(bytes, dm, DM + 4, 4);

	say("%s %s", error_name(to), error_name(from));
}

static void dm_not_zero_based(void)
{
	struct ibv_dm *dm = ready_with_dm();

	say("%s", null_errno(reg_dm(dm, bench.a.pd, 0, DM, IBV_ACCESS_LOCAL_WRITE)));
}

static void dm_on_demand(void)
{
	struct ibv_dm *dm = ready_with_dm();

	say("%s", null_errno(reg_dm(dm, bench.a.pd, 0, DM, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_ON_DEMAND)));
}

static void dm_registered_beyond_the_end(void)
{
	struct ibv_dm *dm = ready_with_dm();

	say("%s", null_errno(reg_dm(dm, bench.a.pd, 8, DM, IBV_ACCESS_ZERO_BASED)));
}

static void busy_dm(void)
{
	struct ibv_dm *dm = ready_with_dm();
	struct ibv_mr *mr = reg_dm(dm, bench.a.pd, 0, DM, IBV_ACCESS_ZERO_BASED);
	int busy;

	if (!mr)
		die("ibv_reg_dm_mr: %s", strerror(errno));
	busy = ibv_free_dm(dm);
	ibv_dereg_mr(mr);
	say("%s, then %s", error_name(busy), error_name(ibv_free_dm(dm)));
}

static const char *finished(int posted)
{
	struct ibv_wc wc;

	if (posted)
		return error_name(posted);
	return rc_wait(bench.a.send_cq, &wc, 5000) ? wc_name(wc.status) : "nothing";
}

/* Both ends' memory is device memory: the first half of it is a's. */
static struct ibv_dm *on_device_memory(struct rc_place *there, int access)
{
	struct ibv_dm *dm = ready_with_dm();
	struct ibv_mr *mr = reg_dm(dm, bench.b.pd, DM / 2, DM / 2, access | IBV_ACCESS_ZERO_BASED);

	bench.a.mr = reg_dm(dm, bench.a.pd, 0, DM / 2, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED);
	if (!mr || !bench.a.mr)
		die("ibv_reg_dm_mr: %s", strerror(errno));
	bench.a.buf = NULL;
	*there = bench.at_b;
	there->addr = 0;
	there->rkey = mr->rkey;
	return dm;
}

static void dm_does_all_operations(void)
{
	struct rc_place there;
	struct ibv_dm *dm = on_device_memory(&there, ALL_ACCESS);
	struct ibv_send_wr wr = { .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_sge sge = { .addr = 64, .length = 8, .lkey = bench.a.mr->lkey };
	uint64_t five = 5, seven = 7, words[3];
	const char *written, *added, *fetched;

	ibv_memcpy_to_dm(dm, 0, &five, 8);
	written = finished(rc_post_send(&bench.a, IBV_WR_RDMA_WRITE, 1, 0, 8, &there));
	wr.sg_list = &sge;
	wr.wr.atomic.remote_addr = 0;
	wr.wr.atomic.rkey = there.rkey;
	wr.wr.atomic.compare_add = seven;
	added = finished(ibv_post_send(bench.a.qp, &wr, &bad));
	fetched = finished(rc_post_send(&bench.a, IBV_WR_RDMA_READ, 3, 0, 8, &there));
	ibv_memcpy_from_dm(&words[0], dm, 0, 8);
	ibv_memcpy_from_dm(&words[1], dm, 64, 8);
	ibv_memcpy_from_dm(&words[2], dm, DM / 2, 8);
	say("%s %s %s: %lu %lu %lu", written, added, fetched, (unsigned long)words[0], (unsigned long)words[1],
	    (unsigned long)words[2]);
}

static void dm_without_right(void)
{
	struct rc_place there;

	on_device_memory(&there, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	say("%s", finished(rc_post_send(&bench.a, IBV_WR_RDMA_WRITE, 1, 0, 8, &there)));
}

static void dm_behind_its_region(void)
{
	struct rc_place there;

	on_device_memory(&there, ALL_ACCESS);
	there.addr = DM / 2;
	say("%s", finished(rc_post_send(&bench.a, IBV_WR_RDMA_WRITE, 1, 0, 8, &there)));
}

static void implicit_without_on_demand(void)
{
	bench_ready(&bench);
	say("%s", null_errno(ibv_reg_mr(bench.a.pd, NULL, SIZE_MAX, ALL_ACCESS)));
}

static void implicit_not_from_zero(void)
{
	bench_ready(&bench);
	say("%s", null_errno(ibv_reg_mr(bench.a.pd, (void *)4096, SIZE_MAX, ON_DEMAND)));
}

/* The requester's memory, or the responder's, is a whole address space. */
static void use_implicit(bool local, void *at, uint32_t len)
{
	struct rc *rc = local ? &bench.a : &bench.b;
	struct rc_place there = bench.at_b;
	struct ibv_mr *mr = ibv_reg_mr(rc->pd, NULL, SIZE_MAX, ON_DEMAND);

	if (!mr)
		die("ibv_reg_mr: %s", strerror(errno));
	if (local) {
		bench.a.mr = mr;
		bench.a.buf = at;
	} else {
		there.rkey = mr->rkey;
		there.addr = (uintptr_t)at;
	}
	if (rc_post_send(&bench.a, IBV_WR_RDMA_WRITE, 1, 0, len, &there))
		die("ibv_post_send failed");
}

static void *pages(void)
{
	return mmap(NULL, 2 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void implicit_reaches_what_comes_later(void)
{
	unsigned char *later;

	bench_ready(&bench);
	later = pages();
	use_implicit(false, later, 4096);
	bench_outcome(&bench, true);
	if (later[0] != 0xaa || later[4095] != 0xaa || later[4096])
		die("the memory is not written");
}

static void implicit_hole_at_the_responder(void)
{
	bench_ready(&bench);
	use_implicit(false, (void *)8192, 4096);
	bench_outcome(&bench, true);
}

/* So little that the library would like to copy it itself. */
static void implicit_hole_at_the_requester(void)
{
	bench_ready(&bench);
	use_implicit(true, (void *)8192, 8);
	bench_outcome(&bench, true);
}

static void on_demand_pages_gone(void)
{
	unsigned char *zone = pages();

	bench_ready(&bench);
	bench.a.mr = ibv_reg_mr(bench.a.pd, zone, 2 * 4096, ON_DEMAND);
	bench.a.buf = zone;
	munmap(zone, 2 * 4096);
	if (rc_post_send(&bench.a, IBV_WR_RDMA_WRITE, 1, 0, 8, &bench.at_b))
		die("ibv_post_send failed");
	bench_outcome(&bench, true);
}

static const char *advise(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_mr *mr,
			  uint64_t addr, uint32_t length)
{
	struct ibv_sge sge = { .addr = addr, .length = length, .lkey = mr->lkey };

	return error_name(ibv_advise_mr(pd, advice, flags, &sge, 1));
}

static void advice(void)
{
	const enum ibv_advise_mr_advice to_read = IBV_ADVISE_MR_ADVICE_PREFETCH;
	const enum ibv_advise_mr_advice to_write = IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
	const uint32_t at_once = IBV_ADVISE_MR_FLAG_FLUSH;
	struct ibv_mr *good, *unwritable;
	uint64_t zone = (uintptr_t)pages();
	struct ibv_pd *pd;
	const char *fine, *beyond, *read_only, *ordinary, *other_pd;

	bench_ready(&bench);
	pd = bench.a.pd;
	good = ibv_reg_mr(pd, (void *)zone, 2 * 4096, ON_DEMAND);
	unwritable = ibv_reg_mr(pd, (void *)zone, 2 * 4096, IBV_ACCESS_ON_DEMAND);
	if (!good || !unwritable)
		die("ibv_reg_mr: %s", strerror(errno));
	fine = advise(pd, to_write, at_once, good, zone, 2 * 4096);
	beyond = advise(pd, to_read, at_once, good, zone + 4096, 4097);
	read_only = advise(pd, to_write, 0, unwritable, zone, 8);
	ordinary = advise(pd, to_read, at_once, bench.a.mr, (uintptr_t)bench.a.buf, 8);
	other_pd = advise(ibv_alloc_pd(bench.a.ctx), to_read, at_once, good, zone, 8);
	say("%s, beyond %s, read-only %s, not on demand %s, other domain %s, other advice %s, flags %s", fine, beyond,
	    read_only, ordinary, other_pd, advise(pd, 77, 0, good, zone, 8), advise(pd, to_read, 8, good, zone, 8));
}

const struct mistake memory[] = {
	{ "dm_too_large", dm_too_large },
	{ "dm_of_nothing", dm_of_nothing },
	{ "dm_copied_beyond_the_end", dm_copied_beyond_the_end },
	{ "dm_not_zero_based", dm_not_zero_based },
	{ "dm_on_demand", dm_on_demand },
	{ "dm_registered_beyond_the_end", dm_registered_beyond_the_end },
	{ "busy_dm", busy_dm },
	{ "dm_does_all_operations", dm_does_all_operations },
	{ "dm_without_right", dm_without_right },
	{ "dm_behind_its_region", dm_behind_its_region },
	{ "implicit_without_on_demand", implicit_without_on_demand },
	{ "implicit_not_from_zero", implicit_not_from_zero },
	{ "implicit_reaches_what_comes_later", implicit_reaches_what_comes_later },
	{ "implicit_hole_at_the_responder", implicit_hole_at_the_responder },
	{ "implicit_hole_at_the_requester", implicit_hole_at_the_requester },
	{ "on_demand_pages_gone", on_demand_pages_gone },
	{ "advice", advice },
	{ 0 },
};

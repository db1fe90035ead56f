/* Compares completion timestamps with the device's clock. */
#include "victim.h"
#include <errno.h>

static uint64_t clock_now(struct ibv_context *ctx)
{
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };

	if (ibv_query_rt_values_ex(ctx, &values) || !(values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK))
		die("ibv_query_rt_values_ex: %s", strerror(errno));
	return (uint64_t)values.raw_clock.tv_sec * 1000000000 + (uint64_t)values.raw_clock.tv_nsec;
}

int reads_clocks(const struct rc_options *opt)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 16, .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP };
	struct ibv_poll_cq_attr poll = { 0 };
	struct ibv_device_attr_ex device;
	struct rc_place at_a, at_b;
	struct rc a = { 0 }, b = { 0 };
	struct ibv_cq_ex *cq;

	a.ctx = b.ctx = rc_open_device(opt->device);
	if (ibv_query_device_ex(a.ctx, NULL, &device) || device.hca_core_clock != 1000000)
		die("the clock does not count nanoseconds: %lu kHz", device.hca_core_clock);
	cq = ibv_create_cq_ex(a.ctx, &attr);
	if (!cq)
		die("ibv_create_cq_ex: %s", strerror(errno));
	a.send_cq = ibv_cq_ex_to_cq(cq);
	rc_make(&a, opt, 4096);
	b.pd = a.pd;
	rc_make(&b, opt, 4096);
	at_a = rc_place(&a);
	at_b = rc_place(&b);
	rc_connect(&a, &at_b);
	rc_connect(&b, &at_a);
	for (uint64_t i = 0; i < 100; i++) {
		uint64_t before = clock_now(a.ctx), stamp, after;

		if (rc_post_send(&a, IBV_WR_RDMA_WRITE, i, 0, 64, &at_b))
			die("ibv_post_send failed");
		while (ibv_start_poll(cq, &poll) == ENOENT)
			;
		stamp = ibv_wc_read_completion_ts(cq);
		ibv_end_poll(cq);
		after = clock_now(a.ctx);
		if (stamp < before || stamp > after)
			die("posted at %lu ns, completed at %lu, polled at %lu", before, stamp, after);
	}
	say("the clocks agree");
	return 0;
}

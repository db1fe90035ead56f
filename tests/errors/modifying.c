/* Mistakes in moving a queue pair through its states. Each must change nothing. */
#include "errors.h"

enum { INIT_MASK = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
	RTR_MASK = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
	RTS_MASK = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		   IBV_QP_MAX_QP_RD_ATOMIC };

static struct bench bench;

/* A QP in `state` and attributes with which the next transition would work. */
static struct ibv_qp_attr ready_for(enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .port_num = 1, .path_mtu = IBV_MTU_1024, .max_dest_rd_atomic = 1, .min_rnr_timer = 1,
		.max_rd_atomic = 1, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64 } } };
	int err = 0;

	bench_make(&bench, &options, &options);
	attr.ah_attr.grh.sgid_index = (uint8_t)options.gid_index;
	attr.ah_attr.grh.dgid = bench.at_b.gid;
	attr.dest_qp_num = bench.at_b.qpn;
	if (state >= IBV_QPS_INIT)
		err |= rc_to_init(&bench.a);
	if (state >= IBV_QPS_RTR)
		err |= rc_to_rtr(&bench.a, &bench.at_b);
	if (state >= IBV_QPS_RTS)
		err |= rc_to_rts(&bench.a);
	if (err)
		die("cannot bring a QP to state %s", state_name(state));
	return attr;
}

static void try(struct ibv_qp_attr attr, int mask, enum ibv_qp_state to)
{
	struct ibv_qp_attr before, after;
	struct ibv_qp_init_attr init;
	int err;

	attr.qp_state = to;
	ibv_query_qp(bench.a.qp, &before, IBV_QP_STATE, &init);
	err = ibv_modify_qp(bench.a.qp, &attr, mask);
	ibv_query_qp(bench.a.qp, &after, IBV_QP_STATE, &init);
	say("%s%s", error_name(err), err && before.qp_state != after.qp_state ? ", STATE CHANGED" : "");
}

static void reset_to_rtr(void)
{
	try(ready_for(IBV_QPS_RESET), RTR_MASK, IBV_QPS_RTR);
}

static void reset_to_rts(void)
{
	try(ready_for(IBV_QPS_RESET), RTS_MASK, IBV_QPS_RTS);
}

static void reset_to_error(void)
{
	try(ready_for(IBV_QPS_RESET), IBV_QP_STATE, IBV_QPS_ERR);
}

static void init_to_rts(void)
{
	try(ready_for(IBV_QPS_INIT), RTS_MASK, IBV_QPS_RTS);
}

static void rts_to_init(void)
{
	try(ready_for(IBV_QPS_RTS), INIT_MASK, IBV_QPS_INIT);
}

static void rts_to_rtr(void)
{
	try(ready_for(IBV_QPS_RTS), RTR_MASK, IBV_QPS_RTR);
}

static void no_such_state(void)
{
	try(ready_for(IBV_QPS_INIT), RTR_MASK, 77);
}

static void init_without_port(void)
{
	try(ready_for(IBV_QPS_RESET), INIT_MASK & ~IBV_QP_PORT, IBV_QPS_INIT);
}

static void rtr_without_address(void)
{
	try(ready_for(IBV_QPS_INIT), RTR_MASK & ~IBV_QP_AV, IBV_QPS_RTR);
}

static void rtr_without_psn(void)
{
	try(ready_for(IBV_QPS_INIT), RTR_MASK & ~IBV_QP_RQ_PSN, IBV_QPS_RTR);
}

static void rtr_with_timeout(void)
{
	try(ready_for(IBV_QPS_INIT), RTR_MASK | IBV_QP_TIMEOUT, IBV_QPS_RTR);
}

static void rts_without_retry_count(void)
{
	try(ready_for(IBV_QPS_RTR), RTS_MASK & ~IBV_QP_RETRY_CNT, IBV_QPS_RTS);
}

static void rts_with_path_mtu(void)
{
	try(ready_for(IBV_QPS_RTR), RTS_MASK | IBV_QP_PATH_MTU, IBV_QPS_RTS);
}

static void init_bad_port(void)
{
	struct ibv_qp_attr attr = ready_for(IBV_QPS_RESET);

	attr.port_num = 7;
	try(attr, INIT_MASK, IBV_QPS_INIT);
}

static void init_bad_pkey_index(void)
{
	struct ibv_qp_attr attr = ready_for(IBV_QPS_RESET);

	attr.pkey_index = 999;
	try(attr, INIT_MASK, IBV_QPS_INIT);
}

static void rtr_bad_mtu(void)
{
	struct ibv_qp_attr attr = ready_for(IBV_QPS_INIT);

	attr.path_mtu = 6;
	try(attr, RTR_MASK, IBV_QPS_RTR);
}

static void rtr_bad_gid_index(void)
{
	struct ibv_qp_attr attr = ready_for(IBV_QPS_INIT);

	attr.ah_attr.grh.sgid_index = 200;
	try(attr, RTR_MASK, IBV_QPS_RTR);
}

static void rtr_not_global(void)
{
	struct ibv_qp_attr attr = ready_for(IBV_QPS_INIT);

	attr.ah_attr.is_global = 0;
	try(attr, RTR_MASK, IBV_QPS_RTR);
}

static void rtr_bad_rnr_timer(void)
{
	struct ibv_qp_attr attr = ready_for(IBV_QPS_INIT);

	attr.min_rnr_timer = 32;
	try(attr, RTR_MASK, IBV_QPS_RTR);
}

static void rtr_too_many_atomics(void)
{
	struct ibv_qp_attr attr = ready_for(IBV_QPS_INIT);

	attr.max_dest_rd_atomic = 255;
	try(attr, RTR_MASK, IBV_QPS_RTR);
}

static void rts_bad_timeout(void)
{
	struct ibv_qp_attr attr = ready_for(IBV_QPS_RTR);

	attr.timeout = 32;
	try(attr, RTS_MASK, IBV_QPS_RTS);
}

static void rts_bad_retry_count(void)
{
	struct ibv_qp_attr attr = ready_for(IBV_QPS_RTR);

	attr.retry_cnt = 8;
	try(attr, RTS_MASK, IBV_QPS_RTS);
}

static void rts_bad_rnr_retry(void)
{
	struct ibv_qp_attr attr = ready_for(IBV_QPS_RTR);

	attr.rnr_retry = 8;
	try(attr, RTS_MASK, IBV_QPS_RTS);
}

static void rts_too_many_atomics(void)
{
	struct ibv_qp_attr attr = ready_for(IBV_QPS_RTR);

	attr.max_rd_atomic = 255;
	try(attr, RTS_MASK, IBV_QPS_RTS);
}

static void wrong_current_state(void)
{
	struct ibv_qp_attr attr = ready_for(IBV_QPS_RTR);

	attr.cur_qp_state = IBV_QPS_RTS;
	try(attr, RTS_MASK | IBV_QP_CUR_STATE, IBV_QPS_RTS);
}

static void any_to_reset(void)
{
	try(ready_for(IBV_QPS_RTS), IBV_QP_STATE, IBV_QPS_RESET);
}

static void any_to_error(void)
{
	try(ready_for(IBV_QPS_INIT), IBV_QP_STATE, IBV_QPS_ERR);
}

const struct mistake modifying[] = {
	{ "reset_to_rtr", reset_to_rtr },
	{ "reset_to_rts", reset_to_rts },
	{ "reset_to_error", reset_to_error },
	{ "init_to_rts", init_to_rts },
	{ "rts_to_init", rts_to_init },
	{ "rts_to_rtr", rts_to_rtr },
	{ "no_such_state", no_such_state },
	{ "init_without_port", init_without_port },
	{ "rtr_without_address", rtr_without_address },
	{ "rtr_without_psn", rtr_without_psn },
	{ "rtr_with_timeout", rtr_with_timeout },
	{ "rts_without_retry_count", rts_without_retry_count },
	{ "rts_with_path_mtu", rts_with_path_mtu },
	{ "init_bad_port", init_bad_port },
	{ "init_bad_pkey_index", init_bad_pkey_index },
	{ "rtr_bad_mtu", rtr_bad_mtu },
	{ "rtr_bad_gid_index", rtr_bad_gid_index },
	{ "rtr_not_global", rtr_not_global },
	{ "rtr_bad_rnr_timer", rtr_bad_rnr_timer },
	{ "rtr_too_many_atomics", rtr_too_many_atomics },
	{ "rts_bad_timeout", rts_bad_timeout },
	{ "rts_bad_retry_count", rts_bad_retry_count },
	{ "rts_bad_rnr_retry", rts_bad_rnr_retry },
	{ "rts_too_many_atomics", rts_too_many_atomics },
	{ "wrong_current_state", wrong_current_state },
	{ "any_to_reset", any_to_reset },
	{ "any_to_error", any_to_error },
	{ 0 },
};

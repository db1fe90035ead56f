/* The peer's schedule: preparing for what will arrive, and checking it when it does. */
#include "checker.h"

static unsigned char *landing(struct side *s, const struct arrival *a, uint64_t ordinal)
{
	bool by_send = a->m.op == OP_SEND || a->m.op == OP_SEND_IMM;
	unsigned char *base = by_send ? s->recv : s->slots;

	return base + (ordinal % s->opt->depth) * s->stride + GUARD + a->m.offset;
}

static uint64_t message_key(uint64_t seed, uint64_t index)
{
	return mix(seed ^ index << 20);
}

static void post_receive(struct side *s, const struct arrival *a, uint64_t ordinal)
{
	struct ibv_sge sge[MAX_SGES];
	struct ibv_recv_wr *bad, wr = { .wr_id = ordinal, .sg_list = sge };
	unsigned char *at = landing(s, a, ordinal);
	size_t left = a->m.size;
	int err;

	/* The receive WQE of a WRITE with immediate is not used for data and may have no SGE. */
	if (a->m.op != OP_WRITE_IMM)
		wr.num_sge = (int)a->m.num_recv_sge;
	for (int i = 0; i < wr.num_sge; i++) {
		size_t len = i + 1 == wr.num_sge ? left : left / 2;

		sge[i] = (struct ibv_sge){ .addr = (uintptr_t)at, .length = len, .lkey = s->recv_mr->lkey };
		at += len;
		left -= len;
	}
	err = ibv_post_recv(s->qp, &wr, &bad);
	if (err)
		die("ibv_post_recv: %s", strerror(err));
}

void prepare(struct side *s)
{
	while (s->prepared < s->consumed + s->opt->depth) {
		uint64_t ordinal = s->prepared;
		struct arrival *a = &s->arrivals[ordinal % s->opt->depth];
		unsigned char *at;

		a->m = schedule(s->opt, s->peer_seed, s->prepare_index);
		a->index = s->prepare_index++;
		a->received = false;
		if (!is_active(&a->m))
			continue;
		at = landing(s, a, ordinal);
		memset(at - GUARD, 0xa5, a->m.size + 2 * GUARD);
		if (a->m.size) {
			/* The last byte starts with another value than the expected one. */
			unsigned char last;

			fill_pattern(&last, 1, message_key(s->peer_seed, a->index), a->m.size - 1);
			at[a->m.size - 1] = (unsigned char)~last;
		}
		if (takes_receive(a->m.op))
			post_receive(s, a, ordinal);
		s->prepared++;
	}
}

static void check_arrival(struct side *s, const struct arrival *a, uint64_t ordinal)
{
	unsigned char *at = landing(s, a, ordinal);
	long bad = check_pattern(at, a->m.size, message_key(s->peer_seed, a->index), 0);

	if (bad >= 0)
		die("peer's message %lu (%s, %zu bytes): wrong byte at %ld", a->index, op_names[a->m.op], a->m.size, bad);
	for (unsigned i = 0; i < GUARD; i++)
		if (at[-1 - (long)i] != 0xa5 || at[a->m.size + i] != 0xa5)
			die("peer's message %lu (%s): a byte outside its buffer was touched", a->index, op_names[a->m.op]);
	s->bytes_in += a->m.size;
}

static bool last_byte_is_there(struct side *s, const struct arrival *a, uint64_t ordinal)
{
	unsigned char last;
	volatile unsigned char *at = landing(s, a, ordinal);

	fill_pattern(&last, 1, message_key(s->peer_seed, a->index), a->m.size - 1);
	if (at[a->m.size - 1] != last)
		return false;
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return true;
}

bool consume(struct side *s)
{
	const struct arrival *a = &s->arrivals[s->consumed % s->opt->depth];

	if (s->final_known && s->consumed == s->final_active)
		return false;
	if (takes_receive(a->m.op) ? !a->received : !last_byte_is_there(s, a, s->consumed))
		return false;
	check_arrival(s, a, s->consumed);
	s->consumed++;
	prepare(s);
	return true;
}

void received(struct side *s, const struct ibv_wc *wc)
{
	struct arrival *a;
	bool imm;

	if (wc->status != IBV_WC_SUCCESS)
		failed(s, "receive", wc);
	if (wc->wr_id < s->consumed || wc->wr_id >= s->prepared)
		die("receive completion %lu outside [%lu, %lu)", wc->wr_id, s->consumed, s->prepared);
	a = &s->arrivals[wc->wr_id % s->opt->depth];
	if (a->received)
		die("receive completion %lu came twice", wc->wr_id);
	for (uint64_t o = s->consumed; o < wc->wr_id; o++) {
		const struct arrival *before = &s->arrivals[o % s->opt->depth];

		if (takes_receive(before->m.op) && !before->received)
			die("receive completion %lu came before that of %lu", wc->wr_id, o);
		/* Data written before a message must be visible when the message is. */
		if (!takes_receive(before->m.op) && !last_byte_is_there(s, before, o))
			die("receive completion %lu came before the data of the WRITE ahead of it", wc->wr_id);
	}
	imm = a->m.op != OP_SEND;
	if (wc->byte_len != a->m.size)
		die("receive completion %lu: %u bytes, not %zu", wc->wr_id, wc->byte_len, a->m.size);
	if (wc->opcode != (a->m.op == OP_WRITE_IMM ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV))
		die("receive completion %lu: opcode %d", wc->wr_id, wc->opcode);
	if (!!(wc->wc_flags & IBV_WC_WITH_IMM) != imm || (imm && wc->imm_data != (uint32_t)a->index))
		die("receive completion %lu: wrong immediate data", wc->wr_id);
	if (wc->qp_num != s->qp->qp_num)
		die("receive completion %lu: QP number %u", wc->wr_id, wc->qp_num);
	a->received = true;
}

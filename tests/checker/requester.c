/* Our own schedule: posting, and checking what completes. */
#include "checker.h"

static unsigned char *zone_of(unsigned char *base, const struct side *s, uint64_t n)
{
	return base + (n % s->opt->depth) * s->stride + GUARD;
}

/* Cuts [at, at+size) into n pieces of uneven length. */
static void cut(struct ibv_sge *sge, unsigned n, unsigned char *at, size_t size, uint32_t lkey)
{
	for (unsigned i = 0; i < n; i++) {
		size_t left = n - i, len = left == 1 ? size : size / left + (size / left > 2 ? i % 2 : 0);

		sge[i] = (struct ibv_sge){ .addr = (uintptr_t)at, .length = len, .lkey = lkey };
		at += len;
		size -= len;
	}
}

static bool sq_has_room(const struct side *s, unsigned n)
{
	return s->wqes - s->wqes_done + n <= s->sq_depth;
}

static void post(struct side *s, struct ibv_send_wr *wr, struct wqe_note note)
{
	struct ibv_send_wr *bad = NULL;
	int err;

	wr->wr_id = s->wqes;
	if (note.signaled)
		wr->send_flags |= IBV_SEND_SIGNALED;
	err = ibv_post_send(s->qp, wr, &bad);
	if (err)
		die("ibv_post_send: %s", strerror(err));
	s->notes[s->wqes % s->sq_depth] = note;
	s->wqes++;
}

static void address_atomic(struct side *s, const struct message *m, struct ibv_send_wr *wr)
{
	uint64_t *expected = &s->expected[s->posted % s->opt->depth];

	wr->wr.atomic.rkey = s->peer.atomic_rkey;
	if (m->op == OP_FADD) {
		wr->wr.atomic.remote_addr = s->peer.atomic_addr + 8;
		wr->wr.atomic.compare_add = fadd_operand(s->my_seed, s->posted);
		*expected = s->fadd_value;
		s->fadd_value += wr->wr.atomic.compare_add;
		return;
	}
	wr->wr.atomic.remote_addr = s->peer.atomic_addr;
	wr->wr.atomic.swap = mix(s->my_seed ^ s->posted);
	/* Every third compare is wrong on purpose: the swap must then not happen. */
	wr->wr.atomic.compare_add = s->posted % 3 ? s->cas_value : ~s->cas_value;
	*expected = s->cas_value;
	if (s->posted % 3)
		s->cas_value = wr->wr.atomic.swap;
}

static void address(struct side *s, const struct message *m, struct ibv_send_wr *wr)
{
	static const enum ibv_wr_opcode opcodes[OP_COUNT] = {
		IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
		IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD };
	uint64_t slot = s->active_posted % s->opt->depth;

	wr->opcode = opcodes[m->op];
	wr->imm_data = (uint32_t)s->posted;
	if (m->op == OP_CAS || m->op == OP_FADD) {
		address_atomic(s, m, wr);
	} else if (m->op == OP_READ) {
		wr->wr.rdma.remote_addr = s->peer.source_addr + m->offset;
		wr->wr.rdma.rkey = s->peer.source_rkey;
	} else {
		wr->wr.rdma.remote_addr = s->peer.slots_addr + slot * s->stride + GUARD + m->offset;
		wr->wr.rdma.rkey = s->peer.slots_rkey;
	}
}

static uint64_t message_key(uint64_t seed, uint64_t index)
{
	return mix(seed ^ index << 20);
}

bool post_next(struct side *s)
{
	const struct options *opt = s->opt;
	struct message m = schedule(opt, s->my_seed, s->posted);
	bool active = is_active(&m);
	bool inbound = m.op == OP_READ || m.op == OP_CAS || m.op == OP_FADD;
	struct ibv_sge sge[MAX_SGES];
	struct ibv_send_wr wr = { .sg_list = sge, .num_sge = (int)m.num_sge };
	unsigned char *local;

	if (s->stop || s->posted >= s->completed + opt->depth || !sq_has_room(s, 2))
		return false;
	if (active && s->active_posted >= s->credit[0] + opt->depth)
		return false;
	local = zone_of(inbound ? s->sink : s->out, s, s->posted);
	if (inbound)
		memset(local - GUARD, 0x5a, m.size + 2 * GUARD);
	else
		fill_pattern(local, m.size, message_key(s->my_seed, s->posted), 0);
	cut(sge, m.num_sge, local, m.size, inbound ? s->sink_mr->lkey : s->out_mr->lkey);
	address(s, &m, &wr);
	if (m.inlined && !inbound && m.size <= s->max_inline)
		wr.send_flags |= IBV_SEND_INLINE;
	if (m.fenced && !s->opt->no_fence)
		wr.send_flags |= IBV_SEND_FENCE;
	if (m.solicited || s->opt->events)
		wr.send_flags |= IBV_SEND_SOLICITED;
	post(s, &wr, (struct wqe_note){ .signaled = m.signaled, .message = s->posted });
	if (wr.send_flags & IBV_SEND_INLINE)
		memset(local, 0xee, m.size); /* inline data was copied: the buffer is ours again */
	s->bytes_out += m.size;
	s->posted++;
	s->active_posted += active;
	return true;
}

bool post_credit(struct side *s)
{
	struct ibv_sge sge = { .addr = (uintptr_t)&s->credit[1], .length = 8, .lkey = s->credit_mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_INLINE };

	if (s->credited == s->consumed || !sq_has_room(s, 1))
		return false;
	s->credit[1] = s->credited = s->consumed;
	wr.wr.rdma.remote_addr = s->peer.credit_addr;
	wr.wr.rdma.rkey = s->peer.credit_rkey;
	post(s, &wr, (struct wqe_note){ .signaled = true, .credit = true });
	return true;
}

static void check_inbound(struct side *s, const struct message *m, uint64_t index)
{
	unsigned char *local = zone_of(s->sink, s, index);
	long bad;

	if (m->op == OP_READ) {
		bad = check_pattern(local, m->size, s->peer_seed, m->offset);
		if (bad >= 0)
			die("message %lu: READ of %zu bytes has a wrong byte at %ld", index, m->size, bad);
		s->bytes_in += m->size;
	} else {
		uint64_t got;

		memcpy(&got, local, 8);
		if (got != s->expected[index % s->opt->depth])
			die("message %lu: %s returned %lx, not %lx", index, op_names[m->op], got,
			    s->expected[index % s->opt->depth]);
	}
	for (unsigned i = 0; i < GUARD; i++)
		if (local[-1 - (long)i] != 0x5a || local[m->size + i] != 0x5a)
			die("message %lu: a byte outside the READ's buffer was touched", index);
}

void sent(struct side *s, const struct ibv_wc *wc)
{
	if (wc->status != IBV_WC_SUCCESS)
		failed(s, "send", wc);
	if (wc->wr_id >= s->wqes || wc->wr_id < s->wqes_done)
		die("send completion of WQE %lu out of order: %lu were done, %lu posted", wc->wr_id, s->wqes_done, s->wqes);
	for (; s->wqes_done <= wc->wr_id; s->wqes_done++) {
		const struct wqe_note *note = &s->notes[s->wqes_done % s->sq_depth];
		struct message m;

		if (note->signaled && s->wqes_done != wc->wr_id)
			die("send completion of WQE %lu is missing: that of %lu came", s->wqes_done, wc->wr_id);
		if (!note->signaled && s->wqes_done == wc->wr_id)
			die("unsignaled WQE %lu completed", wc->wr_id);
		if (note->credit)
			continue;
		m = schedule(s->opt, s->my_seed, note->message);
		if (m.op == OP_READ || m.op == OP_CAS || m.op == OP_FADD)
			check_inbound(s, &m, note->message);
		s->completed = note->message + 1;
	}
}

/* Two processes that move data to each other until something happens. */
#include "victim.h"
#include <unistd.h>

enum { IN_FLIGHT = 8, SLOT = 65536, SEND_LENGTH = 1000 };

struct stream {
	struct rc rc;
	struct rc_place peer;
	uint64_t posted, completed;
	double last_good, next_tick;
};

static void start(struct stream *s, const struct rc_options *opt)
{
	struct rc_place mine;
	int oob = oob_open(opt);

	memset(s, 0, sizeof *s);
	rc_make(&s->rc, opt, (size_t)SLOT * IN_FLIGHT);
	mine = rc_place(&s->rc);
	oob_swap(oob, &mine, &s->peer, sizeof mine);
	rc_connect(&s->rc, &s->peer);
	for (unsigned i = 0; i < opt->depth; i++)
		if (rc_post_recv(&s->rc, i, 0, SEND_LENGTH))
			die("ibv_post_recv failed");
	oob_swap(oob, &mine, &mine, sizeof mine);
	s->last_good = s->next_tick = now();
}

static void failed(struct stream *s, const char *queue, const struct ibv_wc *wc)
{
	say("failed %s %s after %.0f ms without a good completion", queue, wc_name(wc->status), (now() - s->last_good) * 1e3);
	exit(0);
}

static void step(struct stream *s)
{
	struct ibv_wc wc;

	while (s->posted - s->completed < IN_FLIGHT) {
		enum ibv_wr_opcode opcode = s->posted % 3 ? s->posted % 3 == 1 ? IBV_WR_SEND : IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
		size_t slot = SLOT * (s->posted % IN_FLIGHT);

		if (rc_post_send(&s->rc, opcode, s->posted, slot, opcode == IBV_WR_SEND ? SEND_LENGTH : SLOT, &s->peer))
			die("ibv_post_send failed");
		s->posted++;
	}
	while (ibv_poll_cq(s->rc.send_cq, 1, &wc) > 0) {
		if (wc.status)
			failed(s, "send", &wc);
		s->completed++;
		s->last_good = now();
	}
	while (ibv_poll_cq(s->rc.recv_cq, 1, &wc) > 0) {
		if (wc.status && wc.status != IBV_WC_WR_FLUSH_ERR)
			failed(s, "receive", &wc);
		/* A flushed receive does not tell the reason: the send queue does. */
		if (!wc.status)
			rc_post_recv(&s->rc, wc.wr_id, 0, SEND_LENGTH);
	}
	if (now() >= s->next_tick) {
		say("moved %lu", s->completed);
		s->next_tick = now() + 0.1;
	}
}

int stream(const struct rc_options *opt)
{
	struct stream s;

	start(&s, opt);
	for (;;)
		step(&s);
}

int stream_and_leave(const struct rc_options *opt)
{
	struct stream s;

	start(&s, opt);
	while (s.completed < 500)
		step(&s);
	return 0;
}

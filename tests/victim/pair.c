/* Two connected queue pairs in one process: the device's loopback. */
#include "victim.h"

enum { ZONE = 65536, LENGTH = 5000 };

void pair_make(struct pair *p, const struct rc_options *opt)
{
	memset(p, 0, sizeof *p);
	rc_make(&p->a, opt, ZONE);
	p->b.ctx = p->a.ctx;
	p->b.pd = p->a.pd;
	rc_make(&p->b, opt, ZONE);
	p->at_a = rc_place(&p->a);
	p->at_b = rc_place(&p->b);
	rc_connect(&p->a, &p->at_b);
	rc_connect(&p->b, &p->at_a);
}

static void expect(struct ibv_cq *cq, uint64_t wr_id, const char *what)
{
	struct ibv_wc wc;

	if (!rc_wait(cq, &wc, 5000))
		die("no %s completion within 5 s", what);
	if (wc.status || wc.wr_id != wr_id)
		die("%s completion %lu has status %s", what, wc.wr_id, wc_name(wc.status));
}

void pair_transfer(struct pair *p, int count)
{
	for (int i = 0; i < count; i++) {
		uint64_t id = 1 + (uint64_t)i;

		for (int k = 0; k < 2 * LENGTH; k++)
			p->a.buf[k] = (unsigned char)(i * 7 + k * 13 + k / 256);
		if (rc_post_recv(&p->b, id, LENGTH, LENGTH) ||
		    rc_post_send(&p->a, IBV_WR_RDMA_WRITE, id, 0, LENGTH, &p->at_b) ||
		    rc_post_send(&p->a, IBV_WR_SEND, id, LENGTH, LENGTH, &p->at_b))
			die("posting message %d failed", i);
		expect(p->a.send_cq, id, "WRITE");
		expect(p->a.send_cq, id, "SEND");
		expect(p->b.recv_cq, id, "receive");
		if (memcmp(p->a.buf, p->b.buf, 2 * LENGTH))
			die("message %d arrived wrong", i);
	}
}

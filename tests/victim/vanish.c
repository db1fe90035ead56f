/* A program that ends, without any function of the C library, when it has received its last message. */
#include "victim.h"
#include <unistd.h>

enum { MESSAGES = 10000, LENGTH = 64 };

static void receive_all(struct rc *rc, const struct rc_options *opt)
{
	struct ibv_wc wc;

	for (int received = 0; received < MESSAGES; received++) {
		if (!rc_wait(rc->recv_cq, &wc, 5000) || wc.status)
			die("message %d is lost", received);
		if (received + (int)opt->depth < MESSAGES && rc_post_recv(rc, wc.wr_id, 0, LENGTH))
			die("ibv_post_recv failed");
	}
	_exit(0);
}

/* One at a time. */
static void send_all(struct rc *rc, const struct rc_place *peer)
{
	struct ibv_wc wc;

	for (int sent = 0; sent < MESSAGES; sent++) {
		if (rc_post_send(rc, IBV_WR_SEND, sent, 0, LENGTH, peer) || !rc_wait(rc->send_cq, &wc, 20000))
			die("message %d of %d has no end", sent + 1, MESSAGES);
		if (wc.status)
			die("message %d of %d: %s", sent + 1, MESSAGES, wc_name(wc.status));
	}
	say("all acknowledged");
}

int vanishes(const struct rc_options *opt)
{
	struct rc_place mine, peer;
	struct rc rc = { 0 };
	int oob = oob_open(opt);

	rc_make(&rc, opt, LENGTH);
	mine = rc_place(&rc);
	oob_swap(oob, &mine, &peer, sizeof mine);
	rc_connect(&rc, &peer);
	for (unsigned i = 0; i < opt->depth; i++)
		if (rc_post_recv(&rc, i, 0, LENGTH))
			die("ibv_post_recv failed");
	oob_swap(oob, &mine, &mine, sizeof mine);
	if (opt->host)
		send_all(&rc, &peer);
	else
		receive_all(&rc, opt);
	return 0;
}

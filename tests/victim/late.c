/* A client that is idle most of the time, beside one that streams. */
#include "victim.h"
#include <signal.h>
#include <unistd.h>

enum { REQUESTS = 20, SILENCE_US = 30000, WINDOW = 32, LENGTH = 65536 };

static void streams_for_ever(const struct rc_options *opt)
{
	struct pair p;
	int outstanding = 0;
	struct ibv_wc wc;

	pair_make(&p, opt);
	for (;;) {
		for (; outstanding < WINDOW; outstanding++)
			if (rc_post_send(&p.a, IBV_WR_RDMA_WRITE, 1, 0, LENGTH, &p.at_b))
				die("ibv_post_send failed");
		while (ibv_poll_cq(p.a.send_cq, 1, &wc) > 0) {
			if (wc.status)
				die("the stream ends with %s", wc_name(wc.status));
			outstanding--;
		}
	}
}

/* The longest of some requests, in microseconds. */
static long longest(struct pair *p)
{
	double worst = 0;
	struct ibv_wc wc;

	for (uint64_t i = 0; i < REQUESTS; i++) {
		double began;

		usleep(SILENCE_US);
		began = now();
		if (rc_post_send(&p->a, IBV_WR_RDMA_WRITE, i, 0, 8, &p->at_b))
			die("ibv_post_send failed");
		while (!ibv_poll_cq(p->a.send_cq, 1, &wc)) {
			if (now() - began > 20)
				die("no completion in 20 s");
			usleep(50);
		}
		if (wc.status)
			die("a request ends with %s", wc_name(wc.status));
		if (now() - began > worst)
			worst = now() - began;
	}
	return (long)(worst * 1e6);
}

/* Alternates rounds alone and rounds beside a stream, and prints each round's longest wait. */
int comes_late(const struct rc_options *opt)
{
	static struct pair p;

	pair_make(&p, opt);
	for (int round = 0; round < 5; round++) {
		pid_t child;

		say("alone %ld us", longest(&p));
		child = fork();
		if (!child)
			streams_for_ever(opt);
		usleep(300000);
		say("beside %ld us", longest(&p));
		kill(child, SIGKILL);
		usleep(100000);
	}
	return 0;
}

/* Programs that wait: for a daemon that dies, for events, or until they are killed. */
#include "victim.h"
#include <errno.h>
#include <pthread.h>
#include <unistd.h>

/* A QP with posted receives to which no peer ever sends. */
static struct pair pair;

static void *waits_for_cq_event(void *arg)
{
	struct ibv_cq *cq;
	void *context;
	int result = ibv_get_cq_event(arg, &cq, &context);

	say("ibv_get_cq_event returned %d", result);
	return NULL;
}

static void *waits_for_async_event(void *arg)
{
	struct ibv_async_event event;

	while (!ibv_get_async_event(arg, &event)) {
		say("event %s", event_name(event.event_type));
		ibv_ack_async_event(&event);
		if (event.event_type == IBV_EVENT_DEVICE_FATAL)
			return NULL;
	}
	say("ibv_get_async_event failed");
	return NULL;
}

static void *polls(void *arg)
{
	struct ibv_wc wc;
	int flushed = 0;

	while (flushed < 4) {
		int n = ibv_poll_cq(arg, 1, &wc);

		if (n < 0) {
			say("ibv_poll_cq returned %d", n);
			return NULL;
		}
		if (n && wc.status != IBV_WC_WR_FLUSH_ERR)
			die("a receive completed with %s", wc_name(wc.status));
		flushed += n;
	}
	say("flushed %d receives", flushed);
	return NULL;
}

int waits_for_daemon(const struct rc_options *opt)
{
	pthread_t threads[3];
	struct rc sleeper = { 0 };

	pair_make(&pair, opt);
	for (uint64_t i = 0; i < 4; i++)
		if (rc_post_recv(&pair.b, i, 0, 64))
			die("ibv_post_recv failed");
	sleeper.ctx = pair.a.ctx;
	sleeper.pd = pair.a.pd;
	sleeper.channel = ibv_create_comp_channel(pair.a.ctx);
	if (!sleeper.channel)
		die("ibv_create_comp_channel: %s", strerror(errno));
	rc_make(&sleeper, opt, 4096);
	if (ibv_req_notify_cq(sleeper.recv_cq, 0))
		die("ibv_req_notify_cq failed");
	if (pthread_create(&threads[0], NULL, waits_for_cq_event, sleeper.channel) ||
	    pthread_create(&threads[1], NULL, waits_for_async_event, pair.a.ctx) ||
	    pthread_create(&threads[2], NULL, polls, pair.b.recv_cq))
		die("pthread_create failed");
	say("ready");
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	/* Every call now fails or succeeds, but returns. */
	ibv_destroy_qp(pair.a.qp);
	ibv_destroy_qp(pair.b.qp);
	ibv_destroy_qp(sleeper.qp);
	ibv_close_device(pair.a.ctx);
	say("closed");
	return 0;
}

int watches_events(const struct rc_options *opt)
{
	struct ibv_context *ctx = rc_open_device(opt->device);
	struct ibv_async_event event;

	say("ready");
	while (!ibv_get_async_event(ctx, &event)) {
		say("event %s", event_name(event.event_type));
		ibv_ack_async_event(&event);
	}
	return 0;
}

int holds(const struct rc_options *opt)
{
	int pairs = (opt->host ? atoi(opt->host) : 2) / 2;
	struct pair *all = calloc((size_t)pairs, sizeof *all);

	for (int i = 0; i < pairs; i++) {
		pair_make(&all[i], opt);
		pair_transfer(&all[i], 1);
	}
	say("ready");
	for (;;)
		pause();
}

/* Watches registered memory whose keys no other program has: it must not change. */
int guards(const struct rc_options *opt)
{
	enum { CANARY = 0xc5 };

	pair_make(&pair, opt);
	pair_transfer(&pair, 5);
	memset(pair.a.buf, CANARY, pair.a.len);
	memset(pair.b.buf, CANARY, pair.b.len);
	say("ready");
	for (;; usleep(20 * 1000)) {
		for (size_t i = 0; i < pair.a.len; i++)
			if (pair.a.buf[i] != CANARY || pair.b.buf[i] != CANARY)
				die("the byte at offset %zu was overwritten", i);
	}
}

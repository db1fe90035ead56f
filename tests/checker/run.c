/* The loop of one side, and how two sides agree on the end. */
#include "checker.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>

static volatile sig_atomic_t told_to_end;

static void end(int number)
{
	(void)number;
	told_to_end = 1;
}

struct final_count {
	uint64_t messages, active;
};

static bool poll_both(struct side *s)
{
	struct ibv_wc wc[16];
	bool any = false;
	int n;

	while ((n = ibv_poll_cq(s->recv_cq, 16, wc)) > 0) {
		for (int i = 0; i < n; i++)
			received(s, &wc[i]);
		any = true;
	}
	if (n < 0)
		die("ibv_poll_cq of the receive CQ failed");
	while ((n = ibv_poll_cq(s->send_cq, 16, wc)) > 0) {
		for (int i = 0; i < n; i++)
			sent(s, &wc[i]);
		any = true;
	}
	if (n < 0)
		die("ibv_poll_cq of the send CQ failed");
	return any;
}

/* Sleeps until a completion event, but never for long: WRITEs give none. */
static void wait_for_event(struct side *s)
{
	struct pollfd fd = { .fd = s->channel->fd, .events = POLLIN };
	struct ibv_cq *cq;
	void *context;

	if (ibv_req_notify_cq(s->send_cq, 0) || ibv_req_notify_cq(s->recv_cq, s->consumed & 1))
		die("ibv_req_notify_cq failed");
	if (poll_both(s))
		return;
	if (poll(&fd, 1, 1) <= 0)
		return;
	if (ibv_get_cq_event(s->channel, &cq, &context))
		die("ibv_get_cq_event: %s", strerror(errno));
	ibv_ack_cq_events(cq, 1);
}

static bool step(struct side *s)
{
	bool any = false;

	while (post_next(s))
		any = true;
	any |= poll_both(s);
	while (consume(s))
		any = true;
	if (s->consumed - s->credited >= s->opt->depth / 4 || (!any && s->consumed != s->credited))
		any |= post_credit(s);
	return any;
}

static void agree_on_end(struct side *s)
{
	const struct options *opt = s->opt;
	struct final_count count;

	if (told_to_end)
		s->stop = true;
	if (!s->stop && (opt->seconds > 0 ? now() - s->started >= opt->seconds : s->posted >= opt->messages))
		s->stop = true;
	if (s->stop && !s->told_final) {
		count = (struct final_count){ s->posted, s->active_posted };
		oob_send(s->oob, &count, sizeof count);
		s->final_messages = s->posted;
		s->told_final = true;
	}
	if (!s->final_known && oob_try_recv(s->oob, &count, sizeof count)) {
		s->final_active = count.active;
		s->final_known = true;
	}
}

/* Messages without a completion: the unsignaled ones at the very end. */
static uint64_t silent_tail(const struct side *s)
{
	uint64_t tail = 0;

	while (tail < s->final_messages && !schedule(s->opt, s->my_seed, s->final_messages - 1 - tail).signaled)
		tail++;
	return tail;
}

static bool finished(const struct side *s)
{
	return s->told_final && s->final_known && s->consumed == s->final_active && s->credited == s->consumed &&
	       s->completed + silent_tail(s) >= s->final_messages && s->credit[0] == s->active_posted;
}

static void check_atomics(struct side *s)
{
	uint64_t mine[2] = { s->cas_value, s->fadd_value }, theirs[2];

	oob_exchange(s->oob, mine, theirs, sizeof mine);
	if (s->atomic[0] != theirs[0] || s->atomic[1] != theirs[1])
		die("atomics: memory has %lx %lx, the peer expects %lx %lx", s->atomic[0], s->atomic[1], theirs[0], theirs[1]);
}

static void check_silence(struct side *s)
{
	struct ibv_wc wc;
	double until = now() + 0.05;

	while (now() < until) {
		if (ibv_poll_cq(s->recv_cq, 1, &wc) > 0)
			die("an unexpected receive completion");
		if (ibv_poll_cq(s->send_cq, 1, &wc) > 0)
			sent(s, &wc);
	}
}

static void stalled(const struct side *s)
{
	die("no progress for 60 s: posted %lu, completed %lu, credit %lu of %lu active, consumed %lu of %lu%s",
	    s->posted, s->completed, s->credit[0], s->active_posted, s->consumed, s->final_active,
	    s->final_known ? "" : " (peer still sending)");
}

static void report(const struct side *s, double elapsed, const struct pause *pause)
{
	printf("checker: after %.3f s %.3f MB pause %.3f s own %.3f s\n", elapsed, (double)(s->bytes_out + s->bytes_in) / 1e6,
	       pause->longest, pause->own);
}

void run(struct side *s)
{
	double elapsed, reported = 0;
	struct pause pause;
	unsigned turns = 0;
	char ready = 'r';

	prepare(s);
	oob_exchange(s->oob, &ready, &ready, 1);
	if (s->opt->interval > 0)
		signal(SIGTERM, end);
	pause_begin(&pause, s->opt);
	s->started = pause.progress;
	while (!finished(s)) {
		if (step(s))
			pause_end(&pause, s->opt);
		else if (s->channel)
			wait_for_event(s);
		if (++turns % 64 == 0 || s->stop) {
			agree_on_end(s);
			elapsed = now() - s->started;
			if (s->opt->interval > 0 && elapsed >= reported + s->opt->interval) {
				report(s, elapsed, &pause);
				reported = elapsed;
				pause.longest = pause.own = 0;
			}
			if (now() - pause.progress > 60)
				stalled(s);
		}
	}
	elapsed = now() - s->started;
	oob_exchange(s->oob, &ready, &ready, 1);
	check_silence(s);
	check_atomics(s);
	if (!s->opt->quiet)
		printf("checker: ok, %lu messages out, %lu noticed in, %.1f MB out, %.1f MB in, %.3f s, %.1f MB/s\n", s->posted,
		       s->consumed, (double)s->bytes_out / 1e6, (double)s->bytes_in / 1e6, elapsed,
		       (double)(s->bytes_out + s->bytes_in) / 1e6 / elapsed);
}

/* Two queue pairs, and the outcome of a mistake. */
#include "errors.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>

void bench_make(struct bench *bench, const struct rc_options *a, const struct rc_options *b)
{
	memset(bench, 0, sizeof *bench);
	rc_make(&bench->a, a, ZONE);
	bench->b.ctx = bench->a.ctx;
	bench->b.pd = bench->a.pd;
	rc_make(&bench->b, b, ZONE);
	memset(bench->a.buf, 0xaa, ZONE);
	bench->at_a = rc_place(&bench->a);
	bench->at_b = rc_place(&bench->b);
}

void bench_connect(struct bench *bench)
{
	rc_connect(&bench->a, &bench->at_b);
	rc_connect(&bench->b, &bench->at_a);
}

void bench_ready(struct bench *bench)
{
	bench_make(bench, &options, &options);
	bench_connect(bench);
}

void bench_unanswered(struct bench *bench)
{
	struct rc_options patient = options;
	struct rc_place nowhere;

	patient.timeout = 0;
	bench_make(bench, &patient, &options);
	nowhere = bench->at_b;
	nowhere.qpn ^= 0x5a5a5a;
	rc_connect(&bench->a, &nowhere);
}

static const char *state_of(struct rc *rc)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	if (ibv_query_qp(rc->qp, &attr, IBV_QP_STATE, &init))
		return "?";
	return state_name(attr.qp_state);
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

const char *events_of(struct ibv_context *ctx, int ms)
{
	static char line[256];
	const char *names[16];
	size_t count = 0;
	double until = now() + ms / 1e3;
	struct pollfd fd = { .fd = ctx->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	while (count < 16 && poll(&fd, 1, (int)((until - now()) * 1e3) > 0 ? (int)((until - now()) * 1e3) : 0) > 0) {
		if (ibv_get_async_event(ctx, &event))
			break;
		names[count++] = event_name(event.event_type);
		ibv_ack_async_event(&event);
	}
	if (!count)
		return "none";
	qsort(names, count, sizeof *names, by_text);
	line[0] = 0;
	for (size_t i = 0; i < count; i++)
		snprintf(line + strlen(line), sizeof line - strlen(line), "%s%s", i ? " " : "", names[i]);
	return line;
}

void bench_outcome(struct bench *bench, bool memory_must_be_untouched)
{
	const char *sent = "none", *received = "none", *events, *memory = "";
	struct ibv_wc wc;

	if (rc_wait(bench->a.send_cq, &wc, 5000))
		sent = wc_name(wc.status);
	events = events_of(bench->a.ctx, 100);
	if (rc_wait(bench->b.recv_cq, &wc, 0))
		received = wc_name(wc.status);
	for (size_t i = 0; memory_must_be_untouched && i < ZONE; i++)
		if (bench->b.buf[i])
			memory = ", MEMORY CHANGED";
	say("send %s, receive %s, states %s %s, events %s%s", sent, received, state_of(&bench->a), state_of(&bench->b),
	    events, memory);
}

const char *null_errno(const void *result)
{
	return result ? "OK" : error_name(errno);
}

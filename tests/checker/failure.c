/* What the device says of a queue pair that failed.
 *
 * The completion that is polled first need not be the one that tells why: when a request fails, the
 * receives are flushed, too, and they are at another CQ. */
#include "checker.h"
#include <poll.h>

static const char *const state_names[] = { "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR" };

static void show(const char *queue, const struct ibv_wc *wc)
{
	fprintf(stderr, "checker: %s completion of WQE %lu: %s (vendor %#x)\n", queue, wc->wr_id,
		ibv_wc_status_str(wc->status), wc->vendor_err);
}

static void show_others(const char *queue, struct ibv_cq *cq)
{
	struct ibv_wc wc;
	unsigned flushed = 0, good = 0;

	while (ibv_poll_cq(cq, 1, &wc) > 0) {
		if (wc.status == IBV_WC_SUCCESS)
			good++;
		else if (wc.status == IBV_WC_WR_FLUSH_ERR)
			flushed++;
		else
			show(queue, &wc);
	}
	fprintf(stderr, "checker: %s CQ then: %u succeeded, %u flushed\n", queue, good, flushed);
}

static void show_events(struct ibv_context *ctx)
{
	struct pollfd fd = { .fd = ctx->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	while (poll(&fd, 1, 100) > 0 && !ibv_get_async_event(ctx, &event)) {
		fprintf(stderr, "checker: asynchronous event: %s\n", ibv_event_type_str(event.event_type));
		ibv_ack_async_event(&event);
	}
}

void failed(struct side *s, const char *queue, const struct ibv_wc *wc)
{
	struct ibv_qp_attr attr = { 0 };
	struct ibv_qp_init_attr init;

	show(queue, wc);
	show_others("send", s->send_cq);
	show_others("receive", s->recv_cq);
	show_events(s->ctx);
	if (!ibv_query_qp(s->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RQ_PSN, &init) && attr.qp_state <= IBV_QPS_ERR)
		fprintf(stderr, "checker: QP %u: %s, SQ PSN %u, RQ PSN %u\n", s->qp->qp_num, state_names[attr.qp_state],
			attr.sq_psn, attr.rq_psn);
	die("after %.3f s: posted %lu, completed %lu, credit %lu of %lu active, consumed %lu of the peer's", now() - s->started,
	    s->posted, s->completed, s->credit[0], s->active_posted, s->consumed);
}

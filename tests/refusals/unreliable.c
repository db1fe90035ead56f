/* Messages of several packets over an unreliable connection, of which the link may lose some: what arrives is whole,
 * and in order. */
#include "others.h"
#include <errno.h>
#include <unistd.h>

enum { MESSAGES = 250, LENGTH = 3000, RECEIVES = 16, PAUSE_US = 4000, SILENCE_MS = 1500 };

static struct ibv_qp *unreliable_qp(struct rc *rc)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_UC, .send_cq = rc->send_cq, .recv_cq = rc->recv_cq,
		.cap = { .max_send_wr = 1, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	struct ibv_qp *qp = ibv_create_qp(rc->pd, &init);

	if (!qp || ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		die("no queue pair of UC: %s", strerror(errno));
	return qp;
}

/* Both ends are connected, and the responder has posted its receives. */
static void connect_both(struct rc *rc, int oob)
{
	struct rc_place mine = rc_place(rc), peer;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = rc->opt.mtu,
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .sgid_index = (uint8_t)rc->opt.gid_index, .hop_limit = 64 } } };
	char token = 'x';

	oob_swap(oob, &mine, &peer, sizeof mine);
	attr.dest_qp_num = peer.qpn;
	attr.rq_psn = peer.psn;
	attr.ah_attr.grh.dgid = peer.gid;
	if (ibv_modify_qp(rc->qp, &attr,
			  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN))
		die("RTR: %s", strerror(errno));
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = rc->psn;
	if (ibv_modify_qp(rc->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN))
		die("RTS: %s", strerror(errno));
	oob_swap(oob, &token, &token, 1);
}

static unsigned char byte_at(uint32_t number, size_t i)
{
	return (unsigned char)(number * 31 + i * 7 + (i >> 8));
}

void send_unreliable(struct rc *rc, int oob)
{
	char token = 'x';

	rc->qp = unreliable_qp(rc);
	connect_both(rc, oob);
	for (uint32_t number = 1; number <= MESSAGES; number++) {
		struct rc_place nowhere = { 0 };
		struct ibv_wc wc;

		for (size_t i = 0; i < LENGTH; i++)
			rc->buf[i] = byte_at(number, i);
		memcpy(rc->buf, &number, sizeof number);
		if (rc_post_send(rc, IBV_WR_SEND, number, 0, LENGTH, &nowhere))
			die("message %u was not posted", number);
		if (!rc_wait(rc->send_cq, &wc, 5000) || wc.status != IBV_WC_SUCCESS) {
			say("send %s", wc_name(wc.status));
			exit(1);
		}
		usleep(PAUSE_US);
	}
	say("send %s", wc_name(IBV_WC_SUCCESS));
	oob_swap(oob, &token, &token, 1);
}

/* What is wrong with a message that arrived, of which `last` is the one before. */
static const char *wrong(const struct ibv_wc *wc, const unsigned char *at, uint32_t *last)
{
	uint32_t number;

	if (wc->status != IBV_WC_SUCCESS)
		return wc_name(wc->status);
	if (wc->byte_len != LENGTH)
		return "a part";
	memcpy(&number, at, sizeof number);
	if (number <= *last || number > MESSAGES)
		return "another order";
	for (size_t i = sizeof number; i < LENGTH; i++)
		if (at[i] != byte_at(number, i))
			return "a mixture";
	*last = number;
	return NULL;
}

void receive_unreliable(struct rc *rc, int oob)
{
	uint32_t last = 0, count = 0;
	const char *fault = NULL;
	char token = 'x';
	struct ibv_wc wc;

	rc->qp = unreliable_qp(rc);
	for (uint32_t at = 0; at < RECEIVES; at++)
		if (rc_post_recv(rc, at, at * (size_t)LENGTH, LENGTH))
			die("receive %u was not posted", at);
	connect_both(rc, oob);
	while (!fault && rc_wait(rc->recv_cq, &wc, SILENCE_MS)) {
		size_t offset = wc.wr_id * LENGTH;

		count++;
		fault = wrong(&wc, rc->buf + offset, &last);
		if (!fault && rc_post_recv(rc, wc.wr_id, offset, LENGTH))
			die("no receive was posted again");
	}
	say("receive %s", fault ? fault : count == MESSAGES ? "all" : count ? "some" : "none");
	oob_swap(oob, &token, &token, 1);
}

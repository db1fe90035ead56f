#include "others.h"
#include <arpa/inet.h>
#include <errno.h>

enum { LENGTH = 700, GRH = 40, QKEY = 0x1234, IMM = 0xfeed, TRAFFIC_CLASS = 0x40, HOPS = 33, DEFAULT_HOPS = 64, SOME_SRQ = 1 };

/* Queue pair and address of this process, and those of the other one. */
static struct rc_place exchange(struct rc *rc, struct ibv_qp *qp, int oob)
{
	struct rc_place mine = rc_place(rc), peer;

	mine.qpn = qp->qp_num;
	oob_swap(oob, &mine, &peer, sizeof mine);
	return peer;
}

static struct ibv_qp *datagram_qp(struct rc *rc)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_UD, .send_cq = rc->send_cq, .recv_cq = rc->recv_cq,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	struct ibv_qp *qp = ibv_create_qp(rc->pd, &init);

	if (!qp || ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY))
		die("no queue pair of datagrams: %s", strerror(errno));
	attr.qp_state = IBV_QPS_RTR;
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE))
		die("RTR: %s", strerror(errno));
	attr.qp_state = IBV_QPS_RTS;
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN))
		die("RTS: %s", strerror(errno));
	return qp;
}

void send_datagram(struct rc *rc, int oob)
{
	struct ibv_qp *qp = datagram_qp(rc);
	struct rc_place peer = exchange(rc, qp, oob);
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .dgid = peer.gid, .hop_limit = HOPS,
		.sgid_index = (uint8_t)rc->opt.gid_index, .traffic_class = TRAFFIC_CLASS } };
	struct ibv_sge sge = { .addr = (uintptr_t)rc->buf, .length = LENGTH, .lkey = rc->mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND_WITH_IMM, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge,
		.num_sge = 1, .imm_data = htonl(IMM) }, *bad;
	struct ibv_wc wc;
	char token = 'x';

	memset(rc->buf, 0x5a, LENGTH);
	wr.wr.ud.ah = ibv_create_ah(rc->pd, &to);
	wr.wr.ud.remote_qpn = peer.qpn;
	wr.wr.ud.remote_qkey = QKEY;
	if (!wr.wr.ud.ah || ibv_post_send(qp, &wr, &bad))
		die("the datagram was not posted: %s", strerror(errno));
	say("send %s", rc_wait(rc->send_cq, &wc, 5000) ? wc_name(wc.status) : "none");
	oob_swap(oob, &token, &token, 1);
}

/* What is wrong with a header of IPv4, in the last 20 of 40 bytes, or of IPv6. */
static const char *wrong_header(const unsigned char *at, const union ibv_gid *from, const union ibv_gid *to)
{
	bool v4 = IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)from);
	const unsigned char *ip = v4 ? at + 20 : at;
	unsigned tclass = v4 ? ip[1] : (unsigned)(ip[0] << 4 | ip[1] >> 4) & 0xff;

	if (ip[0] >> 4 != (v4 ? 4 : 6))
		return "wrong version";
	if (tclass != TRAFFIC_CLASS)
		return "wrong traffic class";
	/* Linux takes the hop limit of the route instead of that of the address handle. */
	if ((ip[v4 ? 8 : 7] != HOPS && ip[v4 ? 8 : 7] != DEFAULT_HOPS) || ip[v4 ? 9 : 6] != IPPROTO_UDP)
		return "wrong hop limit or protocol";
	if (v4 ? memcmp(ip + 12, from->raw + 12, 4) || memcmp(ip + 16, to->raw + 12, 4)
	       : memcmp(ip + 8, from->raw, 16) || memcmp(ip + 24, to->raw, 16))
		return "wrong addresses";
	return NULL;
}

static const char *datagram(struct rc *rc, const struct rc_place *peer)
{
	struct rc_place mine = rc_place(rc);
	struct ibv_wc wc;
	const char *wrong;

	if (!rc_wait(rc->recv_cq, &wc, 5000))
		return "none";
	if (wc.status != IBV_WC_SUCCESS)
		return wc_name(wc.status);
	if (!(wc.wc_flags & IBV_WC_WITH_IMM) || wc.imm_data != htonl(IMM))
		return "wrong immediate data";
	if (!(wc.wc_flags & IBV_WC_GRH) || wc.src_qp != peer->qpn || wc.byte_len != GRH + LENGTH)
		return "wrong completion";
	for (int i = 0; i < LENGTH; i++)
		if (rc->buf[GRH + i] != 0x5a)
			return "wrong data";
	wrong = wrong_header(rc->buf, &peer->gid, &mine.gid);
	return wrong ? wrong : wc_name(wc.status);
}

void receive_datagram(struct rc *rc, int oob)
{
	struct ibv_qp *qp = datagram_qp(rc);
	struct ibv_sge sge = { .addr = (uintptr_t)rc->buf, .length = GRH + LENGTH, .lkey = rc->mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	struct rc_place peer;
	char token = 'x';

	if (ibv_post_recv(qp, &wr, &bad))
		die("the receive was not posted");
	peer = exchange(rc, qp, oob);
	say("receive %s", datagram(rc, &peer));
	oob_swap(oob, &token, &token, 1);
}

/* An initiator of XRC, or NULL where the device has none. */
static struct ibv_qp *initiator(struct rc *rc)
{
	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_SEND, .send_cq = rc->send_cq, .pd = rc->pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD, .cap = { .max_send_wr = 1, .max_send_sge = 1 } };

	return ibv_create_qp_ex(rc->ctx, &init);
}

void send_xrc(struct rc *rc, int oob)
{
	struct ibv_qp *qp = initiator(rc);
	int refusal = errno;
	struct rc_place peer = exchange(rc, qp ? qp : rc->qp, oob);
	struct ibv_sge sge = { .addr = (uintptr_t)rc->buf, .length = LENGTH, .lkey = rc->mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge,
		.num_sge = 1 }, *bad;
	struct ibv_wc wc;
	char token = 'x';

	if (qp) {
		rc->qp = qp;
		rc_connect(rc, &peer);
		wr.qp_type.xrc.remote_srqn = SOME_SRQ;
		if (ibv_post_send(qp, &wr, &bad))
			die("the request was not posted: %s", strerror(errno));
		say("send %s", rc_wait(rc->send_cq, &wc, 20000) ? wc_name(wc.status) : "none");
	} else {
		say("send %s", error_name(refusal));
	}
	oob_swap(oob, &token, &token, 1);
}

void receive_xrc(struct rc *rc, int oob)
{
	struct rc_place peer = exchange(rc, rc->qp, oob);
	struct ibv_wc wc;
	char token = 'x';

	rc_connect(rc, &peer);
	if (rc_post_recv(rc, 7, 0, LENGTH))
		die("the receive was not posted");
	oob_swap(oob, &token, &token, 1);
	say("receive %s", rc_wait(rc->recv_cq, &wc, 100) ? wc_name(wc.status) : "none");
}

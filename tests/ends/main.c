/* ends server ADDRESS PORT accept|disconnect|reject|hold
 * ends client ADDRESS PORT wait|disconnect
 *
 * One end of a connection. Prints each event, and stays until it is killed: the test kills it in a
 * state of its choice. `disconnect` ends the connection once it is up, `reject` refuses it with
 * private data, and `hold` never decides. */
#include <arpa/inet.h>
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIMIT_MS = 5000 };
static const char REFUSAL[] = "thanks, but no";

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_pd *pd = ibv_alloc_pd(id->verbs);

	attr.send_cq = attr.recv_cq = ibv_create_cq(id->verbs, 4, NULL, NULL, 0);
	if (!pd || !attr.send_cq || rdma_create_qp(id, pd, &attr))
		die("rdma_create_qp");
}

static void print_event(const struct rdma_cm_event *event)
{
	const char *said = event->param.conn.private_data;

	printf("%s %d", rdma_event_str(event->event), event->status);
	if (event->event == RDMA_CM_EVENT_REJECTED && event->param.conn.private_data_len >= sizeof REFUSAL &&
	    !memcmp(said, REFUSAL, sizeof REFUSAL))
		printf(" %s", REFUSAL);
	puts("");
	fflush(stdout);
}

static void hear(struct rdma_cm_id *id, enum rdma_cm_event_type what, const char *does)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7,
		.rnr_retry_count = 7 };

	switch (what) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		if (rdma_resolve_route(id, LIMIT_MS))
			die("rdma_resolve_route");
		return;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		make_qp(id);
		if (rdma_connect(id, &param))
			die("rdma_connect");
		puts("connecting");
		fflush(stdout);
		return;
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		if (!strcmp(does, "hold"))
			return;
		if (!strcmp(does, "reject")) {
			if (rdma_reject(id, REFUSAL, sizeof REFUSAL) || rdma_destroy_id(id))
				die("rdma_reject");
			return;
		}
		make_qp(id);
		if (rdma_accept(id, &param))
			die("rdma_accept");
		return;
	case RDMA_CM_EVENT_ESTABLISHED:
		if (!strcmp(does, "disconnect") && rdma_disconnect(id))
			die("rdma_disconnect");
		return;
	case RDMA_CM_EVENT_DISCONNECTED:
		/* That of the other end: it hears an answer. */
		rdma_disconnect(id);
		return;
	default:
		return;
	}
}

int main(int argc, char **argv)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_event *event;
	struct addrinfo *at;
	struct rdma_cm_id *id;

	if (argc != 5 || !channel || getaddrinfo(argv[2], argv[3], NULL, &at) ||
	    rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
		die("start");
	if (!strcmp(argv[1], "client")) {
		if (rdma_resolve_addr(id, NULL, at->ai_addr, LIMIT_MS))
			die("rdma_resolve_addr");
	} else {
		if (rdma_bind_addr(id, at->ai_addr) || rdma_listen(id, 8))
			die("rdma_listen");
		puts("listening");
		fflush(stdout);
	}
	while (!rdma_get_cm_event(channel, &event)) {
		enum rdma_cm_event_type what = event->event;

		id = event->id;
		print_event(event);
		rdma_ack_cm_event(event);
		hear(id, what, argv[4]);
	}
	die("rdma_get_cm_event");
}

/* cycles server ADDRESS PORT
 * cycles client ADDRESS PORT CYCLES AT-ONCE
 *
 * Connections that come up, carry one message and go down again, several at a time. The client ends
 * after so many, the server when a client says so. The client compares what it is told with what it
 * has said. Both print how their memory has grown since the first tenth. */
#include <arpa/inet.h>
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATIENCE_MS = 5000, FAREWELL_LEN = 16, MOST_LINES = 20 };
static const char FAREWELL[FAREWELL_LEN] = "no more of them";
static const char GOODBYE[FAREWELL_LEN] = "goodbye to you";

/* One end of a connection. */
struct end {
	struct rdma_cm_id *id;
	struct ibv_qp *qp;
	uint32_t number;
};

static struct rdma_event_channel *channel;
static struct sockaddr_storage peer;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static uint32_t slot[2];
static long wanted, started, ended, failed;
static bool is_over;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static long resident_kib(void)
{
	long pages[2] = { 0, 0 };
	FILE *file = fopen("/proc/self/statm", "r");
	if (!file || fscanf(file, "%ld %ld", &pages[0], &pages[1]) != 2)
		die("statm");
	fclose(file);
	return pages[1] * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Which connections failed, and how; the first of many. */
static void fails(struct end *end, const char *what, int status)
{
	if (failed++ < MOST_LINES)
		fprintf(stderr, "connection %u: %s, %d\n", end->number, what, status);
}

static void open_verbs(struct ibv_context *context)
{
	if (pd)
		return;
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 4096, NULL, NULL, 0);
	mr = pd ? ibv_reg_mr(pd, slot, sizeof slot, IBV_ACCESS_LOCAL_WRITE) : NULL;
	if (!pd || !cq || !mr)
		die("objects");
}

static void make_qp(struct end *end)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1,
			 .max_inline_data = sizeof slot[0] } };
	open_verbs(end->id->verbs);
	attr.send_cq = attr.recv_cq = cq;
	if (rdma_create_qp(end->id, pd, &attr))
		die("rdma_create_qp");
	end->qp = end->id->qp;
}

/* Completions say nothing: of some the connection ends first. */
static void drain(void)
{
	struct ibv_wc wc[16];
	while (ibv_poll_cq(cq, 16, wc) > 0)
		;
}

static void drop(struct end *end)
{
	if (end->qp) {
		rdma_destroy_qp(end->id);
		drain();
	}
	if (rdma_destroy_id(end->id))
		die("rdma_destroy_id");
	free(end);
}

static void begin(void)
{
	struct end *end = calloc(1, sizeof *end);
	if (!end)
		die("calloc");
	end->number = ++started;
	if (rdma_create_id(channel, &end->id, end, RDMA_PS_TCP))
		die("rdma_create_id");
	if (rdma_resolve_addr(end->id, NULL, (struct sockaddr *)&peer, PATIENCE_MS))
		die("rdma_resolve_addr");
}

/* One is over: another one follows, or the farewell, which is refused. */
static void follows(struct end *end)
{
	bool was_last = end->number == (uint32_t)wanted + 1;
	drop(end);
	if (was_last) {
		is_over = true;
		return;
	}
	ended++;
	if (started < wanted || (ended == wanted && started == wanted))
		begin();
}

static void connect_it(struct end *end)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1,
		.retry_count = 7, .rnr_retry_count = 7,
		.private_data = &end->number, .private_data_len = sizeof end->number };
	if (end->number > (uint32_t)wanted) {
		param.private_data = FAREWELL;
		param.private_data_len = FAREWELL_LEN;
	}
	make_qp(end);
	if (rdma_connect(end->id, &param))
		die("rdma_connect");
}

static void send_number(struct end *end)
{
	struct ibv_sge sge = { .addr = (uintptr_t)&end->number, .length = sizeof end->number };
	struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE,
		.sg_list = &sge, .num_sge = 1 };
	if (ibv_post_send(end->qp, &wr, &bad))
		die("ibv_post_send");
}

static void client_hears(struct end *end, struct rdma_cm_event *event)
{
	const struct rdma_conn_param *said = &event->param.conn;
	bool is_farewell = end->number > (uint32_t)wanted;
	enum rdma_cm_event_type what = event->event;
	int status = event->status;
	/* The peer gives back what it was told. */
	bool is_right = what != RDMA_CM_EVENT_ESTABLISHED ||
		(said->private_data_len >= sizeof end->number &&
		 !memcmp(said->private_data, &end->number, sizeof end->number));
	bool is_goodbye = what == RDMA_CM_EVENT_REJECTED && said->private_data_len >= FAREWELL_LEN &&
		!memcmp(said->private_data, GOODBYE, FAREWELL_LEN);
	rdma_ack_cm_event(event);
	switch (what) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		if (rdma_resolve_route(end->id, PATIENCE_MS))
			die("rdma_resolve_route");
		return;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		connect_it(end);
		return;
	case RDMA_CM_EVENT_ESTABLISHED:
		if (!is_right || is_farewell)
			fails(end, "established with another one", status);
		send_number(end);
		if (rdma_disconnect(end->id))
			die("rdma_disconnect");
		return;
	case RDMA_CM_EVENT_TIMEWAIT_EXIT:
		return;
	case RDMA_CM_EVENT_DISCONNECTED:
		break;
	default:
		if (!is_farewell || !is_goodbye)
			fails(end, rdma_event_str(what), status);
	}
	follows(end);
}

static void accept_it(struct end *end)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1,
		.retry_count = 7, .rnr_retry_count = 7,
		.private_data = &end->number, .private_data_len = sizeof end->number };
	struct ibv_sge sge = { .length = sizeof slot[0] };
	struct ibv_recv_wr *bad, wr = { .sg_list = &sge, .num_sge = 1 };
	make_qp(end);
	sge.addr = (uintptr_t)&slot[1];
	sge.lkey = mr->lkey;
	if (ibv_post_recv(end->qp, &wr, &bad))
		die("ibv_post_recv");
	/* The peer may have given up meanwhile. */
	if (rdma_accept(end->id, &param)) {
		fails(end, strerror(errno), errno);
		drop(end);
	}
}

static void server_hears(struct rdma_cm_id *id, struct rdma_cm_event *event)
{
	struct end *end = id->context;
	enum rdma_cm_event_type what = event->event;
	int status = event->status;
	if (what == RDMA_CM_EVENT_CONNECT_REQUEST) {
		const void *said = event->param.conn.private_data;
		end = calloc(1, sizeof *end);
		if (!end)
			die("calloc");
		end->id = id;
		id->context = end;
		memcpy(&end->number, said, sizeof end->number);
		is_over = !memcmp(said, FAREWELL, FAREWELL_LEN);
		rdma_ack_cm_event(event);
		started++;
		if (!is_over) {
			accept_it(end);
			return;
		}
		if (rdma_reject(id, GOODBYE, FAREWELL_LEN))
			die("rdma_reject");
		drop(end);
		return;
	}
	rdma_ack_cm_event(event);
	switch (what) {
	case RDMA_CM_EVENT_ESTABLISHED:
	case RDMA_CM_EVENT_TIMEWAIT_EXIT:
		return;
	case RDMA_CM_EVENT_DISCONNECTED:
		break;
	default:
		fails(end, rdma_event_str(what), status);
	}
	/* The peer hears an answer before the identifier goes. */
	rdma_disconnect(end->id);
	drop(end);
	ended++;
}

int main(int argc, char **argv)
{
	bool is_client = argc == 6 && !strcmp(argv[1], "client");
	struct sockaddr_in *in = (struct sockaddr_in *)&peer;
	long early = 0;
	struct rdma_cm_id *listener = NULL;
	struct rdma_cm_event *event;
	if (!is_client && argc != 4)
		return 2;
	*in = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(atoi(argv[3])) };
	inet_pton(AF_INET, argv[2], &in->sin_addr);
	channel = rdma_create_event_channel();
	if (!channel)
		die("rdma_create_event_channel");
	if (is_client) {
		wanted = atol(argv[4]);
		while (started < wanted && started < atol(argv[5]))
			begin();
	} else if (rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) ||
		   rdma_bind_addr(listener, (struct sockaddr *)&peer) || rdma_listen(listener, 1024)) {
		die("listener");
	}
	while (!is_over) {
		if (rdma_get_cm_event(channel, &event))
			die("rdma_get_cm_event");
		if (is_client)
			client_hears(event->id->context, event);
		else
			server_hears(event->id, event);
		if (!early && ended >= wanted / 10 && ended)
			early = resident_kib();
	}
	printf("ended %ld failed %ld grew %ld KiB\n", ended, failed, resident_kib() - early);
	return failed != 0;
}

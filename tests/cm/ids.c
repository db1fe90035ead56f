/* What the files of this program share. */
#include "cm.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdlib.h>

const char *address, *absent;
int failures;

struct sockaddr *at(const char *ip, int port)
{
	static struct sockaddr_in found[4];
	static int next;
	struct sockaddr_in *in = &found[next++ % 4];
	*in = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port) };
	inet_pton(AF_INET, ip, &in->sin_addr);
	return (struct sockaddr *)in;
}

struct rdma_cm_id *new_id(struct rdma_event_channel *channel, enum rdma_port_space space)
{
	struct rdma_cm_id *id = NULL;
	EXPECT(0, rdma_create_id(channel, &id, NULL, space));
	if (!id)
		exit(1);
	return id;
}

void is_silent(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event;
	int flags = fcntl(channel->fd, F_GETFL);
	fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK);
	EXPECT(EAGAIN, rdma_get_cm_event(channel, &event));
	fcntl(channel->fd, F_SETFL, flags);
}

void destroy(struct rdma_cm_id *id)
{
	if (!id)
		return;
	if (id->qp)
		rdma_destroy_qp(id);
	EXPECT(0, rdma_destroy_id(id));
}

struct rdma_cm_event *next(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted, int line)
{
	struct rdma_cm_event *event;
	while (rdma_get_cm_event(channel, &event))
		if (errno != EINTR) {
			perror("rdma_get_cm_event");
			exit(1);
		}
	if (event->event != wanted) {
		fprintf(stderr, "%d: %s instead of %s\n", line, rdma_event_str(event->event), rdma_event_str(wanted));
		exit(1);
	}
	return event;
}

void make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 } };
	EXPECT(0, rdma_create_qp(id, NULL, &attr));
}

struct rdma_cm_id *new_listener(struct rdma_event_channel *channel, int port)
{
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
	EXPECT(0, rdma_bind_addr(id, at(address, port)));
	EXPECT(0, rdma_listen(id, 8));
	return id;
}

void open_channels(struct pair *p)
{
	p->listens = rdma_create_event_channel();
	p->calls = rdma_create_event_channel();
	HOLDS(p->listens && p->calls);
}

void advance(struct pair *p, int steps)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7 };
	struct rdma_cm_event *event;
	p->listener = new_listener(p->listens, PORT);
	p->caller = new_id(p->calls, RDMA_PS_TCP);
	p->called = NULL;
	for (int step = 0; step < steps; step++)
		switch (step) {
		case 0:
			EXPECT(0, rdma_resolve_addr(p->caller, NULL, at(address, PORT), 2000));
			break;
		case 1:
			COMES(p->calls, RDMA_CM_EVENT_ADDR_RESOLVED);
			EXPECT(0, rdma_resolve_route(p->caller, 2000));
			COMES(p->calls, RDMA_CM_EVENT_ROUTE_RESOLVED);
			make_qp(p->caller);
			break;
		case 2:
			EXPECT(0, rdma_connect(p->caller, &param));
			break;
		case 3:
			event = next(p->listens, RDMA_CM_EVENT_CONNECT_REQUEST, __LINE__);
			HOLDS(event->listen_id == p->listener);
			p->called = event->id;
			EXPECT(0, rdma_ack_cm_event(event));
			make_qp(p->called);
			break;
		case 4:
			EXPECT(0, rdma_accept(p->called, &param));
			break;
		case 5:
			COMES(p->calls, RDMA_CM_EVENT_ESTABLISHED);
			COMES(p->listens, RDMA_CM_EVENT_ESTABLISHED);
			break;
		case 6:
			EXPECT(0, rdma_disconnect(p->called));
			break;
		case 7:
			COMES(p->calls, RDMA_CM_EVENT_DISCONNECTED);
			COMES(p->listens, RDMA_CM_EVENT_DISCONNECTED);
			break;
		}
}

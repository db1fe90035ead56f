/* cm ADDRESS ABSENT [threads]
 *
 * What librdmacm answers to calls that make sense and to calls that do not, between identifiers of
 * one process at an address of the device. ABSENT is an address of its network without a host.
 * Prints each answer that is wrong. With `threads`, what becomes of threads that sleep. */
#include "cm.h"
#include <pthread.h>
#include <rdma/rdma_verbs.h>
#include <stdlib.h>
#include <time.h>

enum { REQ_DATA = 56, REJ_DATA = 148, LIMIT_MS = 600 };

static double now(void)
{
	struct timespec at;
	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec + at.tv_nsec / 1e9;
}

static void states(void)
{
	for (int steps = 0; steps <= 8; steps++)
		for (int first = 0; first < 2; first++) {
			struct pair p;
			open_channels(&p);
			advance(&p, steps);
			destroy(first ? p.caller : p.called);
			destroy(first ? p.called : p.caller);
			destroy(p.listener);
			rdma_destroy_event_channel(p.listens);
			rdma_destroy_event_channel(p.calls);
		}
}

/* What was made for a queue pair that could not be made is gone. */
static void retries(void)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = 1 << 30, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
	EXPECT(0, rdma_bind_addr(id, at(address, 0)));
	EXPECT(EINVAL, rdma_create_qp(id, NULL, &attr));
	HOLDS(!id->send_cq && !id->send_cq_channel && !attr.send_cq);
	attr.cap.max_recv_wr = DEPTH;
	EXPECT(0, rdma_create_qp(id, NULL, &attr));
	destroy(id);
	rdma_destroy_event_channel(channel);
}

static void mistakes(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id = NULL, *other;
	int yes = 1;
	EXPECT(EINVAL, rdma_create_id(channel, &id, NULL, 0x999));
	id = new_id(channel, RDMA_PS_TCP);
	EXPECT(EADDRNOTAVAIL, rdma_bind_addr(id, at("192.0.2.1", 0)));
	EXPECT(EINVAL, rdma_connect(id, NULL));
	EXPECT(EINVAL, rdma_resolve_route(id, 1000));
	EXPECT(EINVAL, rdma_listen(NULL, 1));
	EXPECT(0, rdma_bind_addr(id, at(address, PORT)));
	EXPECT(EINVAL, rdma_bind_addr(id, at(address, PORT)));
	EXPECT(EINVAL, rdma_accept(id, NULL));
	EXPECT(EINVAL, rdma_reject(id, NULL, 0));
	EXPECT(EINVAL, rdma_disconnect(id));
	EXPECT(EINVAL, rdma_join_multicast(id, at("239.1.2.3", 0), NULL));
	EXPECT(0, rdma_listen(id, 4));
	EXPECT(EINVAL, rdma_listen(id, 4));
	EXPECT(EINVAL, rdma_get_request(id, &other));
	other = new_id(channel, RDMA_PS_TCP);
	EXPECT(EADDRINUSE, rdma_bind_addr(other, at(address, PORT)));
	EXPECT(EADDRINUSE, rdma_bind_addr(other, at("0.0.0.0", PORT)));
	EXPECT(ENOSYS, rdma_set_option(other, RDMA_OPTION_ID, 99, &yes, sizeof yes));
	EXPECT(EINVAL, rdma_set_option(other, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &yes, sizeof yes));
	is_silent(channel);
	destroy(other);
	destroy(id);
	id = new_id(channel, RDMA_PS_UDP);
	EXPECT(EINVAL, rdma_join_multicast(id, at("239.1.2.3", 0), NULL));
	EXPECT(0, rdma_bind_addr(id, at(address, 0)));
	EXPECT(EINVAL, rdma_join_multicast(id, at(address, 0), NULL));
	EXPECT(EADDRNOTAVAIL, rdma_leave_multicast(id, at("239.1.2.3", 0)));
	EXPECT(0, rdma_join_multicast(id, at("239.1.2.3", 0), channel));
	struct rdma_cm_event *event = next(channel, RDMA_CM_EVENT_MULTICAST_JOIN, __LINE__);
	HOLDS(event->param.ud.private_data == channel && event->param.ud.qp_num == 0xffffff);
	EXPECT(0, rdma_ack_cm_event(event));
	EXPECT(0, rdma_leave_multicast(id, at("239.1.2.3", 0)));
	destroy(id);
	rdma_destroy_event_channel(channel);
}

/* A shared receive queue is offered, private data arrives, and what is too long is refused. */
static void offers(void)
{
	static const char data[REJ_DATA + 1] = "greetings";
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
	struct rdma_conn_param param = { .private_data = data, .retry_count = 7 };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_event *event;
	struct rdma_cm_id *called;
	struct pair p;
	int mask = 0;
	open_channels(&p);
	advance(&p, 1);
	COMES(p.calls, RDMA_CM_EVENT_ADDR_RESOLVED);
	EXPECT(0, rdma_resolve_route(p.caller, 2000));
	COMES(p.calls, RDMA_CM_EVENT_ROUTE_RESOLVED);
	EXPECT(0, rdma_create_srq(p.caller, NULL, &shared));
	EXPECT(EINVAL, rdma_create_srq(p.caller, NULL, &shared));
	make_qp(p.caller);
	HOLDS(p.caller->srq && p.caller->qp->srq == p.caller->srq);
	param.private_data_len = REQ_DATA + 1;
	EXPECT(EINVAL, rdma_connect(p.caller, &param));
	param.private_data_len = REQ_DATA;
	EXPECT(0, rdma_connect(p.caller, &param));
	event = next(p.listens, RDMA_CM_EVENT_CONNECT_REQUEST, __LINE__);
	called = event->id;
	HOLDS(event->param.conn.srq == 1 && event->param.conn.private_data_len == REQ_DATA);
	HOLDS(!memcmp(event->param.conn.private_data, data, REQ_DATA));
	EXPECT(0, rdma_ack_cm_event(event));
	make_qp(called);
	EXPECT(0, rdma_migrate_id(called, channel));
	EXPECT(EINVAL, rdma_reject(called, data, REJ_DATA + 1));
	EXPECT(0, rdma_accept(called, NULL));
	COMES(p.calls, RDMA_CM_EVENT_ESTABLISHED);
	COMES(channel, RDMA_CM_EVENT_ESTABLISHED);
	EXPECT(0, rdma_init_qp_attr(p.caller, &attr, &mask));
	HOLDS((mask & IBV_QP_AV) && attr.dest_qp_num == called->qp->qp_num);
	EXPECT(EINVAL, rdma_establish(p.caller));
	EXPECT(0, rdma_disconnect(p.caller));
	COMES(channel, RDMA_CM_EVENT_DISCONNECTED);
	rdma_destroy_qp(p.caller);
	rdma_destroy_srq(p.caller);
	destroy(p.caller);
	destroy(called);
	destroy(p.listener);
	rdma_destroy_event_channel(p.listens);
	rdma_destroy_event_channel(p.calls);
	rdma_destroy_event_channel(channel);
}

/* Peers that a program has not heard of hear at once that its listener is gone, or its channel. A
 * request that it has read is its own. */
static void unread(void)
{
	for (int closes = 0; closes < 2; closes++) {
		struct rdma_event_channel *known = rdma_create_event_channel();
		struct rdma_cm_id *other;
		struct pair p;
		double began;
		open_channels(&p);
		advance(&p, 4);
		other = new_id(known, RDMA_PS_TCP);
		EXPECT(0, rdma_resolve_addr(other, NULL, at(address, PORT), 2000));
		COMES(known, RDMA_CM_EVENT_ADDR_RESOLVED);
		EXPECT(0, rdma_resolve_route(other, 2000));
		COMES(known, RDMA_CM_EVENT_ROUTE_RESOLVED);
		make_qp(other);
		EXPECT(0, rdma_connect(other, NULL));
		usleep(WAIT_MS * 1000);
		if (closes) {
			destroy(p.called);
			rdma_destroy_event_channel(p.listens);
		} else {
			destroy(p.listener);
		}
		began = now();
		COMES(known, RDMA_CM_EVENT_REJECTED);
		HOLDS(now() - began < 1);
		if (closes) {
			COMES(p.calls, RDMA_CM_EVENT_REJECTED);
			/* The daemon has let go of it with its channel: only the memory is left. */
			rdma_destroy_id(p.listener);
		} else {
			EXPECT(0, rdma_accept(p.called, NULL));
			COMES(p.calls, RDMA_CM_EVENT_ESTABLISHED);
			/* What the program reads now is of no listener any more. */
			COMES(p.listens, RDMA_CM_EVENT_ESTABLISHED);
			destroy(p.called);
			rdma_destroy_event_channel(p.listens);
		}
		destroy(p.caller);
		destroy(other);
		rdma_destroy_event_channel(p.calls);
		rdma_destroy_event_channel(known);
	}
}

/* As in the kernel, a connection that is over can be ended again. */
static void disconnects_again(void)
{
	struct pair p;
	open_channels(&p);
	advance(&p, 8);
	/* By now it is over for longer than packets may be on the way. */
	COMES(p.calls, RDMA_CM_EVENT_TIMEWAIT_EXIT);
	EXPECT(0, rdma_disconnect(p.caller));
	destroy(p.caller);
	destroy(p.called);
	destroy(p.listener);
	rdma_destroy_event_channel(p.listens);
	rdma_destroy_event_channel(p.calls);
}

static bool is_gone;

static void *destroys(void *id)
{
	EXPECT(0, rdma_destroy_id(id));
	__atomic_store_n(&is_gone, true, __ATOMIC_RELEASE);
	return NULL;
}

/* An identifier is not destroyed before its events are acknowledged. */
static void waits(void)
{
	struct rdma_cm_event *event;
	pthread_t thread;
	struct pair p;
	open_channels(&p);
	advance(&p, 1);
	event = next(p.calls, RDMA_CM_EVENT_ADDR_RESOLVED, __LINE__);
	pthread_create(&thread, NULL, destroys, p.caller);
	usleep(WAIT_MS * 1000);
	HOLDS(!__atomic_load_n(&is_gone, __ATOMIC_ACQUIRE));
	EXPECT(0, rdma_ack_cm_event(event));
	pthread_join(thread, NULL);
	destroy(p.listener);
	rdma_destroy_event_channel(p.listens);
	rdma_destroy_event_channel(p.calls);
}

/* A neighbour that does not answer is waited for as long as the program wants; others are found
 * meanwhile. */
static void limits(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel(), *calls = rdma_create_event_channel();
	struct rdma_cm_id *lost = new_id(channel, RDMA_PS_TCP), *found = new_id(calls, RDMA_PS_TCP), *sync;
	struct rdma_cm_event *event;
	double began = now();
	EXPECT(0, rdma_resolve_addr(lost, NULL, at(absent, PORT), LIMIT_MS));
	EXPECT(0, rdma_resolve_addr(found, NULL, at(address, PORT), LIMIT_MS));
	COMES(calls, RDMA_CM_EVENT_ADDR_RESOLVED);
	HOLDS(now() - began < LIMIT_MS / 2e3);
	event = next(channel, RDMA_CM_EVENT_ADDR_ERROR, __LINE__);
	HOLDS(event->status == -ETIMEDOUT);
	HOLDS(now() - began >= LIMIT_MS / 1e3 && now() - began < 2.5);
	EXPECT(0, rdma_ack_cm_event(event));
	/* It may ask again, and go while it waits. */
	EXPECT(0, rdma_resolve_addr(lost, NULL, at(absent, PORT), 60000));
	destroy(lost);
	destroy(found);
	EXPECT(0, rdma_create_id(NULL, &sync, NULL, RDMA_PS_TCP));
	began = now();
	EXPECT(ETIMEDOUT, rdma_resolve_addr(sync, NULL, at(absent, PORT), LIMIT_MS));
	HOLDS(now() - began < 2.5);
	destroy(sync);
	rdma_destroy_event_channel(channel);
	rdma_destroy_event_channel(calls);
}

/* The program ends with events that it has not read, and one that it has not acknowledged. */
static void leaves(void)
{
	struct pair p;
	open_channels(&p);
	advance(&p, 5);
	next(p.calls, RDMA_CM_EVENT_ESTABLISHED, __LINE__);
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	address = argv[1];
	absent = argv[2];
	if (argc > 3) {
		threads();
		return failures != 0;
	}
	mistakes();
	retries();
	states();
	offers();
	migrations();
	unread();
	disconnects_again();
	waits();
	limits();
	leaves();
	return failures != 0;
}

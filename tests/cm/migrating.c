/* Identifiers that go to another channel. */
#include "cm.h"

/* What is on its way to the old channel comes to the new one. */
static void migrates(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct pair p;
	open_channels(&p);
	advance(&p, 4);
	destroy(p.caller);
	/* It has told its peer by now. */
	usleep(WAIT_MS * 1000);
	EXPECT(0, rdma_migrate_id(p.called, channel));
	is_silent(p.listens);
	COMES(channel, RDMA_CM_EVENT_REJECTED);
	destroy(p.called);
	destroy(p.listener);
	rdma_destroy_event_channel(p.listens);
	rdma_destroy_event_channel(p.calls);
	rdma_destroy_event_channel(channel);
}

/* What the peer said comes along. */
static void migrates_with_data(void)
{
	static const char data[] = "not here";
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_event *event;
	struct pair p;
	open_channels(&p);
	advance(&p, 4);
	EXPECT(0, rdma_reject(p.called, data, sizeof data));
	usleep(WAIT_MS * 1000);
	EXPECT(0, rdma_migrate_id(p.caller, channel));
	is_silent(p.calls);
	event = next(channel, RDMA_CM_EVENT_REJECTED, __LINE__);
	HOLDS(event->status && event->param.conn.private_data_len >= sizeof data);
	HOLDS(event->param.conn.private_data && !memcmp(event->param.conn.private_data, data, sizeof data));
	EXPECT(0, rdma_ack_cm_event(event));
	destroy(p.caller);
	destroy(p.called);
	destroy(p.listener);
	rdma_destroy_event_channel(p.listens);
	rdma_destroy_event_channel(p.calls);
	rdma_destroy_event_channel(channel);
}

/* Asks the listener at the second port for a connection. */
static void call(struct pair *p)
{
	p->caller = new_id(p->calls, RDMA_PS_TCP);
	EXPECT(0, rdma_resolve_addr(p->caller, NULL, at(address, PORT + 1), 2000));
	COMES(p->calls, RDMA_CM_EVENT_ADDR_RESOLVED);
	EXPECT(0, rdma_resolve_route(p->caller, 2000));
	COMES(p->calls, RDMA_CM_EVENT_ROUTE_RESOLVED);
	make_qp(p->caller);
	EXPECT(0, rdma_connect(p->caller, NULL));
}

/* An identifier that got a channel of its own from an endpoint, and lends itself to another one. */
static void leaves_own_channel(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listener, *called;
	struct pair p;
	EXPECT(0, rdma_create_id(NULL, &listener, NULL, RDMA_PS_TCP));
	EXPECT(0, rdma_bind_addr(listener, at(address, PORT + 1)));
	EXPECT(0, rdma_listen(listener, 8));
	open_channels(&p);
	call(&p);
	EXPECT(0, rdma_get_request(listener, &called));
	HOLDS(called->event);
	EXPECT(0, rdma_migrate_id(called, channel));
	HOLDS(!called->event);
	destroy(listener);
	destroy(called);
	COMES(p.calls, RDMA_CM_EVENT_REJECTED);
	destroy(p.caller);
	rdma_destroy_event_channel(p.listens);
	rdma_destroy_event_channel(p.calls);
	rdma_destroy_event_channel(channel);
}

/* What a peer asks for comes to the channel that its listener has by now, with all that follows. */
static void listener_migrates(void)
{
	for (int is_over = 0; is_over < 2; is_over++) {
		struct rdma_event_channel *channel = rdma_create_event_channel();
		struct rdma_cm_event *event;
		struct pair p;
		open_channels(&p);
		advance(&p, 3);
		usleep(WAIT_MS * 1000);
		if (is_over) {
			destroy(p.caller);
			usleep(WAIT_MS * 1000);
		}
		EXPECT(0, rdma_migrate_id(p.listener, channel));
		is_silent(p.listens);
		event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST, __LINE__);
		p.called = event->id;
		HOLDS(event->listen_id == p.listener && p.called->channel == channel);
		EXPECT(0, rdma_ack_cm_event(event));
		if (is_over) {
			COMES(channel, RDMA_CM_EVENT_REJECTED);
		} else {
			make_qp(p.called);
			EXPECT(0, rdma_accept(p.called, NULL));
			COMES(p.calls, RDMA_CM_EVENT_ESTABLISHED);
			COMES(channel, RDMA_CM_EVENT_ESTABLISHED);
			EXPECT(0, rdma_disconnect(p.caller));
			COMES(channel, RDMA_CM_EVENT_DISCONNECTED);
			destroy(p.caller);
		}
		destroy(p.called);
		destroy(p.listener);
		rdma_destroy_event_channel(p.listens);
		rdma_destroy_event_channel(p.calls);
		rdma_destroy_event_channel(channel);
	}
}

/* What is still in a channel of its own comes along when an identifier leaves that. */
static void own_channel_is_emptied(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_event *event;
	struct pair p;
	open_channels(&p);
	EXPECT(0, rdma_create_id(NULL, &p.listener, NULL, RDMA_PS_TCP));
	EXPECT(0, rdma_bind_addr(p.listener, at(address, PORT + 1)));
	EXPECT(0, rdma_listen(p.listener, 8));
	call(&p);
	usleep(WAIT_MS * 1000);
	EXPECT(0, rdma_migrate_id(p.listener, channel));
	event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST, __LINE__);
	p.called = event->id;
	EXPECT(0, rdma_ack_cm_event(event));
	make_qp(p.called);
	EXPECT(0, rdma_accept(p.called, NULL));
	COMES(p.calls, RDMA_CM_EVENT_ESTABLISHED);
	COMES(channel, RDMA_CM_EVENT_ESTABLISHED);
	EXPECT(0, rdma_migrate_id(p.called, NULL));
	EXPECT(0, rdma_disconnect(p.caller));
	usleep(WAIT_MS * 1000);
	EXPECT(0, rdma_migrate_id(p.called, channel));
	COMES(channel, RDMA_CM_EVENT_DISCONNECTED);
	destroy(p.caller);
	destroy(p.called);
	destroy(p.listener);
	rdma_destroy_event_channel(p.listens);
	rdma_destroy_event_channel(p.calls);
	rdma_destroy_event_channel(channel);
}

void migrations(void)
{
	migrates();
	migrates_with_data();
	leaves_own_channel();
	listener_migrates();
	own_channel_is_emptied();
}

/* What the files of this program share. */
#pragma once
#include "expect.h"
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <unistd.h>

enum { PORT = 7300, DEPTH = 4, WAIT_MS = 100 };

extern const char *address, *absent;

struct sockaddr *at(const char *ip, int port);
struct rdma_cm_id *new_id(struct rdma_event_channel *channel, enum rdma_port_space space);
void is_silent(struct rdma_event_channel *channel);
void destroy(struct rdma_cm_id *id);
struct rdma_cm_event *next(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted, int line);
#define COMES(channel, what) EXPECT(0, rdma_ack_cm_event(next(channel, what, __LINE__)))
void make_qp(struct rdma_cm_id *id);
struct rdma_cm_id *new_listener(struct rdma_event_channel *channel, int port);

/* Both ends of a connection on its way, and the channels of each. */
struct pair {
	struct rdma_event_channel *listens, *calls;
	struct rdma_cm_id *listener, *caller, *called;
};

void open_channels(struct pair *p);
/* As far as `steps`; each is a state in which an identifier may be destroyed. */
void advance(struct pair *p, int steps);

void migrations(void);
void threads(void);

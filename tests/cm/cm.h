/* What the files of this program share. */
#pragma once
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

extern const char *address, *absent;
extern int failures;

#define EXPECT(want, call) do { \
	errno = 0; \
	int got = (call) ? errno : 0; \
	if (got != (want)) { \
		fprintf(stderr, "%d: %s: %s instead of %s\n", __LINE__, #call, strerror(got), strerror(want)); \
		failures++; \
	} } while (0)
#define HOLDS(what) do { \
	if (!(what)) { \
		fprintf(stderr, "%d: not so: %s\n", __LINE__, #what); \
		failures++; \
	} } while (0)

struct sockaddr *at(const char *ip, int port);
struct rdma_cm_id *new_id(struct rdma_event_channel *channel, enum rdma_port_space space);
void is_silent(struct rdma_event_channel *channel);
void destroy(struct rdma_cm_id *id);

void threads(void);

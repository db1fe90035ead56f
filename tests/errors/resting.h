/* A program whose waits for completion events turn the engine in it. Its peer is a child with an engine of its own,
 * which sends each message back: queue pairs of one engine would not use the sockets. */
#ifndef RESTING_H
#define RESTING_H

#include "driving.h"

/* When the peer answers. */
enum { AT_ONCE, AFTER_2_MS, AFTER_20_MS };
/* No message takes longer, seconds: packets and posts wait for an alarm at most. */
#define IN_TIME 0.1

/* One of two connected queue pairs. */
struct end {
	struct rc rc;
	struct rc_place peer;
	int to_peer;
	uint64_t number, completed;
	int interrupted;
};

extern struct end end;

/* Before anything else is made: the peer is to have nothing of it. */
void fork_peer(struct end *end);
void connect_end(struct end *end);
/* Messages until waits turn the engine, and for 30 ms more. */
void rest(struct end *end);
/* The same with `end`, once it is connected. */
void ready_to_rest(void);
/* Messages that the peer answers then, each in time. How many. */
int exchange(struct end *end, int count, uint64_t when);

/* The parts of that. */
void request(struct ibv_cq *cq);
void send_one(struct end *end, uint64_t when);
/* False where the wait was interrupted. */
bool wait_for_event(struct end *end);
/* As long as it takes. */
void wait_for_message(struct end *end, struct ibv_wc *wc);
/* It is the answer to the last message. */
void check(struct end *end, const struct ibv_wc *wc);

#endif

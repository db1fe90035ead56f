/* A program in one process whose polls turn the engine in it. */
#ifndef DRIVING_H
#define DRIVING_H

#include "errors.h"
#include <pthread.h>
#include <stdatomic.h>

enum { LENGTH = 64, MESSAGES = 200, MOST_FILES = 256 };

extern struct bench bench;

/* A message of LENGTH bytes from a to b arrives as it was sent, and both ends are told so. */
bool message(void);
/* How many of MESSAGES do. */
int messages(void);
/* Repeats this until the program has copies of the engine's sockets, because its polls or waits turn the engine, and for
 * 30 ms more. */
void repeat_until_copies(void (*some)(void *), void *with, const char *what);
/* Messages until polls turn the engine, and for 30 ms more. */
void drive(void);
/* The same, once the bench is ready. */
void ready_to_drive(void);
void start(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *));
/* A thread that has never asked for anything does not drive: this one has. */
struct ibv_cq *cq_of_this_thread(void);
void poll_in_vain(struct ibv_cq *cq);

/* The copies of the engine's sockets that turns in the program use: it has no UDP sockets of its own. Allocates nothing,
 * for children. */
int udp_sockets(int *found);
/* What a child has of them after a moment; more than 100 when it does not end in order. */
int sockets_of_a_child(void);

#endif

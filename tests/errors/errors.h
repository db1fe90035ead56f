/* An application that makes one mistake and prints the result. */
#ifndef ERRORS_H
#define ERRORS_H

#include "rc.h"

/* Two queue pairs of one device, a the requester. `make` leaves them in RESET. */
struct bench {
	struct rc a, b;
	struct rc_place at_a, at_b;
};

enum { ZONE = 65536 };

void bench_make(struct bench *bench, const struct rc_options *a, const struct rc_options *b);
void bench_connect(struct bench *bench);
/* Both with the defaults, connected. */
void bench_ready(struct bench *bench);
/* The same, but a's peer does not exist, and a's timeout is infinite. */
void bench_unanswered(struct bench *bench);
/* First completions at a's send and b's receive queue, states, events, b's memory. */
void bench_outcome(struct bench *bench, bool memory_must_be_untouched);
/* Async events that arrive within `ms`, sorted, in one line. */
const char *events_of(struct ibv_context *ctx, int ms);
/* From here on any system call of the calling thread but those that crates/verbs-shim/README.md lists, and what these
 * programs need for themselves, ends the process. */
void allow_few_system_calls(void);
/* The error of a verb that returns a pointer. */
const char *null_errno(const void *result);

/* Bytes that each thread of this program has for variables of its own. They come out of its stack. */
enum { OF_EACH_THREAD = 512 << 10 };

struct mistake {
	const char *name;
	void (*make)(void);
};

extern const struct mistake posting[], creating[], modifying[], breaking[], using[], memory[];
/* What programs do whose polls turn an engine of their own; these need one. */
extern const struct mistake driving[], driving_threads[];
/* The same, for programs whose waits for completion events do. */
extern const struct mistake resting[], resting_threads[];
extern struct rc_options options;
/* Makes the wire mistake of that name; false when there is none. */
bool wire_mistake(const char *name);
void list_wire_mistakes(void);

#endif

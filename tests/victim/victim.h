/* An application that dies, forks, execs or waits. */
#ifndef VICTIM_H
#define VICTIM_H

#include "rc.h"

/* Two connected queue pairs of one device context. */
struct pair {
	struct rc a, b;
	struct rc_place at_a, at_b;
};

void pair_make(struct pair *p, const struct rc_options *opt);
/* Messages from a to b, every byte and completion checked; ends the program when one is wrong. */
void pair_transfer(struct pair *p, int count);

/* stream.c: between two processes */
int stream(const struct rc_options *opt);
int stream_and_leave(const struct rc_options *opt);
/* vanish.c */
int vanishes(const struct rc_options *opt);
/* process.c: what processes do to themselves */
int forks(const struct rc_options *opt);
int orphan(const struct rc_options *opt);
int becomes_another(const struct rc_options *opt);
int loses_main_thread(const struct rc_options *opt);
int is_reborn(const struct rc_options *opt);
/* exploit.c */
int becomes_root(const struct rc_options *opt);
/* unanswered.c */
int goes_unanswered(const struct rc_options *opt);
/* late.c */
int comes_late(const struct rc_options *opt);
/* clock.c */
int reads_clocks(const struct rc_options *opt);
/* stall.c */
int stalls(const struct rc_options *opt);
/* waits.c: programs that wait for the daemon */
int waits_for_daemon(const struct rc_options *opt);
int watches_events(const struct rc_options *opt);
int holds(const struct rc_options *opt);
int guards(const struct rc_options *opt);

#endif

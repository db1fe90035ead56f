/* How long there was no progress.
 *
 * How the kernel shares a CPU with foreign programs is no fault of a NIC. So of each pause that part
 * is told, too, which foreign programs do not explain. From it the time is taken that they had the CPU: what this thread waited for the CPU, less all that its
 * helpers (the peer and the engine) ran meanwhile. A thread that polls is always running or waiting
 * for the CPU. So an engine that does not serve it is not excused: then this thread runs, or the
 * helpers do. */
#include "checker.h"
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

/* The times are read at most so often, seconds. */
#define LOOK 0.001
/* Shorter pauses are not explained. */
#define SHORT 0.005

double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* For how long this thread waited for a CPU, ever. */
static double waited(const struct pause *p)
{
	char text[100] = "";
	unsigned long long run, wait;

	if (pread(p->schedstat, text, sizeof text - 1, 0) <= 0 || sscanf(text, "%llu %llu", &run, &wait) != 2)
		die("schedstat says %s", text);
	return 1e-9 * (double)wait;
}

/* For how long the helpers ran, ever. */
static double helped(const struct options *opt)
{
	double sum = 0;
	struct timespec t;
	clockid_t clock;

	for (unsigned i = 0; i < opt->num_helpers; i++)
		/* One that has ended is noticed elsewhere. */
		if (!clock_getcpuclockid(opt->helpers[i], &clock) && !clock_gettime(clock, &t))
			sum += (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
	return sum;
}

static void look(struct pause *p, const struct options *opt, double at)
{
	p->looked = at;
	p->waited = waited(p);
	p->helped = helped(opt);
}

void pause_begin(struct pause *p, const struct options *opt)
{
	*p = (struct pause){ .progress = now(), .schedstat = -1 };
	if (!opt->num_helpers)
		return;
	p->schedstat = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
	if (p->schedstat < 0)
		die("this kernel has no /proc/thread-self/schedstat");
	look(p, opt, p->progress);
}

void pause_end(struct pause *p, const struct options *opt)
{
	double at = now(), pause = at - p->progress, own = pause;

	p->progress = at;
	if (opt->num_helpers && (pause > SHORT || at - p->looked > LOOK)) {
		double waited = p->waited, helped = p->helped, foreign;

		look(p, opt, at);
		foreign = p->waited - waited - (p->helped - helped);
		if (pause > SHORT && foreign > 0)
			own -= foreign;
	}
	if (pause > p->longest)
		p->longest = pause;
	if (own > p->own)
		p->own = own;
}

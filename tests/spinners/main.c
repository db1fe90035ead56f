/* Threads that spin.
 *
 *   spinners [-d device] [-g gid index] THREADS...
 *
 * So many threads, each with a queue pair of its own that is connected to itself, post READs and poll for each
 * completion. One more thread makes control calls meanwhile. Prints for each number of threads what all of them read, the
 * least that one did, and what the control calls took.
 *
 *   spinners foreign PROCESSES    processes, each in a session of its own, that compute until this one ends
 *   spinners apart PROGRAM ...    runs a program in a session of its own */
#include "rc.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECONDS 2
#define MOST_CALLS 4096

const char *program = "spinners";

struct spinner {
	struct rc rc;
	struct rc_place place;
	pthread_t thread;
	unsigned long reads;
};

/* Of one kind of control call, in seconds. */
struct calls {
	double took[MOST_CALLS];
	int n;
};

static atomic_bool stop;

static void *spin(void *arg)
{
	struct spinner *spinner = arg;
	struct ibv_wc wc;
	int n;

	while (!stop) {
		if (rc_post_send(&spinner->rc, IBV_WR_RDMA_READ, 1, 0, 8, &spinner->place))
			die("ibv_post_send: %s", strerror(errno));
		while (!(n = ibv_poll_cq(spinner->rc.send_cq, 1, &wc)) && !stop)
			;
		if (n < 0 || (n && wc.status != IBV_WC_SUCCESS))
			die("a READ failed: %s", n < 0 ? "ibv_poll_cq" : wc_name(wc.status));
		spinner->reads += n > 0;
	}
	return NULL;
}

static void took(struct calls *calls, double since)
{
	if (calls->n < MOST_CALLS)
		calls->took[calls->n++] = now() - since;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void tell(const char *what, struct calls *calls)
{
	qsort(calls->took, (size_t)calls->n, sizeof calls->took[0], by_size);
	if (calls->n)
		say("  %s: median %.0f us, worst %.0f us of %d", what, calls->took[calls->n / 2] * 1e6,
		    calls->took[calls->n - 1] * 1e6, calls->n);
}

/* Makes and destroys a queue pair again and again. */
static void control(const struct rc *like)
{
	struct ibv_qp_init_attr attr = { .send_cq = like->send_cq, .recv_cq = like->send_cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
	static struct calls creating, destroying;
	double end = now() + SECONDS;

	creating.n = destroying.n = 0;
	while (now() < end) {
		double start = now();
		struct ibv_qp *qp = ibv_create_qp(like->pd, &attr);

		took(&creating, start);
		if (!qp)
			die("ibv_create_qp: %s", strerror(errno));
		start = now();
		if (ibv_destroy_qp(qp))
			die("ibv_destroy_qp: %s", strerror(errno));
		took(&destroying, start);
		usleep(5000);
	}
	tell("ibv_create_qp", &creating);
	tell("ibv_destroy_qp", &destroying);
}

static void run(const struct rc_options *options, struct rc *shared, int threads)
{
	struct spinner *spinners = calloc((size_t)threads, sizeof *spinners);
	unsigned long all = 0, least = ~0UL;
	double start, seconds;

	for (int i = 0; i < threads; i++) {
		spinners[i].rc.ctx = shared->ctx;
		spinners[i].rc.pd = shared->pd;
		rc_make(&spinners[i].rc, options, 4096);
		spinners[i].place = rc_place(&spinners[i].rc);
		rc_connect(&spinners[i].rc, &spinners[i].place);
	}
	stop = false;
	start = now();
	for (int i = 0; i < threads; i++)
		if (pthread_create(&spinners[i].thread, NULL, spin, &spinners[i]))
			die("no thread");
	control(shared);
	seconds = now() - start;
	stop = true;
	for (int i = 0; i < threads; i++) {
		unsigned long reads;

		pthread_join(spinners[i].thread, NULL);
		reads = spinners[i].reads;
		all += reads;
		least = reads < least ? reads : least;
	}
	say("%d threads: %.0f READs/s, at least %lu by each", threads, (double)all / seconds, least);
	for (int i = 0; i < threads; i++)
		if (ibv_destroy_qp(spinners[i].rc.qp))
			die("ibv_destroy_qp: %s", strerror(errno));
	free(spinners);
}

/* A child in a session of its own, which ends with this process. Returns in both, 0 in the child. */
static pid_t apart(void)
{
	pid_t child = fork();

	if (child < 0)
		die("fork: %s", strerror(errno));
	if (!child && (setsid() < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL)))
		die("no session: %s", strerror(errno));
	return child;
}

static int foreign(int processes)
{
	for (int i = 0; i < processes; i++)
		if (!apart())
			for (volatile unsigned long n = 0;; n++)
				;
	say("ready");
	pause();
	return 0;
}

static int run_apart(char **words)
{
	int status;
	pid_t child = apart();

	if (!child) {
		execvp(words[0], words);
		die("%s: %s", words[0], strerror(errno));
	}
	waitpid(child, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int main(int argc, char **argv)
{
	struct rc_options options = rc_defaults;
	struct rc shared = { 0 };
	char **words;

	if (argc == 3 && !strcmp(argv[1], "foreign"))
		return foreign(atoi(argv[2]));
	if (argc > 2 && !strcmp(argv[1], "apart"))
		return run_apart(argv + 2);
	words = rc_parse(&options, argc, argv);
	options.depth = 1;
	options.cqe = 1;
	rc_make(&shared, &options, 4096);
	for (; *words; words++)
		run(&options, &shared, atoi(*words));
	return 0;
}

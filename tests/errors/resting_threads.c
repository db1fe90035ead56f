/* What signals and other threads do to a program that waits for completion events while its waits turn the engine that
 * is in it (docs/functions.md, "Which thread turns the engine"). */
#define _GNU_SOURCE
#include "resting.h"
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static void ignore(int signal)
{
	(void)signal;
}

static void every_300_us(int flags)
{
	struct sigaction action = { .sa_handler = ignore, .sa_flags = flags };
	struct itimerval often = { { 0, 300 }, { 0, 300 } };

	if (sigaction(SIGALRM, &action, NULL) || setitimer(ITIMER_REAL, &often, NULL))
		die("no timer: %s", strerror(errno));
}

/* With SA_RESTART waits go on, without it they end. No message is lost. */
static void resting_is_interrupted(void)
{
	int restarted, count = 0;

	ready_to_rest();
	every_300_us(SA_RESTART);
	for (int i = 0; i < 10; i++)
		count += exchange(&end, MESSAGES, AT_ONCE) + exchange(&end, 5, AFTER_2_MS);
	restarted = end.interrupted;
	every_300_us(0);
	for (int i = 0; i < 10; i++)
		count += exchange(&end, MESSAGES, AT_ONCE) + exchange(&end, 5, AFTER_2_MS);
	say("%d messages, %d waits interrupted, then %s", count, restarted, end.interrupted > restarted ? "some" : "none");
}

static atomic_bool waits, over;

static void *rests_until_cancelled(void *unused)
{
	struct ibv_cq *cq = ibv_create_cq(end.rc.ctx, 16, NULL, NULL, 0);

	/* A thread that has asked for something. */
	if (!cq || ibv_destroy_cq(cq))
		die("no CQ");
	rest(&end);
	waits = true;
	for (;;)
		if (wait_for_event(&end))
			request(end.rc.recv_cq);
	return unused;
}

static void resting_is_cancelled(void)
{
	int cancelled = 0, moved = 0;
	void *result;

	ready_to_rest();
	for (int i = 0; i < 10; i++) {
		pthread_t thread;

		waits = false;
		start(&thread, NULL, rests_until_cancelled);
		while (!waits)
			usleep(100);
		usleep(317 * (unsigned)i);
		pthread_cancel(thread);
		pthread_join(thread, &result);
		cancelled += result == PTHREAD_CANCELED;
		/* It may have had an event, and not requested the next one. */
		request(end.rc.recv_cq);
		moved += exchange(&end, MESSAGES, AT_ONCE);
	}
	say("%d cancelled, %d messages", cancelled, moved);
}

static sigjmp_buf before_wait;

static void jump(int signal)
{
	(void)signal;
	siglongjmp(before_wait, 1);
}

static void resting_jumps_out_of_waits(void)
{
	enum { JUMPS = 30 };
	struct itimerval soon = { 0 };
	volatile int jumps;

	signal(SIGALRM, jump);
	ready_to_rest();
	for (jumps = 0; jumps < JUMPS; jumps++) {
		rest(&end);
		if (sigsetjmp(before_wait, 1)) {
			request(end.rc.recv_cq);
			continue;
		}
		soon.it_value.tv_usec = 100 + 307 * jumps;
		if (setitimer(ITIMER_REAL, &soon, NULL))
			die("no timer: %s", strerror(errno));
		for (;;)
			if (wait_for_event(&end))
				request(end.rc.recv_cq);
	}
	say("%d messages after %d jumps", exchange(&end, MESSAGES, AT_ONCE), jumps);
}

static _Atomic uint64_t taken;

/* From the moment when the other thread sleeps, or is about to. */
static void *posts(void *unused)
{
	for (unsigned i = 0; i < 5 * MESSAGES; i++) {
		double began = now();

		usleep(i % 4 ? 37 * (i % 23) : 0);
		send_one(&end, AT_ONCE);
		while (taken < end.number)
			if (now() - began > IN_TIME)
				die("message %u of another thread is late", i);
			else
				usleep(20);
	}
	return unused;
}

static void resting_while_another_thread_posts(void)
{
	pthread_t thread;

	ready_to_rest();
	taken = end.number;
	start(&thread, NULL, posts);
	for (int i = 0; i < 5 * MESSAGES; i++) {
		struct ibv_wc wc;

		wait_for_message(&end, &wc);
		/* The other one sends when this is counted. */
		check(&end, &wc);
		taken++;
	}
	pthread_join(thread, NULL);
	say("%d messages", 5 * MESSAGES);
}

static int of_children;

static void *forks(void *unused)
{
	for (int i = 0; i < 20; i++)
		of_children += sockets_of_a_child();
	over = true;
	return unused;
}

static void resting_forks(void)
{
	pthread_t thread;

	ready_to_rest();
	start(&thread, NULL, forks);
	while (!over)
		if (exchange(&end, 20, AT_ONCE) + exchange(&end, 1, AFTER_2_MS) != 21)
			die("messages are lost");
	pthread_join(thread, NULL);
	say("children have %d sockets, %d messages", of_children, exchange(&end, MESSAGES, AT_ONCE));
}

static struct end other_end;
static _Atomic int of_other;

static void *rests_elsewhere(void *unused)
{
	for (int i = 0; i < 20; i++) {
		of_other += exchange(&other_end, 5 * MESSAGES, AT_ONCE);
		of_other += exchange(&other_end, 5, i % 2 ? AFTER_2_MS : AFTER_20_MS);
	}
	return unused;
}

static void resting_in_two_threads(void)
{
	pthread_t thread;
	int moved = 0;

	fork_peer(&end);
	fork_peer(&other_end);
	connect_end(&end);
	other_end.rc.ctx = end.rc.ctx;
	connect_end(&other_end);
	rest(&end);
	start(&thread, NULL, rests_elsewhere);
	for (int i = 0; i < 20; i++) {
		moved += exchange(&end, 5 * MESSAGES, AT_ONCE);
		moved += exchange(&end, 5, i % 2 ? AFTER_20_MS : AFTER_2_MS);
	}
	pthread_join(thread, NULL);
	say("%d and %d messages", moved, of_other);
}

/* And goes on again and again. */
static void resting_is_stopped(void)
{
	pid_t stops, program_id = getpid();
	int status;

	ready_to_rest();
	stops = fork();
	if (!stops) {
		for (int i = 0; i < 20; i++) {
			usleep(2000 + 111 * (unsigned)i);
			kill(program_id, SIGSTOP);
			usleep(10000);
			kill(program_id, SIGCONT);
		}
		_exit(0);
	}
	while (!waitpid(stops, &status, WNOHANG)) {
		exchange(&end, 5, AT_ONCE);
		exchange(&end, 1, AFTER_2_MS);
	}
	say("%d messages, %d waits interrupted", exchange(&end, MESSAGES, AT_ONCE), end.interrupted);
}

const struct mistake resting_threads[] = {
	{ "resting_is_interrupted", resting_is_interrupted },
	{ "resting_is_cancelled", resting_is_cancelled },
	{ "resting_jumps_out_of_waits", resting_jumps_out_of_waits },
	{ "resting_while_another_thread_posts", resting_while_another_thread_posts },
	{ "resting_forks", resting_forks },
	{ "resting_in_two_threads", resting_in_two_threads },
	{ "resting_is_stopped", resting_is_stopped },
	{ 0 },
};

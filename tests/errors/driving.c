/* What a program does to its descriptors, children and its own end while their polls turn the engine that is in them (docs/functions.md, "Which thread turns the engine"). */
#define _GNU_SOURCE
#include "driving.h"
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

struct bench bench;

static bool is_udp(int fd)
{
	int type, domain;
	socklen_t size = sizeof type;

	if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) || type != SOCK_DGRAM)
		return false;
	size = sizeof domain;
	return !getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) && (domain == AF_INET || domain == AF_INET6);
}

int udp_sockets(int *found)
{
	int count = 0;

	for (int fd = 0; fd < MOST_FILES; fd++)
		if (is_udp(fd))
			found[count++] = fd;
	return count;
}

bool message(void)
{
	static uint64_t number;
	struct ibv_wc sent, received;

	number++;
	memcpy(bench.a.buf, &number, sizeof number);
	return !rc_post_recv(&bench.b, number, 0, LENGTH) &&
	       !rc_post_send(&bench.a, IBV_WR_SEND, number, 0, LENGTH, &bench.at_b) &&
	       rc_wait(bench.b.recv_cq, &received, 5000) && rc_wait(bench.a.send_cq, &sent, 5000) && !sent.status &&
	       !received.status && sent.wr_id == number && received.wr_id == number && received.byte_len == LENGTH &&
	       !memcmp(bench.a.buf, bench.b.buf, LENGTH);
}

int messages(void)
{
	int good = 0;

	while (good < MESSAGES && message())
		good++;
	return good;
}

void repeat_until_copies(void (*some)(void *), void *with, const char *what)
{
	int found[MOST_FILES];
	bool has_copies = false;

	for (double until = now() + 10; now() < until;) {
		some(with);
		if (has_copies || !udp_sockets(found))
			continue;
		has_copies = true;
		until = now() + 0.03;
	}
	if (!has_copies)
		die("its %s do not turn the engine", what);
}

static void some_messages(void *unused)
{
	(void)unused;
	for (int i = 0; i < 64; i++)
		if (!message())
			die("a message is lost");
}

void drive(void)
{
	repeat_until_copies(some_messages, NULL, "polls");
}

void ready_to_drive(void)
{
	bench_ready(&bench);
	drive();
}

void start(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *))
{
	int err = pthread_create(thread, attr, run, NULL);

	if (err)
		die("pthread_create: %s", strerror(err));
}

struct ibv_cq *cq_of_this_thread(void)
{
	struct ibv_cq *cq = ibv_create_cq(bench.a.ctx, 16, NULL, NULL, 0);

	if (!cq)
		die("ibv_create_cq: %s", strerror(errno));
	return cq;
}

void poll_in_vain(struct ibv_cq *cq)
{
	struct ibv_wc wc;

	if (ibv_poll_cq(cq, 1, &wc))
		die("a completion that nothing was posted for");
}

int sockets_of_a_child(void)
{
	int found[MOST_FILES], status;
	pid_t child = fork();

	if (!child) {
		usleep(20000);
		_exit(udp_sockets(found));
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		die("fork: %s", strerror(errno));
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000;
}

static atomic_bool over;
static int of_forks_beside_polls;

static void *forks_beside_polls(void *unused)
{
	for (int i = 0; i < 20; i++)
		of_forks_beside_polls += sockets_of_a_child();
	over = true;
	return unused;
}

/* Neither children nor what they become must have the sockets: they would keep the port from the next daemon. */
static void driving_forks(void)
{
	int of_own_forks = 0, of_programs = 0, found[MOST_FILES], count;
	pthread_t thread;

	ready_to_drive();
	count = udp_sockets(found);
	for (int i = 0; i < count; i++)
		of_programs += !(fcntl(found[i], F_GETFD) & FD_CLOEXEC);
	for (int i = 0; i < 5; i++) {
		of_own_forks += sockets_of_a_child();
		drive();
	}
	start(&thread, NULL, forks_beside_polls);
	while (!over)
		poll_in_vain(bench.a.send_cq);
	pthread_join(thread, NULL);
	say("children have %d and %d sockets, programs %d, %d messages", of_own_forks, of_forks_beside_polls, of_programs,
	    messages());
}

/* Closes what it does not know, and uses the numbers for files of its own. */
static void driving_loses_descriptors(void)
{
	int found[MOST_FILES], count, changed = 0, moved;
	struct stat stat, null;

	ready_to_drive();
	count = udp_sockets(found);
	for (int i = 0; i < count; i++)
		close(found[i]);
	while (open("/dev/null", O_RDWR) < found[count - 1])
		;
	moved = messages();
	ibv_destroy_qp(bench.a.qp);
	ibv_destroy_qp(bench.b.qp);
	ibv_close_device(bench.a.ctx);
	if (lstat("/dev/null", &null))
		die("no /dev/null");
	for (int i = 0; i < count; i++)
		changed += fstat(found[i], &stat) || stat.st_rdev != null.st_rdev;
	say("%d messages, %d files changed", moved, changed);
}

/* Its next file is to be its standard input. */
static void driving_closes_standard_input(void)
{
	bench_ready(&bench);
	close(STDIN_FILENO);
	drive();
	say("standard input is %s, %d messages", is_udp(STDIN_FILENO) ? "a socket" : "free", messages());
}

/* Between two polls the numbers come to name a socket of the program, for which a datagram has come. Turns believe a
 * number for 20 us. */
static void driving_loses_descriptors_to_sockets(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int found[MOST_FILES], count, own = socket(AF_INET, SOCK_DGRAM, 0), sender = socket(AF_INET, SOCK_DGRAM, 0);
	socklen_t size = sizeof at;
	char text[16] = "";
	int moved, first = own;

	if (bind(own, (struct sockaddr *)&at, size) || getsockname(own, (struct sockaddr *)&at, &size) ||
	    sendto(sender, "own", 3, 0, (struct sockaddr *)&at, size) != 3)
		die("no sockets: %s", strerror(errno));
	own = fcntl(own, F_DUPFD, MOST_FILES); /* Where no copies are looked for. */
	close(first);
	close(sender);
	ready_to_drive();
	count = udp_sockets(found);
	if (!message())
		die("a message is lost");
	for (int i = 0; i < count; i++)
		dup2(own, found[i]);
	usleep(20);
	for (int i = 0; i < 1000; i++)
		poll_in_vain(bench.a.send_cq);
	moved = messages();
	if (recv(own, text, sizeof text - 1, MSG_DONTWAIT) < 0)
		die("the program's datagram is gone");
	say("%d messages, datagram %s", moved, text);
}

static void leave(int signal)
{
	(void)signal;
	exit(0);
}

/* The handler is one that the function knows of. */
static bool is_known;

static void give_back(void)
{
	if ((ibv_destroy_qp(bench.a.qp) || ibv_destroy_qp(bench.b.qp)) && is_known)
		_exit(3);
	ibv_close_device(bench.a.ctx);
}

static void polls_until_it_leaves(int round, int tell)
{
	struct itimerval soon = { .it_value.tv_usec = 1000 + 37 * round };
	struct ibv_cq *cq;

	is_known = round / 2 % 2;
	if (is_known)
		signal(SIGALRM, leave);
	if (round % 2)
		atexit(give_back);
	ready_to_drive();
	cq = cq_of_this_thread();
	drive();
	if (round % 2 == 0)
		atexit(give_back);
	signal(SIGALRM, leave);
	if (write(tell, "", 1) != 1 || setitimer(ITIMER_REAL, &soon, NULL))
		die("no timer: %s", strerror(errno));
	/* Not one of those that give_back needs: the signal may interrupt a poll that has the queue's lock. */
	for (;;)
		poll_in_vain(cq);
}

/* The signal interrupts the polling thread anywhere. */
static void driving_exits_in_a_handler(void)
{
	enum { ROUNDS = 10 };
	int pipes[2], status, ended = 0;
	char byte;

	for (int round = 0; round < ROUNDS; round++) {
		pid_t child, found = 0;

		if (pipe(pipes) || (child = fork()) < 0)
			die("fork: %s", strerror(errno));
		if (!child)
			polls_until_it_leaves(round, pipes[1]);
		close(pipes[1]);
		if (read(pipes[0], &byte, 1) != 1)
			die("round %d does not begin", round);
		for (double until = now() + 10; !found && now() < until; usleep(1000))
			found = waitpid(child, &status, WNOHANG);
		if (!found) {
			kill(child, SIGKILL);
			die("round %d does not end", round);
		}
		if (status)
			die("round %d ends with status %#x", round, (unsigned)status);
		ended++;
		close(pipes[0]);
	}
	say("%d ended in order", ended);
}

static sigjmp_buf before_poll;

static void jump(int signal)
{
	(void)signal;
	siglongjmp(before_poll, 1);
}

/* A handler that the program has had for long leaves polls by a jump. */
static void driving_jumps_out_of_polls(void)
{
	enum { JUMPS = 30 };
	struct itimerval soon = { 0 };
	volatile int jumps;

	ready_to_drive();
	signal(SIGALRM, jump);
	for (int i = 0; i < 10; i++)
		drive();
	for (jumps = 0; jumps < JUMPS; jumps++) {
		/* The jump may leave a poll that has the queue's lock. */
		struct ibv_cq *cq = cq_of_this_thread();

		drive();
		if (sigsetjmp(before_poll, 1))
			continue;
		soon.it_value.tv_usec = 100 + 7 * jumps;
		if (setitimer(ITIMER_REAL, &soon, NULL))
			die("no timer: %s", strerror(errno));
		for (;;)
			poll_in_vain(cq);
	}
	say("%d messages after %d jumps", messages(), jumps);
}

/* The daemon is killed meanwhile. The program learns of it, and stays. */
static void driving_outlives_its_daemon(void)
{
	struct ibv_async_event event;

	ready_to_drive();
	say("drives");
	while (message())
		;
	do {
		if (ibv_get_async_event(bench.a.ctx, &event))
			die("ibv_get_async_event failed");
		ibv_ack_async_event(&event);
	} while (event.event_type != IBV_EVENT_DEVICE_FATAL);
	say("fatal");
	for (;;)
		pause();
}

const struct mistake driving[] = {
	{ "driving_forks", driving_forks },
	{ "driving_loses_descriptors", driving_loses_descriptors },
	{ "driving_closes_standard_input", driving_closes_standard_input },
	{ "driving_loses_descriptors_to_sockets", driving_loses_descriptors_to_sockets },
	{ "driving_exits_in_a_handler", driving_exits_in_a_handler },
	{ "driving_jumps_out_of_polls", driving_jumps_out_of_polls },
	{ "driving_outlives_its_daemon", driving_outlives_its_daemon },
	{ 0 },
};

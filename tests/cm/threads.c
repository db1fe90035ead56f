/* Threads that sleep in calls of both libraries: the program cancels them, or sends them signals.
 * They do sleep, and the threads of the libraries stay out of the program's way. */
#include "cm.h"
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

enum { SOCKET_PORT = 7310, SLEEP_US = 50 * 1000, ROOM = 64 * 1024 };

static struct rdma_event_channel *channel;
static struct ibv_comp_channel *completions;
static struct ibv_context *device;
static struct rdma_cm_id *sync_id;
static int listener, ends[2], datagrams;
static char room[ROOM];

static int gets_event(void)
{
	struct rdma_cm_event *event;
	int failed = rdma_get_cm_event(channel, &event);
	return failed ? failed : rdma_ack_cm_event(event);
}

static int resolves(void)
{
	return rdma_resolve_addr(sync_id, NULL, at(absent, SOCKET_PORT), 60000);
}

static int gets_completion_event(void)
{
	struct ibv_cq *cq;
	void *context;
	return ibv_get_cq_event(completions, &cq, &context);
}

static int gets_async_event(void)
{
	struct ibv_async_event event;
	/* Connections may have caused some. */
	while (!ibv_get_async_event(device, &event))
		ibv_ack_async_event(&event);
	return -1;
}

static int accepts(void)
{
	return raccept(listener, NULL, NULL);
}

static int receives(void)
{
	return rrecv(ends[0], room, 1, 0) == 1 ? 0 : -1;
}

static int receives_datagram(void)
{
	return rrecv(datagrams, room, 1, 0) == 1 ? 0 : -1;
}

static int sends(void)
{
	while (rsend(ends[0], room, sizeof room, 0) > 0)
		;
	return -1;
}

static int polls(void)
{
	struct pollfd polled = { .fd = ends[0], .events = POLLIN };
	return rpoll(&polled, 1, -1) == 1 ? 0 : -1;
}

static const struct wait {
	const char *name;
	int (*call)(void);
	/* The kernel's call of this kind goes on after a handler that wants that. */
	bool goes_on;
} waits[] = {
	{ "rdma_get_cm_event", gets_event, true },
	{ "rdma_resolve_addr", resolves, true },
	{ "ibv_get_cq_event", gets_completion_event, true },
	{ "ibv_get_async_event", gets_async_event, true },
	{ "raccept", accepts, true },
	{ "rrecv", receives, true },
	{ "rrecv of datagrams", receives_datagram, true },
	{ "rpoll", polls, false },
	/* Last, since it fills the stream. */
	{ "rsend", sends, true },
};

struct sleeper {
	pthread_t thread;
	const struct wait *wait;
	int result, error;
	bool has_ended;
};

static void *sleeps(void *arg)
{
	struct sleeper *sleeper = arg;
	sleeper->result = sleeper->wait->call();
	sleeper->error = errno;
	__atomic_store_n(&sleeper->has_ended, true, __ATOMIC_RELEASE);
	return NULL;
}

static bool has_ended(struct sleeper *sleeper)
{
	usleep(SLEEP_US);
	return __atomic_load_n(&sleeper->has_ended, __ATOMIC_ACQUIRE);
}

static void start(struct sleeper *sleeper, const struct wait *wait)
{
	*sleeper = (struct sleeper){ .wait = wait };
	EXPECT(0, pthread_create(&sleeper->thread, NULL, sleeps, sleeper));
	HOLDS(!has_ended(sleeper));
}

static bool is_cancelled(struct sleeper *sleeper)
{
	void *end = NULL;
	pthread_cancel(sleeper->thread);
	pthread_join(sleeper->thread, &end);
	return end == PTHREAD_CANCELED;
}

static void ignore(int number)
{
	(void)number;
}

static void handle(int flags)
{
	struct sigaction action = { .sa_handler = ignore, .sa_flags = flags };
	EXPECT(0, sigaction(SIGUSR1, &action, NULL));
}

static void wait_wakes(const struct wait *wait)
{
	struct sleeper sleeper;
	fprintf(stderr, "%s\n", wait->name);
	for (int restart = 0; restart < 2; restart++) {
		bool wanted = restart && wait->goes_on;
		handle(restart ? SA_RESTART : 0);
		start(&sleeper, wait);
		pthread_kill(sleeper.thread, SIGUSR1);
		HOLDS(has_ended(&sleeper) != wanted);
		HOLDS(is_cancelled(&sleeper) == wanted);
		HOLDS(wanted || (sleeper.result < 0 && sleeper.error == EINTR));
	}
}

static void connect_ends(void)
{
	struct sleeper sleeper;
	struct wait accepting = { "raccept", accepts, true };
	struct sockaddr *to = at(address, SOCKET_PORT);
	listener = rsocket(AF_INET, SOCK_STREAM, 0);
	ends[0] = rsocket(AF_INET, SOCK_STREAM, 0);
	datagrams = rsocket(AF_INET, SOCK_DGRAM, 0);
	EXPECT(0, rbind(listener, to, sizeof(struct sockaddr_in)));
	EXPECT(0, rbind(datagrams, to, sizeof(struct sockaddr_in)));
	EXPECT(0, rlisten(listener, 4));
	start(&sleeper, &accepting);
	EXPECT(0, rconnect(ends[0], to, sizeof(struct sockaddr_in)));
	pthread_join(sleeper.thread, NULL);
	ends[1] = sleeper.result;
	HOLDS(ends[1] >= 0);
}

/* A program without descriptors may listen once it has some. */
static void listens_later(void)
{
	int late = rsocket(AF_INET, SOCK_STREAM, 0);
	struct rlimit before, none;
	EXPECT(0, rbind(late, at(address, SOCKET_PORT + 1), sizeof(struct sockaddr_in)));
	EXPECT(0, getrlimit(RLIMIT_NOFILE, &before));
	none = before;
	none.rlim_cur = 3;
	EXPECT(0, setrlimit(RLIMIT_NOFILE, &none));
	EXPECT(EMFILE, rlisten(late, 4));
	EXPECT(0, setrlimit(RLIMIT_NOFILE, &before));
	EXPECT(0, rlisten(late, 4));
	EXPECT(0, rclose(late));
}

static double own_time(void)
{
	struct timespec at;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
	return at.tv_sec + at.tv_nsec / 1e9;
}

static void is_idle(int socket)
{
	struct pollfd polled = { .fd = socket, .events = POLLPRI };
	double before = own_time();
	HOLDS(rpoll(&polled, 1, 400) == 0);
	HOLDS(own_time() - before < 0.1);
}

/* What a thread does not ask for does not keep it from sleeping. */
static void polls_sleep(void)
{
	struct sockaddr *to = at(address, SOCKET_PORT);
	int waits = rsocket(AF_INET, SOCK_STREAM, 0), first = rsocket(AF_INET, SOCK_DGRAM, 0);
	int second = rsocket(AF_INET, SOCK_DGRAM, 0);
	EXPECT(0, rconnect(waits, to, sizeof(struct sockaddr_in)));
	is_idle(listener);
	/* As many as are kept for a program that does not read; what a new peer sends then is not taken. */
	for (int i = 0; i < 2000; i++) {
		struct pollfd polled = { .fd = datagrams };
		HOLDS(rsendto(first, room, 1, 0, to, sizeof(struct sockaddr_in)) == 1);
		HOLDS(rpoll(&polled, 1, 0) == 0);
	}
	HOLDS(rsendto(second, room, 1, 0, to, sizeof(struct sockaddr_in)) == 1);
	is_idle(datagrams);
	EXPECT(0, rclose(first));
	EXPECT(0, rclose(second));
	EXPECT(0, rclose(waits));
}

static bool is_handled;

static void note(int number)
{
	(void)number;
	is_handled = true;
}

/* The threads of the libraries do not take what is for the program. */
static void signals_are_the_programs(void)
{
	struct sigaction action = { .sa_handler = note };
	sigset_t blocked;
	int yes = 1;
	EXPECT(0, rsetsockopt(ends[0], SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes));
	EXPECT(0, sigaction(SIGUSR2, &action, NULL));
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR2);
	EXPECT(0, pthread_sigmask(SIG_BLOCK, &blocked, NULL));
	EXPECT(0, kill(getpid(), SIGUSR2));
	usleep(SLEEP_US);
	HOLDS(!is_handled);
	EXPECT(0, pthread_sigmask(SIG_UNBLOCK, &blocked, NULL));
	HOLDS(is_handled);
}

/* Whatever became of threads that used them, other threads go on. */
static void all_is_usable(void)
{
	is_silent(channel);
	EXPECT(0, ibv_destroy_comp_channel(completions));
	HOLDS(rrecv(ends[1], room, 1, MSG_DONTWAIT) == 1);
	HOLDS(rrecv(ends[0], room, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
	EXPECT(0, rclose(ends[0]));
	EXPECT(0, rclose(ends[1]));
	EXPECT(0, rclose(datagrams));
	EXPECT(0, rclose(listener));
	EXPECT(0, rdma_destroy_id(sync_id));
	rdma_destroy_event_channel(channel);
}

void threads(void)
{
	struct rdma_cm_id *id;
	channel = rdma_create_event_channel();
	HOLDS(channel);
	id = new_id(channel, RDMA_PS_TCP);
	EXPECT(0, rdma_bind_addr(id, at(address, 0)));
	device = id->verbs;
	completions = ibv_create_comp_channel(device);
	EXPECT(0, rdma_create_id(NULL, &sync_id, NULL, RDMA_PS_TCP));
	connect_ends();
	for (size_t i = 0; i < sizeof waits / sizeof *waits; i++)
		wait_wakes(&waits[i]);
	signals_are_the_programs();
	polls_sleep();
	listens_later();
	destroy(id);
	all_is_usable();
}

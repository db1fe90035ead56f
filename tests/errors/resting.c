/* What a program does that waits for completion events while its waits turn the engine that is in it
 * (docs/functions.md, "Which thread turns the engine"). Its peer is a child with an engine of its own, which sends each
 * message back: queue pairs of one engine would not use the sockets. */
#define _GNU_SOURCE
#include "resting.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

struct text {
	uint64_t when, number;
};

struct end end;

static void post_receive(struct end *end)
{
	if (rc_post_recv(&end->rc, 1, 0, LENGTH))
		die("a receive is refused");
}

void request(struct ibv_cq *cq)
{
	if (ibv_req_notify_cq(cq, 0))
		die("no event is requested");
}

void connect_end(struct end *end)
{
	struct rc *rc = &end->rc;
	struct rc_place here;

	rc->ctx = rc->ctx ? rc->ctx : rc_open_device(options.device);
	rc->channel = ibv_create_comp_channel(rc->ctx);
	if (!rc->channel)
		die("ibv_create_comp_channel: %s", strerror(errno));
	rc_make(rc, &options, 4096);
	here = rc_place(rc);
	if (write(end->to_peer, &here, sizeof here) != sizeof here ||
	    read(end->to_peer, &end->peer, sizeof end->peer) != sizeof end->peer)
		die("no peer");
	rc_connect(rc, &end->peer);
	post_receive(end);
	request(rc->recv_cq);
	/* None sends before both can receive. */
	if (write(end->to_peer, "r", 1) != 1 || read(end->to_peer, &here, 1) != 1)
		die("no peer");
}

static void complete(struct end *end, const struct ibv_wc *wc)
{
	if (wc->status)
		die("send: %s", wc_name(wc->status));
	end->completed++;
}

/* From this place of the memory. */
static void send_from(struct end *end, size_t offset)
{
	struct ibv_wc wc;

	if (rc_post_send(&end->rc, IBV_WR_SEND, 2, offset, LENGTH, &end->peer))
		die("a send is refused");
	while (ibv_poll_cq(end->rc.send_cq, 1, &wc))
		complete(end, &wc);
}

bool wait_for_event(struct end *end)
{
	struct ibv_cq *cq;
	void *context;

	if (ibv_get_cq_event(end->rc.channel, &cq, &context)) {
		if (errno != EINTR)
			die("ibv_get_cq_event: %s", strerror(errno));
		return false;
	}
	if (cq != end->rc.recv_cq)
		die("an event of another queue");
	ibv_ack_cq_events(cq, 1);
	return true;
}

void wait_for_message(struct end *end, struct ibv_wc *wc)
{
	while (!ibv_poll_cq(end->rc.recv_cq, 1, wc)) {
		while (!wait_for_event(end))
			end->interrupted++;
		request(end->rc.recv_cq);
	}
	if (wc->status)
		die("receive: %s", wc_name(wc->status));
}

/* What the peer does, until the program ends. Its own turns would be counted as the program's. */
static void send_back(int to_program)
{
	static struct end back;
	struct ibv_wc wc;

	setenv("RNIC_DRIVE", "off", 1);
	back.to_peer = to_program;
	connect_end(&back);
	for (;;) {
		const struct text *text = (const struct text *)back.rc.buf;

		wait_for_message(&back, &wc);
		memcpy(back.rc.buf + LENGTH, back.rc.buf, LENGTH);
		post_receive(&back);
		if (text->when != AT_ONCE)
			usleep(text->when == AFTER_2_MS ? 2000 : 20000);
		send_from(&back, LENGTH);
	}
}

void fork_peer(struct end *end)
{
	int ends[2];
	pid_t child, program_id = getpid();

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
		die("socketpair: %s", strerror(errno));
	child = fork();
	if (child < 0)
		die("fork: %s", strerror(errno));
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != program_id)
			_exit(0);
		close(ends[0]);
		send_back(ends[1]);
	}
	close(ends[1]);
	end->to_peer = ends[0];
}

void send_one(struct end *end, uint64_t when)
{
	struct text text = { when, ++end->number };

	memcpy(end->rc.buf + LENGTH, &text, sizeof text);
	send_from(end, LENGTH);
}

void check(struct end *end, const struct ibv_wc *wc)
{
	const struct text *text = (const struct text *)end->rc.buf;

	if (wc->status || wc->byte_len != LENGTH || text->number != end->number)
		die("receive: %s, %u bytes, number %llu instead of %llu", wc_name(wc->status), wc->byte_len,
		    (unsigned long long)text->number, (unsigned long long)end->number);
	post_receive(end);
}

static void take(struct end *end)
{
	struct ibv_wc wc;

	wait_for_message(end, &wc);
	check(end, &wc);
}

int exchange(struct end *end, int count, uint64_t when)
{
	for (int i = 0; i < count; i++) {
		double began = now();

		send_one(end, when);
		take(end);
		if (now() - began > IN_TIME)
			die("message %llu took %.1f ms", (unsigned long long)end->number, (now() - began) * 1e3);
	}
	return count;
}

static void some_exchanges(void *end)
{
	exchange(end, 64, AT_ONCE);
}

void rest(struct end *end)
{
	repeat_until_copies(some_exchanges, end, "waits");
}

void ready_to_rest(void)
{
	fork_peer(&end);
	connect_end(&end);
	rest(&end);
}

static void resting_exchanges(void)
{
	ready_to_rest();
	say("%d messages", exchange(&end, 10 * MESSAGES, AT_ONCE));
}

static void resting_for_pauses(void)
{
	int count = 0;

	ready_to_rest();
	for (int i = 0; i < 30; i++)
		count += exchange(&end, 40, AT_ONCE) + exchange(&end, 1, AFTER_20_MS);
	say("%d messages", count);
}

static void resting_computes(void)
{
	ready_to_rest();
	for (int i = 0; i < MESSAGES; i++) {
		exchange(&end, i % 20 ? 1 : 200, AT_ONCE);
		for (double until = now() + 0.005; now() < until;)
			;
	}
	say("%d times", MESSAGES);
}

static void set_blocking(bool blocks)
{
	int flags = fcntl(end.rc.channel->fd, F_GETFL);

	flags = blocks ? flags & ~O_NONBLOCK : flags | O_NONBLOCK;
	if (fcntl(end.rc.channel->fd, F_SETFL, flags))
		die("fcntl: %s", strerror(errno));
}

/* Whether there is an event at the moment. */
static bool take_event(void)
{
	struct ibv_cq *cq;
	void *context;

	if (ibv_get_cq_event(end.rc.channel, &cq, &context)) {
		if (errno != EAGAIN)
			die("ibv_get_cq_event: %s", strerror(errno));
		return false;
	}
	ibv_ack_cq_events(cq, 1);
	request(cq);
	return true;
}

/* It does so before it looks for completions. */
static void take_after_event(void (*wait)(void))
{
	struct ibv_wc wc;
	double began = now();

	for (;;) {
		while (!take_event()) {
			if (now() - began > IN_TIME)
				die("the event of message %llu does not come", (unsigned long long)end.number);
			wait();
		}
		/* It may be one of a message that was polled without its event. */
		if (ibv_poll_cq(end.rc.recv_cq, 1, &wc))
			break;
	}
	check(&end, &wc);
}

static void by_poll(void)
{
	struct pollfd fd = { end.rc.channel->fd, POLLIN, 0 };

	poll(&fd, 1, 100);
}

/* Its polls turn the engine. */
static void by_polling_another_queue(void)
{
	poll_in_vain(end.rc.send_cq);
}

static void send_and_wait(void)
{
	struct ibv_wc wc;

	send_one(&end, AT_ONCE);
	/* The queue is to stay empty. */
	while (end.completed < end.number)
		if (rc_wait(end.rc.send_cq, &wc, 1000))
			complete(&end, &wc);
		else
			die("no completion of a send");
}

static int changes_to(void (*wait)(void))
{
	int count = 0;

	for (int i = 0; i < 10; i++) {
		rest(&end);
		set_blocking(false);
		for (int j = 0; j < MESSAGES / 10; j++, count++) {
			if (wait == by_poll)
				send_one(&end, AT_ONCE);
			else
				send_and_wait();
			take_after_event(wait);
		}
		set_blocking(true);
	}
	return count;
}

static void resting_changes_to_poll(void)
{
	ready_to_rest();
	say("%d messages", changes_to(by_poll));
}

static void resting_changes_to_polling(void)
{
	ready_to_rest();
	say("%d messages", changes_to(by_polling_another_queue));
}

/* Closes what it does not know, and uses the numbers for files of its own: some are always readable, some never. */
static void resting_loses_descriptors(void)
{
	int found[MOST_FILES], pipes[2], moved = 0, lost = 0, changed = 0;

	ready_to_rest();
	if (pipe(pipes))
		die("pipe: %s", strerror(errno));
	/* It is offered others a second later. */
	for (int i = 0; i < 6; i++) {
		struct stat own, now_there;
		int count, put = i % 3 == 1 ? open("/dev/null", O_RDWR) : pipes[0];

		rest(&end);
		count = udp_sockets(found);
		for (int j = 0; j < count; j++)
			if (i % 3)
				dup2(put, found[j]);
			else
				close(found[j]);
		lost += count;
		/* Copies are believed for 50 us; what is sent through one that is gone is repeated 100 ms later. */
		usleep(100);
		moved += exchange(&end, MESSAGES, i % 2 ? AT_ONCE : AFTER_2_MS);
		fstat(put, &own);
		for (int j = 0; j < count && i % 3; j++) {
			changed += fstat(found[j], &now_there) || now_there.st_ino != own.st_ino;
			close(found[j]);
		}
		if (put != pipes[0])
			close(put);
	}
	say("%d messages, %s sockets lost, %d files changed", moved, lost < 12 ? "few" : "many", changed);
}

/* The event of a queue is kept for the wait that does not come before the queue is destroyed. */
static void resting_destroys_a_queue(void)
{
	int moved = 0;

	ready_to_rest();
	for (int i = 0; i < 20; i++) {
		struct rc a = { .ctx = end.rc.ctx, .pd = end.rc.pd }, b = a;
		struct rc_place at_a, at_b;
		struct ibv_wc wc;

		b.channel = end.rc.channel;
		rc_make(&a, &options, LENGTH);
		rc_make(&b, &options, LENGTH);
		at_a = rc_place(&a);
		at_b = rc_place(&b);
		rc_connect(&a, &at_b);
		rc_connect(&b, &at_a);
		rest(&end);
		request(b.recv_cq);
		if (rc_post_recv(&b, 1, 0, LENGTH) || rc_post_send(&a, IBV_WR_SEND, 2, 0, LENGTH, &at_b) ||
		    !rc_wait(b.recv_cq, &wc, 1000) || wc.status)
			die("a message is lost");
		if (ibv_destroy_qp(a.qp) || ibv_destroy_qp(b.qp) || ibv_destroy_cq(b.recv_cq))
			die("a queue cannot be destroyed: %s", strerror(errno));
		moved += exchange(&end, 10, AT_ONCE);
	}
	say("%d messages", moved);
}

/* The daemon is killed meanwhile: no wait goes on. */
static void resting_outlives_its_daemon(void)
{
	struct ibv_cq *cq;
	void *context;

	ready_to_rest();
	say("rests");
	for (;;) {
		struct ibv_wc wc;

		send_one(&end, AFTER_2_MS);
		while (!ibv_poll_cq(end.rc.recv_cq, 1, &wc)) {
			if (ibv_get_cq_event(end.rc.channel, &cq, &context)) {
				say("%s", errno == EIO ? "ended" : strerror(errno));
				for (;;)
					pause();
			}
			ibv_ack_cq_events(cq, 1);
			request(cq);
		}
		if (wc.status)
			break;
		check(&end, &wc);
	}
	say("ended");
	for (;;)
		pause();
}

const struct mistake resting[] = {
	{ "resting_exchanges", resting_exchanges },
	{ "resting_for_pauses", resting_for_pauses },
	{ "resting_computes", resting_computes },
	{ "resting_changes_to_poll", resting_changes_to_poll },
	{ "resting_changes_to_polling", resting_changes_to_polling },
	{ "resting_loses_descriptors", resting_loses_descriptors },
	{ "resting_destroys_a_queue", resting_destroys_a_queue },
	{ "resting_outlives_its_daemon", resting_outlives_its_daemon },
	{ 0 },
};

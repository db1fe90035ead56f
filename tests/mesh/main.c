/* mesh [-d device] [-g gid index] FOLDER NUMBER COUNT ROUNDS: one of so many programs, each of which has a queue pair
 * with every other one. They meet by files in a folder, then send each other messages whose every byte is compared,
 * and sleep for completions. At the end each says so and stays, without work, until it is killed. */
#include "rc.h"
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#define SIZE 5000
#define RECEIVES 4 /* posted in each queue pair */
#define LIMIT 120 /* seconds */

const char *program = "mesh";

static const char *folder;
static unsigned own, count, rounds;
static double began;

struct peer {
	struct rc rc; /* its memory: what is sent, then what is received */
	unsigned sent, received;
};

static void in_time(const char *what)
{
	if (now() - began > LIMIT)
		die("program %u waits for %s", own, what);
}

/* Leaves a file for the others, whole or not at all. */
static void leave(const char *kind, const void *bytes, size_t len)
{
	char path[4096], unfinished[4096 + 8];
	FILE *file;

	snprintf(path, sizeof path, "%s/%s.%u", folder, kind, own);
	snprintf(unfinished, sizeof unfinished, "%s.tmp", path);
	file = fopen(unfinished, "w");
	if (!file || fwrite(bytes, 1, len, file) != len || fclose(file) || rename(unfinished, path))
		die("%s: %s", path, strerror(errno));
}

/* The file of another program, from an offset, once it is there. */
static void find(const char *kind, unsigned of, long offset, void *bytes, size_t len)
{
	char path[4096];
	FILE *file;

	snprintf(path, sizeof path, "%s/%s.%u", folder, kind, of);
	while (!(file = fopen(path, "r"))) {
		in_time(kind);
		usleep(20000);
	}
	if (fseek(file, offset, SEEK_SET) || fread(bytes, 1, len, file) != len)
		die("%s is too short", path);
	fclose(file);
}

/* All programs are here. */
static void meet(const char *kind)
{
	char byte = 0;

	leave(kind, &byte, 1);
	for (unsigned i = 0; i < count; i++)
		find(kind, i, 0, &byte, 1);
}

static unsigned char pattern(unsigned from, unsigned to, unsigned round, size_t at)
{
	return (unsigned char)(from * 31 + to * 17 + round * 7 + at + at / 256);
}

static void send_next(struct peer *peer, unsigned number)
{
	struct rc_place none = { 0 };

	for (size_t at = 0; at < SIZE; at++)
		peer->rc.buf[at] = pattern(own, number, peer->sent, at);
	if (rc_post_send(&peer->rc, IBV_WR_SEND, number, 0, SIZE, &none))
		die("ibv_post_send to %u", number);
}

/* Receives have the number of their slot above that of the peer. */
static void receive_next(struct peer *peer, unsigned number, unsigned slot)
{
	if (rc_post_recv(&peer->rc, number | (uint64_t)(slot + 1) << 32, SIZE * (slot + 1), SIZE))
		die("ibv_post_recv from %u", number);
}

static void compare(const struct peer *peer, unsigned number, unsigned slot, const struct ibv_wc *wc)
{
	const unsigned char *got = peer->rc.buf + SIZE * (slot + 1);

	if (wc->byte_len != SIZE)
		die("%u bytes from %u", wc->byte_len, number);
	for (size_t at = 0; at < SIZE; at++)
		if (got[at] != pattern(number, own, peer->received, at))
			die("byte %zu of message %u from %u is wrong", at, peer->received, number);
}

static void complete(struct peer *peers, const struct ibv_wc *wc)
{
	unsigned number = (unsigned)wc->wr_id, slot = (unsigned)(wc->wr_id >> 32);
	struct peer *peer = &peers[number];

	if (wc->status)
		die("%s with %u", wc_name(wc->status), number);
	if (slot) {
		compare(peer, number, slot - 1, wc);
		peer->received++;
		receive_next(peer, number, slot - 1);
	} else if (++peer->sent < rounds) {
		send_next(peer, number);
	}
}

/* Sleeps until there is a completion. */
static void await(struct ibv_comp_channel *channel, struct ibv_cq *cq)
{
	struct ibv_cq *told;
	void *context;

	if (ibv_get_cq_event(channel, &told, &context))
		die("ibv_get_cq_event: %s", strerror(errno));
	ibv_ack_cq_events(cq, 1);
}

static void exchange(struct peer *peers, struct ibv_comp_channel *channel, struct ibv_cq *cq)
{
	unsigned left = 2 * rounds * (count - 1);

	for (unsigned i = 0; i < count; i++)
		if (i != own)
			send_next(&peers[i], i);
	while (left) {
		struct ibv_wc wc[16];
		int n = ibv_poll_cq(cq, 16, wc);

		if (n < 0)
			die("ibv_poll_cq: %d", n);
		for (int i = 0; i < n; i++)
			complete(peers, &wc[i]);
		left -= (unsigned)n;
		if (n || !left)
			continue;
		if (ibv_req_notify_cq(cq, 0))
			die("ibv_req_notify_cq");
		n = ibv_poll_cq(cq, 1, wc);
		if (n > 0) {
			complete(peers, wc);
			left--;
		} else {
			await(channel, cq);
		}
		in_time("completions");
	}
}

int main(int argc, char **argv)
{
	struct rc_options opt = rc_defaults;
	char **words = rc_parse(&opt, argc, argv);
	struct rc shared = { 0 };
	struct rc_place *places;
	struct peer *peers;

	if (!words[0] || !words[1] || !words[2] || !words[3])
		die("usage: mesh [-d device] [-g gid index] FOLDER NUMBER COUNT ROUNDS");
	folder = words[0];
	own = (unsigned)atoi(words[1]);
	count = (unsigned)atoi(words[2]);
	rounds = (unsigned)atoi(words[3]);
	began = now();
	peers = calloc(count, sizeof *peers);
	places = calloc(count, sizeof *places);
	shared.ctx = rc_open_device(opt.device);
	shared.pd = ibv_alloc_pd(shared.ctx);
	shared.channel = ibv_create_comp_channel(shared.ctx);
	opt.depth = 2 * RECEIVES;
	/* A busy machine may take long: 268 ms, seven times. */
	opt.timeout = 16;
	shared.send_cq = ibv_create_cq(shared.ctx, (int)(count * opt.depth), NULL, shared.channel, 0);
	if (!shared.pd || !shared.channel || !shared.send_cq)
		die("no objects: %s", strerror(errno));
	shared.recv_cq = shared.send_cq;
	for (unsigned i = 0; i < count; i++) {
		peers[i].rc = shared;
		if (i == own)
			continue;
		rc_make(&peers[i].rc, &opt, SIZE * (RECEIVES + 1));
		places[i] = rc_place(&peers[i].rc);
	}
	leave("places", places, count * sizeof *places);
	for (unsigned i = 0; i < count; i++) {
		struct rc_place place;

		if (i == own)
			continue;
		find("places", i, (long)(own * sizeof place), &place, sizeof place);
		rc_connect(&peers[i].rc, &place);
		for (unsigned slot = 0; slot < RECEIVES; slot++)
			receive_next(&peers[i], i, slot);
	}
	meet("connected");
	exchange(peers, shared.channel, shared.send_cq);
	meet("agreed");
	say("agreed after %.1f s", now() - began);
	for (;;)
		pause();
}

/* sink -d DEVICE -g GID-INDEX -p PORT
 *
 * Receives what a core sends that only sends. Both meet over UDP at PORT: the core says
 *
 *     QPN PSN IPV4-ADDRESS MESSAGES
 *
 * and hears "QPN PSN RKEY ADDRESS". After each message, whose immediate data is its number, the
 * program compares it and says "NUMBER LENGTH" over UDP: the core sends the next one then. */
#include "rc.h"
#include <arpa/inet.h>
#include <errno.h>
#include <sys/socket.h>

const char *program = "sink";
enum { MOST = 16 << 20, WAIT_MS = 20000 };

static struct sockaddr_in core;
static int side = -1;

static void answer(const char *text)
{
	if (sendto(side, text, strlen(text), 0, (void *)&core, sizeof core) < 0)
		die("sendto: %s", strerror(errno));
}

/* Waits for the core's first word. */
static void meet(int port, char *text, size_t room)
{
	struct sockaddr_in own = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
	socklen_t len = sizeof core;
	ssize_t got;

	side = socket(AF_INET, SOCK_DGRAM, 0);
	if (bind(side, (void *)&own, sizeof own))
		die("UDP port %d: %s", port, strerror(errno));
	got = recvfrom(side, text, room - 1, 0, (void *)&core, &len);
	if (got < 0)
		die("recvfrom: %s", strerror(errno));
	text[got] = 0;
}

static unsigned char byte_of(uint32_t message, uint32_t at)
{
	return (unsigned char)(message * 31 + at * 7 + (at >> 8));
}

/* WRITEs go to the first half of the memory, SENDs to the second. */
static void check(const struct rc *rc, const struct ibv_wc *wc, uint32_t number)
{
	const unsigned char *at = rc->buf + (wc->opcode == IBV_WC_RECV ? MOST : 0);

	if (wc->status != IBV_WC_SUCCESS)
		die("message %u: %s", number, wc_name(wc->status));
	if (!(wc->wc_flags & IBV_WC_WITH_IMM) || ntohl(wc->imm_data) != number)
		die("message %u has the immediate data %x", number, ntohl(wc->imm_data));
	for (uint32_t i = 0; i < wc->byte_len; i++)
		if (at[i] != byte_of(number, i))
			die("message %u of %u bytes is wrong at %u", number, wc->byte_len, i);
}

int main(int argc, char **argv)
{
	struct rc_options options = rc_defaults;
	struct rc_place peer = { 0 };
	struct in_addr address;
	char text[200], ip[32];
	unsigned messages;
	struct rc rc = { 0 };

	rc_parse(&options, argc, argv);
	options.mtu = IBV_MTU_4096;
	meet(options.port, text, sizeof text);
	if (sscanf(text, "%u %u %31s %u", &peer.qpn, &peer.psn, ip, &messages) != 4 || !inet_aton(ip, &address))
		die("the core says %s", text);
	peer.gid.raw[10] = peer.gid.raw[11] = 0xff;
	memcpy(&peer.gid.raw[12], &address, 4);
	rc_make(&rc, &options, 2 * MOST);
	rc_connect(&rc, &peer);
	if (rc_post_recv(&rc, 0, MOST, MOST))
		die("no receive");
	snprintf(text, sizeof text, "%u %u %u %llu", rc.qp->qp_num, rc.psn, rc.mr->rkey,
		 (unsigned long long)(uintptr_t)rc.buf);
	answer(text);
	for (uint32_t number = 0; number < messages; number++) {
		struct ibv_wc wc;

		if (!rc_wait(rc.recv_cq, &wc, WAIT_MS))
			die("message %u did not come", number);
		check(&rc, &wc, number);
		if (rc_post_recv(&rc, number + 1, MOST, MOST))
			die("no receive");
		snprintf(text, sizeof text, "%u %u", number, wc.byte_len);
		answer(text);
	}
	say("%u messages are right", messages);
	return 0;
}

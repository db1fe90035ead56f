/* ucp [-p port] [host]: two processes move data over UCP in every way, each in its turn, and compare every byte, also
 * the bytes next to those that were asked for. ucx_perftest compares nothing. */
#include "rc.h"
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#define AT_ONCE 8         /* operations on the way */
#define LARGEST 300000
#define GAP 64            /* bytes that must stay, in front of each message and behind the last */
#define STRIDE (LARGEST + GAP)
#define MEMORY (AT_ONCE * (size_t)STRIDE + GAP)
#define UNTOUCHED 0x5a
#define AM_ID 7

const char *program = "ucp";

/* Inline, copied, several packets, by rendezvous. */
static const size_t SIZES[] = { 1, 8, 100, 4000, 8192, 100000, LARGEST };

enum { ADDRESS = 2048, KEY = 512 };

struct place {
	uint64_t address_len, key_len, memory;
	unsigned char address[ADDRESS], key[KEY];
};

static ucp_worker_h worker;
static ucp_ep_h ep;
static ucp_rkey_h rkey;
static ucp_mem_h memh;
static int oob;
static unsigned char *ours, *local; /* what the peer reaches, and what our own operations use */
static uint64_t theirs;
static unsigned arrived; /* active messages */
static size_t expected_len;
static unsigned seed;
static size_t compared;

static void check(ucs_status_t status, const char *what)
{
	if (status != UCS_OK)
		die("%s: %s", what, ucs_status_string(status));
}

static unsigned char byte_at(unsigned message, size_t i)
{
	return (unsigned char)((i * 2654435761u + (seed * 97u + message) * 40503u) >> 11);
}

static void fill(unsigned char *to, size_t len, unsigned message)
{
	for (size_t i = 0; i < len; i++)
		to[i] = byte_at(message, i);
}

static void compare(const unsigned char *found, size_t len, unsigned message, const char *what)
{
	for (size_t i = 0; i < len; i++)
		if (found[i] != byte_at(message, i))
			die("%s of %zu bytes: byte %zu of message %u is wrong", what, len, i, message);
	compared += len;
}

static unsigned char *slot(unsigned char *memory, unsigned message)
{
	return memory + GAP + message * (size_t)STRIDE;
}

/* Nothing but the messages was written. */
static void compare_rest(const unsigned char *memory, size_t len, const char *what)
{
	for (size_t i = 0; i < MEMORY; i++) {
		size_t in_slot = i < GAP ? STRIDE : (i - GAP) % STRIDE;

		if ((in_slot >= len || (i - GAP) / STRIDE >= AT_ONCE) && memory[i] != UNTOUCHED)
			die("%s of %zu bytes wrote beside its place, at %zu", what, len, i);
	}
}

/* The device's engine may share the CPU with us. */
static void progress(void)
{
	if (!ucp_worker_progress(worker))
		sched_yield();
}

static void finish(ucs_status_ptr_t request, const char *what)
{
	if (UCS_PTR_IS_ERR(request))
		check(UCS_PTR_STATUS(request), what);
	if (!request)
		return;
	while (ucp_request_check_status(request) == UCS_INPROGRESS)
		progress();
	check(ucp_request_check_status(request), what);
	ucp_request_free(request);
}

static void finish_all(ucs_status_ptr_t *requests, const char *what)
{
	for (unsigned i = 0; i < AT_ONCE; i++)
		finish(requests[i], what);
}

static void flush(void)
{
	ucp_request_param_t param = { 0 };

	finish(ucp_ep_flush_nbx(ep, &param), "ucp_ep_flush_nbx");
}

/* Both processes are here. Transports without RDMA need our progress until the peer is. */
static void meet(void)
{
	struct pollfd waiting = { .fd = oob, .events = POLLIN };
	char mine = 1, peers;

	if (send(oob, &mine, 1, MSG_NOSIGNAL) != 1)
		die("the other process is gone");
	while (poll(&waiting, 1, 0) == 0)
		progress();
	if (recv(oob, &peers, 1, 0) != 1)
		die("the other process is gone");
}

static void put(bool active, size_t len)
{
	ucp_request_param_t param = { 0 };
	ucs_status_ptr_t requests[AT_ONCE];

	for (unsigned i = 0; active && i < AT_ONCE; i++) {
		fill(slot(local, i), len, i);
		requests[i] = ucp_put_nbx(ep, slot(local, i), len, theirs + (slot(ours, i) - ours), rkey, &param);
	}
	if (active) {
		finish_all(requests, "ucp_put_nbx");
		flush();
	}
	meet();
	if (active)
		return;
	for (unsigned i = 0; i < AT_ONCE; i++)
		compare(slot(ours, i), len, i, "put");
	compare_rest(ours, len, "put");
}

static void get(bool active, size_t len)
{
	ucp_request_param_t param = { 0 };
	ucs_status_ptr_t requests[AT_ONCE];

	for (unsigned i = 0; !active && i < AT_ONCE; i++)
		fill(slot(ours, i), len, i);
	meet();
	if (!active)
		return;
	for (unsigned i = 0; i < AT_ONCE; i++)
		requests[i] = ucp_get_nbx(ep, slot(local, i), len, theirs + (slot(ours, i) - ours), rkey, &param);
	finish_all(requests, "ucp_get_nbx");
	for (unsigned i = 0; i < AT_ONCE; i++)
		compare(slot(local, i), len, i, "get");
	compare_rest(local, len, "get");
}

static void tag(bool active, size_t len)
{
	ucp_request_param_t param = { 0 };
	ucs_status_ptr_t requests[AT_ONCE];

	/* Half of the receives are posted before the messages can come, the others behind them. */
	for (unsigned i = 0; i < AT_ONCE / 2 && !active; i++)
		requests[i] = ucp_tag_recv_nbx(worker, slot(ours, i), len, 100 + i, ~(ucp_tag_t)0, &param);
	meet();
	for (unsigned i = 0; i < AT_ONCE && active; i++) {
		fill(slot(local, i), len, i);
		requests[i] = ucp_tag_send_nbx(ep, slot(local, i), len, 100 + i, &param);
	}
	for (unsigned i = AT_ONCE / 2; i < AT_ONCE && !active; i++)
		requests[i] = ucp_tag_recv_nbx(worker, slot(ours, i), len, 100 + i, ~(ucp_tag_t)0, &param);
	finish_all(requests, active ? "ucp_tag_send_nbx" : "ucp_tag_recv_nbx");
	if (active)
		return;
	for (unsigned i = 0; i < AT_ONCE; i++)
		compare(slot(ours, i), len, i, "tagged message");
	compare_rest(ours, len, "tagged message");
}

static void am_is_here(void *request, ucs_status_t status, size_t len, void *unused)
{
	(void)unused;
	check(status, "ucp_am_recv_data_nbx");
	if (len != expected_len)
		die("an active message of %zu bytes, not %zu", len, expected_len);
	arrived++;
	ucp_request_free(request);
}

static ucs_status_t am_comes(void *unused, const void *header, size_t header_len, void *data, size_t len,
			     const ucp_am_recv_param_t *how)
{
	ucp_request_param_t param = { .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK, .cb.recv_am = am_is_here };
	ucs_status_ptr_t request;
	unsigned message;

	(void)unused;
	if (header_len != sizeof message || len != expected_len)
		die("an active message of %zu and %zu bytes", header_len, len);
	memcpy(&message, header, sizeof message);
	if (message >= AT_ONCE)
		die("an active message with number %u", message);
	if (how->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) {
		request = ucp_am_recv_data_nbx(worker, data, slot(ours, message), len, &param);
		if (UCS_PTR_IS_ERR(request))
			check(UCS_PTR_STATUS(request), "ucp_am_recv_data_nbx");
		arrived += !request;
		return UCS_OK;
	}
	memcpy(slot(ours, message), data, len);
	arrived++;
	return UCS_OK;
}

static void am(bool active, size_t len)
{
	ucp_request_param_t param = { 0 };
	ucs_status_ptr_t requests[AT_ONCE];
	static const unsigned NUMBERS[AT_ONCE] = { 0, 1, 2, 3, 4, 5, 6, 7 };

	arrived = 0;
	expected_len = len;
	meet();
	if (active) {
		for (unsigned i = 0; i < AT_ONCE; i++) {
			fill(slot(local, i), len, i);
			requests[i] = ucp_am_send_nbx(ep, AM_ID, &NUMBERS[i], sizeof NUMBERS[i], slot(local, i), len,
						      &param);
		}
		finish_all(requests, "ucp_am_send_nbx");
		return;
	}
	while (arrived < AT_ONCE)
		progress();
	for (unsigned i = 0; i < AT_ONCE; i++)
		compare(slot(ours, i), len, i, "active message");
	compare_rest(ours, len, "active message");
}

/* Additions come one after the other, and each tells what was there before. */
static void add(bool active, size_t unused)
{
	static uint64_t one = 1;
	uint64_t before, *word = (void *)ours;
	ucp_request_param_t param = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_REPLY_BUFFER,
		.datatype = ucp_dt_make_contig(sizeof one),
		.reply_buffer = &before,
	};

	(void)unused;
	if (!active)
		*word = 40;
	meet();
	for (uint64_t i = 0; i < AT_ONCE && active; i++) {
		before = 0;
		finish(ucp_atomic_op_nbx(ep, UCP_ATOMIC_OP_ADD, &one, 1, theirs, rkey, &param), "ucp_atomic_op_nbx");
		if (before != 40 + i)
			die("addition %u found %llu", (unsigned)i, (unsigned long long)before);
	}
	if (active)
		flush();
	meet();
	if (!active && *word != 40 + AT_ONCE)
		die("the additions made %llu", (unsigned long long)*word);
	compared += sizeof *word;
}

static void make_worker(struct place *place)
{
	ucp_params_t params = {
		.field_mask = UCP_PARAM_FIELD_FEATURES,
		.features = UCP_FEATURE_RMA | UCP_FEATURE_AMO64 | UCP_FEATURE_TAG | UCP_FEATURE_AM,
	};
	ucp_worker_params_t worker_params = { 0 };
	ucp_am_handler_param_t handler = {
		.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB,
		.id = AM_ID,
		.cb = am_comes,
	};
	ucp_mem_map_params_t map = {
		.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
		.address = ours,
		.length = MEMORY,
	};
	ucp_context_h context;
	ucp_address_t *address;
	size_t address_len, key_len;
	void *key;

	check(ucp_init(&params, NULL, &context), "ucp_init");
	check(ucp_worker_create(context, &worker_params, &worker), "ucp_worker_create");
	check(ucp_worker_set_am_recv_handler(worker, &handler), "ucp_worker_set_am_recv_handler");
	check(ucp_mem_map(context, &map, &memh), "ucp_mem_map");
	check(ucp_rkey_pack(context, memh, &key, &key_len), "ucp_rkey_pack");
	check(ucp_worker_get_address(worker, &address, &address_len), "ucp_worker_get_address");
	if (address_len > ADDRESS || key_len > KEY)
		die("an address of %zu bytes and a key of %zu", address_len, key_len);
	*place = (struct place){ .address_len = address_len, .key_len = key_len, .memory = (uintptr_t)ours };
	memcpy(place->address, address, address_len);
	memcpy(place->key, key, key_len);
}

static void connect_to(struct place *peer)
{
	ucp_ep_params_t params = {
		.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
		.address = (const ucp_address_t *)peer->address,
	};

	check(ucp_ep_create(worker, &params, &ep), "ucp_ep_create");
	check(ucp_ep_rkey_unpack(ep, peer->key, &rkey), "ucp_ep_rkey_unpack");
	theirs = peer->memory;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(bool active, size_t len);
	} WAYS[] = { { "put", put }, { "get", get }, { "tag", tag }, { "am", am }, { "add", add } };
	struct rc_options opt = { .port = 18515 };
	static struct place mine, peer;

	for (int c; (c = getopt(argc, argv, "p:")) != -1;) {
		if (c != 'p')
			die("usage: ucp [-p port] [host]");
		opt.port = atoi(optarg);
	}
	opt.host = argv[optind];
	ours = malloc(MEMORY);
	local = malloc(MEMORY);
	if (!ours || !local)
		die("no memory");
	make_worker(&mine);
	oob = oob_open(&opt);
	oob_swap(oob, &mine, &peer, sizeof mine);
	connect_to(&peer);
	for (unsigned way = 0; way < sizeof WAYS / sizeof *WAYS; way++) {
		compared = 0;
		for (unsigned turn = 0; turn < 2 * sizeof SIZES / sizeof *SIZES; turn++) {
			bool active = turn % 2 == (opt.host != NULL);

			seed++;
			memset(ours, UNTOUCHED, MEMORY);
			memset(local, UNTOUCHED, MEMORY);
			meet();
			WAYS[way].run(active, SIZES[turn / 2]);
			meet();
		}
		say("%s: %zu bytes compared", WAYS[way].name, compared);
	}
	say("all data is right");
	return 0;
}

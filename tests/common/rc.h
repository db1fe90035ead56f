/* What the helper programs share: a device, one RC queue pair and how two of them are connected. */
#ifndef RC_H
#define RC_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const char *program;

#define die(...) do { \
	fprintf(stderr, "%s: ", program); fprintf(stderr, __VA_ARGS__); fputc('\n', stderr); exit(1); } while (0)

#define ALL_ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

/* How a queue pair is made and connected. */
struct rc_options {
	const char *device;
	int gid_index;
	int port;          /* TCP */
	const char *host;  /* NULL listens */
	uint32_t depth;    /* WQEs of each queue */
	uint32_t cqe;
	unsigned qp_access, timeout, retry, rnr_retry, rd_atomic, dest_rd_atomic;
	enum ibv_mtu mtu;
};

extern const struct rc_options rc_defaults;

/* Where a peer finds a queue pair and its memory. */
struct rc_place {
	uint32_t qpn, psn, rkey;
	uint64_t addr;
	union ibv_gid gid;
};

struct rc {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	unsigned char *buf;
	size_t len;
	struct rc_options opt;
	uint32_t psn;
};

/* Reads -d -g -p, as ibv_rc_pingpong does, -T and -r; returns the other words, NULL behind the last. */
char **rc_parse(struct rc_options *opt, int argc, char **argv);

struct ibv_context *rc_open_device(const char *name);
/* Queue pair in RESET; uses the context and PD already in `rc`, or makes them. */
void rc_make(struct rc *rc, const struct rc_options *opt, size_t len);
struct rc_place rc_place(const struct rc *rc);
int rc_to_init(struct rc *rc);
int rc_to_rtr(struct rc *rc, const struct rc_place *peer);
int rc_to_rts(struct rc *rc);
/* RESET to RTS; ends the program when refused. */
void rc_connect(struct rc *rc, const struct rc_place *peer);

int rc_post_recv(struct rc *rc, uint64_t wr_id, size_t offset, uint32_t len);
int rc_post_send(struct rc *rc, enum ibv_wr_opcode opcode, uint64_t wr_id, size_t offset, uint32_t len,
		 const struct rc_place *peer);
/* Waits for one completion; false after `ms` milliseconds. */
bool rc_wait(struct ibv_cq *cq, struct ibv_wc *wc, int ms);

/* The TCP connection of two processes. */
int oob_open(const struct rc_options *opt);
void oob_swap(int fd, const void *mine, void *theirs, size_t len);

/* Names as in the verbs header, without their prefix. */
const char *wc_name(enum ibv_wc_status status);
const char *event_name(enum ibv_event_type event);
const char *state_name(enum ibv_qp_state state);
const char *error_name(int err);

double now(void);
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif

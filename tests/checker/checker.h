/* A program that trusts no NIC: it moves patterned messages by every opcode in both directions at
 * once and checks every byte, every completion and their order.
 *
 * Both sides run this program. Each side is requester for its own schedule of messages and
 * responder for the peer's; both schedules follow from one seed, so each side knows what must
 * arrive. It is written against the public verbs header only and runs on any verbs device. */
#ifndef CHECKER_H
#define CHECKER_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

enum op { OP_SEND, OP_SEND_IMM, OP_WRITE, OP_WRITE_IMM, OP_READ, OP_CAS, OP_FADD, OP_COUNT };

#define MAX_SIZES 64
#define MAX_SGES 8
#define MAX_HELPERS 4
/* Guard bytes around every landing zone, which must not change. */
#define GUARD 64

struct options {
	bool server;
	const char *host;
	int port;
	const char *device;
	int gid_index;
	int mtu;
	uint64_t seed;
	uint64_t messages;
	double seconds, interval;
	unsigned depth;
	unsigned max_sge;
	unsigned rd_atomic;
	unsigned timeout;
	unsigned retry;
	bool events, no_fence;
	bool quiet;
	unsigned ops; /* bit per enum op */
	int first; /* enum op of the first message; -1: one of ops */
	pid_t helpers[MAX_HELPERS]; /* processes that work for this one on its CPU */
	unsigned num_helpers;
	size_t sizes[MAX_SIZES];
	unsigned num_sizes;
	size_t max_size;
};

/* One message, derived from (schedule seed, index). */
struct message {
	enum op op;
	size_t size;
	unsigned num_sge;      /* at the requester */
	unsigned num_recv_sge; /* at the responder, for messages that take a receive WQE */
	size_t offset;         /* misalignment of the landing zone, or offset of a READ */
	bool inlined;
	bool signaled;
	bool solicited;
	bool fenced;
};

/* What one side tells the other before the start. */
struct peer_info {
	uint32_t qpn, psn;
	uint8_t gid[16];
	uint32_t slots_rkey, source_rkey, atomic_rkey, credit_rkey;
	uint64_t slots_addr, source_addr, atomic_addr, credit_addr;
};

struct wqe_note;
struct arrival;

struct side {
	const struct options *opt;
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_qp *qp;
	struct ibv_mr *slots_mr, *recv_mr, *source_mr, *out_mr, *sink_mr, *atomic_mr, *credit_mr;
	unsigned char *slots;  /* where the peer WRITEs */
	unsigned char *recv;   /* where the peer's SENDs land */
	unsigned char *source; /* what the peer READs: a fixed pattern */
	unsigned char *out;    /* what we send */
	unsigned char *sink;   /* where results of our READs and atomics land */
	uint64_t *atomic;      /* [0] CAS, [1] FADD */
	volatile uint64_t *credit; /* [0]: messages of ours that the peer has consumed; [2]: our own */
	size_t stride;
	unsigned max_inline;
	struct peer_info mine, peer;
	int oob;
	uint64_t my_seed, peer_seed;

	/* requester: messages by index, active ones (those the peer notices) also by ordinal */
	uint64_t posted, completed, active_posted;
	uint64_t wqes, wqes_done, final_messages;
	struct wqe_note *notes; /* by WQE ordinal modulo sq_depth */
	uint64_t *expected;     /* atomics: old value, by message index modulo depth */
	unsigned sq_depth;
	bool stop, told_final;
	uint64_t cas_value, fadd_value;
	/* responder, all by ordinal of the peer's active messages */
	struct arrival *arrivals; /* modulo depth */
	uint64_t prepare_index, prepared, consumed, credited;
	uint64_t final_active;
	bool final_known;
	uint64_t bytes_out, bytes_in;
	double started;
};

/* A posted WQE. */
struct wqe_note {
	bool signaled, credit;
	uint64_t message;
};

/* A message of the peer that will be noticed here. */
struct arrival {
	struct message m;
	uint64_t index;
	bool received; /* its receive completion came */
};

#define die(...) do { fprintf(stderr, "checker: " __VA_ARGS__); fputc('\n', stderr); exit(1); } while (0)

/* schedule.c */
uint64_t mix(uint64_t x);
struct message schedule(const struct options *opt, uint64_t seed, uint64_t index);
bool takes_receive(enum op op);
/* The responder notices it: by a receive completion or by its last byte. */
bool is_active(const struct message *m);
uint64_t fadd_operand(uint64_t seed, uint64_t index);
void fill_pattern(unsigned char *to, size_t len, uint64_t key, uint64_t start);
/* Offset of the first wrong byte, or -1. */
long check_pattern(const unsigned char *at, size_t len, uint64_t key, uint64_t start);
extern const char *const op_names[OP_COUNT];

/* oob.c */
int oob_connect(const struct options *opt);
void oob_exchange(int fd, const void *mine, void *theirs, size_t len);
void oob_send(int fd, const void *data, size_t len);
bool oob_try_recv(int fd, void *data, size_t len);

/* setup.c */
void side_open(struct side *s, const struct options *opt);
void side_connect(struct side *s);
void side_close(struct side *s);

/* requester.c */
bool post_next(struct side *s);
bool post_credit(struct side *s);
void sent(struct side *s, const struct ibv_wc *wc);

/* responder.c */
void prepare(struct side *s);
bool consume(struct side *s);
void received(struct side *s, const struct ibv_wc *wc);

/* failure.c */
/* Says all that the device tells of this completion, which has an error, and ends. */
void failed(struct side *s, const char *queue, const struct ibv_wc *wc) __attribute__((noreturn));

/* pause.c */
struct pause {
	double progress; /* when there was some last */
	double longest;
	double own; /* the longest, without the time that foreign programs had the CPU */
	int schedstat;
	double looked, waited, helped; /* when, and what the times were then */
};
void pause_begin(struct pause *p, const struct options *opt);
/* There is progress now. */
void pause_end(struct pause *p, const struct options *opt);
double now(void);

/* run.c */
void run(struct side *s);

#endif

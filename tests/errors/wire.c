/* Mistakes that are detected only when the request is executed: bad keys, ranges, rights. One operation each. */
#include "errors.h"
#include <errno.h>
#include <sys/mman.h>

/* Keys of memory regions over the same buffer. */
enum key { GOOD, RANDOM, ZERO, OTHER_PD, GONE, NO_RIGHTS, LOCAL_ONLY, REMOTE_READ, REMOTE_WRITE, UNMAPPED };
/* Special positions in the buffer. */
enum { WRAPS = -1000 };

struct wire {
	const char *name;
	enum ibv_wr_opcode opcode;
	uint32_t length;
	enum key lkey, rkey;
	int local_at, remote_at;
	int receive;       /* bytes of a posted receive, 0 for none */
	enum key receive_key;
};

static const struct wire mistakes[] = {
	{ "no_mistake", IBV_WR_RDMA_WRITE, 100, GOOD, GOOD, 0, 0, 0, GOOD },
	{ "lkey_random", IBV_WR_RDMA_WRITE, 100, RANDOM, GOOD, 0, 0, 0, GOOD },
	{ "lkey_zero", IBV_WR_SEND, 100, ZERO, GOOD, 0, 0, 0, GOOD },
	{ "lkey_of_another_pd", IBV_WR_RDMA_WRITE, 100, OTHER_PD, GOOD, 0, 0, 0, GOOD },
	{ "lkey_deregistered", IBV_WR_RDMA_WRITE, 100, GONE, GOOD, 0, 0, 0, GOOD },
	{ "lkey_behind_the_end", IBV_WR_RDMA_WRITE, 200, GOOD, GOOD, ZONE - 100, 0, 0, GOOD },
	{ "lkey_before_the_start", IBV_WR_RDMA_WRITE, 100, GOOD, GOOD, -8, 0, 0, GOOD },
	{ "lkey_wraps", IBV_WR_RDMA_WRITE, 100, GOOD, GOOD, WRAPS, 0, 0, GOOD },
	{ "lkey_small_send", IBV_WR_SEND, 8, OTHER_PD, GOOD, 0, 0, 0, GOOD },
	{ "lkey_memory_gone", IBV_WR_RDMA_WRITE, 3000, UNMAPPED, GOOD, 0, 0, 0, GOOD },
	{ "read_into_read_only", IBV_WR_RDMA_READ, 100, NO_RIGHTS, GOOD, 0, 0, 0, GOOD },
	{ "read_into_memory_gone", IBV_WR_RDMA_READ, 3000, UNMAPPED, GOOD, 0, 0, 0, GOOD },
	{ "misaligned_atomic", IBV_WR_ATOMIC_FETCH_AND_ADD, 8, GOOD, GOOD, 0, 4, 0, GOOD },
	{ "short_atomic", IBV_WR_ATOMIC_FETCH_AND_ADD, 4, GOOD, GOOD, 0, 0, 0, GOOD },
	{ "atomic_into_read_only", IBV_WR_ATOMIC_FETCH_AND_ADD, 8, NO_RIGHTS, GOOD, 0, 0, 0, GOOD },
	{ "rkey_random", IBV_WR_RDMA_WRITE, 100, GOOD, RANDOM, 0, 0, 0, GOOD },
	{ "rkey_zero", IBV_WR_RDMA_READ, 100, GOOD, ZERO, 0, 0, 0, GOOD },
	{ "rkey_of_another_pd", IBV_WR_RDMA_WRITE, 100, GOOD, OTHER_PD, 0, 0, 0, GOOD },
	{ "rkey_deregistered", IBV_WR_RDMA_WRITE, 100, GOOD, GONE, 0, 0, 0, GOOD },
	{ "rkey_behind_the_end", IBV_WR_RDMA_WRITE, 3000, GOOD, GOOD, 0, ZONE - 2000, 0, GOOD },
	{ "rkey_before_the_start", IBV_WR_RDMA_WRITE, 100, GOOD, GOOD, 0, -8, 0, GOOD },
	{ "rkey_wraps", IBV_WR_RDMA_WRITE, 100, GOOD, GOOD, 0, WRAPS, 0, GOOD },
	{ "read_behind_the_end", IBV_WR_RDMA_READ, 3000, GOOD, GOOD, 0, ZONE - 2000, 0, GOOD },
	{ "write_without_right", IBV_WR_RDMA_WRITE, 3000, GOOD, REMOTE_READ, 0, 0, 0, GOOD },
	{ "write_to_local_memory", IBV_WR_RDMA_WRITE, 100, GOOD, LOCAL_ONLY, 0, 0, 0, GOOD },
	{ "read_without_right", IBV_WR_RDMA_READ, 100, GOOD, REMOTE_WRITE, 0, 0, 0, GOOD },
	{ "atomic_without_right", IBV_WR_ATOMIC_FETCH_AND_ADD, 8, GOOD, REMOTE_WRITE, 0, 0, 0, GOOD },
	{ "write_to_memory_gone", IBV_WR_RDMA_WRITE, 3000, GOOD, UNMAPPED, 0, 0, 0, GOOD },
	{ "read_from_memory_gone", IBV_WR_RDMA_READ, 3000, GOOD, UNMAPPED, 0, 0, 0, GOOD },
	{ "write_imm_bad_rkey", IBV_WR_RDMA_WRITE_WITH_IMM, 100, GOOD, RANDOM, 0, 0, 100, GOOD },
	{ "nothing_with_bad_rkey", IBV_WR_RDMA_WRITE, 0, GOOD, RANDOM, 0, 0, 0, GOOD },
	{ "send_too_long", IBV_WR_SEND, 200, GOOD, GOOD, 0, 0, 100, GOOD },
	{ "long_send_too_long", IBV_WR_SEND, 5000, GOOD, GOOD, 0, 0, 1500, GOOD },
	{ "receive_key_random", IBV_WR_SEND, 100, GOOD, GOOD, 0, 0, 100, RANDOM },
	{ "receive_key_of_another_pd", IBV_WR_SEND, 100, GOOD, GOOD, 0, 0, 100, OTHER_PD },
	{ "receive_into_read_only", IBV_WR_SEND, 100, GOOD, GOOD, 0, 0, 100, NO_RIGHTS },
	{ "receive_into_deregistered", IBV_WR_SEND, 3000, GOOD, GOOD, 0, 0, 3000, GONE },
	{ "receive_into_memory_gone", IBV_WR_SEND, 3000, GOOD, GOOD, 0, 0, 3000, UNMAPPED },
	{ 0 },
};

struct part {
	uint64_t addr;
	uint32_t lkey, rkey;
};

static struct ibv_mr *reg(struct ibv_pd *pd, void *addr, int access)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, addr, ZONE, access);

	if (!mr)
		die("ibv_reg_mr: %s", strerror(errno));
	return mr;
}

static struct part part_of(struct rc *rc, enum key key, int at)
{
	static const int access[] = { [NO_RIGHTS] = 0, [LOCAL_ONLY] = IBV_ACCESS_LOCAL_WRITE,
		[REMOTE_READ] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ,
		[REMOTE_WRITE] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE };
	unsigned char *base = rc->buf;
	struct ibv_mr *mr = rc->mr;
	struct part part;

	if (key == OTHER_PD || key == GONE)
		mr = reg(key == OTHER_PD ? ibv_alloc_pd(rc->ctx) : rc->pd, base, ALL_ACCESS);
	if (key >= NO_RIGHTS && key <= REMOTE_WRITE)
		mr = reg(rc->pd, base, access[key]);
	if (key == UNMAPPED) {
		base = mmap(NULL, ZONE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		mr = reg(rc->pd, base, ALL_ACCESS);
		munmap(base, ZONE);
	}
	part = (struct part){ .addr = (uintptr_t)base + (uint64_t)(int64_t)at, .lkey = mr->lkey, .rkey = mr->rkey };
	if (at == WRAPS)
		part.addr = UINT64_MAX - 50;
	if (key == RANDOM)
		part.lkey = part.rkey = mr->lkey ^ 0x5a5a5a00;
	if (key == ZERO)
		part.lkey = part.rkey = 0;
	if (key == GONE && ibv_dereg_mr(mr))
		die("ibv_dereg_mr failed");
	return part;
}

static void post_receive(struct rc *rc, const struct wire *w)
{
	struct part to = part_of(rc, w->receive_key, 0);
	struct ibv_sge sge = { .addr = to.addr, .length = (uint32_t)w->receive, .lkey = to.lkey };
	struct ibv_recv_wr wr = { .wr_id = 7, .sg_list = &sge, .num_sge = 1 }, *bad;

	if (ibv_post_recv(rc->qp, &wr, &bad))
		die("ibv_post_recv failed");
}

static void make(const struct wire *w)
{
	struct bench bench;
	struct part from, to;
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = w->opcode,
		.send_flags = IBV_SEND_SIGNALED }, *bad;
	int err;

	bench_ready(&bench);
	from = part_of(&bench.a, w->lkey, w->local_at);
	to = part_of(&bench.b, w->rkey, w->remote_at);
	sge = (struct ibv_sge){ .addr = from.addr, .length = w->length, .lkey = from.lkey };
	if (w->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = to.addr;
		wr.wr.atomic.rkey = to.rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = to.addr;
		wr.wr.rdma.rkey = to.rkey;
	}
	if (w->receive)
		post_receive(&bench.b, w);
	err = ibv_post_send(bench.a.qp, &wr, &bad);
	if (err)
		say("%s", error_name(err));
	else
		bench_outcome(&bench, strcmp(w->name, "no_mistake") && strcmp(w->name, "long_send_too_long"));
}

bool wire_mistake(const char *name)
{
	for (const struct wire *w = mistakes; w->name; w++) {
		if (!strcmp(w->name, name)) {
			make(w);
			return true;
		}
	}
	return false;
}

void list_wire_mistakes(void)
{
	for (const struct wire *w = mistakes; w->name; w++)
		say("%s", w->name);
}

/* Connected queue pairs that stay idle: what do they cost the device?
 *
 *   idleqps [-d DEVICE] [-g GID_INDEX] [-n QPS] [-r MIB]
 *
 * Makes QPS reliable queue pairs, connected to each other two by two through the device's own
 * address, prints "ready" and sleeps until it is killed. With -r it registers that much untouched
 * memory first and prints how long ibv_reg_mr took; without -n it ends then. Written against the
 * public verbs header only; runs on any verbs device. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static int gid_index;
static union ibv_gid gid;

static void fail(const char *what, int err)
{
	fprintf(stderr, "idleqps: %s: %s\n", what, strerror(err));
	exit(1);
}

static void open_device(const char *name)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);

	for (int i = 0; list && i < count && !ctx; i++)
		if (!name || !strcmp(ibv_get_device_name(list[i]), name))
			ctx = ibv_open_device(list[i]);
	if (!ctx)
		fail(name ? name : "no RDMA device", errno);
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(ctx);
	if (!pd)
		fail("ibv_alloc_pd", errno);
	if (ibv_query_gid(ctx, 1, gid_index, &gid))
		fail("ibv_query_gid", errno);
}

static void time_registration(size_t mib)
{
	size_t len = mib << 20;
	void *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct timespec before, after;
	struct ibv_mr *mr;

	if (memory == MAP_FAILED)
		fail("mmap", errno);
	clock_gettime(CLOCK_MONOTONIC, &before);
	mr = ibv_reg_mr(pd, memory, len, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	clock_gettime(CLOCK_MONOTONIC, &after);
	if (!mr)
		fail("ibv_reg_mr", errno);
	printf("registered %zu MiB in %.1f us\n", mib,
	       (after.tv_sec - before.tv_sec) * 1e6 + (after.tv_nsec - before.tv_nsec) / 1e3);
}

static struct ibv_qp *make_qp(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);

	if (!qp)
		fail("ibv_create_qp", errno);
	return qp;
}

static void connect_qp(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1,
			     .port_num = 1,
			     .grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 64 } },
	};
	struct ibv_qp_attr rts = {
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1,
	};
	int err = ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);

	if (!err)
		err = ibv_modify_qp(qp, &rtr,
				    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (!err)
		err = ibv_modify_qp(qp, &rts,
				    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
	if (err)
		fail("ibv_modify_qp", err);
}

int main(int argc, char **argv)
{
	const char *device = NULL;
	long pairs = 0;
	size_t mib = 0;
	struct ibv_cq *cq;

	for (int opt; (opt = getopt(argc, argv, "d:g:n:r:")) != -1;) {
		switch (opt) {
		case 'd':
			device = optarg;
			break;
		case 'g':
			gid_index = atoi(optarg);
			break;
		case 'n':
			pairs = atol(optarg) / 2;
			break;
		case 'r':
			mib = strtoul(optarg, NULL, 10);
			break;
		default:
			fprintf(stderr, "usage: idleqps [-d DEVICE] [-g GID_INDEX] [-n QPS] [-r MIB]\n");
			return 2;
		}
	}
	open_device(device);
	if (mib)
		time_registration(mib);
	cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	if (!cq)
		fail("ibv_create_cq", errno);
	for (long i = 0; i < pairs; i++) {
		struct ibv_qp *a = make_qp(cq), *b = make_qp(cq);

		connect_qp(a, b->qp_num);
		connect_qp(b, a->qp_num);
	}
	printf("ready\n");
	fflush(stdout);
	if (pairs)
		pause();
	return 0;
}

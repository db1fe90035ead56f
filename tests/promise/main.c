/* promise [-d device]: makes as many objects as the device claims to support, and destroys them. Prints what was
 * promised, what was given, and the seconds that both took. */
#include "rc.h"
#include <errno.h>

const char *program = "promise";

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

static void *make_qp(void)
{
	struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };

	return ibv_create_qp(pd, &attr);
}

static int destroy_qp(void *qp)
{
	return ibv_destroy_qp(qp);
}

static void *make_cq(void)
{
	return ibv_create_cq(ctx, 1, NULL, NULL, 0);
}

static int destroy_cq(void *object)
{
	return ibv_destroy_cq(object);
}

static void *make_pd(void)
{
	return ibv_alloc_pd(ctx);
}

static int destroy_pd(void *object)
{
	return ibv_dealloc_pd(object);
}

/* `there` exist already. */
static void keep(const char *what, int promised, int there, void *(*make)(void), int (*destroy)(void *))
{
	void **objects = calloc((size_t)promised, sizeof *objects);
	double start = now(), made;
	int given = there;

	while (given < promised && (objects[given] = make()))
		given++;
	made = now() - start;
	if (given == promised && make())
		given++;
	start = now();
	for (int i = there; i < given && i < promised; i++)
		if (destroy(objects[i]))
			die("cannot destroy one of the %s: %s", what, strerror(errno));
	say("%s: promised %d, given %d, made in %.2f s, destroyed in %.2f s", what, promised, given, made, now() - start);
	free(objects);
}

int main(int argc, char **argv)
{
	struct rc_options options = rc_defaults;
	struct ibv_device_attr attr;

	rc_parse(&options, argc, argv);
	ctx = rc_open_device(options.device);
	if (ibv_query_device(ctx, &attr))
		die("ibv_query_device: %s", strerror(errno));
	pd = ibv_alloc_pd(ctx);
	cq = ibv_create_cq(ctx, 1, NULL, NULL, 0);
	if (!pd || !cq)
		die("no object at all: %s", strerror(errno));
	keep("queue pairs", attr.max_qp, 0, make_qp, destroy_qp);
	keep("completion queues", attr.max_cq, 1, make_cq, destroy_cq);
	keep("protection domains", attr.max_pd, 1, make_pd, destroy_pd);
	return 0;
}

/* Queue pairs whose peers do not answer. */
#include "victim.h"
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <unistd.h>

enum { QUEUES = 64, REQUESTS = 16, LENGTH = 65536, PATIENCE = 15 };

int goes_unanswered(const struct rc_options *opt)
{
	static struct rc all[QUEUES];
	struct rc_place peer = { .qpn = 77, .psn = 1, .rkey = 1 };
	int told, statuses[IBV_WC_GENERAL_ERR + 1] = { 0 };
	char address[64];
	struct ibv_wc wc;
	sigset_t go;
	double began;

	snprintf(address, sizeof address, "::ffff:%s", opt->host ? opt->host : "");
	if (inet_pton(AF_INET6, address, &peer.gid) != 1)
		die("usage: unanswered IPV4-ADDRESS");
	sigemptyset(&go);
	sigaddset(&go, SIGUSR1);
	sigprocmask(SIG_BLOCK, &go, NULL);
	for (int i = 0; i < QUEUES; i++) {
		if (i) {
			all[i].ctx = all[0].ctx;
			all[i].pd = all[0].pd;
		} else {
			all[0].ctx = rc_open_device(opt->device);
			all[0].send_cq = ibv_create_cq(all[0].ctx, 2 * QUEUES * REQUESTS, NULL, NULL, 0);
		}
		all[i].send_cq = all[i].recv_cq = all[0].send_cq;
		rc_make(&all[i], opt, LENGTH);
		rc_connect(&all[i], &peer);
	}
	say("connected");
	sigwait(&go, &told);
	for (int i = 0; i < QUEUES; i++)
		for (int k = 0; k < REQUESTS; k++)
			if (rc_post_send(&all[i], IBV_WR_RDMA_WRITE, (uint64_t)i, 0, LENGTH, &peer))
				die("ibv_post_send failed");
	began = now();
	for (int i = 0; i < QUEUES * REQUESTS; i++) {
		while (!ibv_poll_cq(all[0].send_cq, 1, &wc)) {
			if (now() - began > PATIENCE)
				die("%d of %d completions in %d s", i, QUEUES * REQUESTS, PATIENCE);
			usleep(100);
		}
		statuses[wc.status]++;
	}
	say("%d gave up, %d flushed", statuses[IBV_WC_RETRY_EXC_ERR], statuses[IBV_WC_WR_FLUSH_ERR]);
	return 0;
}

/* What the files of this program share. */
#include "cm.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdlib.h>

const char *address, *absent;
int failures;

struct sockaddr *at(const char *ip, int port)
{
	static struct sockaddr_in found[4];
	static int next;
	struct sockaddr_in *in = &found[next++ % 4];
	*in = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port) };
	inet_pton(AF_INET, ip, &in->sin_addr);
	return (struct sockaddr *)in;
}

struct rdma_cm_id *new_id(struct rdma_event_channel *channel, enum rdma_port_space space)
{
	struct rdma_cm_id *id = NULL;
	EXPECT(0, rdma_create_id(channel, &id, NULL, space));
	if (!id)
		exit(1);
	return id;
}

void is_silent(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event;
	int flags = fcntl(channel->fd, F_GETFL);
	fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK);
	EXPECT(EAGAIN, rdma_get_cm_event(channel, &event));
	fcntl(channel->fd, F_SETFL, flags);
}

void destroy(struct rdma_cm_id *id)
{
	if (!id)
		return;
	if (id->qp)
		rdma_destroy_qp(id);
	EXPECT(0, rdma_destroy_id(id));
}

/* Addresses that are said to be longer than any is. */
#include "sockets.h"

enum { PORT = 7410 };

static void of(int kind)
{
	static const socklen_t lengths[] = { sizeof(struct sockaddr_storage) + 1, 1 << 20, 1U << 31, -1 };
	struct sockaddr_storage room = { 0 };
	struct sockaddr *to = (struct sockaddr *)&room;
	struct msghdr message = { .msg_name = to, .msg_iov = &(struct iovec){ "x", 1 }, .msg_iovlen = 1 };
	int fd = socket(AF_INET, kind, 0);
	*(struct sockaddr_in *)to = at(PORT);
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		EXPECT(EINVAL, bind(fd, to, lengths[i]));
		EXPECT(EINVAL, connect(fd, to, lengths[i]));
		EXPECT(EINVAL, bind(fd, NULL, lengths[i]));
		if (kind == SOCK_STREAM)
			continue;
		message.msg_namelen = lengths[i];
		EXPECT(EINVAL, sendto(fd, "x", 1, 0, to, lengths[i]) < 0);
		/* Those of messages are cut. */
		EXPECT((int)lengths[i] < 0 ? EINVAL : 0, sendmsg(fd, &message, 0) < 0);
	}
	EXPECT(0, close(fd));
	fd = socket(AF_INET, kind, 0);
	EXPECT(0, bind(fd, to, sizeof room));
	EXPECT(0, close(fd));
}

void addresses(void)
{
	of(SOCK_STREAM);
	of(SOCK_DGRAM);
}

/* The TCP connection by which two processes exchange the addresses of their queue pairs. */
#include "rc.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

static int accept_one(int port)
{
	int one = 1, zero = 0, fd = socket(AF_INET6, SOCK_STREAM, 0), peer;
	struct sockaddr_in6 addr = { .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port), .sin6_addr = in6addr_any };

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
	if (bind(fd, (void *)&addr, sizeof addr) || listen(fd, 1) || (peer = accept(fd, NULL, NULL)) < 0)
		die("TCP port %d: %s", port, strerror(errno));
	close(fd);
	return peer;
}

int oob_open(const struct rc_options *opt)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *info;
	char service[8];

	if (!opt->host)
		return accept_one(opt->port);
	snprintf(service, sizeof service, "%u", (unsigned)opt->port & 0xffff);
	if (getaddrinfo(opt->host, service, &hints, &info))
		die("cannot resolve %s", opt->host);
	for (int attempt = 0; attempt < 1000; attempt++) {
		int fd = socket(info->ai_family, SOCK_STREAM, 0);

		if (!connect(fd, info->ai_addr, info->ai_addrlen)) {
			freeaddrinfo(info);
			return fd;
		}
		close(fd);
		usleep(5 * 1000);
	}
	die("cannot connect to %s port %d", opt->host, opt->port);
}

void oob_swap(int fd, const void *mine, void *theirs, size_t len)
{
	if (send(fd, mine, len, MSG_NOSIGNAL) != (ssize_t)len || recv(fd, theirs, len, MSG_WAITALL) != (ssize_t)len)
		die("the other process is gone");
}

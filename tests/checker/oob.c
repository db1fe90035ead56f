/* The out-of-band TCP connection: connection data, and the final message counts. */
#include "checker.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

static int listen_and_accept(int port)
{
	int one = 1, zero = 0, fd = socket(AF_INET6, SOCK_STREAM, 0);
	struct sockaddr_in6 addr = { .sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = in6addr_any };
	struct sockaddr_in addr4 = { .sin_family = AF_INET, .sin_port = htons(port) };

	if (fd >= 0) {
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
	}
	if (fd < 0 || bind(fd, (void *)&addr, sizeof addr)) {
		/* A host without IPv6. */
		if (fd >= 0)
			close(fd);
		fd = socket(AF_INET, SOCK_STREAM, 0);
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
		if (bind(fd, (void *)&addr4, sizeof addr4))
			die("cannot bind TCP port %d: %s", port, strerror(errno));
	}
	if (listen(fd, 1))
		die("listen: %s", strerror(errno));
	int peer = accept(fd, NULL, NULL);
	if (peer < 0)
		die("accept: %s", strerror(errno));
	close(fd);
	return peer;
}

static int connect_with_retries(const char *host, int port)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *info;
	char service[8];

	snprintf(service, sizeof service, "%d", port);
	if (getaddrinfo(host, service, &hints, &info))
		die("cannot resolve %s", host);
	for (int attempt = 0; attempt < 100; attempt++) {
		int fd = socket(info->ai_family, SOCK_STREAM, 0);

		if (!connect(fd, info->ai_addr, info->ai_addrlen)) {
			freeaddrinfo(info);
			return fd;
		}
		close(fd);
		usleep(100 * 1000);
	}
	die("cannot connect to %s port %d", host, port);
}

int oob_connect(const struct options *opt)
{
	int one = 1, fd = opt->server ? listen_and_accept(opt->port) : connect_with_retries(opt->host, opt->port);

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	return fd;
}

void oob_send(int fd, const void *data, size_t len)
{
	if (send(fd, data, len, MSG_NOSIGNAL) != (ssize_t)len)
		die("the peer's checker is gone (%s)", strerror(errno));
}

void oob_exchange(int fd, const void *mine, void *theirs, size_t len)
{
	oob_send(fd, mine, len);
	if (recv(fd, theirs, len, MSG_WAITALL) != (ssize_t)len)
		die("the peer's checker ended before the exchange");
}

bool oob_try_recv(int fd, void *data, size_t len)
{
	ssize_t n = recv(fd, data, len, MSG_DONTWAIT | MSG_PEEK);

	if (n == 0)
		die("the peer's checker ended early");
	if (n < (ssize_t)len)
		return false;
	return recv(fd, data, len, 0) == (ssize_t)len;
}

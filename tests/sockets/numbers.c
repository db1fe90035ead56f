/* Sockets that have the numbers which descriptors of the engine's threads have in their own table. */
#include "sockets.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

enum { PORT = 7420, SOCKETS = 300, CONNECTIONS = 30 };

static bool is_socket(int fd)
{
	struct stat about;
	int kind = 0;
	socklen_t len = sizeof kind;
	return !fstat(fd, &about) && S_ISSOCK(about.st_mode) && !getsockopt(fd, SOL_SOCKET, SO_TYPE, &kind, &len) &&
	       kind == SOCK_STREAM;
}

static atomic_bool connected;

static void *asks(void *fds)
{
	while (!connected)
		for (int i = 0; i < SOCKETS; i++)
			HOLDS(is_socket(((int *)fds)[i]));
	return NULL;
}

void numbers(void)
{
	static int fds[SOCKETS];
	pthread_t thread;
	int ends[2];
	char byte;

	for (int i = 0; i < SOCKETS; i++)
		fds[i] = socket(AF_INET, SOCK_STREAM, 0);
	EXPECT(0, pthread_create(&thread, NULL, asks, fds));
	/* The engine opens and closes what queue pairs need. */
	for (int i = 0; i < CONNECTIONS; i++) {
		connect_ends(PORT + i, ends);
		HOLDS(send(ends[0], "x", 1, 0) == 1);
		HOLDS(recv(ends[1], &byte, 1, 0) == 1);
		EXPECT(0, close(ends[0]));
		EXPECT(0, close(ends[1]));
	}
	connected = true;
	pthread_join(thread, NULL);
	for (int i = 0; i < SOCKETS; i++) {
		HOLDS(is_socket(fds[i]));
		EXPECT(0, close(fds[i]));
	}
}

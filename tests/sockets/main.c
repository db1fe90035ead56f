/* sockets ADDRESS CASE
 *
 * A program that knows only sockets, which become rsockets of the device with this address. Prints
 * each answer that is not the kernel's. */
#include "sockets.h"
#include <arpa/inet.h>
#include <pthread.h>

int failures;
static const char *address;

static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {
	{ "addresses", addresses },
	{ "numbers", numbers },
	{ "sets", sets },
};

struct sockaddr_in at(int port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };
	inet_pton(AF_INET, address, &at.sin_addr);
	return at;
}

static int listener;

static void *accepts(void *end)
{
	*(int *)end = accept(listener, NULL, NULL);
	return NULL;
}

void connect_ends(int port, int ends[2])
{
	struct sockaddr_in to = at(port);
	pthread_t thread;
	listener = socket(AF_INET, SOCK_STREAM, 0);
	ends[0] = socket(AF_INET, SOCK_STREAM, 0);
	EXPECT(0, bind(listener, (struct sockaddr *)&to, sizeof to));
	EXPECT(0, listen(listener, 1));
	EXPECT(0, pthread_create(&thread, NULL, accepts, &ends[1]));
	EXPECT(0, connect(ends[0], (struct sockaddr *)&to, sizeof to));
	pthread_join(thread, NULL);
	HOLDS(ends[1] >= 0);
	EXPECT(0, close(listener));
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	address = argv[1];
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		if (!strcmp(argv[2], cases[i].name)) {
			cases[i].run();
			return failures != 0;
		}
	return 2;
}

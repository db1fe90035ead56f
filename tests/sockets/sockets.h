/* What the files of this program share. */
#pragma once
#include "expect.h"
#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <unistd.h>

/* Where the program listens. */
struct sockaddr_in at(int port);
/* A stream of the program with itself: both ends. */
void connect_ends(int port, int ends[2]);

void addresses(void);
void numbers(void);
void sets(void);

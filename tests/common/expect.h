/* What a program of tests expects. It prints what is not so, and goes on. */
#ifndef EXPECT_H
#define EXPECT_H

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* How often something was not so. The program defines it. */
extern int failures;

/* The errno of a call, 0 for one that succeeds. */
#define EXPECT(want, call) do { \
	errno = 0; \
	int got = (call) ? errno : 0; \
	if (got != (want)) { \
		fprintf(stderr, "%d: %s: %s instead of %s\n", __LINE__, #call, strerror(got), strerror(want)); \
		failures++; \
	} } while (0)
#define HOLDS(what) do { \
	if (!(what)) { \
		fprintf(stderr, "%d: not so: %s\n", __LINE__, #what); \
		failures++; \
	} } while (0)

#endif

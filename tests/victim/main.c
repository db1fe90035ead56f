/* An application that dies, forks, execs or waits, as the test that starts it says. */
#include "victim.h"

const char *program = "victim";

static const struct {
	const char *name, *what;
	int (*run)(const struct rc_options *opt);
} roles[] = {
	{ "stream", "move data to and from HOST until a completion fails", stream },
	{ "leave", "do the same for a moment, then end without destroying anything", stream_and_leave },
	{ "vanish", "receive messages from a peer, or send them to HOST, and end by _exit with the last one", vanishes },
	{ "fork", "fork children that use, destroy, close and misuse what they inherit", forks },
	{ "orphan", "leave a child that keeps every descriptor open", orphan },
	{ "exec", "replace itself by another program (exec)", becomes_another },
	{ "mainless", "go on after the main thread has ended", loses_main_thread },
	{ "reborn", "die and let an unrelated process get the same process id while a peer writes", is_reborn },
	{ "exploit", "exec the program HOST while a peer writes", becomes_root },
	{ "wait", "wait for completions and events, in every way, until the daemon dies", waits_for_daemon },
	{ "events", "print asynchronous events", watches_events },
	{ "hold", "open HOST queue pairs and sleep", holds },
	{ "unanswered", "connect to a QP that does not exist at address HOST, and post after SIGUSR1", goes_unanswered },
	{ "late", "post now and then, alone and beside a stream", comes_late },
	{ "clock", "compare completion timestamps with the clock", reads_clocks },
	{ "stall", "keep the engine waiting for a page that never comes, or for one of the file HOST", stalls },
	{ "guard", "watch registered memory that no other program has a key for", guards },
};

int main(int argc, char **argv)
{
	struct rc_options opt = rc_defaults;
	char **words = rc_parse(&opt, argc, argv);

	for (size_t i = 0; words[0] && i < sizeof roles / sizeof *roles; i++) {
		if (!strcmp(words[0], roles[i].name)) {
			opt.host = words[1];
			return roles[i].run(&opt);
		}
	}
	fprintf(stderr, "usage: victim [-d device] [-g gid index] [-p port] [-T timeout] [-r retries] ROLE [HOST]\n");
	for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
		fprintf(stderr, "  %-10s %s\n", roles[i].name, roles[i].what);
	return 2;
}

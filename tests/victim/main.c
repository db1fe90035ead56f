/* An application to which bad things happen; the test that starts it says which. */
#include "victim.h"

const char *program = "victim";

static const struct {
	const char *name, *what;
	int (*run)(const struct rc_options *opt);
} roles[] = {
	{ "stream", "move data to and from HOST until a completion fails", stream },
	{ "leave", "the same for a moment, then end without destroying anything", stream_and_leave },
	{ "fork", "make children that use, destroy, close and abuse what they inherit", forks },
	{ "orphan", "leave a child behind that holds every descriptor", orphan },
	{ "exec", "become another program", becomes_another },
	{ "mainless", "go on after the main thread has ended", loses_main_thread },
	{ "reborn", "give one's process id to a stranger while a peer writes", is_reborn },
	{ "exploit", "become the program HOST while a peer writes", becomes_root },
	{ "wait", "wait in every way for a daemon that dies", waits_for_daemon },
	{ "events", "print asynchronous events", watches_events },
	{ "hold", "open HOST queue pairs and sleep", holds },
	{ "unanswered", "connect to nobody at address HOST, and post when told by SIGUSR1", goes_unanswered },
	{ "late", "post now and then, beside a stream", comes_late },
	{ "clock", "compare completion timestamps with the clock", reads_clocks },
	{ "stall", "keep the engine waiting for a page that never comes", stalls },
	{ "guard", "watch registered memory that nobody has a reason to touch", guards },
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

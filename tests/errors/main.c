/* errors [-d device] [-g gid index] MISTAKE|list|list-driving|list-resting */
#include "errors.h"

const char *program = "errors";
struct rc_options options;

/* Whether the word was one of the table, or asked for its names. */
static bool made(const struct mistake *table, const char *word, const char *list)
{
	for (const struct mistake *m = table; m->name; m++) {
		if (!strcmp(word, list))
			say("%s", m->name);
		if (!strcmp(word, m->name)) {
			m->make();
			return true;
		}
	}
	return !strcmp(word, list);
}

int main(int argc, char **argv)
{
	const struct mistake *const tables[] = { posting, creating, modifying, breaking, using, memory };
	bool is_made = false;
	char **words;

	options = rc_defaults;
	words = rc_parse(&options, argc, argv);
	if (!words[0])
		die("usage: errors [-d device] [-g gid index] list|list-driving|list-resting|MISTAKE");
	for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
		is_made |= made(tables[t], words[0], "list");
	is_made |= made(driving, words[0], "list-driving") | made(driving_threads, words[0], "list-driving");
	is_made |= made(resting, words[0], "list-resting") | made(resting_threads, words[0], "list-resting");
	if (!strcmp(words[0], "list"))
		list_wire_mistakes();
	else if (!is_made && !wire_mistake(words[0]))
		die("no mistake is called %s", words[0]);
	return 0;
}

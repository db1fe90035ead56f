/* errors [-d device] [-g gid index] MISTAKE|--list */
#include "errors.h"

const char *program = "errors";
struct rc_options options;

int main(int argc, char **argv)
{
	const struct mistake *const tables[] = { posting, creating, modifying, breaking, using, memory };
	char **words;

	options = rc_defaults;
	words = rc_parse(&options, argc, argv);
	if (!words[0])
		die("usage: errors [-d device] [-g gid index] list|MISTAKE");
	for (size_t t = 0; t < sizeof tables / sizeof *tables; t++) {
		for (const struct mistake *m = tables[t]; m->name; m++) {
			if (!strcmp(words[0], "list"))
				say("%s", m->name);
			if (!strcmp(words[0], m->name)) {
				m->make();
				return 0;
			}
		}
	}
	if (!strcmp(words[0], "list"))
		list_wire_mistakes();
	else if (!wire_mistake(words[0]))
		die("no mistake is called %s", words[0]);
	return 0;
}

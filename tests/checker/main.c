/* Command line of the checker. */
#include "checker.h"
#include <getopt.h>

static const char usage[] =
	"usage: checker [options]            the side that listens\n"
	"       checker [options] HOST       the side that connects\n"
	"Both sides need the same --seed, --sizes, --ops, --first, --depth and --sge.\n"
	"  -d, --device NAME    RDMA device (the first)\n"
	"  -g, --gid N          GID index (0)\n"
	"  -m, --mtu BYTES      path MTU (1024)\n"
	"  -p, --port N         TCP port (18600)\n"
	"  -n, --messages N     messages each side sends (2000)\n"
	"  -t, --seconds S      send for S seconds instead of a count\n"
	"  -i, --interval S     say every S seconds how much was moved; SIGTERM ends the sending\n"
	"  -s, --sizes LIST     message sizes, e.g. 0,1,4096 (a range around the path MTU)\n"
	"  -o, --ops LIST       of send,send_imm,write,write_imm,read,cas,fadd (all)\n"
	"      --first OP       of the first message, whatever the list\n"
	"  -q, --depth N        messages in flight, a multiple of 4, at least 8 (16)\n"
	"  -S, --sge N          most SGEs of a message, up to 8 (4)\n"
	"  -R, --rd-atomic N    outstanding READs and atomics (4)\n"
	"  -T, --timeout N      local ACK timeout exponent (14)\n"
	"  -r, --retry N        transport retries (7)\n"
	"  -x, --seed N         seed of both schedules (1)\n"
	"  -e, --events         sleep on completion events\n"
	"  -w, --with PID       a process that works for this one on the same CPU, up to 4: time that\n"
	"                       others had there is not counted in what it tells of its own pauses\n"
	"      --no-fence       send nothing fenced\n"
	"      --quiet          print nothing when all is well\n";

static int parse_op(const char *name)
{
	for (int op = 0; op < OP_COUNT; op++)
		if (!strcmp(name, op_names[op]))
			return op;
	die("unknown operation %s", name);
}

static void parse_ops(struct options *opt, char *list)
{
	opt->ops = 0;
	for (char *name = strtok(list, ","); name; name = strtok(NULL, ","))
		opt->ops |= 1u << parse_op(name);
}

static void parse_sizes(struct options *opt, char *list)
{
	opt->num_sizes = 0;
	for (char *size = strtok(list, ","); size; size = strtok(NULL, ",")) {
		if (opt->num_sizes == MAX_SIZES)
			die("more than %d sizes", MAX_SIZES);
		opt->sizes[opt->num_sizes++] = strtoull(size, NULL, 0);
	}
}

static void add_helper(struct options *opt, pid_t pid)
{
	if (opt->num_helpers == MAX_HELPERS)
		die("more than %d processes", MAX_HELPERS);
	opt->helpers[opt->num_helpers++] = pid;
}

static void default_sizes(struct options *opt, size_t mtu)
{
	const size_t sizes[] = { 0, 1, 2, 3, 5, 8, 63, 64, 65, 127, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu - 1,
		16 * mtu + 7, 65536, 262144 + 3, 1 << 20 };

	opt->num_sizes = sizeof sizes / sizeof *sizes;
	memcpy(opt->sizes, sizes, sizeof sizes);
}

static int mtu_code(long bytes)
{
	for (int code = 1; code <= 5; code++)
		if (bytes == 128 << code)
			return code;
	die("%ld is not a path MTU", bytes);
}

static void parse(struct options *opt, int argc, char **argv)
{
	static const struct option options[] = {
		{ "device", 1, 0, 'd' }, { "gid", 1, 0, 'g' }, { "mtu", 1, 0, 'm' }, { "port", 1, 0, 'p' },
		{ "messages", 1, 0, 'n' }, { "seconds", 1, 0, 't' }, { "interval", 1, 0, 'i' }, { "sizes", 1, 0, 's' }, { "ops", 1, 0, 'o' },
		{ "depth", 1, 0, 'q' }, { "sge", 1, 0, 'S' }, { "rd-atomic", 1, 0, 'R' }, { "timeout", 1, 0, 'T' },
		{ "retry", 1, 0, 'r' }, { "seed", 1, 0, 'x' }, { "events", 0, 0, 'e' }, { "quiet", 0, 0, 'Q' },
		{ "with", 1, 0, 'w' }, { "no-fence", 0, 0, 'F' }, { "first", 1, 0, '1' },
		{ "help", 0, 0, 'h' }, { 0 } };
	long mtu = 1024;
	int c;

	while ((c = getopt_long(argc, argv, "d:g:m:p:n:t:i:s:o:q:S:R:T:r:x:w:eh", options, NULL)) != -1) {
		switch (c) {
		case 'd': opt->device = optarg; break;
		case 'g': opt->gid_index = atoi(optarg); break;
		case 'm': mtu = atol(optarg); break;
		case 'p': opt->port = atoi(optarg); break;
		case 'n': opt->messages = strtoull(optarg, NULL, 0); break;
		case 't': opt->seconds = atof(optarg); break;
		case 'i': opt->interval = atof(optarg); break;
		case 's': parse_sizes(opt, optarg); break;
		case 'o': parse_ops(opt, optarg); break;
		case 'q': opt->depth = (unsigned)atoi(optarg); break;
		case 'S': opt->max_sge = (unsigned)atoi(optarg); break;
		case 'R': opt->rd_atomic = (unsigned)atoi(optarg); break;
		case 'T': opt->timeout = (unsigned)atoi(optarg); break;
		case 'r': opt->retry = (unsigned)atoi(optarg); break;
		case 'x': opt->seed = strtoull(optarg, NULL, 0); break;
		case 'w': add_helper(opt, atoi(optarg)); break;
		case 'e': opt->events = true; break;
		case 'F': opt->no_fence = true; break;
		case '1': opt->first = parse_op(optarg); break;
		case 'Q': opt->quiet = true; break;
		case 'h': fputs(usage, stdout); exit(0);
		default: fputs(usage, stderr); exit(2);
		}
	}
	opt->mtu = mtu_code(mtu);
	if (!opt->num_sizes)
		default_sizes(opt, (size_t)mtu);
	for (unsigned i = 0; i < opt->num_sizes; i++)
		if (opt->sizes[i] > opt->max_size)
			opt->max_size = opt->sizes[i];
	if (opt->depth < 8 || opt->depth % 4 || opt->max_sge < 1 || opt->max_sge > MAX_SGES)
		die("--depth must be a multiple of 4 from 8 on, --sge 1 to %d", MAX_SGES);
	opt->server = optind == argc;
	opt->host = argv[optind];
}

int main(int argc, char **argv)
{
	struct options opt = { .port = 18600, .messages = 2000, .depth = 16, .max_sge = 4, .rd_atomic = 4,
		.timeout = 14, .retry = 7, .seed = 1, .ops = (1u << OP_COUNT) - 1, .first = -1 };
	struct side side = { 0 };

	setvbuf(stdout, NULL, _IOLBF, 0);
	parse(&opt, argc, argv);
	side_open(&side, &opt);
	side_connect(&side);
	run(&side);
	side_close(&side);
	return 0;
}

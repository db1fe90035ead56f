/* What is sent, and what its bytes are: pure functions of a seed. */
#include "checker.h"

const char *const op_names[OP_COUNT] = { "send", "send_imm", "write", "write_imm", "read", "cas", "fadd" };

uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

bool takes_receive(enum op op)
{
	return op == OP_SEND || op == OP_SEND_IMM || op == OP_WRITE_IMM;
}

bool is_active(const struct message *m)
{
	return takes_receive(m->op) || (m->op == OP_WRITE && m->size);
}

struct message schedule(const struct options *opt, uint64_t seed, uint64_t index)
{
	uint64_t r = mix(seed ^ mix(index));
	struct message m = { 0 };
	unsigned choice = r % OP_COUNT;

	while (!(opt->ops >> choice & 1))
		choice = (choice + 1) % OP_COUNT;
	if (index == 0 && opt->first >= 0)
		choice = (unsigned)opt->first;
	m.op = choice;
	r = mix(r);
	m.size = m.op == OP_CAS || m.op == OP_FADD ? 8 : opt->sizes[r % opt->num_sizes];
	r = mix(r);
	m.num_sge = m.size ? 1 + r % opt->max_sge : 0;
	m.num_recv_sge = m.size ? 1 + (r >> 8) % opt->max_sge : 0;
	if (m.num_sge > m.size)
		m.num_sge = m.size;
	if (m.num_recv_sge > m.size)
		m.num_recv_sge = m.size;
	if (m.op == OP_CAS || m.op == OP_FADD)
		m.num_sge = 1;
	m.offset = (r >> 16) % 32;
	m.inlined = (r >> 32 & 3) == 0;
	/* Unsignaled runs are short, so that the send queue never fills with them. */
	m.signaled = (r >> 34 & 3) != 0 || index % 4 == 3;
	m.solicited = r >> 36 & 1;
	m.fenced = (r >> 37 & 7) == 0;
	return m;
}

uint64_t fadd_operand(uint64_t seed, uint64_t index)
{
	return mix(seed + 17 * index);
}

static uint64_t pattern_word(uint64_t key, uint64_t word)
{
	uint64_t x = (key ^ word) * 0x9e3779b97f4a7c15ull;

	return x ^ (x >> 29);
}

void fill_pattern(unsigned char *to, size_t len, uint64_t key, uint64_t start)
{
	for (size_t i = 0; i < len;) {
		uint64_t at = start + i, word = pattern_word(key, at / 8);
		size_t from = at % 8, n = 8 - from;

		if (n > len - i)
			n = len - i;
		memcpy(to + i, (unsigned char *)&word + from, n);
		i += n;
	}
}

long check_pattern(const unsigned char *at, size_t len, uint64_t key, uint64_t start)
{
	for (size_t i = 0; i < len;) {
		uint64_t pos = start + i, word = pattern_word(key, pos / 8);
		size_t from = pos % 8, n = 8 - from;

		if (n > len - i)
			n = len - i;
		if (memcmp(at + i, (unsigned char *)&word + from, n)) {
			while (at[i] == ((unsigned char *)&word)[(start + i) % 8])
				i++;
			return (long)i;
		}
		i += n;
	}
	return -1;
}

/*
 * Which connections may leave TCP: the lists of the environment, as package config of the Go module
 * has them. 'gosmc run' has put the configuration file's lists there, and has checked all of it. A
 * list that is not understood here, or is too long, refuses everything. Lists are read once: the
 * program may change its environment.
 */
#include "preload.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MAX_ITEMS 64
#define MAX_ITEM 64 /* bytes */

struct port_item {
	uint32_t from, to; /* none: from > to */
	bool not;
};

struct address_item {
	uint8_t ip[16];
	uint8_t bits;
	bool any, none, not ;
};

/* A list of ports and one of addresses. positive: it has items that are no exceptions. */
struct filter {
	struct port_item ports[MAX_ITEMS];
	struct address_item addresses[MAX_ITEMS];
	unsigned port_count, address_count;
	bool port_positive, address_positive;
};

static struct filter listening, connecting, machine;
static bool refuse_all, machine_unknown;

static bool parse_number(const char *s, const char *end, uint32_t *n)
{
	*n = 0;
	if (s == end || end - s > 5)
		return false;
	for (; s < end; s++) {
		if (*s < '0' || *s > '9')
			return false;
		*n = *n * 10 + (uint32_t)(*s - '0');
	}
	return true;
}

static bool parse_port(struct filter *f, const char *s, bool not)
{
	struct port_item p = {.from = 0, .to = 65535, .not = not};
	const char *end = s + strlen(s);
	const char *dash = strchr(s, '-');

	if (strcmp(s, "none") == 0) {
		p.from = 1;
		p.to = 0;
	} else if (strcmp(s, "any") != 0) {
		if (!parse_number(s, dash ? dash : end, &p.from) ||
			!parse_number(dash ? dash + 1 : s, end, &p.to) || p.from > p.to)
			return false;
	}
	if (f->port_count == MAX_ITEMS)
		return false;
	f->ports[f->port_count++] = p;
	f->port_positive |= !not;
	return true;
}

static bool parse_address(struct filter *f, char *s, bool not)
{
	struct address_item a = {.not = not};
	char *slash = strchr(s, '/');
	uint32_t bits = 128;
	struct in_addr v4;

	if (strcmp(s, "any") == 0) {
		a.any = true;
	} else if (strcmp(s, "none") == 0) {
		a.none = true;
	} else {
		if (slash) {
			*slash = 0;
			if (!parse_number(slash + 1, slash + 1 + strlen(slash + 1), &bits))
				return false;
		}
		if (inet_pton(AF_INET, s, &v4) == 1) {
			a.ip[10] = a.ip[11] = 0xff;
			memcpy(a.ip + 12, &v4, 4);
			bits = slash ? bits + 96 : 128;
		} else if (inet_pton(AF_INET6, s, a.ip) != 1) {
			return false;
		}
		if (bits > 128)
			return false;
		a.bits = (uint8_t)bits;
	}
	if (f->address_count == MAX_ITEMS)
		return false;
	f->addresses[f->address_count++] = a;
	f->address_positive |= !not;
	return true;
}

/*
 * next_item copies an item of a list, which are separated by commas and spaces. Below 0: it is too long; 0:
 * there is none.
 */
static int next_item(const char **list, char item[static MAX_ITEM])
{
	size_t n;

	*list += strspn(*list, ", ");
	n = strcspn(*list, ", ");
	if (n >= MAX_ITEM)
		return -1;
	memcpy(item, *list, n);
	item[n] = 0;
	*list += n;
	return (int)n;
}

enum what { PORTS, ADDRESSES };

static bool parse_list(struct filter *f, enum what what, const char *name)
{
	const char *list = getenv(name);
	char item[MAX_ITEM];
	int n;

	if (!list)
		return true;
	while ((n = next_item(&list, item)) > 0) {
		bool not = item[0] == '!';
		char *s = item + (not ? 1 : 0);

		if (what == PORTS ? !parse_port(f, s, not) : !parse_address(f, s, not))
			return false;
	}
	return n == 0;
}

/* program_allowed says whether the list of programs lets us be one of them. */
static bool program_allowed(void)
{
	const char *list = getenv("GOSMC_PROGRAMS");
	const char *name = program_invocation_short_name;
	bool positive = false;
	bool among = false;
	char item[MAX_ITEM];
	int n;

	if (!list)
		return true;
	if (name[0] == '-') /* a login shell */
		name++;
	while ((n = next_item(&list, item)) > 0) {
		bool not = item[0] == '!';
		bool match = strcmp(item + (not ? 1 : 0), name) == 0 || strcmp(item + (not ? 1 : 0), "any") == 0;

		if (match && not)
			return false;
		positive |= !not;
		among |= match;
	}
	return n == 0 && (among || !positive);
}

void policy_read(void)
{
	refuse_all = !program_allowed() || !parse_list(&listening, PORTS, "GOSMC_LISTEN_PORTS") ||
		     !parse_list(&listening, ADDRESSES, "GOSMC_LISTEN_ADDRESSES") ||
		     !parse_list(&connecting, PORTS, "GOSMC_CONNECT_PORTS") ||
		     !parse_list(&connecting, ADDRESSES, "GOSMC_CONNECT_ADDRESSES");
	machine_unknown = !parse_list(&machine, ADDRESSES, "GOSMC_MACHINE_ADDRESSES");
}

static bool port_allowed(const struct filter *f, uint16_t port)
{
	bool allowed = !f->port_positive;

	for (unsigned i = 0; i < f->port_count; i++) {
		const struct port_item *p = &f->ports[i];

		if (port < p->from || port > p->to)
			continue;
		if (p->not)
			return false;
		allowed = true;
	}
	return allowed;
}

static bool is_v4(const uint8_t ip[static 16])
{
	static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

	return memcmp(ip, mapped, sizeof(mapped)) == 0;
}

static bool in_prefix(const struct address_item *p, const uint8_t ip[static 16])
{
	unsigned whole = p->bits / 8;
	uint8_t mask = (uint8_t)(0xff00 >> p->bits % 8);

	if (p->any)
		return true;
	if (p->none || is_v4(p->ip) != is_v4(ip) || memcmp(p->ip, ip, whole) != 0)
		return false;
	return whole == 16 || ((p->ip[whole] ^ ip[whole]) & mask) == 0;
}

static bool address_allowed(const struct filter *f, const uint8_t ip[static 16])
{
	bool allowed = !f->address_positive;

	for (unsigned i = 0; i < f->address_count; i++) {
		const struct address_item *p = &f->addresses[i];

		if (!in_prefix(p, ip))
			continue;
		if (p->not)
			return false;
		allowed = true;
	}
	return allowed;
}

/*
 * policy_listen says whether a listener may be announced. At all addresses it may: its supervisor looks at
 * each connection.
 */
bool policy_listen(const struct address *local)
{
	return !refuse_all && port_allowed(&listening, local->port) &&
	       (address_is_any(local) || address_allowed(&listening, local->ip));
}

/* policy_connect says whether a connection to a server may leave TCP. */
bool policy_connect(const struct address *server)
{
	return !refuse_all && port_allowed(&connecting, server->port) && address_allowed(&connecting, server->ip);
}

/*
 * policy_machine says whether a server can be on this machine: as the list says, which takes addresses from
 * the default or the default's place.
 */
bool policy_machine(const struct address *server, bool by_default)
{
	if (machine_unknown || (machine.address_count > 0 && !address_allowed(&machine, server->ip)))
		return false;
	return machine.address_positive || by_default;
}

/*
 * policy_disabled reads a value of GOSMC_DISABLED, NULL if it is not set. Words that ParseDisabled does not
 * know mean yes.
 */
bool policy_disabled(const char *v)
{
	static const char *const no[] = {"", "0", "no", "off", "false", "f"};

	for (size_t i = 0; v && i < sizeof(no) / sizeof(no[0]); i++)
		if (strcasecmp(v, no[i]) == 0)
			return false;
	return v != NULL;
}

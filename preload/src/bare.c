/*
 * Bare clients: connections that a listener of ours has accepted from programs of this machine that
 * did not offer them. They are counted in a table of the run directory that all programs of a user
 * map, for an operator who wants to know whether there are clients to start under gosmc run. The
 * supervisor subtracts those that were offered, and refused, or left to TCP by their clients.
 *
 * Every process with the user's rights can write there: the table decides nothing. The layout is in
 * docs/shared-memory.md.
 */
#include "ring.h"

#include <string.h>

#define BARE_MAGIC 0x3165726162736f67ull
#define BARES 4096
#define BARE_WAYS 16 /* places that a key may have */

/* The connections to a port of the programs of a supervisor. */
struct bare {
	uint64_t key; /* 0: free */
	uint64_t count;
};

struct bares {
	uint64_t magic;
	uint8_t pad[TABLE_PAGE - 8];
	struct bare list[BARES];
};
_Static_assert(sizeof(struct bares) == TABLE_PAGE + 16 * BARES, "struct bares");

static struct bares *table;
static bool tried; /* to map it */

/*
 * The ports of listeners, by descriptor; 0: not known. A descriptor may have become another one: then a
 * wrong port has one more.
 */
#define PORTS 1024
static uint16_t ports[PORTS];

static bool been[sizeof(struct bares) / TABLE_PAGE]; /* at its pages */

/*
 * bare_open notes a listener, and maps the table of a directory that nobody else can write to, once: when
 * there is the first listener, whose heirs may have another user.
 */
void bare_open(int fd, uint16_t port)
{
	if (fd < PORTS)
		__atomic_store_n(&ports[fd], port, __ATOMIC_RELAXED);
	if (settings.letters && !__atomic_exchange_n(&tried, true, __ATOMIC_RELAXED))
		__atomic_store_n(&table, table_map("bare", sizeof(*table), BARE_MAGIC), __ATOMIC_RELEASE);
}

/*
 * key_of is the key of a port: the hash of the name of the supervisor's socket, with the port as its last
 * 16 bits.
 */
static uint64_t key_of(uint16_t port)
{
	const char *name = settings.socket + settings.dir;

	return (fnv1a(FNV1A_BASIS, name, strlen(name)) & ~0xffffull) | port;
}

/*
 * bare_count counts a connection that was accepted just now, and not offered, if its client is in this
 * network namespace. peer is the client's address, NULL if accept has not told it.
 */
void bare_count(int listener, int fd, const struct address *peer)
{
	struct bares *t = __atomic_load_n(&table, __ATOMIC_ACQUIRE);
	struct identity id;
	uint64_t key;
	bool six;

	if (!t || (!peer && !address_of(fd, true, &id.peer, &six)))
		return;
	if (peer)
		id.peer = *peer;
	id.local.port = listener < PORTS ? __atomic_load_n(&ports[listener], __ATOMIC_RELAXED) : 0;
	/* A client of a loopback address is near. */
	if ((id.local.port == 0 || !address_is_loopback(&id.peer)) &&
		(!address_of(fd, false, &id.local, &six) || !letter_near(&id)))
		return;
	key = key_of(id.local.port);
	for (size_t i = 0; i < BARE_WAYS; i++) {
		struct bare *b = &t->list[(fnv1a(FNV1A_BASIS, &key, sizeof(key)) + i) % BARES];
		uint64_t has = 0;

		if (!table_there(&been[((const char *)b - (const char *)t) / TABLE_PAGE], b))
			return;
		if (__atomic_load_n(&b->key, __ATOMIC_ACQUIRE) == key ||
			__atomic_compare_exchange_n(
				&b->key, &has, key, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) ||
			has == key) {
			__atomic_fetch_add(&b->count, 1, __ATOMIC_RELAXED);
			return;
		}
	}
}

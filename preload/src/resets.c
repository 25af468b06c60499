/*
 * Resets: a program that has set SO_LINGER to 0 seconds has TCP reset the connection when it is
 * closed for the last time, by any process. The kernel reports a reset of a pair only if bytes are
 * unread. The rest is in a table, a file in the run directory that all programs of a user map. The
 * name of such an end is marked as long as it is to be reset. Its peer, which has found the end of
 * the sent bytes, looks whether it is marked. Bytes that are unread in a ring are found there: there
 * may be no token that says so to the kernel.
 *
 * Every process with the user's rights can write there, as it could kill a program. A file that is
 * cut off is nobody's end, though.
 */
#include "ring.h"

#define RESETS_MAGIC 0x31747372736f67ull
#define RESETS                                                                                               \
	8192 /* a mark that takes the place of another one has the connection of that end in an end of file  \
	      */

struct resets {
	uint64_t magic;
	uint32_t any; /* there was ever a mark */
	uint8_t pad[TABLE_PAGE - 12];
	uint64_t marks[RESETS]; /* of the end whose mark it is; 0: none */
};
_Static_assert(sizeof(struct resets) == TABLE_PAGE + 8 * RESETS, "struct resets");

static struct resets *table;

/* resets_open maps the table of a directory that nobody else can write to. */
void resets_open(void) { table = table_map("resets", sizeof(*table), RESETS_MAGIC); }

/*
 * slot is where the mark of one of the two ends of a pair is, or would be. NULL: it is none, or there is no
 * table.
 */
static uint64_t *slot(int fd, bool peer, uint64_t *key)
{
	struct sockaddr_un sun;
	uint64_t *at;

	if (!identity_name(fd, peer, &sun))
		return NULL;
	*key = fnv1a(FNV1A_BASIS, sun.sun_path, IDENTITY_NAME);
	at = &table->marks[*key % RESETS];
	*key = *key ? *key : 1;
	return table_writable(at) ? at : NULL;
}

/* reset_mark takes note whether the last close of an end of ours will be a reset. */
void reset_mark(int fd, bool on)
{
	uint64_t key;
	uint64_t *at;

	if (!table || guard_on() || !table_writable(table) ||
		(!on && !__atomic_load_n(&table->any, __ATOMIC_SEQ_CST)))
		return;
	at = slot(fd, false, &key);
	if (!at)
		return;
	if (on) {
		__atomic_store_n(at, key, __ATOMIC_SEQ_CST);
		__atomic_store_n(&table->any, 1, __ATOMIC_SEQ_CST);
	} else {
		__atomic_compare_exchange_n(at, &key, 0, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	}
}

/* reset_of is where the mark of the peer's end is, if it has one and the peer has it no more. */
static uint64_t *reset_of(const struct end *e, int fd, uint64_t *key)
{
	uint64_t *at;

	if (!table || (__atomic_load_n(&e->never, __ATOMIC_SEQ_CST) & GONE_RESET) ||
		!table_readable(&table->any) || !__atomic_load_n(&table->any, __ATOMIC_SEQ_CST))
		return NULL;
	at = slot(fd, true, key);
	return at && __atomic_load_n(at, __ATOMIC_SEQ_CST) == *key && end_hung_up(fd) &&
			!(end_gone(e, fd) & GONE_RESET)
		? at
		: NULL;
}

/* abandoned says whether the peer has closed with bytes of ours unread, and the program was not told. */
static bool abandoned(const struct end *e, int fd)
{
	return send_unread(e) && !(__atomic_load_n(&e->never, __ATOMIC_SEQ_CST) & GONE_RESET) &&
		end_hung_up(fd) && !(end_gone(e, fd) & GONE_RESET);
}

/* reset_came says, once, whether the peer has reset the connection in which nothing more comes. */
bool reset_came(struct end *e, int fd)
{
	uint64_t key;
	uint64_t *at = reset_of(e, fd, &key);

	if ((!at || !__atomic_compare_exchange_n(at, &key, 0, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) &&
		!abandoned(e, fd))
		return false;
	end_reset(e, fd);
	return true;
}

/* reset_waits says whether it has, and nobody was told. */
bool reset_waits(const struct end *e, int fd)
{
	uint64_t key;

	return reset_of(e, fd, &key) != NULL || abandoned(e, fd);
}

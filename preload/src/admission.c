/*
 * Admission: a connection that carries little and ends takes longer when it is moved, since that takes some
 *calls at both ends. So clients remember, in a file of the run directory that all programs of a user map, how
 *their connections to a server have ended. Where as many, one after another, were short as GOSMC_SHORT_AFTER
 *says, the next ones stay TCP from the beginning. Some are moved all the same, ever fewer, and as soon as one
 *of those carries more all are again.
 *
 *	known of a program and a server			its next connection			short	other
 *	nothing						moved					+1	0
 *	fewer short ones than GOSMC_SHORT_AFTER		moved					+1	0
 *	as many						TCP; one in PROBES, later PROBES_MOST,	+1	0
 *							is moved
 *
 * A connection is short if the client closes it, and nobody else before, without a ring and before the client
 *has sent TAKEN_TURNS answers to bytes that came.
 *
 * Every process with the user's rights can write there, as it could kill a program: the file decides nothing
 *but this. docs/shared-memory.md has the layout.
 */
#include "ring.h"

#include <fcntl.h>
#include <sys/stat.h>

#define ADMISSION_MAGIC 0x316d6461736d6f67ull
#define ADMISSIONS 4096
#define ADMISSION_WAYS 4 /* places that one may have */
#define ADMISSION_IDLE 60 /* seconds, after which another one may take the place */
#define PROBES 32
#define PROBES_MOST 256
#define FAR                                                                                                  \
	8 /* times as many where the agent introduces the two: to move such a connection takes as long as 30 \
	     others do */
#define AGAIN_MOST 16	/* connections for which a thread asks once */
#define AGAIN_MS 100	/* for so long */

/* The record of the connections of a program to a server. */
struct admission {
	uint64_t key;	 /* of both; 0: free */
	uint64_t socket; /* hash of the path of the supervisor of the server */
	uint64_t kept;	 /* connections to servers of that which were TCP for this */
	uint32_t shorts; /* one after another */
	uint32_t since;	 /* connections that were TCP since one was moved */
	uint32_t probe;	 /* the last of how many was or will be moved; 0: PROBES */
	uint32_t used;	 /* seconds of CLOCK_BOOTTIME */
	uint64_t reserved[3];
};
_Static_assert(sizeof(struct admission) == 64, "struct admission");

struct admissions {
	uint64_t magic;
	uint8_t pad[TABLE_PAGE - 8];
	struct admission list[ADMISSIONS];
};
_Static_assert(sizeof(struct admissions) == TABLE_PAGE + 64 * ADMISSIONS, "struct admissions");

static struct admissions *table;
static bool tried; /* to map it */
static bool been[sizeof(struct admissions) / TABLE_PAGE]; /* at its pages */
static uint64_t program; /* 0: not known yet */

/*
 * The last answer that a thread got: connections to a server stay TCP, or nobody there knows SMC. The
 * calls to ask again are most of the time that a short connection loses here.
 */
static __thread struct {
	struct address server;
	uint32_t entry;	/* where they are counted; 0: it was told of none */
	uint32_t left;	/* connections for which it need not ask */
	uint32_t count;	/* those for which it has not */
	uint32_t until;	/* milliseconds of CLOCK_MONOTONIC */
} told __attribute__((tls_model("initial-exec")));

/* there says whether a record can be written. */
static bool there(const struct admissions *t, const struct admission *a)
{
	return table_there(&been[((const char *)a - (const char *)t) / TABLE_PAGE], a);
}

/*
 * table_open maps the table of the supervisor's directory, once, when there is the first connection to ask
 * about.
 */
static struct admissions *table_open(void)
{
	struct admissions *none = NULL, *t = __atomic_load_n(&table, __ATOMIC_ACQUIRE);

	if (t || __atomic_exchange_n(&tried, true, __ATOMIC_RELAXED))
		return t;
	t = table_map("admission", sizeof(*t), ADMISSION_MAGIC);
	__atomic_compare_exchange_n(&table, &none, t, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
	return t;
}

/* with_file continues a hash with the identity of the file at a path. */
static uint64_t with_file(uint64_t hash, const char *path, bool regular)
{
	struct stat st;
	uint64_t id[2];

	if (SYS(newfstatat, AT_FDCWD, path, &st, 0) != 0 || (regular && !S_ISREG(st.st_mode)))
		return hash;
	id[0] = st.st_dev;
	id[1] = st.st_ino;
	return fnv1a(hash, id, sizeof(id));
}

/*
 * script continues a hash with the first argument, if that is a file, and no option: an interpreter
 * runs this file.
 */
static uint64_t script(uint64_t hash)
{
	char text[1024];
	const char *first;
	long n, fd = SYS(openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return hash;
	n = SYS(read, (int)fd, text, sizeof(text) - 1);
	SYS(close, (int)fd);
	if (n <= 0)
		return hash;
	text[n] = 0;
	first = text + strlen(text) + 1;
	if (first >= text + n || *first == 0 || *first == '-' || first + strlen(first) == text + sizeof(text) - 1)
		return hash;
	return with_file(hash, first, true);
}

static uint64_t program_id(void)
{
	uint64_t id = __atomic_load_n(&program, __ATOMIC_RELAXED);

	if (id == 0) {
		id = script(with_file(FNV1A_BASIS, "/proc/self/exe", false)) | 1;
		__atomic_store_n(&program, id, __ATOMIC_RELAXED);
	}
	return id;
}

static uint32_t seconds(void)
{
	struct timespec t = {0};

	clock_gettime(CLOCK_BOOTTIME, &t);
	return (uint32_t)t.tv_sec;
}

/*
 * admission_known says whether a connection stays TCP, as this thread was told, or has found, a moment ago
 * of another one to that server.
 */
bool admission_known(const struct address *server)
{
	if (told.left == 0 || !address_equal(server, &told.server) || (int32_t)(told.until - coarse_ms()) < 0)
		return false;
	told.left--;
	told.count++;
	return true;
}

/* settle_told counts the connections for which nobody has asked. The caller has a table. */
static void settle_told(struct admissions *t)
{
	struct admission *a = told.entry ? &t->list[told.entry - 1] : NULL;

	if (a && told.count && there(t, a)) {
		__atomic_fetch_add(&a->since, told.count, __ATOMIC_RELAXED);
		__atomic_fetch_add(&a->kept, told.count, __ATOMIC_RELAXED);
	}
	told.entry = told.left = told.count = 0;
}

/*
 * admission_absent takes note that nobody who knows SMC listens at an address. The next connections of this
 * thread to it do not look, as many and for as long as where it was told that they stay TCP.
 */
void admission_absent(const struct address *server)
{
	struct admissions *t = __atomic_load_n(&table, __ATOMIC_ACQUIRE);

	if (t)
		settle_told(t);
	told.server = *server;
	told.entry = told.count = 0;
	told.left = AGAIN_MOST;
	told.until = coarse_ms() + AGAIN_MS;
}

/*
 * place finds the entry of a key, or takes one that is free or was not used for long. NULL: all its places
 * have others.
 */
static struct admission *place(struct admissions *t, uint64_t key, uint32_t now)
{
	size_t first = key % ADMISSIONS & ~(size_t)(ADMISSION_WAYS - 1);
	struct admission *a = &t->list[first], *old = NULL;

	if (!there(t, a))
		return NULL;
	for (size_t i = 0; i < ADMISSION_WAYS; i++) {
		uint64_t has = __atomic_load_n(&a[i].key, __ATOMIC_ACQUIRE);

		if (has == key)
			return &a[i];
		if (!old && (has == 0 || now - __atomic_load_n(&a[i].used, __ATOMIC_RELAXED) > ADMISSION_IDLE))
			old = &a[i];
	}
	if (!old)
		return NULL;
	/* Two that take it at once have a few connections counted for one another. */
	old->shorts = old->since = old->probe = 0;
	old->kept = 0;
	__atomic_store_n(&old->key, key, __ATOMIC_RELEASE);
	return old;
}

/*
 * entry_for finds the record of this program and a server; path is the socket of the server's
 * supervisor.
 */
static struct admission *entry_for(
	struct admissions *t, const char *path, const struct address *server, uint64_t netns)
{
	uint64_t id = program_id(), socket = fnv1a(FNV1A_BASIS, path, strlen(path)), key = FNV1A_BASIS;
	uint32_t now = seconds();
	struct admission *a;

	key = fnv1a(key, server->ip, sizeof(server->ip));
	key = fnv1a(key, &server->port, sizeof(server->port));
	key = fnv1a(key, &netns, sizeof(netns));
	key = fnv1a(key, &id, sizeof(id));
	a = place(t, key ? key : 1, now);
	if (!a)
		return NULL;
	__atomic_store_n(&a->used, now, __ATOMIC_RELAXED);
	if (__atomic_exchange_n(&a->socket, socket, __ATOMIC_RELAXED) != socket)
		__atomic_store_n(&a->kept, 0, __ATOMIC_RELAXED);
	return a;
}

/*
 * turn counts a connection where others were short. It returns how many more stay TCP until one is moved;
 * 0: this one is.
 */
static uint32_t turn(struct admission *a, bool far)
{
	const uint32_t least = far ? FAR * PROBES : PROBES, most = far ? FAR * PROBES_MOST : PROBES_MOST;
	uint32_t probe = __atomic_load_n(&a->probe, __ATOMIC_RELAXED), since;

	if (probe < least || probe > most)
		probe = least;
	since = __atomic_add_fetch(&a->since, 1, __ATOMIC_RELAXED);
	if (since < probe) {
		__atomic_fetch_add(&a->kept, 1, __ATOMIC_RELAXED);
		return probe - since;
	}
	__atomic_store_n(&a->since, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&a->probe, 2 * probe > most ? most : 2 * probe, __ATOMIC_RELAXED);
	return 0;
}

/*
 * admission_ask says whether a connection of this program to a server may be moved; path is the
 * socket of the server's supervisor. *entry: where the end of the connection is to be noted, 0 if
 * nowhere. far: the agent has to introduce the two.
 */
bool admission_ask(const char *path, const struct address *server, uint64_t netns, bool far, uint32_t *entry)
{
	struct admissions *t;
	struct admission *a;
	uint32_t left;

	*entry = 0;
	if (settings.short_after == 0 || !settings.letters || (uid_t)SYS(geteuid) != settings.uid)
		return true;
	t = table_open();
	if (!t)
		return true;
	settle_told(t);
	a = entry_for(t, path, server, netns);
	if (!a)
		return true;
	*entry = (uint32_t)(a - t->list) + 1;
	if (__atomic_load_n(&a->shorts, __ATOMIC_RELAXED) < settings.short_after)
		return true;
	left = turn(a, far);
	if (left == 0)
		return true;
	told.server = *server;
	told.entry = *entry;
	told.left = left - 1 < AGAIN_MOST ? left - 1 : AGAIN_MOST;
	told.until = coarse_ms() + AGAIN_MS;
	return false;
}

/* admission_over is called when the program ends. */
void admission_over(void)
{
	struct admissions *t = __atomic_load_n(&table, __ATOMIC_ACQUIRE);

	if (t)
		settle_told(t);
}

/*
 * entry_of returns the record of a connection, and takes it away from the connection. NULL: nothing
 * is learned of the connection, or was already.
 */
static struct admission *entry_of(struct end *e)
{
	struct admissions *t = __atomic_load_n(&table, __ATOMIC_ACQUIRE);
	uint32_t n = __atomic_load_n(&e->admission, __ATOMIC_RELAXED);

	if (__builtin_expect(n == 0, 1) || guard_on())
		return NULL;
	n = __atomic_exchange_n(&e->admission, 0, __ATOMIC_RELAXED);
	return n && n <= ADMISSIONS && t && there(t, &t->list[n - 1]) ? &t->list[n - 1] : NULL;
}

/* admission_grown takes note that a connection has carried so much that it was right to move it. */
void admission_grown(struct end *e)
{
	struct admission *a = entry_of(e);

	if (!a)
		return;
	__atomic_store_n(&a->shorts, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&a->since, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&a->probe, 0, __ATOMIC_RELAXED);
}

/*
 * admission_ended takes note of the end of a connection that has not grown. A connection whose end
 * others have, too, does not end, or not for this.
 */
void admission_ended(struct end *e)
{
	struct admission *a;

	if (__atomic_load_n(&e->admission, __ATOMIC_RELAXED) == 0 || guard_on() || !end_alone(e))
		return;
	a = entry_of(e);
	if (a && __atomic_load_n(&a->shorts, __ATOMIC_RELAXED) < settings.short_after)
		__atomic_fetch_add(&a->shorts, 1, __ATOMIC_RELAXED);
}

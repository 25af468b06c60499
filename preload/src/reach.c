/*
 * Pairing tokens: a client in another network namespace, or of another user, knows of no supervisor
 * of the server. 'gosmc agent' has the kernel put a token on the SYN and on the SYN-ACK of sockets that ask,
 * so both ends know from their own sockets that the other one has asked, too. Then each asks its own
 * supervisor for its end of a pair, which that gets from the agent. Nobody knows tokens here: the socket is
 * the proof.
 *
 * A client asks only where the server can be on this machine, as far as its address says, and a server
 * always: where there is no agent both are told so by one system call, a few times in a second.
 */
#include "ring.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LEVEL 286 /* SOL_SMC */
#define LAYOUT 1
#define PAIRED 4
#define SEC 1000000000

/* What the agent's programs keep for a socket: docs/agent.md. */
struct tokens {
	uint8_t layout;
	uint8_t state;
	uint8_t cause;
	uint8_t zero[5];
	uint64_t mine;
	uint64_t theirs;
};
_Static_assert(sizeof(struct tokens) == 24, "struct tokens");

static uint32_t name = 0x50414952; /* of the option: "PAIR". Tests have another one, and 0 is none */

__attribute__((constructor)) static void name_read(void)
{
	const char *v = getenv("GOSMC_RUN_TOKENS");

	if (v)
		name = (uint32_t)strtoul(v, NULL, 10);
}

/*
 * Where the kernel does not know the option there is no agent, and nobody asks again for NONE_MSEC: a connect
 * and an accept cost no system call more than without us. Two threads may write it at once: then one asks
 * once more, or later.
 */
#define NONE_MSEC 200

static uint64_t none_until; /* milliseconds */

/* milliseconds is a clock that costs no system call. */
static uint64_t milliseconds(void)
{
	struct timespec t = {0};

	clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static bool none(void)
{
	uint64_t until = __atomic_load_n(&none_until, __ATOMIC_RELAXED);

	return name == 0 || (until != 0 && milliseconds() < until);
}

/* note takes note of an answer of the kernel, and passes it on. */
static long note(long r)
{
	if (r == -ENOPROTOOPT)
		__atomic_store_n(&none_until, milliseconds() + NONE_MSEC, __ATOMIC_RELAXED);
	else if (r == 0 && __atomic_load_n(&none_until, __ATOMIC_RELAXED) != 0)
		__atomic_store_n(&none_until, 0, __ATOMIC_RELAXED);
	return r;
}

static long option(int fd, int on)
{
	return SYS(setsockopt, fd, LEVEL, name, &on, sizeof(on));
}

/*
 * reach_ask asks for tokens on a socket that is neither connected nor listening. False: there will be none.
 */
bool reach_ask(int fd)
{
	return !none() && note(option(fd, 1)) == 0;
}

/* reach_withdraw takes that back. */
void reach_withdraw(int fd)
{
	(void)option(fd, 0);
}

/*
 * plain_tcp says whether a socket is TCP's, and not multipath TCP's, which knows no option of this level
 * whether there is an agent or not.
 */
static bool plain_tcp(int fd)
{
	int protocol = 0;
	socklen_t len = sizeof(protocol);

	return SYS(getsockopt, fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &len) == 0 && protocol == IPPROTO_TCP;
}

/* reach_paired says whether the other end of a connection has asked as well, on this kernel. */
bool reach_paired(int fd)
{
	struct tokens t = {0};
	socklen_t len = sizeof(t);
	long r;

	if (none())
		return false;
	r = SYS(getsockopt, fd, LEVEL, name, &t, &len);
	if (r == -EOPNOTSUPP && plain_tcp(fd)) /* as some kernels say it */
		r = -ENOPROTOOPT;
	return note(r) == 0 && len == sizeof(t) && t.layout == LAYOUT && t.state == PAIRED;
}

/* reach_listen asks for tokens on a socket that is about to listen. */
void reach_listen(int fd)
{
	struct identity id;
	int protocol = 0;
	socklen_t len = sizeof(protocol);

	if (settings.on && (name != 0 || hosts_some()) && !guard_on() &&
		SYS(getsockopt, fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &len) == 0 &&
		protocol == IPPROTO_TCP && address_of(fd, false, &id.local, &id.ipv6) &&
		policy_listen(&id.local) && !options_tell(fd)) {
		if (name != 0)
			(void)note(option(fd, 1)); /* an agent may have come just now */
		(void)hosts_ask(fd);
	}
}

/*
 * is_private says whether an address is of a private network (RFC 1918, RFC 4193), a shared one (RFC 6598),
 * on one link, or loopback.
 */
static bool is_private(const struct address *to)
{
	const uint8_t *ip = to->ip + 12;
	static const uint8_t mapped[12] = {[10] = 0xff, 0xff};

	if (memcmp(to->ip, mapped, sizeof(mapped)) != 0)
		return (to->ip[0] & 0xfe) == 0xfc || address_is_loopback(to);
	return ip[0] == 10 || ip[0] == 127 || (ip[0] == 172 && (ip[1] & 0xf0) == 16) ||
		(ip[0] == 192 && ip[1] == 168) || (ip[0] == 169 && ip[1] == 254) ||
		(ip[0] == 100 && (ip[1] & 0xc0) == 64);
}

/*
 * Servers that have not taken connections a moment ago. Two threads may write one at once: then it is of no
 * server, or for another time.
 */
#define REFUSED 16
#define REFUSED_SEC 1

static struct {
	uint64_t key;
	int64_t until;
} refused[REFUSED];

static uint64_t key_of(const struct address *to)
{
	return fnv1a(fnv1a(FNV1A_BASIS, (const char *)to->ip, sizeof(to->ip)), (const char *)&to->port,
		sizeof(to->port));
}

/* reach_refused notes that a server, or our supervisor, did not take a connection. */
void reach_refused(const struct address *to)
{
	uint64_t key = key_of(to);

	__atomic_store_n(&refused[key % REFUSED].until, supervisor_clock() + (int64_t)REFUSED_SEC * SEC,
		__ATOMIC_RELAXED);
	__atomic_store_n(&refused[key % REFUSED].key, key, __ATOMIC_RELAXED);
}

/* reach_possible says whether a socket may ask for a connection to a server. */
bool reach_possible(const struct address *to)
{
	uint64_t key;

	if (none() || !settings.on || guard_on() || to->port == 0 || !policy_machine(to, is_private(to)))
		return false;
	key = key_of(to);
	return __atomic_load_n(&refused[key % REFUSED].key, __ATOMIC_RELAXED) != key ||
	       supervisor_clock() >= __atomic_load_n(&refused[key % REFUSED].until, __ATOMIC_RELAXED);
}

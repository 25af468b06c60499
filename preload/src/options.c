/*
 * Options: those of sockets are the kernel's, on a Unix socket as on TCP. Those of TCP and IP are
 * taken, and mean nothing where no packet is sent; the few that programs read back are kept in the
 * socket's priority, which a Unix socket has no use for and which lives as long as it does.
 */
#include "ring.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/time.h>

#define KEEP_NODELAY 1
#define KEEP_CORK 2

#define SEND_BUFFER (4 << 20) /* asked for; the kernel gives at most net.core.wmem_max */

/* Options that a socket has had set and that only TCP can honour: it stays TCP. */
static bool only_tcp(int level, int name)
{
	if (level == SOL_SOCKET) /* letters.c has what a filter is for */
		return name == SO_BINDTODEVICE || name == SO_MARK || name == SO_ZEROCOPY || name == SO_TIMESTAMPING || name == SO_ATTACH_FILTER ||
		       name == SO_ATTACH_BPF || name == SO_LOCK_FILTER;
	if (level == IPPROTO_TCP)
		return name == TCP_ULP || name == TCP_MD5SIG || name == TCP_FASTOPEN_CONNECT || name == TCP_REPAIR;
	return (level == IPPROTO_IP && (name == IP_TRANSPARENT || name == IP_OPTIONS));
}

static int priority(int fd)
{
	int v = 0;
	socklen_t len = sizeof(v);

	SYS(getsockopt, fd, SOL_SOCKET, SO_PRIORITY, &v, &len);
	return v;
}

/* fresh says whether a value is that of a new socket. */
static bool fresh(int name, const void *value, size_t n)
{
	const char *v = value;
	int one = 1;

	if (name == SO_RCVLOWAT)
		return memcmp(v, &one, sizeof(one)) == 0;
	while (n && v[n - 1] == 0)
		n--;
	return n == 0;
}

/* Options that an end has from TCP. Each has a bit, by its place. */
static const int same[] = {SO_KEEPALIVE, SO_LINGER, SO_RCVTIMEO, SO_SNDTIMEO, SO_OOBINLINE, SO_RCVLOWAT};
#define SAME (sizeof(same) / sizeof(same[0]))
#define BIT_NODELAY (1u << SAME)
#define BIT_CORK (2u << SAME)

/* bit_of is the bit of an option, 0 if it has none. */
static uint32_t bit_of(int level, int name)
{
	if (level == IPPROTO_TCP)
		return name == TCP_NODELAY ? BIT_NODELAY : name == TCP_CORK ? BIT_CORK : 0;
	if (name == SO_RCVTIMEO_NEW || name == SO_SNDTIMEO_NEW)
		name = name == SO_RCVTIMEO_NEW ? SO_RCVTIMEO : SO_SNDTIMEO;
	for (size_t i = 0; level == SOL_SOCKET && i < SAME; i++) {
		if (same[i] == name)
			return 1u << i;
	}
	return 0;
}

/*
 * options_copy gives an end of a pair what a program has set on the TCP socket, or on the listener that it came from. Options that
 * are not among which were never set.
 */
void options_copy(int from, int to, uint32_t which)
{
	union {
		int number;
		struct linger linger;
		struct timeval time;
	} v;
	socklen_t len;
	int keep = 0;
	int size = SEND_BUFFER;

	for (size_t i = 0; i < SAME; i++) {
		if (!(which & 1u << i))
			continue;
		len = sizeof(v);
		memset(&v, 0, sizeof(v));
		if (SYS(getsockopt, from, SOL_SOCKET, same[i], &v, &len) == 0 && !fresh(same[i], &v, sizeof(v)))
			SYS(setsockopt, to, SOL_SOCKET, same[i], &v, len);
		if (same[i] == SO_LINGER && v.linger.l_onoff && v.linger.l_linger == 0)
			reset_mark(to, true);
	}
	len = sizeof(v.number);
	if ((which & BIT_NODELAY) && SYS(getsockopt, from, IPPROTO_TCP, TCP_NODELAY, &v, &len) == 0 && v.number)
		keep |= KEEP_NODELAY;
	len = sizeof(v.number);
	if ((which & BIT_CORK) && SYS(getsockopt, from, IPPROTO_TCP, TCP_CORK, &v, &len) == 0 && v.number)
		keep |= KEEP_CORK;
	if (keep)
		SYS(setsockopt, to, SOL_SOCKET, SO_PRIORITY, &keep, sizeof(keep));
	SYS(setsockopt, to, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
}

static void keep(int fd, int bits)
{
	SYS(setsockopt, fd, SOL_SOCKET, SO_PRIORITY, &bits, sizeof(bits));
}

/* options_settle has the kernel keep what only we have. */
void options_settle(int fd)
{
	struct end *e = end_at(fd);
	uint32_t cork = e ? __atomic_exchange_n(&e->cork, CORK_KERNEL, __ATOMIC_SEQ_CST) : CORK_KERNEL;

	if (cork != CORK_KERNEL && end_is(fd, e))
		keep(fd, cork != CORK_OFF ? priority(fd) | KEEP_CORK : priority(fd) & ~KEEP_CORK);
}

void options_settle_all(void)
{
	for (int fd = 0; fd < ends_top(); fd++)
		options_settle(fd);
}

/* only_ours says whether a descriptor is an end that no other process, and no other descriptor, can ask. */
static struct end *only_ours(int fd)
{
	struct end *e = end_at(fd);

	return e && __atomic_load_n(&e->generation, __ATOMIC_SEQ_CST) == births_generation() && end_still(fd, e) ? e : NULL;
}

static bool corked(int fd)
{
	struct end *e = only_ours(fd);
	uint32_t cork = e ? __atomic_load_n(&e->cork, __ATOMIC_SEQ_CST) : CORK_KERNEL;

	return cork == CORK_KERNEL ? !!(priority(fd) & KEEP_CORK) : cork != CORK_OFF;
}

static int give(void *val, socklen_t *len, const void *from, size_t size)
{
	size_t n = *len < size ? *len : size;

	memcpy(val, from, n);
	*len = (socklen_t)n;
	return 0;
}

static int give_number(void *val, socklen_t *len, int number)
{
	return give(val, len, &number, sizeof(number));
}

static int get_tcp(int fd, int name, void *val, socklen_t *len)
{
	struct tcp_info info;

	switch (name) {
	case TCP_NODELAY:
		return give_number(val, len, !!(priority(fd) & KEEP_NODELAY));
	case TCP_CORK:
		return give_number(val, len, corked(fd));
	case TCP_MAXSEG:
		return give_number(val, len, 65483); /* that of the loopback interface */
	case TCP_KEEPIDLE:
		return give_number(val, len, 7200);
	case TCP_KEEPINTVL:
		return give_number(val, len, 75);
	case TCP_KEEPCNT:
		return give_number(val, len, 9);
	case TCP_SYNCNT:
		return give_number(val, len, 6);
	case TCP_LINGER2:
		return give_number(val, len, 60);
	case TCP_QUICKACK:
		return give_number(val, len, 1);
	case TCP_WINDOW_CLAMP:
	case TCP_DEFER_ACCEPT:
	case TCP_USER_TIMEOUT:
	case TCP_FASTOPEN:
	case TCP_NOTSENT_LOWAT:
	case TCP_TIMESTAMP:
	case TCP_INQ:
		return give_number(val, len, 0);
	case TCP_CONGESTION:
		return give(val, len, "cubic", sizeof("cubic"));
	case TCP_INFO:
		memset(&info, 0, sizeof(info));
		info.tcpi_state = TCP_ESTABLISHED;
		info.tcpi_snd_mss = info.tcpi_rcv_mss = info.tcpi_advmss = 65483;
		info.tcpi_pmtu = 65535;
		info.tcpi_snd_cwnd = 10;
		return give(val, len, &info, sizeof(info));
	default:
		return (int)sys_return(-ENOPROTOOPT);
	}
}

static int get_ip(int level, int name, void *val, socklen_t *len)
{
	if (level == IPPROTO_IP && name == IP_OPTIONS)
		return give(val, len, "", 0);
	if ((level == IPPROTO_IP && name == IP_MTU) || (level == IPPROTO_IPV6 && name == IPV6_MTU))
		return give_number(val, len, 65535);
	if ((level == IPPROTO_IP && name == IP_TTL) || (level == IPPROTO_IPV6 && name == IPV6_UNICAST_HOPS))
		return give_number(val, len, 64);
	return give_number(val, len, 0);
}

static bool of_tcp(int level)
{
	return level == IPPROTO_TCP || level == IPPROTO_IP || level == IPPROTO_IPV6;
}

EXPORT int getsockopt(int fd, int level, int name, void *val, socklen_t *len)
{
	long r = level == IPPROTO_TCP && only_ours(fd) ? -EOPNOTSUPP : SYS(getsockopt, fd, level, name, val, len);
	struct identity id;

	if (r == 0 && level == SOL_SOCKET && (name == SO_DOMAIN || name == SO_PROTOCOL) && settings.on &&
	    *len == sizeof(int)) {
		int v;

		memcpy(&v, val, sizeof(v));
		if (v == (name == SO_DOMAIN ? AF_UNIX : 0) && identity_of(fd, &id)) {
			v = name == SO_PROTOCOL ? IPPROTO_TCP : id.ipv6 ? AF_INET6 : AF_INET;
			memcpy(val, &v, sizeof(v));
		}
	}
	if (r == 0 && level == SOL_SOCKET && name == SO_ERROR && *len == sizeof(int)) {
		struct end *e = end_at(fd);
		int v;

		memcpy(&v, val, sizeof(v));
		if (v == 0 && e && end_is(fd, e) && (end_tell(e) || reset_came(e, fd))) {
			v = ECONNRESET;
			memcpy(val, &v, sizeof(v));
		}
		end_error(fd, v);
	}
	if (r == -EOPNOTSUPP && of_tcp(level) && settings.on && (only_ours(fd) || identity_of(fd, &id))) {
		if (!val || !len)
			return (int)sys_return(-EFAULT);
		return level == IPPROTO_TCP ? get_tcp(fd, name, val, len) : get_ip(level, name, val, len);
	}
	return (int)sys_return(r);
}

static int set_tcp(int fd, int name, const void *val, socklen_t len)
{
	int bit = name == TCP_NODELAY ? KEEP_NODELAY : name == TCP_CORK ? KEEP_CORK : 0;
	struct end *e;
	int v;

	if (name == TCP_ULP || name == TCP_MD5SIG || name == TCP_REPAIR)
		return (int)sys_return(-ENOPROTOOPT);
	if (!val)
		return (int)sys_return(-EFAULT);
	if (!bit)
		return 0;
	if (len < sizeof(v))
		return (int)sys_return(-EINVAL);
	memcpy(&v, val, sizeof(v));
	if (name == TCP_CORK && (e = only_ours(fd))) {
		__atomic_store_n(&e->cork, v ? CORK_ON : CORK_OFF, __ATOMIC_SEQ_CST);
		return 0;
	}
	v = v ? priority(fd) | bit : priority(fd) & ~bit;
	return (int)sys_return(SYS(setsockopt, fd, SOL_SOCKET, SO_PRIORITY, &v, sizeof(v)));
}

EXPORT int setsockopt(int fd, int level, int name, const void *val, socklen_t len)
{
	struct identity id;
	long r;

	if (level == SOL_SOCKET && (name == SO_SNDBUF || name == SO_SNDBUFFORCE) && end_joined(fd))
		return val && len >= (socklen_t)sizeof(int) ? 0 : (int)sys_return(-EINVAL); /* its size says when a ring is full */
	r = level == IPPROTO_TCP && only_ours(fd) ? -EOPNOTSUPP : SYS(setsockopt, fd, level, name, val, len);
	if (r == 0 && level == SOL_SOCKET && name == SO_LINGER && settings.on) {
		struct linger linger;

		memcpy(&linger, val, sizeof(linger));
		reset_mark(fd, linger.l_onoff && linger.l_linger == 0);
	}
	if (r == 0 && only_tcp(level, name))
		birth_never(fd);
	if (r == 0)
		birth_option(fd, bit_of(level, name));
	if (r == -EOPNOTSUPP && of_tcp(level) && settings.on && (only_ours(fd) || identity_of(fd, &id)))
		return level == IPPROTO_TCP ? set_tcp(fd, name, val, len) : 0;
	return (int)sys_return(r);
}

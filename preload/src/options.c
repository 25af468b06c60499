/*
 * Options: the kernel sees to most socket options, on a Unix socket as on TCP. Options of TCP and
 * IP mean nothing where no packet is sent. The kernel says of a model which of them there are,
 * their possible values, and their values. A model is a TCP socket on which nobody has set
 * anything. The two options that programs often read back are kept in SO_INCOMING_CPU, which a Unix
 * socket has no use for and which lives as long as it does. So is the GONE_ state of a connection,
 * where others have the end.
 */
#include "ring.h"

#include <fcntl.h>
#include <sched.h>
#include <netinet/tcp.h>
#include <sys/time.h>

#define KEEP_NODELAY 1
#define KEEP_CORK 2
#define KEEP_SHUT 4  /* these three are the GONE_ state of the connection: gone.c */
#define KEEP_RESET 8
#define KEEP_LATER 16
#define KEPT (-0x53480000) /* less the bits that are kept */
#define KEPT_MOST 31

#define NO_OPTION 0x7fffffff /* of SOL_SOCKET */

/* is_told says whether an option has TCP tell of bytes something that a Unix socket does not. */
static bool is_told(int name)
{
	return name == SO_ZEROCOPY || name == SO_TIMESTAMP_OLD || name == SO_TIMESTAMPNS_OLD ||
		name == SO_TIMESTAMPING_OLD || name == SO_TIMESTAMP_NEW || name == SO_TIMESTAMPNS_NEW ||
		name == SO_TIMESTAMPING_NEW;
}

/*
 * options_tell says whether the sockets that a listener accepts inherit such an option: a program
 * may wait to be told.
 */
bool options_tell(int fd)
{
	static const int told[] = {SO_ZEROCOPY, SO_TIMESTAMP_OLD, SO_TIMESTAMPNS_OLD, SO_TIMESTAMPING_OLD,
		SO_TIMESTAMP_NEW, SO_TIMESTAMPNS_NEW, SO_TIMESTAMPING_NEW};

	for (size_t i = 0; i < sizeof(told) / sizeof(told[0]); i++) {
		int v = 0;
		socklen_t len = sizeof(v);

		if (SYS(getsockopt, fd, SOL_SOCKET, told[i], &v, &len) == 0 && v)
			return true;
	}
	return options_low(fd);
}

/* options_low says whether receives, and events of a socket, wait for more than a byte: SO_RCVLOWAT. */
bool options_low(int fd)
{
	int v = 1;
	socklen_t len = sizeof(v);

	return SYS(getsockopt, fd, SOL_SOCKET, SO_RCVLOWAT, &v, &len) == 0 && v > 1;
}

/* Options that a socket has had set and that only TCP can honour: it stays TCP. */
static bool only_tcp(int level, int name)
{
	if (level == SOL_SOCKET) /* letters.c has the use of a filter */
		return name == SO_BINDTODEVICE || name == SO_MARK || name == SO_ATTACH_FILTER ||
			name == SO_ATTACH_BPF || name == SO_LOCK_FILTER || is_told(name);
	if (level == IPPROTO_TCP)
		return name == TCP_ULP || name == TCP_MD5SIG || name == TCP_FASTOPEN_CONNECT || name == TCP_REPAIR;
	return (level == IPPROTO_IP && (name == IP_TRANSPARENT || name == IP_OPTIONS));
}

/* keeps is the KEEP_ bits that a socket keeps for us. */
static int keeps(int fd)
{
	int v = KEPT;
	socklen_t len = sizeof(v);

	SYS(getsockopt, fd, SOL_SOCKET, SO_INCOMING_CPU, &v, &len);
	return v <= KEPT && v >= KEPT - KEPT_MOST ? KEPT - v : 0;
}

static long keep(int fd, int bits)
{
	int v = KEPT - bits;

	return SYS(setsockopt, fd, SOL_SOCKET, SO_INCOMING_CPU, &v, sizeof(v));
}

/* fresh says whether a new socket has this value. */
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
static const int same[] = {SO_KEEPALIVE, SO_LINGER, SO_RCVTIMEO, SO_SNDTIMEO, SO_OOBINLINE, SO_RCVLOWAT,
	SO_REUSEADDR, SO_BROADCAST, SO_DONTROUTE};
#define SAME (sizeof(same) / sizeof(same[0]))
_Static_assert(SAME == 9 && OPTIONS_LATER == 7u << 6, "the last three");
#define BIT_NODELAY (1u << SAME)
#define BIT_CORK (2u << SAME)
#define BIT_OWNER (4u << SAME) /* of signals, which is no option, and nothing that a listener gives on */
#define BIT_LATE                                                                                             \
	(8u << SAME) /* TCP_QUICKACK and TCP_DEFER_ACCEPT, by which a client ends the handshake late */

/* bit_of is the bit of an option, 0 if it has none. */
static uint32_t bit_of(int level, int name)
{
	if (level == IPPROTO_TCP && (name == TCP_QUICKACK || name == TCP_DEFER_ACCEPT))
		return BIT_LATE;
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
 * options_copy gives an end of a pair the options that a program has set on the TCP socket, or on
 * the listener that it came from. Options that are not among which were never set. options_on has
 * the rest.
 */
void options_copy(int from, int to, uint32_t which)
{
	union {
		int number;
		struct linger linger;
		struct timeval time;
	} v;
	socklen_t len;
	int bits = 0;
	int size = settings.queue;

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
		bits |= KEEP_NODELAY;
	len = sizeof(v.number);
	if ((which & BIT_CORK) && SYS(getsockopt, from, IPPROTO_TCP, TCP_CORK, &v, &len) == 0 && v.number)
		bits |= KEEP_CORK;
	if (bits)
		keep(to, bits);
	SYS(setsockopt, to, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
}

/*
 * SO_REUSEADDR, SO_BROADCAST and SO_DONTROUTE do nothing for a connection, and an end has them from its
 * listener, or from the socket that connects. The table of ends has those that are on, and getsockopt answers
 * from it. The kernel's socket gets them before other processes, or other descriptors, have the end.
 */

/*
 * options_on returns the bits of these options that a listener, or a socket that connects, has on. which is
 * birth_options of it. Of a listener that other processes have the kernel is asked once: a change by another
 * process after that does not reach the connections that this one accepts.
 */
uint32_t options_on(int fd, uint32_t which)
{
	uint32_t on = 0;

	if (birth_on(fd, which, &on))
		return on & OPTIONS_LATER;
	for (size_t i = 0; i < SAME; i++) {
		int v = 0;
		socklen_t len = sizeof(v);

		if ((OPTIONS_LATER & 1u << i) && SYS(getsockopt, fd, SOL_SOCKET, same[i], &v, &len) == 0 && v)
			on |= 1u << i;
	}
	birth_on_is(fd, on);
	return on;
}

/* turn_on has the kernel's socket have options on. */
static void turn_on(int fd, uint32_t on)
{
	int one = 1;

	for (size_t i = 0; on && i < SAME; i++)
		if (on & 1u << i)
			SYS(setsockopt, fd, SOL_SOCKET, same[i], &one, sizeof(one));
}

/*
 * options_later_on has the table keep the options that an end has on, which was born just now. Where the
 * table does not have the end the kernel gets them.
 */
void options_later_on(int fd, uint32_t on)
{
	struct end *e = on ? end_at(fd) : NULL;

	if (e)
		__atomic_store_n(&e->on, on, __ATOMIC_SEQ_CST);
	else
		turn_on(fd, on);
}

/*
 * options_acknowledge has the kernel send the last ACK of the handshake of a socket that has connected. With
 * some options it keeps that back for 200 ms, to send it with bytes, and these go elsewhere; until then the
 * server's accept waits.
 */
void options_acknowledge(int fd, uint32_t which)
{
	int one = 1;

	if (which & BIT_LATE)
		SYS(setsockopt, fd, IPPROTO_TCP, TCP_QUICKACK, &one, sizeof(one));
}

/* owner_chosen takes note that a program has chosen the receiver of a socket's signals, or the signal. */
void owner_chosen(int fd)
{
	birth_option(fd, BIT_OWNER, true);
}

/*
 * owner_copy has an end send its signals to the owner that the TCP socket has. Which are to come at all is
 * in its status.
 */
void owner_copy(int from, int to, uint32_t which)
{
	struct f_owner_ex owner = {0};
	long sig;

	if (!(which & BIT_OWNER))
		return;
	if (SYS(fcntl, from, F_GETOWN_EX, &owner) == 0 && owner.pid)
		SYS(fcntl, to, F_SETOWN_EX, &owner);
	sig = SYS(fcntl, from, F_GETSIG);
	if (sig > 0)
		SYS(fcntl, to, F_SETSIG, sig);
}

static int kept_gone(uint32_t gone)
{
	return (gone & GONE_SHUT ? KEEP_SHUT : 0) | (gone & GONE_RESET ? KEEP_RESET : 0) |
		(gone & GONE_LATER ? KEEP_LATER : 0);
}

/* options_gone is the state of a connection, as far as somebody has kept it: GONE_SHUT and GONE_RESET. */
uint32_t options_gone(int fd)
{
	int bits = keeps(fd);

	return (bits & KEEP_SHUT ? GONE_SHUT : 0) | (bits & KEEP_RESET ? GONE_RESET : 0);
}

/* options_keep_gone keeps GONE_ bits of a connection. */
void options_keep_gone(int fd, uint32_t gone)
{
	keep(fd, keeps(fd) | kept_gone(gone));
}

/* options_later says, once, whether a program is to be told of a reset. */
bool options_later(int fd)
{
	int bits = keeps(fd);

	if (bits & KEEP_LATER)
		keep(fd, bits & ~KEEP_LATER);
	return bits & KEEP_LATER;
}

/* options_copy_kept gives the bits that an end has kept to the one that is about to take its place. */
void options_copy_kept(int from, int to)
{
	int bits = keeps(from);

	if (bits)
		keep(to, bits);
}

/* options_settle has the kernel keep the state that only this process has. */
void options_settle(int fd)
{
	struct end *e = end_at(fd);
	uint32_t on = e ? __atomic_load_n(&e->on, __ATOMIC_SEQ_CST) : 0;
	uint32_t cork = e ? __atomic_exchange_n(&e->cork, CORK_KERNEL, __ATOMIC_SEQ_CST) : CORK_KERNEL;
	int gone = e ? kept_gone(__atomic_load_n(&e->never, __ATOMIC_SEQ_CST)) : 0;
	int bits;

	if ((cork == CORK_KERNEL && !gone && !on) || !end_is(fd, e))
		return;
	if (on) {
		turn_on(fd, on);
		__atomic_fetch_and(&e->on, ~on, __ATOMIC_SEQ_CST); /* not before: others may ask */
	}
	if (cork == CORK_KERNEL && !gone)
		return;
	bits = (keeps(fd) & ~KEEP_LATER) | gone;
	if (cork != CORK_KERNEL)
		bits = cork != CORK_OFF ? bits | KEEP_CORK : bits & ~KEEP_CORK;
	keep(fd, bits);
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

	return e && __atomic_load_n(&e->generation, __ATOMIC_SEQ_CST) == births_generation() &&
			end_still(fd, e)
		? e
		: NULL;
}

static bool corked(int fd)
{
	struct end *e = only_ours(fd);
	uint32_t cork = e ? __atomic_load_n(&e->cork, __ATOMIC_SEQ_CST) : CORK_KERNEL;

	return cork == CORK_KERNEL ? !!(keeps(fd) & KEEP_CORK) : cork != CORK_OFF;
}

/*
 * options_return gives a TCP socket the options that a program has set on an end: it is to take the end's
 * place.
 */
void options_return(int from, int to)
{
	int one = 1;

	options_settle(from);
	for (size_t i = 0; i < SAME; i++) {
		char v[sizeof(struct timeval)] = {0};
		socklen_t len = sizeof(v);

		if (SYS(getsockopt, from, SOL_SOCKET, same[i], v, &len) == 0 && !fresh(same[i], v, sizeof(v)))
			SYS(setsockopt, to, SOL_SOCKET, same[i], v, len);
	}
	if (keeps(from) & KEEP_NODELAY)
		SYS(setsockopt, to, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (corked(from))
		SYS(setsockopt, to, IPPROTO_TCP, TCP_CORK, &one, sizeof(one));
}

/*
 * option_in gets the number that a program sets an option of TCP to. It returns 0, or the error that TCP has
 * for where the number is, which the kernel finds out: it reads the number before it looks for the option.
 */
long option_in(int fd, const void *val, socklen_t len, int *v)
{
	long r = SYS(setsockopt, fd, SOL_SOCKET, NO_OPTION, val, len);

	if (r == -EFAULT || r == -EINVAL)
		return r;
	if (!val || len < sizeof(*v)) /* a filter of system calls may have refused the question */
		return val ? -EINVAL : -EFAULT;
	memcpy(v, val, sizeof(*v));
	return 0;
}

/* give_number answers with a number as the kernel does, which checks where it goes. */
static long give_number(int fd, void *val, socklen_t *len, int number)
{
	long r = SYS(getsockopt, fd, SOL_SOCKET, SO_TYPE, val, len);

	if (r == 0)
		memcpy(val, &number, *len);
	return r;
}

/* instead puts a number in the place of one that the kernel has given. */
static void instead(void *val, const socklen_t *len, int number)
{
	memcpy(val, &number, *len < sizeof(number) ? *len : sizeof(number));
}

static int model(const struct identity *id)
{
	return (int)SYS(socket, id->ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
}

/* ask has a model answer. Where there is none, no option is known. */
static long ask(const struct identity *id, int level, int name, void *val, socklen_t *len)
{
	int fd = model(id);
	long r;

	if (fd < 0)
		return -ENOPROTOOPT;
	r = SYS(getsockopt, fd, level, name, val, len);
	SYS(close, fd);
	return r;
}

/* try has a model judge a value. Where there is none, all are good. */
static long try(const struct identity *id, int level, int name, const void *val, socklen_t len)
{
	int fd = model(id);
	long r;

	if (fd < 0)
		return 0;
	r = SYS(setsockopt, fd, level, name, val, len);
	SYS(close, fd);
	return r;
}

#define LOOPBACK_MSS 65483
#define LOOPBACK_MTU 65535

/* fill_in sets a field of struct tcp_info to its value for a connection, as far as the program wants it. */
#define fill_in(val, len, field, value)                                                                  \
	do {                                                                                             \
		__typeof__(((struct tcp_info *)0)->field) v_ = (value);                                  \
		size_t at_ = offsetof(struct tcp_info, field);                                           \
		if (at_ < (len))                                                                         \
			memcpy((char *)(val) + at_, &v_, (len) - at_ < sizeof(v_) ? (len) - at_ : sizeof(v_)); \
	} while (0)

static long get_tcp(int fd, const struct identity *id, int name, void *val, socklen_t *len)
{
	long r;

	switch (name) {
	case TCP_NODELAY:
		return give_number(fd, val, len, !!(keeps(fd) & KEEP_NODELAY));
	case TCP_CORK:
		return give_number(fd, val, len, corked(fd));
	case TCP_MAXSEG:
		return give_number(fd, val, len, LOOPBACK_MSS);
	case TCP_INFO:
		r = ask(id, IPPROTO_TCP, name, val, len);
		if (r != 0)
			return r;
		fill_in(val, *len, tcpi_state, TCP_ESTABLISHED);
		fill_in(val, *len, tcpi_snd_mss, LOOPBACK_MSS);
		fill_in(val, *len, tcpi_rcv_mss, LOOPBACK_MSS);
		fill_in(val, *len, tcpi_advmss, LOOPBACK_MSS);
		fill_in(val, *len, tcpi_pmtu, LOOPBACK_MTU);
		return 0;
	default:
		return ask(id, IPPROTO_TCP, name, val, len);
	}
}

/*
 * plain says whether an option of SOL_SOCKET is the kernel's on a Unix socket as on TCP; of options
 * that are not in this list a model knows TCP's value.
 */
static bool plain(int name)
{
	switch (name) {
	case SO_DEBUG ... SO_OOBINLINE:
	case SO_PRIORITY ... SO_LINGER:
	case SO_RCVLOWAT ... SO_SNDTIMEO_OLD:
	case SO_DETACH_FILTER:
	case SO_TIMESTAMP_OLD:
	case SO_ACCEPTCONN:
	case SO_SNDBUFFORCE:
	case SO_RCVBUFFORCE:
	case SO_TIMESTAMPNS_OLD ... SO_TIMESTAMPING_OLD:
	case SO_RXQ_OVFL ... SO_BPF_EXTENSIONS:
	case SO_MEMINFO ... SO_COOKIE:
	case SO_BINDTOIFINDEX ... SO_SNDTIMEO_NEW:
	case SO_PREFER_BUSY_POLL ... SO_RESERVE_MEM:
		return true;
	}
	return false;
}

/* get_peer is SO_PEERNAME. */
static long get_peer(int fd, const struct identity *id, void *val, socklen_t *len)
{
	struct sockaddr_storage ss;
	socklen_t n = address_format(&id->peer, id->ipv6, &ss);
	long r = SYS(getsockopt, fd, SOL_SOCKET, SO_PEERNAME, val, len);

	if (r != 0)
		return r; /* the name of a Unix socket is longer */
	if (*len > n)
		return -EINVAL;
	memcpy(val, &ss, *len);
	return 0;
}

/* get_socket is for options of SOL_SOCKET of an end. */
static long get_socket(int fd, const struct identity *id, int name, void *val, socklen_t *len)
{
	switch (name) {
	case SO_DOMAIN:
		return give_number(fd, val, len, id->ipv6 ? AF_INET6 : AF_INET);
	case SO_PROTOCOL:
		return give_number(fd, val, len, IPPROTO_TCP);
	case SO_INCOMING_CPU:
		return give_number(fd, val, len, sched_getcpu());
	case SO_PEERNAME:
		return get_peer(fd, id, val, len);
	}
	return ask(id, SOL_SOCKET, name, val, len);
}

#define IP_PROTOCOL_ 52 /* the protocol of a raw socket; of others it is the port */
#define LOOPBACK_MTU_IPV6 65536

/* get_ipv6_as answers with a number where the kernel has another one for a model. */
static long get_ipv6_as(const struct identity *id, void *val, socklen_t *len, int number)
{
	long r = ask(id, IPPROTO_IPV6, IPV6_UNICAST_HOPS, val, len);

	if (r == 0)
		instead(val, len, number);
	return r;
}

static long get_ipv6(const struct identity *id, int name, void *val, socklen_t *len)
{
	struct ip6_mtuinfo info = {.ip6m_mtu = LOOPBACK_MTU_IPV6};
	socklen_t room = 0;
	int number;
	long r;

	switch (name) {
	case IPV6_ADDRFORM:
		return get_ipv6_as(id, val, len, AF_INET6);
	case IPV6_MTU:
		return get_ipv6_as(id, val, len, LOOPBACK_MTU_IPV6);
	case IPV6_PATHMTU:
		if (plausible(len))
			room = *len;
		r = get_ipv6_as(id, &number, len, 0);
		if (r != 0)
			return r;
		*len = room;
		if (room < sizeof(info))
			return -EINVAL;
		if (!plausible(val))
			return -EFAULT;
		memcpy(val, &info, sizeof(info));
		*len = sizeof(info);
		return 0;
	}
	return ask(id, IPPROTO_IPV6, name, val, len);
}

static long get_ip(int fd, const struct identity *id, int level, int name, void *val, socklen_t *len)
{
	if (level == IPPROTO_IPV6 && id->ipv6)
		return get_ipv6(id, name, val, len);
	if (level == IPPROTO_IP && name == IP_MTU)
		return give_number(fd, val, len, id->peer.ip[10] == 0xff ? LOOPBACK_MTU : LOOPBACK_MTU_IPV6);
	if (level == IPPROTO_IP && name == IP_PROTOCOL_)
		return give_number(fd, val, len, id->local.port);
	return ask(id, level, name, val, len);
}

/*
 * of_end says whether an option is for us to see to, as a descriptor is an end. Unless nobody else
 * can have that, the kernel is asked first about options of TCP, as most of them are of TCP
 * sockets: *r is the kernel's answer, and NOT_ASKED otherwise.
 */
#define NOT_ASKED 1

static bool of_end(int fd, int level, int name, long *r, struct identity *id,
	long (*kernel)(int, int, int, void *, void *), void *val, void *len)
{
	int domain = AF_UNIX;
	socklen_t size = sizeof(domain);

	*r = NOT_ASKED;
	if (!settings.on || (level == SOL_SOCKET && plain(name)))
		return false;
	if (level == SOL_SOCKET && SYS(getsockopt, fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 &&
		domain != AF_UNIX)
		return false; /* no other system call, which a program that asks for options might not be allowed */
	if (level != SOL_SOCKET && !only_ours(fd)) {
		*r = kernel(fd, level, name, val, len);
		if (*r != -EOPNOTSUPP)
			return false;
	}
	return identity_of(fd, id);
}

static long kernel_get(int fd, int level, int name, void *val, void *len)
{
	return SYS(getsockopt, fd, level, name, val, len);
}

static long kernel_set(int fd, int level, int name, void *val, void *len)
{
	return SYS(setsockopt, fd, level, name, val, len);
}

/* get_often is for an option that costs no system call. False: it has to be asked for otherwise. */
static bool get_often(int fd, int level, int name, void *val, socklen_t *len)
{
	int on;

	if (level != IPPROTO_TCP || name != TCP_CORK || !plausible(val) || !plausible(len) ||
		*len > INT_MAX || !only_ours(fd))
		return false;
	on = corked(fd);
	*len = *len < sizeof(on) ? *len : sizeof(on);
	memcpy(val, &on, *len);
	return true;
}

/* told turns the kernel's value of SO_ERROR into TCP's. */
static void told(int fd, void *val)
{
	struct end *e = end_at(fd);
	int v;

	memcpy(&v, val, sizeof(v));
	if (v == 0 && e && end_is(fd, e))
		v = end_tell(e, fd) || reset_came(e, fd) ? ECONNRESET : end_lost(e) ? EPIPE : 0;
	memcpy(val, &v, sizeof(v));
	end_error(fd, v);
}

/* deferred gives options of a listener the values that the program has set. */
static void deferred(int fd, int level, int name, void *val, const socklen_t *len)
{
	int kept;

	if (level == IPPROTO_TCP && name == TCP_DEFER_ACCEPT && (kept = deferral_kept(fd)))
		instead(val, len, kept);
	if (level == SOL_SOCKET && name == SO_INCOMING_CPU && *len == sizeof(kept)) {
		memcpy(&kept, val, sizeof(kept));
		if (deferral_is_kept(kept))
			instead(val, len, -1);
	}
}

/* has_on says whether the table has an option of an end on. */
static bool has_on(int fd, int level, int name)
{
	struct end *e;
	uint32_t bit;

	if (level != SOL_SOCKET || (name != SO_REUSEADDR && name != SO_BROADCAST && name != SO_DONTROUTE))
		return false;
	bit = bit_of(level, name);
	e = end_at(fd);
	return e && (__atomic_load_n(&e->on, __ATOMIC_SEQ_CST) & bit) && end_is(fd, e);
}

/*
 * guarded makes the call that a program with a filter of system calls has asked for, and no other: it need
 * not be allowed to ask for a name. *ends: it is an option that only TCP has, and the descriptor is an end.
 */
static bool guarded(int fd, int level, int name, long (*kernel)(int, int, int, void *, void *), void *val,
	void *len, long *r, bool *ends)
{
	if (!guard_on() || (level == SOL_SOCKET && (name == SO_DOMAIN || name == SO_PROTOCOL)))
		return false;
	*r = kernel(fd, level, name, val, len);
	*ends = *r == -EOPNOTSUPP && level != SOL_SOCKET && guard_may(fd);
	return true;
}

EXPORT int getsockopt(int fd, int level, int name, void *val, socklen_t *len)
{
	struct identity id;
	bool ends;
	long r;

	if (level == SOL_SOCKET && name == SO_ERROR && hosts_some())
		connect_settle(fd); /* a program that has not waited asks so whether it is connected */
	if (guarded(fd, level, name, kernel_get, val, len, &r, &ends))
		return (int)sys_return(ends ? give_number(fd, val, len, 0) : r);
	if (get_often(fd, level, name, val, len))
		return 0;
	if (of_end(fd, level, name, &r, &id, kernel_get, val, len)) {
		if (level == SOL_SOCKET)
			r = get_socket(fd, &id, name, val, len);
		else
			r = level == IPPROTO_TCP ? get_tcp(fd, &id, name, val, len)
						 : get_ip(fd, &id, level, name, val, len);
		return (int)sys_return(r);
	}
	if (r == NOT_ASKED)
		r = kernel_get(fd, level, name, val, len);
	if (r == 0 && level == SOL_SOCKET && name == SO_ERROR && *len == sizeof(int))
		told(fd, val);
	if (r == 0 && has_on(fd, level, name))
		instead(val, len, 1);
	if (r == 0 && settings.on)
		deferred(fd, level, name, val, len);
	return (int)sys_return(r);
}

/* often is which options programs set for many connections. */
static bool often(int name)
{
	return name == TCP_QUICKACK || name == TCP_KEEPIDLE || name == TCP_KEEPINTVL || name == TCP_KEEPCNT ||
		name == TCP_USER_TIMEOUT;
}

/* harmless says whether TCP would take a number for one of them. If not the kernel judges. */
static bool harmless(int name, int v)
{
	switch (name) {
	case TCP_QUICKACK:
		return true;
	case TCP_KEEPIDLE:
	case TCP_KEEPINTVL:
		return v >= 1 && v <= 32767;
	case TCP_KEEPCNT:
		return v >= 1 && v <= 127;
	case TCP_USER_TIMEOUT:
		return v >= 0;
	}
	return false;
}

/* A model is not connected, and some options depend on that. */
static long try_tcp(int fd, const struct identity *id, int name, const void *val, socklen_t len)
{
	long r = try(id, IPPROTO_TCP, name, val, len);
	int v;

	switch (name) {
	case TCP_FASTOPEN:
	case TCP_FASTOPEN_CONNECT:
	case TCP_FASTOPEN_NO_COOKIE:
		return r == 0 ? -EINVAL : r;
	case TCP_WINDOW_CLAMP:
		return r == 0 && option_in(fd, val, len, &v) == 0 && v == 0 ? -EINVAL : r;
	case TCP_QUEUE_SEQ:
		return r == -EINVAL && option_in(fd, val, len, &v) == 0 ? -EPERM : r;
	case TCP_ULP:
		return r == 0 || r == -ENOTCONN ? -ENOENT : r; /* there is no protocol that goes over a pair */
	case TCP_MD5SIG:
	case TCP_MD5SIG_EXT:
		return r == 0 ? -ENOPROTOOPT : r;
	case TCP_REPAIR:
		return r == 0 ? -EPERM : r;
	}
	return r;
}

/*
 * set_often sets options that cost no question for an end's name. False: they have to be seen to otherwise.
 */
static bool set_often(int fd, int name, const void *val, socklen_t len, long *r)
{
	struct end *e = only_ours(fd);
	int v;

	if (!e || !(name == TCP_CORK || name == TCP_NODELAY || often(name)))
		return false;
	if (name == TCP_CORK && plausible(val) && len >= sizeof(v) &&
		len <= INT_MAX) { /* it comes with every answer of some servers */
		memcpy(&v, val, sizeof(v));
		__atomic_store_n(&e->cork, v ? CORK_ON : CORK_OFF, __ATOMIC_SEQ_CST);
		*r = 0;
		return true;
	}
	*r = option_in(fd, val, len, &v);
	if (*r == 0 && name == TCP_NODELAY)
		*r = keep(fd, v ? keeps(fd) | KEEP_NODELAY : keeps(fd) & ~KEEP_NODELAY);
	return *r != 0 || name == TCP_NODELAY || harmless(name, v);
}

static long set_tcp(int fd, const struct identity *id, int name, const void *val, socklen_t len)
{
	int bit = name == TCP_NODELAY ? KEEP_NODELAY : name == TCP_CORK ? KEEP_CORK : 0;
	long r;
	int v;

	r = option_in(fd, val, len, &v);
	if (!bit) {
		r = r == 0 && harmless(name, v) ? 0 : try_tcp(fd, id, name, val, len);
		if (r == 0 && name == TCP_NOTSENT_LOWAT)
			send_tells_room(fd);
		return r;
	}
	return r != 0 ? r : keep(fd, v ? keeps(fd) | bit : keeps(fd) & ~bit);
}

static long set_ip(int fd, const struct identity *id, int level, int name, const void *val, socklen_t len)
{
	long r;
	int v;

	/* Programs set these in sandboxes that forbid sockets. */
	if ((level == IPPROTO_IP && name == IP_TOS) ||
		(level == IPPROTO_IPV6 && name == IPV6_TCLASS && id->ipv6)) {
		if (option_in(fd, val, len, &v) == 0 && v >= 0 && v <= 255)
			return 0;
	}
	r = try(id, level, name, val, len);
	if (r == 0 && level == IPPROTO_IPV6 && name == IPV6_V6ONLY)
		return -EINVAL; /* it has a port */
	return r;
}

/* set_socket is for options of SOL_SOCKET of an end. */
static long set_socket(int fd, const struct identity *id, int name, const void *val, socklen_t len)
{
	long r = try(id, SOL_SOCKET, name, val, len);
	int v;

	if (r == 0 && (name == SO_ATTACH_FILTER || name == SO_ATTACH_BPF))
		return SYS(setsockopt, fd, SOL_SOCKET, name, val,
			len); /* which some kernels have for privileged programs only, at a TCP socket */
	if (r == 0 && name == SO_ZEROCOPY && option_in(fd, val, len, &v) == 0 && v)
		return -EOPNOTSUPP; /* nobody would say when the bytes were sent */
	return r;
}

/* chosen takes note of an option that was set, to a value that the kernel has taken. */
static void chosen(int fd, uint32_t bit, const void *val)
{
	struct end *e = bit & OPTIONS_LATER ? end_at(fd) : NULL;
	int v = 1;

	if (e)
		__atomic_fetch_and(&e->on, ~bit, __ATOMIC_SEQ_CST); /* the kernel has it */
	if (bit & OPTIONS_LATER)
		memcpy(&v, val, sizeof(v));
	birth_option(fd, bit, v);
}

/*
 * told_again has an end tell again of the bytes that are there, as TCP does when SO_RCVLOWAT is set: by an
 * edge, and by a signal.
 */
static void told_again(int fd)
{
	struct end *e = end_at(fd);
	long status;

	if (!e || !end_is(fd, e))
		return;
	epoll_nudge(fd);
	busy_again(fd, 0);
	status = SYS(fcntl, fd, F_GETFL);
	if (status >= 0 && (status & O_ASYNC))
		signal_ready(fd);
}

/*
 * set_size sets the size of the buffer of an end with a ring. It stays as it is, as it says when the ring
 * is full.
 */
static long set_size(int fd, int name, const void *val, socklen_t len)
{
	struct identity id;
	long r = identity_of(fd, &id) ? try(&id, SOL_SOCKET, name, val, len) : option_in(fd, val, len, &(int){0});

	if (r == 0)
		send_tells_room(fd);
	return r;
}

EXPORT int setsockopt(int fd, int level, int name, const void *val, socklen_t len)
{
	void *size = (void *)(uintptr_t)len, *from = (void *)(uintptr_t)val;
	struct identity id;
	bool ends;
	long r;

	if (guarded(fd, level, name, kernel_set, from, size, &r, &ends))
		return (int)sys_return(ends ? option_in(fd, val, len, &(int){0}) : r);
	if (level == SOL_SOCKET && (name == SO_SNDBUF || name == SO_SNDBUFFORCE) && end_joined(fd))
		return (int)sys_return(set_size(fd, name, val, len));
	if (level == SOL_SOCKET && (name == SO_RCVTIMEO || name == SO_RCVTIMEO_NEW))
		end_limited(fd);
	if (level == IPPROTO_TCP && name == TCP_DEFER_ACCEPT && settings.on && deferral_set(fd, val, len, &r))
		return (int)sys_return(r);
	if (level == IPPROTO_TCP && set_often(fd, name, val, len, &r))
		return (int)sys_return(r);
	if (of_end(fd, level, name, &r, &id, kernel_set, from, size)) {
		if (level == SOL_SOCKET)
			r = set_socket(fd, &id, name, val, len);
		else
			r = level == IPPROTO_TCP ? set_tcp(fd, &id, name, val, len)
						 : set_ip(fd, &id, level, name, val, len);
		return (int)sys_return(r);
	}
	if (r == NOT_ASKED)
		r = kernel_set(fd, level, name, from, size);
	if (r == 0 && level == SOL_SOCKET && name == SO_LINGER && settings.on) {
		struct linger linger;

		memcpy(&linger, val, sizeof(linger));
		reset_mark(fd, linger.l_onoff && linger.l_linger == 0);
	}
	if (r == 0 && level == SOL_SOCKET && name == SO_RCVLOWAT && settings.on && options_low(fd)) {
		birth_never(fd); /* poll of a Unix socket knows nothing of it */
		end_low(fd);
	}
	if (r == 0 && level == SOL_SOCKET && name == SO_RCVLOWAT)
		told_again(fd);
	if (r == 0 && only_tcp(level, name))
		birth_never(fd);
	if (r == 0)
		chosen(fd, bit_of(level, name), val);
	return (int)sys_return(r);
}

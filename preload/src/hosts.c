/*
 * Between hosts: peers speak SMC-R that the operator has named, and those that have TCP option 254 on their
 * segments, which 'gosmc agent' has the kernel put on ours. Their connections are made over TCP by
 * the kernel, as ever. Then our supervisor has an engine take the TCP socket, which speaks CLC there, and we
 * get an end of a pair with the engine. The bytes pass through the engine: there are no rings.
 *
 * A connect that does not wait leaves a TCP socket that is on its way. It is looked at again when the
 * program next uses the descriptor in a call that can tell it of the connection, or that moves bytes.
 * Until then it is TCP, and a socket over which bytes have gone stays that.
 *
 * Without GOSMC_RUN_PEERS nothing of this makes a system call.
 */
#include "ring.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#define PEERS 64
#define LEVEL 286 /* SOL_SMC */
#define LAYOUT 1
#define BOTH 4

struct peer {
	uint8_t ip[16];
	uint8_t bits;
	uint16_t port; /* of the server; 0: any */
};

static struct peer peers[PEERS];
static size_t count;
static bool between;
static uint32_t option_name =
	0x534d4352; /* the name of option 254 for sockets: "SMCR". Tests have another one, and 0 is none */

/* What the agent's programs say of a socket: internal/option. */
struct asked {
	uint8_t layout;
	uint8_t state;
	uint8_t reason;
	uint8_t flags;
};

/* Where another part of a call uses the descriptor, which is not to become another one in between. */
static __thread uint32_t held __attribute__((tls_model("initial-exec")));

/*
 * hosts_read reads what 'gosmc run' has made of the configuration: <address>/<bits>/<port>, in hexadecimal
 * digits, 32, 2 and 4. Anything else is no peer.
 */
void hosts_read(const char *v)
{
	const char *name = getenv("GOSMC_RUN_OPTION");
	size_t n = 0;

	between = v != NULL;
	if (name)
		option_name = (uint32_t)strtoul(name, NULL, 10);
	for (; v && *v && n < PEERS; v++) {
		struct peer *p = &peers[n];
		uint8_t port[2];

		v = get_hex(v, p->ip, sizeof(p->ip));
		if (!v || *v++ != '/' || !(v = get_hex(v, &p->bits, 1)) || *v++ != '/' ||
			!(v = get_hex(v, port, sizeof(port))) || (*v && *v != ',') || p->bits > 128)
			return;
		p->port = (uint16_t)(port[0] << 8 | port[1]);
		count = ++n;
		if (!*v)
			return;
	}
}

static bool within(const struct peer *p, const struct address *a)
{
	unsigned whole = p->bits / 8;
	uint8_t mask = (uint8_t)(0xff00 >> p->bits % 8);

	return memcmp(p->ip, a->ip, whole) == 0 && (whole == 16 || ((p->ip[whole] ^ a->ip[whole]) & mask) == 0);
}

/* hosts_peer says whether connections with an address are to be SMC-R, where the server has the port. */
bool hosts_peer(const struct address *remote, uint16_t port)
{
	for (size_t i = 0; i < count; i++)
		if ((peers[i].port == 0 || peers[i].port == port) && within(&peers[i], remote))
			return true;
	return false;
}

/* hosts_some says whether there is anything to do between hosts. */
bool hosts_some(void)
{
	return between;
}

/*
 * hosts_ask asks for TCP option 254 on a socket that is neither connected nor listening. False: there is no
 * agent.
 */
bool hosts_ask(int fd)
{
	int on = 1;

	return between && option_name && SYS(setsockopt, fd, LEVEL, option_name, &on, sizeof(on)) == 0;
}

/* hosts_withdraw takes that back. */
void hosts_withdraw(int fd)
{
	int on = 0;

	SYS(setsockopt, fd, LEVEL, option_name, &on, sizeof(on));
}

/* hosts_both says whether the SYN and the SYN-ACK of a connection had the option: CLC follows. */
bool hosts_both(int fd)
{
	struct asked o = {0};
	socklen_t len = sizeof(o);

	return between && option_name && SYS(getsockopt, fd, LEVEL, option_name, &o, &len) == 0 &&
		len == sizeof(o) && o.layout == LAYOUT && o.state == BOTH;
}

/* Of struct tcp_info, which libc has without these. */
#define LAST_ACK_RECEIVED 56 /* milliseconds ago */
#define BYTES_RECEIVED 128
#define DATA_SEGMENTS_OUT 156
#define TCP_INFO_SIZE 160

/*
 * A server of ours that has something to say waits this long for a peer that may speak CLC, and half as
 * long again: engine.go.
 */
#define FRESH_MSEC 250
#define CLC_PATIENCE 6 /* seconds that an end waits for a message of the other one, as Linux does */

/*
 * hosts_state says how far a connect has come. A connection is fresh for a moment, as long as nothing has
 * gone over it. Where CLC has to follow, and the moment is over, it is stale: a server that has something to
 * say may have given up waiting.
 */
enum hosts_state hosts_state(int fd)
{
	uint8_t info[TCP_INFO_SIZE] = {0};
	socklen_t len = sizeof(info);
	uint32_t ago, sent;
	uint64_t received;

	if (SYS(getsockopt, fd, IPPROTO_TCP, TCP_INFO, info, &len) != 0 || len < sizeof(info))
		return HOSTS_TCP;
	if (info[0] == TCP_SYN_SENT)
		return HOSTS_CONNECTING;
	memcpy(&ago, info + LAST_ACK_RECEIVED, sizeof(ago));
	memcpy(&received, info + BYTES_RECEIVED, sizeof(received));
	memcpy(&sent, info + DATA_SEGMENTS_OUT, sizeof(sent));
	if (info[0] != TCP_ESTABLISHED || received != 0 || sent != 0)
		return HOSTS_TCP;
	if (ago < FRESH_MSEC)
		return HOSTS_FRESH;
	return hosts_both(fd) ? HOSTS_STALE : HOSTS_TCP;
}

#define CLC_HEADER 8
#define CLC_PROPOSAL 1
#define CLC_DECLINE 4
#define CLC_V2 2
#define PROPOSAL_LEAST 52
#define PROPOSAL_MOST 4096
#define DECLINE_V1 28
#define DECLINE_V2 44
#define DECLINED_MEMORY 1 /* 0x01010000: not enough memory, of any kind */
#define MSEC 1000000 /* in nanoseconds */
#define PROPOSAL_TURNS 250 /* of a millisecond, for the rest of a Proposal */

static const uint8_t smcr[] = {0xe2, 0xd4, 0xc3, 0xd9}, smcd[] = {0xe2, 0xd4, 0xc3, 0xc4};

/*
 * first says how long the CLC message is with which a connection begins, a Proposal or the Decline of a
 * client that has no device; 0: with none.
 */
static size_t first(const uint8_t *b, size_t n)
{
	size_t len;

	if (n != CLC_HEADER || (memcmp(b, smcr, sizeof(smcr)) != 0 && memcmp(b, smcd, sizeof(smcd)) != 0))
		return 0;
	len = (size_t)b[5] << 8 | b[6];
	if (b[4] == CLC_DECLINE)
		return len >= DECLINE_V1 && len <= DECLINE_V2 ? len : 0;
	return b[4] == CLC_PROPOSAL && len >= PROPOSAL_LEAST && len <= PROPOSAL_MOST ? len : 0;
}

/*
 * failed says whether a connection has ended by an error, which the program is to hear of: to receive or to
 * send would take it away.
 */
static bool failed(int fd)
{
	struct pollfd p = {.fd = fd};
	struct timespec now = {0};

	return SYS(ppoll, &p, 1, &now, NULL, 0) == 1 && (p.revents & POLLERR);
}

/* over says whether one has, with nothing to read before. */
static bool over(int fd)
{
	int have = 0;

	return failed(fd) && SYS(ioctl, fd, FIONREAD, &have) == 0 && have == 0;
}

/*
 * decline sends a Decline: RFC 7609 p.105, SMCv2 p.78. A client that has heard of the program has found
 * out.
 */
static void decline(int fd, unsigned version)
{
	uint8_t b[DECLINE_V2] = {0}, info[TCP_INFO_SIZE] = {0};
	size_t n = version >= CLC_V2 ? DECLINE_V2 : DECLINE_V1;
	socklen_t len = sizeof(info);
	uint32_t sent = 0;

	if (SYS(getsockopt, fd, IPPROTO_TCP, TCP_INFO, info, &len) == 0)
		memcpy(&sent, info + DATA_SEGMENTS_OUT, sizeof(sent));
	if (sent || failed(fd))
		return;
	memcpy(b, smcr, sizeof(smcr));
	memcpy(b + n - sizeof(smcr), smcr, sizeof(smcr));
	b[4] = CLC_DECLINE;
	b[6] = (uint8_t)n;
	b[7] = (uint8_t)((version >= CLC_V2 ? CLC_V2 : 1) << 4);
	b[16] = b[17] = DECLINED_MEMORY;
	SYS(sendto, fd, b, n, MSG_DONTWAIT | MSG_NOSIGNAL, NULL, 0);
}

/*
 * hosts_stays declines a connection of ours that stays TCP though the server waits for CLC, before the
 * program sends anything.
 */
void hosts_stays(int fd)
{
	enum hosts_state state;

	if (!hosts_both(fd) || reach_paired(fd))
		return;
	state = hosts_state(fd);
	if (state == HOSTS_FRESH || state == HOSTS_STALE)
		decline(fd, 1);
}

/*
 * await_first waits for the first bytes of a connection whose program would wait for them, or speak first: no
 * longer than an engine would, but as long as for any message of CLC if the client has said that it begins
 * with one. False: there are none.
 */
static bool await_first(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	struct timespec patience = {.tv_nsec = 2L * FRESH_MSEC * MSEC};
	long flags = SYS(fcntl, fd, F_GETFL);

	if (hosts_both(fd))
		patience = (struct timespec){.tv_sec = CLC_PATIENCE};
	return flags >= 0 && !(flags & O_NONBLOCK) && SYS(ppoll, &p, 1, &patience, NULL, 0) == 1;
}

/*
 * hosts_decline looks at a connection that was accepted and that no engine has taken, as our supervisor has
 * ended, or does not answer. It stays TCP. Its client may begin with a Proposal all the same: that is none of
 * the program's bytes. Where reads do not wait it is looked at again until something comes.
 */
void hosts_decline(int fd)
{
	uint8_t b[CLC_HEADER];
	size_t len = 0;
	bool waited = false;
	int have = 0;

	if (!end_declining(fd))
		return;
	for (int i = 0; i < PROPOSAL_TURNS; i++) {
		struct timespec pause = {.tv_nsec = MSEC};
		long n = over(fd) ? 0 : SYS(recvfrom, fd, b, sizeof(b), MSG_PEEK | MSG_DONTWAIT, NULL, NULL);

		if (n == -EAGAIN && !waited) {
			waited = true;
			if (await_first(fd))
				continue;
			if (!(SYS(fcntl, fd, F_GETFL) & O_NONBLOCK))
				break;
			end_untaken(fd);
			return;
		}
		if (n <= 0 || memcmp(b, smcr, n < 3 ? (size_t)n : 3) != 0)
			break;
		len = first(b, (size_t)n);
		if (n == CLC_HEADER && (len == 0 || (SYS(ioctl, fd, FIONREAD, &have) == 0 && (size_t)have >= len)))
			break;
		len = 0;
		SYS(ppoll, NULL, 0, &pause, NULL, 0);
	}
	if (len && SYS(recvfrom, fd, NULL, len, MSG_TRUNC | MSG_DONTWAIT, NULL, NULL) == (long)len &&
		b[4] == CLC_PROPOSAL)
		decline(fd, b[7] >> 4);
	end_connecting(fd, false);
}

/* hosts_hold keeps end_at from putting something in the place of a descriptor, in this thread. */
void hosts_hold(bool on)
{
	held += on ? 1 : -1u;
}

bool hosts_held(void)
{
	return held != 0;
}

/*
 * Between hosts: the operator has said which peers speak SMC-R. Their connections are made over TCP by
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

#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>

#define PEERS 64

struct peer {
	uint8_t ip[16];
	uint8_t bits;
	uint16_t port; /* of the server; 0: any */
};

static struct peer peers[PEERS];
static size_t count;

/* Where another part of a call uses the descriptor, which is not to become another one in between. */
static __thread uint32_t held __attribute__((tls_model("initial-exec")));

/* hosts_read reads what 'gosmc run' has made of the configuration: <address>/<bits>/<port>, in hexadecimal digits, 32, 2 and 4. Anything else is no peer. */
void hosts_read(const char *v)
{
	size_t n = 0;

	for (; v && *v && n < PEERS; v++) {
		struct peer *p = &peers[n];
		uint8_t port[2];

		v = get_hex(v, p->ip, sizeof(p->ip));
		if (!v || *v++ != '/' || !(v = get_hex(v, &p->bits, 1)) || *v++ != '/' || !(v = get_hex(v, port, sizeof(port))) ||
		    (*v && *v != ',') || p->bits > 128)
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

bool hosts_some(void)
{
	return count != 0;
}

/* Of struct tcp_info, which libc has without these. */
#define LAST_ACK_RECEIVED 56 /* milliseconds ago */
#define BYTES_RECEIVED 128
#define DATA_SEGMENTS_OUT 156
#define TCP_INFO_SIZE 160

/* A server of ours that has something to say waits this long for a peer that may speak CLC, and half as long again: engine.go. */
#define FRESH_MSEC 250

/* connected says how far a connect has come. */
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
	return info[0] == TCP_ESTABLISHED && received == 0 && sent == 0 && ago < FRESH_MSEC ? HOSTS_FRESH : HOSTS_TCP;
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

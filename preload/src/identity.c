/*
 * Identity: the ends of a pair are bound to abstract names that say which TCP connection they are.
 * The kernel keeps a name as long as the socket, through dup, fork, exec and SCM_RIGHTS, so nobody
 * needs a table of descriptors, and 'gosmc ss' finds the connections.
 *
 *	\0 gosmc/1/<role>/<family>/<local ip>.<port>/<peer ip>.<port>/<unique>
 *
 * role is c (has connected) or s (has accepted), family 4 or 6, addresses are 32 hexadecimal digits,
 * ports 4, unique 16: the cookie of the client's end, in both names; another one if somebody else had taken
 *the server's.
 *
 * A server's end that came out of a letterbox has the letterbox's name, as every accepted socket has
 * its listener's, and can get no other. Its peer's name says which connection it is. That name cannot
 * say which family the server's program sees. So SO_NO_CHECK is set if it is AF_INET6: a Unix socket
 * keeps this option and has no use for it. Where a name is needed, such an end's is its peer's with
 * the other role.
 */
#include "preload.h"

#include <string.h>

#define PREFIX "\0gosmc/1/"
#define PREFIX_LEN (sizeof(PREFIX) - 1)
#define ROLE PREFIX_LEN /* where it is in a name */
_Static_assert(IDENTITY_NAME == PREFIX_LEN + 4 + 37 + 1 + 37 + 1 + 16, "the length of a name");
_Static_assert(IDENTITY_NAME <= sizeof(((struct sockaddr_un *)0)->sun_path), "a name fits");
#define NAME_SIZE (offsetof(struct sockaddr_un, sun_path) + IDENTITY_NAME)

static const char digits[] = "0123456789abcdef";

static char *put_hex(char *p, const uint8_t *b, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		*p++ = digits[b[i] >> 4];
		*p++ = digits[b[i] & 15];
	}
	return p;
}

/* get_hex reads n bytes. NULL: that is none, or p was. */
const char *get_hex(const char *p, uint8_t *b, size_t n)
{
	for (size_t i = 0; p && i < 2 * n; i++, p++) {
		const char *d = *p ? strchr(digits, *p) : NULL;

		if (!d)
			return NULL;
		b[i / 2] = (uint8_t)(b[i / 2] << 4 | (d - digits));
	}
	return p;
}

static char *put_address(char *p, const struct address *a)
{
	uint8_t port[2] = {(uint8_t)(a->port >> 8), (uint8_t)a->port};

	p = put_hex(p, a->ip, sizeof(a->ip));
	*p++ = '.';
	return put_hex(p, port, sizeof(port));
}

static const char *get_address(const char *p, struct address *a)
{
	uint8_t port[2];

	p = get_hex(p, a->ip, sizeof(a->ip));
	if (!p || *p++ != '.')
		return NULL;
	p = get_hex(p, port, sizeof(port));
	a->port = (uint16_t)(port[0] << 8 | port[1]);
	return p;
}

/* bind_name gives an end a name. */
static bool bind_name(int fd, const struct identity *id, char role, uint64_t unique)
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	uint8_t u[8];
	char *p = sun.sun_path;

	memcpy(p, PREFIX, PREFIX_LEN);
	p += PREFIX_LEN;
	*p++ = role;
	*p++ = '/';
	*p++ = id->ipv6 ? '6' : '4';
	*p++ = '/';
	p = put_address(p, &id->local);
	*p++ = '/';
	p = put_address(p, &id->peer);
	*p++ = '/';
	for (int i = 0; i < 8; i++)
		u[i] = (uint8_t)(unique >> (56 - 8 * i));
	put_hex(p, u, sizeof(u));
	return SYS(bind, fd, &sun, NAME_SIZE) == 0;
}

/* identity_bind gives a client's end its name. False: it has one already, or it is not possible. */
bool identity_bind(int fd, const struct identity *id, uint64_t unique)
{
	return bind_name(fd, id, 'c', unique);
}

/* identity_rename gives an end the name of another one whose place it takes. */
bool identity_rename(int fd, const struct identity *id, uint64_t unique)
{
	return bind_name(fd, id, id->server ? 's' : 'c', unique);
}

/*
 * identity_family has a server's end that came out of a letterbox keep the family that its program
 * sees.
 */
bool identity_family(int fd, const struct identity *id)
{
	int six = id->ipv6;

	return !six || SYS(setsockopt, fd, SOL_SOCKET, SO_NO_CHECK, &six, sizeof(six)) == 0;
}

/* given says whether a name was given to an end. */
static bool given(const struct sockaddr_un *sun, socklen_t len)
{
	return len == NAME_SIZE && sun->sun_family == AF_UNIX && memcmp(sun->sun_path, PREFIX, PREFIX_LEN) == 0;
}

/* of_box says whether a letterbox has this name: <a directory>/<16 digits>.in<digit>. */
static bool of_box(const struct sockaddr_un *sun, socklen_t len)
{
	static const char in[] = ".in";
	const size_t all = 1 + 16 + sizeof(in);
	size_t n;

	if (len > sizeof(*sun)) /* of a path that has no zero behind it */
		len = sizeof(*sun);
	if (len <= offsetof(struct sockaddr_un, sun_path) || sun->sun_family != AF_UNIX ||
		sun->sun_path[0] != '/')
		return false;
	n = strnlen(sun->sun_path, len - offsetof(struct sockaddr_un, sun_path));
	return n > all && sun->sun_path[n - all] == '/' &&
		memcmp(sun->sun_path + n - sizeof(in), in, sizeof(in) - 1) == 0;
}

/* name_of asks the kernel for the name of an end, or of its peer. */
static bool name_of(int fd, bool peer, struct sockaddr_un *sun, socklen_t *len)
{
	*len = sizeof(*sun);
	return (peer ? SYS(getpeername, fd, sun, len) : SYS(getsockname, fd, sun, len)) == 0;
}

/*
 * identity_name gets the name, of IDENTITY_NAME bytes, of the end that a descriptor is, or of its
 * peer. False: it is none of ours. The name of an end that came out of a letterbox is its peer's
 * with the other role, and so the addresses in it are the wrong way round.
 */
bool identity_name(int fd, bool peer, struct sockaddr_un *sun)
{
	socklen_t len;

	if (!name_of(fd, peer, sun, &len))
		return false;
	if (!of_box(sun, len))
		return given(sun, len);
	if (!name_of(fd, !peer, sun, &len) || !given(sun, len) || sun->sun_path[ROLE] != 'c')
		return false;
	sun->sun_path[ROLE] = 's';
	return true;
}

/* identity_of reads the name of a descriptor. False: it is none of ours. */
bool identity_of(int fd, struct identity *id)
{
	struct sockaddr_un sun;
	socklen_t len;
	const char *p = sun.sun_path + PREFIX_LEN;
	bool box;
	int six = 0;

	if (!name_of(fd, false, &sun, &len))
		return false;
	box = of_box(&sun, len);
	if (box && !name_of(fd, true, &sun, &len))
		return false;
	if (!given(&sun, len))
		return false;
	if ((p[0] != 'c' && (p[0] != 's' || box)) || p[1] != '/' || (p[2] != '4' && p[2] != '6') || p[3] != '/')
		return false;
	id->server = box || p[0] == 's';
	id->ipv6 = p[2] == '6';
	p = get_address(p + 4, box ? &id->peer : &id->local);
	if (!p || *p++ != '/')
		return false;
	p = get_address(p, box ? &id->local : &id->peer);
	if (!p || *p != '/')
		return false;
	len = sizeof(six);
	if (box)
		id->ipv6 = SYS(getsockopt, fd, SOL_SOCKET, SO_NO_CHECK, &six, &len) == 0 && six;
	return true;
}

static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

/* address_parse takes the address of a program's TCP socket. False: not one that we know how to move. */
bool address_parse(const struct sockaddr *sa, socklen_t len, struct address *a)
{
	sa_family_t family;

	if (!sa || len < sizeof(family))
		return false;
	memcpy(&family, sa, sizeof(family));
	if (family == AF_INET && len >= sizeof(struct sockaddr_in)) {
		struct sockaddr_in in;

		memcpy(&in, sa, sizeof(in));
		memcpy(a->ip, mapped, sizeof(mapped));
		memcpy(a->ip + 12, &in.sin_addr, 4);
		a->port = ntohs(in.sin_port);
		return true;
	}
	if (family == AF_INET6 && len >= sizeof(struct sockaddr_in6)) {
		struct sockaddr_in6 in6;

		memcpy(&in6, sa, sizeof(in6));
		if (in6.sin6_scope_id != 0)
			return false; /* the same address on another link is another host */
		memcpy(a->ip, &in6.sin6_addr, 16);
		a->port = ntohs(in6.sin6_port);
		return true;
	}
	return false;
}

/* address_format makes the socket address that a program expects, and returns its length. */
socklen_t address_format(const struct address *a, bool ipv6, struct sockaddr_storage *out)
{
	memset(out, 0, sizeof(*out));
	if (ipv6) {
		struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)out;

		in6->sin6_family = AF_INET6;
		in6->sin6_port = htons(a->port);
		memcpy(&in6->sin6_addr, a->ip, 16);
		return sizeof(*in6);
	}
	struct sockaddr_in *in = (struct sockaddr_in *)out;

	in->sin_family = AF_INET;
	in->sin_port = htons(a->port);
	memcpy(&in->sin_addr, a->ip + 12, 4);
	return sizeof(*in);
}

/* address_of asks the kernel for an address of a TCP socket. */
bool address_of(int fd, bool peer, struct address *a, bool *ipv6)
{
	struct sockaddr_storage ss;
	socklen_t len = sizeof(ss);
	long r = peer ? SYS(getpeername, fd, &ss, &len) : SYS(getsockname, fd, &ss, &len);

	if (r != 0 || !address_parse((struct sockaddr *)&ss, len, a))
		return false;
	*ipv6 = ss.ss_family == AF_INET6;
	return true;
}

bool address_is_any(const struct address *a)
{
	static const uint8_t zero[16];

	return memcmp(a->ip, zero, 16) == 0 ||
		(memcmp(a->ip, mapped, 12) == 0 && memcmp(a->ip + 12, zero, 4) == 0);
}

bool address_is_loopback(const struct address *a)
{
	static const uint8_t one[16] = {[15] = 1};

	return memcmp(a->ip, one, 16) == 0 || (memcmp(a->ip, mapped, 12) == 0 && a->ip[12] == 127);
}

bool address_equal(const struct address *a, const struct address *b)
{
	return a->port == b->port && memcmp(a->ip, b->ip, sizeof(a->ip)) == 0;
}

/*
 * identity_ring makes the name of the memory of a ring that this end writes: "gosmc ss" finds it in
 * /proc/PID/maps.
 */
void identity_ring(int fd, char out[static 64])
{
	struct sockaddr_un sun;
	char *p = out;

	memcpy(p, "gosmc-ring", sizeof("gosmc-ring"));
	if (!identity_name(fd, false, &sun))
		return;
	p += sizeof("gosmc-ring") - 1;
	*p++ = '.';
	memcpy(p, sun.sun_path + IDENTITY_NAME - 16, 16);
	p += 16;
	*p++ = '.';
	*p++ = sun.sun_path[ROLE];
	*p = 0;
}

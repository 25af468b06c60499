/*
 * Asks for every option there may be, and sets it, at an end of a connection: options FAMILY END PRIVILEGED. The results are on
 * standard output, a line each; with MOVED=1 the connections have to be none of TCP. FAMILY is 4 or 6, END c or s. The program gives up its
 * privileges unless PRIVILEGED is 1.
 */
#include "program.h"

#include <stdbool.h>

#include <linux/capability.h>

#define OPTIONS 131
#define AREA 1024

static int family;
static bool server_end;

static bool moved(void)
{
	return getenv("MOVED") && atoi(getenv("MOVED"));
}

static void give_up_privileges(void)
{
	struct __user_cap_header_struct h = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct d[2];

	memset(d, 0, sizeof(d));
	CHECK(syscall(SYS_capset, &h, d) == 0);
}

static int listener(struct sockaddr_storage *a, socklen_t *len)
{
	int l = socket(family, SOCK_STREAM, 0);

	memset(a, 0, sizeof(*a));
	a->ss_family = (sa_family_t)family;
	if (family == AF_INET6)
		((struct sockaddr_in6 *)a)->sin6_addr = in6addr_loopback;
	else
		((struct sockaddr_in *)a)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	*len = family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
	CHECK(l >= 0 && bind(l, (struct sockaddr *)a, *len) == 0 && listen(l, 5) == 0 && getsockname(l, (struct sockaddr *)a, len) == 0);
	return l;
}

/* connection makes a connection and returns the end that is asked. */
static int connection(int l, const struct sockaddr_storage *a, socklen_t len, int *other)
{
	int c = socket(family, SOCK_STREAM, 0), s, domain = 0;
	socklen_t n = sizeof(domain);

	CHECK(connect(c, (const struct sockaddr *)a, len) == 0 && (s = accept(l, NULL, NULL)) >= 0);
	CHECK(syscall(SYS_getsockopt, server_end ? s : c, SOL_SOCKET, SO_DOMAIN, &domain, &n) == 0);
	CHECK(domain == (moved() ? AF_UNIX : family));
	*other = server_end ? c : s;
	return server_end ? s : c;
}

static const char *result(int r)
{
	static char text[32];

	if (r == 0)
		return "ok";
	snprintf(text, sizeof(text), "%s", strerrorname_np(errno) ? strerrorname_np(errno) : "E?");
	return text;
}

/* get prints the result of getsockopt. The words behind the first | are the value. */
static void get(int fd, const char *what, int level, int name, int len)
{
	unsigned char v[AREA];
	socklen_t n = (socklen_t)len;
	int r;

	memset(v, 0xee, sizeof(v));
	r = getsockopt(fd, level, name, v, &n);
	printf("%d %d %s %d: %s len %d |", level, name, what, len, result(r), (int)n);
	for (int i = 0; r == 0 && i < (int)n && i < 64; i++)
		printf(" %02x", v[i]);
	if (r == 0 && (int)n < AREA && (int)n >= 0) /* nothing may be written behind it */
		for (int i = (int)n; i < AREA; i++)
			if (v[i] != 0xee) {
				printf(" and behind it");
				break;
			}
	printf("\n");
}

static void set(int fd, int level, int name, int len, int value)
{
	unsigned char v[AREA] = {0};
	int r;

	memcpy(v, &value, sizeof(value));
	r = setsockopt(fd, level, name, v, (socklen_t)len);
	printf("%d %d set %d to %d: %s\n", level, name, len, value, result(r));
	if (r == 0)
		get(fd, "after", level, name, AREA);
}

static void one(int fd, int level, int name)
{
	static const int lengths[] = {AREA, -1, 0, 1, 2, 3, 4, 5, 8, 12, 16, 28, 64, 256};
	static const int sizes[] = {-1, 0, 1, 3, 4, 5, 8, 16, 64, 256};
	static const int values[] = {0, 1, 5, -1, 127, 200, 40000, 1 << 20};
	socklen_t n;
	int r, v = 1;

	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
		get(fd, "get", level, name, lengths[i]);
	n = 4;
	r = getsockopt(fd, level, name, (void *)-1, &n);
	printf("%d %d get into nothing: %s\n", level, name, result(r));
	n = 4;
	r = getsockopt(fd, level, name, NULL, &n);
	printf("%d %d get into null: %s\n", level, name, result(r));
	r = getsockopt(fd, level, name, &v, (void *)-1);
	printf("%d %d get with no length: %s\n", level, name, result(r));
	r = getsockopt(fd, level, name, &v, NULL);
	printf("%d %d get with a null length: %s\n", level, name, result(r));
	r = setsockopt(fd, level, name, (void *)-1, sizeof(v));
	printf("%d %d set from nothing: %s\n", level, name, result(r));
	r = setsockopt(fd, level, name, NULL, sizeof(v));
	printf("%d %d set from null: %s\n", level, name, result(r));
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		for (size_t j = 0; j < sizeof(values) / sizeof(values[0]); j++)
			set(fd, level, name, sizes[i], values[j]);
}

int main(int argc, char **argv)
{
	static const int levels[] = {SOL_SOCKET, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, IPPROTO_UDP, SOL_RAW, 4711};
	struct sockaddr_storage a;
	socklen_t len;
	int l;

	CHECK(argc == 4);
	family = atoi(argv[1]) == 6 ? AF_INET6 : AF_INET;
	server_end = argv[2][0] == 's';
	l = listener(&a, &len);
	if (!atoi(argv[3]))
		give_up_privileges();
	for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++)
		for (int name = 0; name < OPTIONS; name++) {
			int other, fd = connection(l, &a, len, &other);

			one(fd, levels[i], name);
			close(fd);
			close(other);
		}
	return 0;
}

/* A server that says at which port it listens, accepts one connection, and says what it reads from it: late. */
#include "program.h"

int main(void)
{
	struct sockaddr_in a;
	int l = server(&a), fd;
	char text[100];
	ssize_t n;

	printf("%d\n", ntohs(a.sin_port));
	fflush(stdout);
	fd = accept(l, NULL, NULL);
	CHECK(fd >= 0);
	n = read(fd, text, sizeof(text));
	CHECK(n >= 0);
	printf("%.*s\n", (int)n, text);
	return 0;
}

/* A program that is about to take a letter: it has locked the end that came with it, which is descriptor 3, until it reads something. */
#include "program.h"

#include <fcntl.h>

int main(void)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	char c;

	alarm(100);
	CHECK(fcntl(3, F_SETLK, &lock) == 0);
	CHECK(write(1, "x", 1) == 1);
	CHECK(read(0, &c, 1) == 1);
	return 0;
}

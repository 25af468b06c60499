/*
 * The debug switch: with GOSMC_RUN_SHAKE in the environment, a number other than 0, directions join and leave
 * rings at random, rings are small, and writes are cut at random.
 */
#include "ring.h"

static uint64_t seed;

void shake_start(const char *v)
{
	seed = 0;
	for (; v && *v >= '0' && *v <= '9'; v++)
		seed = seed * 10 + (uint64_t)(*v - '0');
}

static uint64_t next_random(void)
{
	uint64_t x = __atomic_add_fetch(&seed, 0x9e3779b97f4a7c15ull, __ATOMIC_RELAXED);

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

bool shaking(void)
{
	return __builtin_expect(__atomic_load_n(&seed, __ATOMIC_RELAXED) != 0, 0);
}

/* shake is true once in so many times, and never without the switch. */
bool shake(unsigned one_in)
{
	return shaking() && next_random() % one_in == 0;
}

/* shake_cut makes a number of bytes smaller, but not 0. */
size_t shake_cut(size_t n)
{
	return shaking() && n > 1 ? 1 + (size_t)(next_random() % n) : n;
}

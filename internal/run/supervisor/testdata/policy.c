/* Asks the library's policy, which the environment sets: lines "l ADDRESS PORT" and "c ADDRESS PORT", answered by 1 or 0, and "d WORD 0", whether the word disables. */
#include "../../../../preload/src/policy.c"

#include <stdio.h>

bool address_is_any(const struct address *a)
{
	static const uint8_t six[16], four[16] = {[10] = 0xff, [11] = 0xff};

	return memcmp(a->ip, six, 16) == 0 || memcmp(a->ip, four, 16) == 0;
}

int main(void)
{
	char side, text[64];
	unsigned port;

	policy_read();
	while (scanf(" %c %63s %u", &side, text, &port) == 3) {
		struct address a = {.port = (uint16_t)port};

		if (side == 'd') {
			printf("%d\n", policy_disabled(strcmp(text, "-") == 0 ? "" : text));
			continue;
		}
		if (inet_pton(AF_INET, text, a.ip + 12) == 1)
			a.ip[10] = a.ip[11] = 0xff;
		else if (inet_pton(AF_INET6, text, a.ip) != 1)
			return 1;
		printf("%d\n", side == 'l' ? policy_listen(&a) : policy_connect(&a));
	}
	return 0;
}

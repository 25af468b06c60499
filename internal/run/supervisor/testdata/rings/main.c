#include "rings.h"

char *self;

static void large(void)
{
	one_way(30000000, 200000, 300000, 0);
}

static void large_nonblocking(void)
{
	one_way(30000000, 200000, 300000, O_NONBLOCK);
}

static void small(void)
{
	one_way(3000000, 200, 3000, 0);
}

static void small_nonblocking(void)
{
	one_way(3000000, 200, 3000, O_NONBLOCK);
}

static void phases_blocking(void)
{
	phases(0);
}

static void phases_nonblocking(void)
{
	phases(O_NONBLOCK);
}

static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {
	{"large", large},
	{"large-nonblocking", large_nonblocking},
	{"small", small},
	{"small-nonblocking", small_nonblocking},
	{"phases", phases_blocking},
	{"phases-nonblocking", phases_nonblocking},
	{"duplex", duplex},
	{"poll", test_poll},
	{"signal", test_signal},
	{"dup", test_dup},
	{"standard", test_standard},
	{"standard-zero", test_standard_zero},
	{"fork", test_fork},
	{"exec", test_exec},
	{"passed", test_passed},
	{"others", test_others},
	{"killed", test_killed},
	{"threads", test_threads},
	{"peek", test_peek},
	{"starved", test_starved},
	{"small-files", test_small_files},
	{"reserved", test_reserved},
	{"fortified", test_fortified},
	{"spawned", test_spawned},
	{"parts", test_parts},
	{"gone", test_gone},
	{"unread", test_unread},
	{"after-close", test_after_close},
	{"told", test_told},
	{"copy-after", test_copy_after},
	{"shut-elsewhere", test_shut_elsewhere},
	{"stream", test_stream},
	{"daemon", test_daemon},
	{"scribble", test_scribble},
	{"flood", test_flood},
	{"turns", test_turns},
	{"readers", test_readers},
	{"cork", test_cork},
	{"reuse", test_reuse},
	{"files", test_files},
	{"files-nonblocking", test_files_nonblocking},
	{"answers", test_answers},
	{"corked", test_corked},
	{"cork-said", test_cork_said},
	{"asked", test_asked},
	{"nothing", test_nothing},
	{"no-messages", test_no_messages},
	{"counted", test_counted},
	{"peekers", test_peekers},
	{"limit", test_limit},
	{"nowait", test_nowait},
	{"handed-fork", test_handed_fork},
	{"handed-exec", test_handed_exec},
	{"handed-spawn", test_handed_spawn},
	{"handed-passed", test_handed_passed},
	{"handed-stream", test_handed_stream},
	{"handed-splice", test_handed_splice},
	{"handed-ended", test_handed_ended},
	{"handed-kept", test_handed_kept},
	{"unshared", test_unshared},
	{"adopted-exec", test_adopted_exec},
	{"adopted-spawn", test_adopted_spawn},
	{"adopted-chain", test_adopted_chain},
	{"adopted-passed", test_adopted_passed},
	{"adopted-strangers", test_adopted_strangers},
	{"adopted-filtered", test_adopted_filtered},
};

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "";

	self = argv[0];
	if (strcmp(name, "heir") == 0)
		return heir(argv[2]), 0;
	if (strcmp(name, "passed-heir") == 0)
		return passed_heir(argv[2]), 0;
	if (strcmp(name, "handed-heir") == 0)
		return handed_heir(argv[2], argv[3]), 0;
	if (strcmp(name, "adopted-heir") == 0)
		return adopted_heir(argv[2]), 0;
	if (strcmp(name, "adopted-strangers-heir") == 0)
		return adopted_strangers(), 0;
	if (strcmp(name, "pass-on") == 0)
		return execv(argv[2], argv + 2), 9;
	if (strcmp(name, "late-heir") == 0) {
		CHECK(read(atoi(argv[3]), buf, 1) == 1 && write(atoi(argv[2]), "0123456789", 10) == 10);
		return 0;
	}
	if (argc > 2)
		seed = strtoul(argv[2], NULL, 10) * 1234567 + 1;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		if (strcmp(name, cases[i].name) == 0)
			return cases[i].run(), 0;
	return 2;
}

package main

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// quiet are flags of compilers: old sources have many warnings, and tests need no optimiser.
const quiet = `-O1 -w`

// asBuilt has make find the files that autoconf and automake have made as new as their sources,
// which Debian may have changed.
const asBuilt = `
		for f in aclocal.m4 configure config.h.in Makefile.in
		do
			find . -path "*/$f" -exec touch {} +
		done`

var libuv = &suite{
	name: "libuv", what: "the event loop of node: streams, shutdowns, polls, children with descriptors, errors",
	source: "libuv1",
	takes:  3 * time.Minute,
	build: `
		flags="` + quiet + ` -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -D_LARGEFILE_SOURCE"
		mkdir objects
		cd objects
		for f in async core dl fs getaddrinfo getnameinfo loop-watcher loop pipe poll process random-devurandom signal stream tcp thread tty udp \
			linux-core linux-inotify linux-syscalls procfs-exepath pthread-fixes random-getentropy random-getrandom random-sysctl-linux epoll proctitle
		do
			set -- "$@" ../src/unix/$f.c
		done
		cc -c $flags -I../include -I../src ../src/*.c "$@"
		ar rcs libuv.a *.o
		cd ..
		cc $flags -Iinclude -Isrc -o run-tests test/blackhole-server.c test/echo-server.c test/run-tests.c test/runner.c test/runner-unix.c \
			test/test-*.c objects/libuv.a -lpthread -ldl -lrt -lutil`,
	least: 40,
	units: one("UV_RUN_AS_ROOT=1 ./run-tests", func(tests []string) string {
		// Alone, a test prints no result.
		return `for t in ` + strings.Join(tests, " ") + `
			do if UV_RUN_AS_ROOT=1 ./run-tests $t; then echo "ok 1 - $t"; else echo "not ok 1 - $t"; fi
			done`
	}),
	parse: tap(true),
}

// libeventBackends are the ways to wait that libevent has on Linux, each with the variables that
// leave the others out.
var libeventBackends = [][2]string{
	{"epoll", "EVENT_NOPOLL=1 EVENT_NOSELECT=1"},
	{"changelist", "EVENT_NOPOLL=1 EVENT_NOSELECT=1 EVENT_EPOLL_USE_CHANGELIST=1"},
	{"poll", "EVENT_NOEPOLL=1 EVENT_NOSELECT=1"},
	{"select", "EVENT_NOEPOLL=1 EVENT_NOPOLL=1"},
}

var libevent = &suite{
	name: "libevent", what: "bufferevents, HTTP, listeners and others, over epoll, poll and select",
	source: "libevent",
	takes:  5 * time.Minute,
	needs:  []string{"/usr/include/openssl/ssl.h libssl-dev", "/usr/include/zlib.h zlib1g-dev"},
	build: asBuilt + `
		./configure -q --disable-shared --disable-samples CFLAGS="` + quiet + `"
		make -s include/event2/event-config.h
		make -s libevent.la libevent_core.la libevent_extra.la libevent_pthreads.la libevent_openssl.la test/regress`,
	least: 300,
	units: func(string) (units []unit, err error) {
		for _, b := range libeventBackends {
			// Its messages on standard error would be within its lines.
			units = append(units, unit{b[0], b[1] + " test/regress 2>/dev/null", func(tests []string) string {
				return b[1] + " test/regress " + strings.Join(tests, " ") + " 2>/dev/null"
			}})
		}
		return units, nil
	},
	parse: tiny,
}

var apr = &suite{
	name: "apr", what: "Apache's portable runtime: sockets, options, polls, sendfile",
	source: "apr",
	takes:  2 * time.Minute,
	build: asBuilt + `
		./configure -q --disable-shared CFLAGS="` + quiet + `"
		make -s
		make -s -C test testall globalmutexchild occhild readchild tryread sockchild testshmproducer testshmconsumer proc_child`,
	least: 5,
	// Those that have no sockets are left out.
	units: one("cd test && ./testall -v -q testsock testsockets testsockopt testpoll testpipe testproc testdup", nil),
	parse: abts,
}

// perlParts are the modules of Perl that have connections, and the tests among theirs that have
// none.
var perlParts = map[string][]string{
	"dist/IO":           {"IO", "io_const", "io_dir", "io_file", "io_file_export", "io_getline", "io_leak", "io_linenum", "io_taint", "io_tell", "io_utf8argv"},
	"cpan/IO-Socket-IP": {"00use", "99pod"},
	"cpan/Socket":       {},
	"cpan/libnet":       {"config", "hostname", "netrc", "require"},
}

var perl = &suite{
	name: "perl", what: "IO::Socket, IO::Socket::IP, IO::Select, IO::Poll, Net::FTP, Net::SMTP and others of perl's own library",
	source: "perl",
	takes:  2 * time.Minute,
	needs:  []string{"perl perl"}, // Debian's own; the tests are of this version
	build:  "cp t/test.pl dist/IO/t/",
	least:  15,
	units: func(dir string) (units []unit, err error) {
		for _, part := range slices.Sorted(maps.Keys(perlParts)) {
			more, err := each(part+"/t/*.t", "cd "+part+" && perl FILE", perlParts[part]...)(dir)
			if err != nil {
				return nil, err
			}
			for _, u := range more {
				u.name = filepath.Base(part) + "-" + u.name
				units = append(units, u)
			}
		}
		return units, nil
	},
	parse: tap(false),
}

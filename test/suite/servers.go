package main

import (
	"path/filepath"
	"strings"
	"time"
)

var memcached = &suite{
	name: "memcached", what: "both protocols, limits of connections, idle timeouts, many threads",
	source: "memcached",
	takes:  4 * time.Minute,
	needs:  []string{"prove perl"},
	after:  libevent,
	// Its tests prefer Unix sockets, where there are any.
	build: asBuilt + `
		sed -i 's/= !supports_unix_socket()/= 1/' t/lib/MemcachedTest.pm
		grep -q 'unix_socket_disabled *= 1' t/lib/MemcachedTest.pm
		./configure -q --disable-docs --disable-coverage CFLAGS="` + quiet + `" CPPFLAGS="-I$AFTER/include" LDFLAGS="-L$AFTER/.libs"
		make -s CFLAGS="` + quiet + ` -pthread" memcached memcached-debug timedrun sizes testapp`,
	least: 30,
	// Those are left out that are about memory and disks, and take minutes; and maxconns, which has
	// other numbers of results each time, bare as well.
	units: each("t/*.t", "perl FILE", "unixsocket", "maxconns", "binary-extstore", "chunked-extstore", "error-extstore", "extstore", "extstore-buckets", "extstore-jbod",
		"slabs-reassign2", "slabs-reassign-chunked", "slabs_reassign", "slabhang", "lru", "lru-crawler", "lru-maintainer", "refhang", "chunked-items"),
	parse: tap(false),
}

// redisUnits are those in which connections matter: of replicas, of many clients, that are blocked
// or dropped. Others try commands, or take minutes, as integration/replication and
// integration/replication-psync do.
var redisUnits = []string{
	"unit/auth", "unit/protocol", "unit/info", "unit/quit", "unit/pubsub", "unit/limits", "unit/obuf-limits", "unit/querybuf", "unit/pendingquerybuf",
	"unit/tracking", "unit/networking", "unit/multi", "unit/pause", "unit/wait", "unit/introspection", "unit/client-eviction", "unit/replybufsize", "unit/shutdown",
	"unit/type/list", "integration/redis-cli", "integration/redis-benchmark", "integration/replication-2", "integration/replication-4",
	"integration/block-repl", "integration/failover",
}

var redis = &suite{
	name: "redis", what: "the server and its replicas, by clients in Tcl: blocking commands, pub/sub, limits, replication, failover",
	source: "redis",
	takes:  6 * time.Minute,
	needs:  []string{"tclsh tcl"},
	build:  `make -s -C src MALLOC=libc OPTIMIZATION=-O1 REDIS_CFLAGS=-w redis-server redis-cli redis-benchmark`,
	least:  300,
	units: func(string) (units []unit, err error) {
		for _, name := range redisUnits {
			units = append(units, unit{name: filepath.Base(name), command: "tclsh tests/test_helper.tcl --clients 1 --single " + name})
		}
		return units, nil
	},
	parse: redisResults,
}

// vtc runs scripts for servers, each between clients and servers of its own. It waits for 30 s for
// a step of one.
func vtc(files string) string {
	return "export HAPROXY_PROGRAM=$(PATH=$PATH:/usr/sbin command -v haproxy)\nfor f in " + files + `
		do
			varnishtest -k -t 30 $f
			case $? in
			0) echo "ok 1 - $(basename $f .vtc)" ;;
			77) echo "ok 1 - $(basename $f .vtc) # SKIP" ;;
			*) echo "not ok 1 - $(basename $f .vtc)" ;;
			esac
		done`
}

var haproxy = &suite{
	name: "haproxy", what: "the proxy between clients and servers of varnishtest, whose scripts say what each of them sees",
	source: "haproxy",
	takes:  5 * time.Minute,
	needs:  []string{"varnishtest varnish", "/usr/sbin/haproxy haproxy"}, // Debian's own; scripts are of this version
	build:  "test -d reg-tests",
	least:  300,
	units: func(dir string) (units []unit, err error) {
		for _, name := range []string{"balance", "cache", "checks", "compression", "connection", "http-cookies", "http-errorfiles", "http-messaging", "http-rules",
			"http-set-timeout", "peers", "sample_fetches", "server", "ssl", "stick-table", "stickiness", "stream", "tcp-rules", "webstats"} {
			units = append(units, unit{name, vtc("reg-tests/" + name + "/*.vtc"), func(tests []string) string {
				return vtc("reg-tests/" + name + "/" + strings.Join(tests, ".vtc reg-tests/"+name+"/") + ".vtc")
			}})
		}
		return units, nil
	},
	parse: tap(true),
}

package main

import (
	"regexp"
	"strings"
)

// A difference is a test that fails over SMC-D and passes over TCP, and that we mean to keep.
type difference struct {
	why string

	// complaint is a pattern for the expected messages of the test. A test with any other message
	// is not expected.
	complaint string

	sometimes bool // it does not show in every run
}

// expected are the differences by package and test. A name stands for all of its subtests.
var expected = map[string]map[string]difference{
	"net": {
		"TestFileConn/tcp":                    noFile,
		"TestSplice/tcp-to-file":              noFile,
		"TestSplice/tcp-to-tcp":               noFile,
		"TestSplice/tcp-to-unix":              noFile,
		"TestSplice/unix-to-tcp":              noFile,
		"TestSendfile":                        noSendfile,
		"TestSendfileParts":                   noSendfile,
		"TestSendfileSeeked":                  noSendfile,
		"TestSendfileWithExactLimit":          noSendfile,
		"TestSendfileWithLimitLargerThanFile": noSendfile,
		"TestBuffers_WriteTo": {
			why:       "counts calls of writev; the bytes arrive, which it looks at first",
			complaint: `^(write calls = 0 < wanted min \d+|writev call sum  = 0; want \d+)$`,
		},
		"TestRawConnReadWrite": {
			why: "writes data into the socket that SyscallConn gives, and waits there, which fails: see smc.Conn.SyscallConn",
			complaint: `passes through no socket: unsupported operation(; want timeout)?$|` +
				`^unexpected type on 2nd nested level: \*fmt.wrapError$|^EOF$|connection reset by peer$`,
		},
		"TestMultiPathTCP": {
			why:       "only who asks for it with SetMultipathTCP has it, not who leaves it to GODEBUG or the default: the TCP connection has nothing to carry",
			complaint: `^Test with GODEBUG|with mptcp: true$|is not (an MPTCP proto|with MPTCP)$`,
		},
		"TestDialTCPDefaultKeepAlive": noKeepAlive,
		"TestDialerKeepAlive":         noKeepAlive,
		"TestDialerDualStackFDLeak": {
			why:       "counts the sockets of package net before and after, and a host in use has one for its tools",
			complaint: `^got \d+; want \d+$`,
			sometimes: true,
		},
	},
}

var noFile = difference{
	why:       "the bytes of a connection over shared memory pass through no file that another process could have",
	complaint: `smc: a connection over shared memory has no file: unsupported operation$|^unexpected type on 2nd nested level: \*fmt.wrapError$|^expected poll.Splice to be called$`,
}

var noKeepAlive = difference{
	why:       "looks for the default keepalive, which package smc leaves off beside SMC-D: see smc.Dialer",
	complaint: `^got keepalive -1ns; want 15s$|^Dialer\.KeepAlive = 0s: SetKeepAlive set to -1ns, want 0s$`,
}

var noSendfile = difference{
	why:       "counts calls of sendfile; the file arrives, which it looks at, too",
	complaint: `^internal/poll.SendFile was not called, want it to be$`,
}

// complaints finds the messages of a test by Error, Fatal or Log.
var complaints = regexp.MustCompile(`(?m)^\s+\w+_test\.go:\d+: (.*)$`)

// expectedAs returns the entry of the list that stands for the way in which a test has failed;
// empty if there is none.
func expectedAs(pkg, name, output string) (entry string) {
	for entry = name; ; {
		if d, ok := expected[pkg][entry]; ok {
			if d.covers(output) {
				return entry
			}
			return ""
		}
		i := strings.LastIndexByte(entry, '/')
		if i < 0 {
			return ""
		}
		entry = entry[:i]
	}
}

// covers reports whether a test has complained of nothing else.
func (d difference) covers(output string) bool {
	allowed := regexp.MustCompile(d.complaint)
	found := complaints.FindAllStringSubmatch(output, -1)
	for _, f := range found {
		if !allowed.MatchString(f[1]) {
			return false
		}
	}
	return len(found) != 0
}

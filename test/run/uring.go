package main

import (
	_ "embed"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

//go:embed testdata/uring.c
var uringC string

// The library is in one of the two programs as a shared one, and in the other one itself, where its
// calls cannot be stood before.
var uring = &program{
	name: "uring", what: "a server that reads with read first, and then receives and sends through io_uring, with liburing's shared library and with its static one",
	packages: []string{"liburing-dev", "gcc", "libc6-dev"},
	needs:    []string{"gcc", "/usr/include/liburing.h", "/usr/lib/*/liburing.a"},
	run: func(l *lab) {
		source := l.file("uring.c", uringC)
		for how, flag := range map[string]string{"shared": "-luring", "static": "-l:liburing.a"} {
			path := filepath.Join(l.dir, "uring-"+how)
			l.helper("gcc", "-O1", "-o", path, source, flag)
			port := l.port()
			l.serve(port, path, "serve", strconv.Itoa(port))
			for i := range 3 {
				l.result(fmt.Sprint(how, " ", i), strings.TrimSpace(l.client(path, "connect", strconv.Itoa(port))))
			}
			l.shown(port)
		}
		l.counted(2 * 3)
	},
}

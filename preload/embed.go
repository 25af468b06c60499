// Package preload has the library that 'gosmc run' puts into programs: C, built by build.sh, and
// committed so that nobody needs a compiler.
package preload

import (
	_ "embed" // of the libraries
	"runtime"
)

//go:embed libgosmc_amd64.so
var amd64 []byte

//go:embed libgosmc_arm64.so
var arm64 []byte

//go:embed bench/talk_amd64
var talkAMD64 []byte

//go:embed bench/talk_arm64
var talkARM64 []byte

// Talk returns a program that knows nothing of gosmc and talks over TCP, for 'gosmc bench':
// bench/talk.c. It is nil if there is none for the architecture of this program. It must not be
// changed.
func Talk() []byte {
	switch runtime.GOARCH {
	case "amd64":
		return talkAMD64
	case "arm64":
		return talkARM64
	}
	return nil
}

// Library returns the shared library for the architecture of this program, nil if there is none. It
// must not be changed.
func Library() []byte { return LibraryFor(runtime.GOARCH) }

// LibraryFor returns the shared library for an architecture by its name in Go, nil if there is
// none. It must not be changed.
func LibraryFor(arch string) []byte {
	switch arch {
	case "amd64":
		return amd64
	case "arm64":
		return arm64
	}
	return nil
}

// Package plain implements package smc on systems other than Linux: plain TCP, for which
// [Conn.Reason] gives the reason NOT_SUPPORTED. Its types have the methods that package smc calls
// on the types of internal/host.
//
// The package has no build tag, so that its tests run on Linux, too.
package plain

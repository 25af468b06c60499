// Package plain is what package smc consists of on systems other than Linux: plain TCP, for which
// [Conn.Reason] gives the reason NOT_SUPPORTED. Its types have the methods of those of
// internal/host that package smc calls.
//
// The package has no build tag, so that its tests run on Linux, too.
package plain

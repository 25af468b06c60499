// Package coretest has what the tests of the machines without I/O share: those of internal/core and
// internal/llcflow. A [World] plays machines in virtual time. Everything random comes from one seed, which
// a failure prints:
//
//	go test -run TestSim -seed=N
//
// plays that one again and logs its events. [CheckTable] compares a machine's answers with a table of all
// its states and inputs, and [LinuxExchanges] has the handshakes of Linux kernels. The package is for tests
// only, and adds the flags -seed, -seeds and -update to those of a test.
package coretest

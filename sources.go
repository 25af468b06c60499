package smc

import (
	"embed"
	_ "unsafe" // for go:linkname
)

// sources has the Go files of this package and of all that it imports of this module, for
// internal/overlay, which puts them into the standard library. That package names the variable by
// linkname: it is no part of the API, and a program that does not build others does not have the
// files. TestSources checks that nothing is missing.
//
//go:linkname sources
//go:embed *.go wire/*.go wire/*/*.go
//go:embed internal/admission/*.go internal/attempts/*.go internal/config/*.go internal/conn/*.go
//go:embed internal/bureau/*.go internal/control/*.go internal/counters/*.go
//go:embed internal/core/*.go internal/dispose/*.go internal/handshake/*.go internal/host/*.go internal/ism/*.go
//go:embed internal/ism/sockets/*.go internal/introduce/*.go internal/late/*.go internal/link/*.go internal/llcflow/*.go internal/near/*.go internal/paired/*.go internal/pairing/*.go
//go:embed internal/option/*.go internal/plain/*.go internal/pnet/*.go internal/port/*.go internal/rdma/*.go
//go:embed internal/rdma/netdev/*.go internal/rdma/orphan/*.go internal/rdma/polling/*.go
//go:embed internal/rendezvous/*.go internal/ring/*.go internal/rnic/*.go internal/rundir/*.go internal/smcd/*.go
//go:embed internal/run/broker/*.go internal/run/client/*.go internal/run/proto/*.go
//go:embed internal/smcr/*.go internal/sockdiag/*.go internal/stream/*.go internal/sysinfo/*.go internal/tcpwatch/*.go
//go:embed internal/transport/*.go internal/udp/*.go internal/user/*.go internal/verbs/*.go
//go:embed internal/uverbs/*.go internal/uverbs/provider/*.go
//lint:ignore U1000 internal/overlay has it by linkname.
var sources embed.FS

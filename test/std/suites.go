package main

// A suite is the tests of one package.
type suite struct {
	pkg     string
	version string   // of the module that has the package; empty for the standard library
	module  string   // its path, where that is not the package's
	args    []string // of the test program
	skip    []string // patterns of tests that are not run, each with a reason beside it
	least   int      // connections that have to move to shared memory; half of the number seen
}

// suites are those that are run. The versions are fixed, so that the lists of expected differences stay true.
var suites = []suite{
	// Without short, names are looked up on the Internet. The skipped tests cannot have the socket
	// of a connection for a process of their own, and wait for that process for ever.
	{pkg: "net", args: []string{"-test.short"}, skip: []string{"^TestSplice$/^unix-to-tcp$/^(multipleWrite|big)$"}, least: 200},
	{pkg: "net/http", args: []string{"-test.short"}, least: 500},
	{pkg: "net/http/httptest", least: 10},
	{pkg: "net/http/httputil", least: 60},
	{pkg: "net/rpc", least: 5},
	{pkg: "net/rpc/jsonrpc"}, // its tests use net.Pipe
	{pkg: "net/smtp", least: 2},
	{pkg: "net/textproto"}, // its tests need no connection
	{pkg: "crypto/tls", args: []string{"-test.short"}, least: 200},
	{pkg: "golang.org/x/net/http2", module: "golang.org/x/net", version: "v0.50.0", least: 50},
	{pkg: "github.com/valyala/fasthttp", version: "v1.69.0", least: 50},
	{pkg: "github.com/gorilla/websocket", version: "v1.5.3", least: 25},
	{pkg: "github.com/coder/websocket", version: "v1.8.14", least: 1}, // most use net.Pipe
	// The skipped test has no connection, and a busy machine takes minutes for it.
	{pkg: "github.com/tidwall/redcon", version: "v1.6.4", skip: []string{"^TestReaderRespRandom$"}, least: 5},
}

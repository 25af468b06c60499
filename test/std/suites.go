package main

// A suite is the tests of one package.
type suite struct {
	pkg     string
	version string   // of the module that has the package; empty for the standard library
	module  string   // its path, where that is not the package's
	args    []string // of go test
}

// suites are those that are run. The versions are fixed, so that the lists of expected differences stay true.
var suites = []suite{
	{pkg: "net", args: []string{"-short"}}, // without it, names are looked up on the Internet
	{pkg: "net/http", args: []string{"-short"}},
	{pkg: "net/http/httptest"},
	{pkg: "net/http/httputil"},
	{pkg: "net/rpc"},
	{pkg: "net/rpc/jsonrpc"},
	{pkg: "net/smtp"},
	{pkg: "net/textproto"},
	{pkg: "crypto/tls", args: []string{"-short"}},
	{pkg: "golang.org/x/net/http2", module: "golang.org/x/net", version: "v0.50.0"},
	{pkg: "github.com/valyala/fasthttp", version: "v1.69.0"},
	{pkg: "github.com/gorilla/websocket", version: "v1.5.3"},
	{pkg: "github.com/coder/websocket", version: "v1.8.14"},
}

package smc_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const modulePath = "github.com/gosmc/smc"

// mayImport has every package of the module by its directory, and the packages of the module that
// it may import. A new package gets a row here, which says where it belongs. "wire/..." stands for
// wire and all below it.
//
//	wire <- core, llcflow, pnet, stream and the fabrics <- host <- smc <- bench, demo <- cmd
var mayImport = map[string][]string{
	"wire":               {},
	"wire/cdc":           {"wire"},
	"wire/clc":           {"wire"},
	"wire/llc":           {"wire"},
	"wire/roce":          {"wire"},
	"internal/core":      {"wire/..."},
	"internal/llcflow":   {"wire/...", "internal/core"}, // for the values that a handshake has agreed on
	"internal/pnet":      {"wire/..."},
	"internal/ism":       {"wire", "internal/ism/sockets", "internal/user"}, // not core: a fabric is useful without SMC
	"internal/udp":       {},                                                // sockets; of no protocol
	"internal/verbs":     {"wire", "wire/roce"},
	"internal/rdma":      {"wire", "wire/roce", "internal/rdma/netdev", "internal/rdma/orphan", "internal/rdma/polling", "internal/udp", "internal/verbs"},
	"internal/uverbs":    {"wire"},                                                                                                                                                                                                                                 // not rdma: devices of the kernel, of no protocol
	"internal/link":      {"wire/...", "internal/stream", "internal/verbs"},                                                                                                                                                                                        // not core: the content of LLC messages is for their owner
	"internal/stream":    {"wire/cdc"},                                                                                                                                                                                                                             // not core, not a fabric: it is given memory and functions
	"internal/control":   {"wire/...", "internal/rundir", "internal/user"},                                                                                                                                                                                         // not host: it shows a snapshot
	"internal/dispose":   {},                                                                                                                                                                                                                                       // descriptors
	"internal/ring":      {"internal/dispose" /* descriptors that come over a pair */},                                                                                                                                                                             // not conn: an end of a pair, of no host
	"internal/text":      {},                                                                                                                                                                                                                                       // words and numbers for people, of no protocol
	"internal/roff":      {},                                                                                                                                                                                                                                       // manual pages, of no command
	"internal/late":      {},                                                                                                                                                                                                                                       // contexts
	"internal/near":      {},                                                                                                                                                                                                                                       // words
	"internal/user":      {},                                                                                                                                                                                                                                       // numbers of users
	"internal/rnic":      {"wire", "wire/clc", "wire/llc", "wire/roce", "internal/core", "internal/control", "internal/port", "internal/rdma", "internal/uverbs/provider", "internal/verbs"},                                                                       // not host, not link: it opens devices, and tells interfaces of its own
	"internal/tcpwatch":  {},                                                                                                                                                                                                                                       // idle TCP sockets
	"internal/transport": {"wire", "wire/cdc", "wire/clc", "internal/core", "internal/stream", "internal/tcpwatch", "internal/control"},                                                                                                                            // interfaces: no fabric, and no host
	"internal/conn":      {"wire", "wire/cdc", "wire/clc", "internal/control", "internal/core", "internal/ring", "internal/stream", "internal/tcpwatch", "internal/transport"},                                                                                     // not host: it tells an owner; not a fabric: it has a binding
	"internal/smcd":      {"wire", "wire/cdc", "wire/clc", "internal/core", "internal/control", "internal/ism", "internal/stream", "internal/tcpwatch", "internal/transport"},                                                                                      // not host: connections on a device that it is given
	"internal/smcr":      {"wire", "wire/cdc", "wire/clc", "wire/llc", "internal/core", "internal/llcflow", "internal/control", "internal/link", "internal/port", "internal/rnic", "internal/stream", "internal/tcpwatch", "internal/transport", "internal/verbs"}, // not host: connections over RNICs that it is given
	"internal/sysinfo":   {"wire", "internal/pnet"},                                                                                                                                                                                                                // files of the kernel
	// The interface under a device, of no queue pair.
	"internal/rdma/netdev": {"wire", "internal/verbs"},
	// Answers to queue pairs whose peers are gone, of no device.
	"internal/rdma/orphan":  {"wire", "wire/roce", "internal/udp"},
	"internal/rdma/polling": {}, // waits, of no packet
	// A directory of Unix sockets, of no peering.
	"internal/ism/sockets": {"wire", "internal/rundir", "internal/user"},
	// Devices of the kernel as verbs: the one package that knows both.
	"internal/uverbs/provider": {"wire", "internal/uverbs", "internal/verbs"},
	// Not host: it is told of peerings, and answers with one.
	"internal/bureau":    {"wire", "wire/clc", "internal/introduce"},
	"internal/paired":    {"wire", "wire/clc", "internal/bureau", "internal/dispose", "internal/introduce", "internal/ism", "internal/pairing", "internal/port", "internal/rendezvous", "internal/ring", "internal/run/proto" /* names of ends */},
	"internal/introduce": {"wire", "internal/dispose"}, // two processes by their sockets, and of no connection beyond
	"internal/attempts":  {"wire/clc"},                 // of one dial, beside TCP
	// The privileged helper of those that use SMC. Not host: it serves any process. Of rdma only the answers for ports without a process.
	"internal/agent":     {"wire", "wire/roce", "bpf", "internal/dispose", "internal/introduce", "internal/port", "internal/rdma/orphan", "internal/exit", "internal/text"},
	"internal/sockdiag":  {},                                                                             // sockets of the kernel, of no program
	"internal/rundir":    {"internal/user"},                                                              // files and directories
	"internal/admission": {"internal/rundir"},                                                            // a file, of no connection
	"internal/config":    {"wire", "internal/near", "internal/pnet", "internal/rundir", "internal/user"}, // a file, and the environment
	"internal/option":    {},                                                                             // TCP option 254 of a socket, of no protocol above
	"internal/port":      {"wire"},                                                                       // a socket on a UDP port that an agent shares
	"internal/pairing":   {},                                                                             // pairing tokens of a socket, of no protocol above
	"bpf":                {"wire/clc", "internal/option", "internal/pairing"},                            // programs in the kernel; in tests, their clients
	// Not host: it is told of peerings, and answers with one.
	"internal/rendezvous": {"wire/...", "internal/attempts", "internal/ism", "internal/late", "internal/rundir", "internal/user"},
	// Not host, not a fabric: it has paths to a peer, and tells an owner the result of a handshake.
	"internal/handshake": {"wire", "wire/clc", "internal/conn", "internal/control", "internal/core", "internal/late", "internal/transport"},
	"internal/counters":  {"wire/clc", "wire/llc", "internal/conn", "internal/control", "internal/stream"}, // not host: it is told
	"internal/host":      {"wire/...", "internal/counters", "internal/admission", "internal/attempts", "internal/conn", "internal/control", "internal/core", "internal/handshake", "internal/introduce", "internal/paired", "internal/pnet", "internal/ism", "internal/option", "internal/stream", "internal/rendezvous", "internal/ring", "internal/run/broker", "internal/run/client", "internal/rundir", "internal/config", "internal/sysinfo", "internal/tcpwatch", "internal/rnic", "internal/transport", "internal/smcd", "internal/smcr"},
	".":                  {"wire/...", "internal/config", "internal/conn", "internal/control", "internal/host", "internal/plain"},
	"internal/plain":     {"wire/clc", "internal/pnet"},  // not host: it stands in for it on systems other than Linux
	"internal/frame":     {},                             // headers around an IP packet; of no protocol above it
	"internal/capture":   {"internal/frame"},             // packets; of protocols only the parts needed to choose them
	"internal/dissect":   {"wire/...", "internal/frame"}, // not core, not host: it must read any peer's bytes
	// Not frame outside tests: it shows events, and sees no packets.
	"internal/dissect/render": {"wire/...", "internal/dissect", "internal/frame", "internal/text"},
	// Events in, one drawing out, with the words of render.
	"internal/dissect/ladder": {"wire", "wire/cdc", "wire/llc", "wire/roce", "internal/dissect", "internal/dissect/render", "internal/text"},
	// Packets or events in, the forms of packages render and ladder out.
	"internal/dump":                {"internal/capture", "internal/control", "internal/dissect", "internal/dissect/ladder", "internal/dissect/render", "internal/exit", "internal/survey", "internal/text", "internal/traceview"},
	"internal/dissect/dissecttest": {"wire/...", "internal/frame"},
	"internal/traceview":           {"wire/...", "internal/control", "internal/dissect", "internal/dissect/render"},
	// The work of the verbs, apart from flags and output. Of these only bench knows a fabric, which
	// it measures, and none the command.
	"internal/measure":    {"internal/text"},                                                                                                                                                 // durations, processor time, the machine: of no protocol
	"internal/jsonschema": {},                                                                                                                                                                // types of Go in, a schema out
	"internal/info":       {"internal/config", "internal/control", "internal/inventory", "internal/measure", "internal/overlay", "internal/run/inspect", "internal/survey", "internal/text"}, // a host made for the occasion, and a program's file
	"internal/child":      {},                                                                                                                                                                // this program a second time
	"internal/netns":      {},                                                                                                                                                                // network namespaces that a veth pair joins
	"internal/bench":      {".", "internal/bench/program", "wire", "wire/cdc", "internal/rdma", "internal/udp", "internal/measure", "internal/child", "internal/netns", "internal/pod", "internal/verbs", "preload", "internal/run/inspect"},
	// Other projects' programs, bare and under gosmc run.
	"internal/bench/program": {"preload", "internal/child", "internal/run/inspect"},
	"internal/bench/render":  {"internal/bench", "internal/text"}, // reports in, tables out
	"internal/demo":          {".", "internal/control", "internal/measure", "internal/child", "internal/netns", "internal/pod", "internal/text"},
	"internal/netcat":        {".", "internal/control", "internal/text"}, // connections with standard input and output
	"internal/pod":           {"bpf", "internal/agent", "internal/child", "internal/netns", "internal/pairing", "internal/port"},
	"internal/survey":        {"internal/bureau", "internal/config", "internal/control", "internal/host", "internal/pairing", "internal/port", "internal/rendezvous", "internal/rundir", "internal/text", "internal/user"},                                                                                                                                   // all hosts of the machine at once, and one made for the occasion
	"internal/doctor":        {"internal/core", "internal/netns", "internal/port", "wire/clc", "internal/admission", "internal/config", "internal/exit", "internal/inventory", "internal/run/inspect", "internal/survey", "internal/text", "internal/control", "internal/run/procs", "internal/host", "internal/conn", "internal/rundir", "internal/option"}, // asks, and changes nothing
	"internal/applicable":    {"internal/config", "internal/netns", "internal/run/inspect", "internal/run/procs", "internal/sockdiag", "internal/text"},                                                                                                                                                                                                      // looks from outside, and asks no program
	"internal/metrics":       {"wire/clc", "internal/control", "internal/inventory", "internal/run/inspect", "internal/survey", "internal/sockdiag"},                                                                                                                                                                                                         // snapshots in, text out
	"internal/inventory":     {"wire/clc", "internal/control", "internal/run/inspect", "internal/run/procs", "internal/run/proto", "internal/survey", "internal/text", "internal/sockdiag", "internal/config", "internal/uverbs"},                                                                                                                            // lists, sums and tables; of no protocol
	"preload":                {},                                                                                                                                                                                                                                                                                                                             // the C library of gosmc run, as bytes
	// The programs of gosmc run, which do not know us. Not preload: every program of package smc would have it.
	"internal/run/proto":   {"wire/clc"},                                                                                                                                                      // messages and names, of no program
	"internal/run/procs":   {"internal/run/proto"},                                                                                                                                            // processes, by /proc
	"internal/run/library": {"internal/run/procs", "internal/rundir", "internal/user"},                                                                                                        // files
	"internal/run/client":  {"wire/clc", "internal/attempts", "internal/run/proto", "internal/rundir", "internal/user"},                                                                       // asks a supervisor
	"internal/run/inspect": {"wire/clc", "internal/admission", "internal/config", "internal/run/library", "internal/run/procs", "internal/run/proto", "internal/rundir", "internal/sockdiag"}, // asks nobody
	// Pairs of Unix sockets, from offer to claim. Not procs: programs of package smc have it.
	"internal/run/broker": {"wire/clc", "internal/config", "internal/dispose", "internal/run/proto", "internal/rundir", "internal/sockdiag", "internal/user"},
	// Connections with other hosts, of programs of others: the one part of gosmc run that speaks CLC.
	"internal/run/engine":     {"wire/clc", "internal/config", "internal/conn", "internal/core", "internal/dispose", "internal/host", "internal/run/proto"},
	"internal/run/supervisor": {"wire", "wire/clc", "internal/admission", "internal/bureau", "internal/control", "internal/config", "internal/dispose", "internal/introduce", "internal/pairing", "internal/port", "internal/run/broker", "internal/run/inspect", "internal/run/library", "internal/run/procs", "internal/run/proto", "internal/rundir", "internal/user"}, // the process beside programs
	"internal/run/launch":     {"internal/admission", "internal/config", "internal/run/inspect", "internal/run/library", "internal/run/procs", "internal/run/proto", "internal/run/supervisor", "internal/rundir", "internal/sysinfo"},                                                                                                                                    // starts programs
	"internal/service":        {"internal/text"},                                                                                                                                                                                                                                                                                                                          // files of systemd's units, and systemctl; of no protocol
	"internal/reason":         {"wire/clc", "internal/control", "internal/exit", "internal/near", "internal/roff", "internal/text"},                                                                                                                                                                                                                                       // the catalogue of clc for people
	"internal/terminal":       {},                                                                                                                                                                                                                                                                                                                                         // streams, of no content
	"internal/top":            {"internal/inventory", "internal/survey", "internal/terminal", "internal/text"},                                                                                                                                                                                                                                                            // samples in, a view out
	"internal/policy":         {"internal/config", "internal/exit", "internal/text", "internal/near"},                                                                                                                                                                                                                                                                     // words of the configuration, for verbs
	"internal/exit":           {},                                                                                                                                                                                                                                                                                                                                         // exit statuses, of no verb's work
	"internal/usage":          {"internal/exit", "internal/near", "internal/roff", "internal/text"},                                                                                                                                                                                                                                                                       // command lines of cobra, of no verb
	// Flags in, tables or JSON out.
	"cmd/gosmc":                  {"internal/jsonschema", "internal/netns", ".", "wire/...", "bpf", "internal/agent", "internal/introduce", "internal/port", "internal/control", "internal/capture", "internal/dissect", "internal/dissect/render", "internal/frame", "internal/bench", "internal/bench/render", "internal/demo", "internal/pod", "internal/measure", "internal/overlay", "internal/survey", "internal/admission", "internal/config", "internal/pnet", "internal/run/engine", "internal/run/inspect", "internal/run/launch", "internal/run/library", "internal/run/procs", "internal/run/proto", "internal/run/supervisor", "internal/service", "preload", "internal/doctor", "internal/exit", "internal/info", "internal/inventory", "internal/metrics", "internal/applicable", "internal/text", "internal/usage", "internal/dump", "internal/near", "internal/netcat", "internal/policy", "internal/reason", "internal/roff", "internal/terminal", "internal/top", "internal/option"},
	"internal/overlay":           {"."},                                                                                                                                             // for its source: the input of go build, of no connection
	"test/interop":               {"bpf", "wire/...", "internal/conn", "internal/host", "internal/port", "internal/rdma", "internal/udp", "test/interop/talk", "internal/sockdiag"}, // host: for fields that only tests set
	"test/interop/gosmcpeer":     {".", "test/interop/talk"},
	"test/interop/talk":          {},
	"test/interop/guest/smcpeer": {"internal/sockdiag", "test/interop/talk"},                             // a program in the virtual machine
	"test/interop/guest/limits":  {"."},                                                                  // a program in the virtual machine
	"test/interop/guest/uverbs":  {"wire", "internal/uverbs"},                                            // a program in the virtual machine
	"test/std":                   {"internal/overlay"},                                                   // Go's own tests, with the overlay of gosmc go
	"test/run":                   {"internal/child"},                                                     // programs of Debian, by the gosmc command
	"test/container":             {"internal/child", "internal/pairing"},                                 // programs in containers, by runc and the gosmc command
	"test/container/talk":        {"."},                                                                  // a program in an empty root
	"test/container/attack":      {"wire", "internal/dispose", "internal/introduce", "internal/pairing"}, // an attacker, who knows the agent's messages
	"test/container/across":      {"."},                                                                  // tests, which are a program in an empty root, too
	"test/rules":                 {},                                                                     // source text in, runs of tests out
	"test/house":                 {},                                                                     // source text in
	"test/slower":                {},                                                                     // patterns of use, of a C program under the gosmc command
	"test/suite":                 {},                                                                     // tests of other projects, under the gosmc command
	"test/gotest":                {},                                                                     // released Go programs, by the gosmc command
	"test/equal":                 {},                                                                     // scripts of calls, played by a C program under the gosmc command
	"internal/smctest":           {"wire/...", "internal/..."},
	"internal/core/coretest":     {"wire/clc"}, // not core: its own tests import it
}

// mayImportInTests has the packages that tests may import besides.
var mayImportInTests = map[string][]string{
	"internal/core": {"internal/llcflow"}, // handshakes with the LLC messages of first contacts
	// Of captures that are made up.
	"internal/dissect/ladder": {"internal/frame", "wire/clc"},
	"internal/ism":            {"internal/rundir"},
	"internal/run/library":    {"preload"},
	"internal/dump":           {"wire/cdc", "wire/clc"},
	"internal/run/engine":     {"bpf", "internal/option" /* TCP option 254 */},
	"internal/run/supervisor": {"preload", "bpf", "internal/agent", "internal/conn", "internal/host" /* programs of package smc */, "internal/run/client", "internal/sockdiag"},
	"cmd/gosmc":               {"internal/run/client"},
	"internal/handshake":      {"wire/cdc", "internal/stream", "internal/tcpwatch"}, // of a fabric that does nothing
	"internal/inventory":      {"wire"},                                             // GIDs
	"internal/link":           {"internal/rdma"},
	"internal/agent":          {"internal/rdma"},
	"internal/rdma/orphan":    {"internal/rdma"},
	"internal/smcr":           {"internal/rdma"},
	"internal/host":           {"internal/link" /* of a peer that lies */, "internal/llcflow", "internal/rdma", "bpf" /* of a port that is shared */, "internal/agent" /* that introduces */, "internal/port", "internal/dispose", "internal/pairing" /* of attackers */},
}

// testOnly packages are imported by tests and by nothing else.
var testOnly = []string{"internal/smctest", "internal/core/coretest", "internal/dissect/dissecttest"}

// Packages of the standard library that would let a package do things that it must not do. Packages
// below the named ones are meant too, but for the exceptions.
var (
	withoutIO = []string{"net", "os", "io/ioutil", "syscall", "sync", "context", "math/rand", "crypto/rand", "runtime"}
	forbidden = map[string][]string{
		"wire":             append([]string{"time"}, withoutIO...),
		"wire/cdc":         append([]string{"time"}, withoutIO...),
		"wire/llc":         append([]string{"time"}, withoutIO...),
		"wire/roce":        append([]string{"time"}, withoutIO...),
		"wire/clc":         append([]string{"time"}, withoutIO...),
		"internal/core":    withoutIO,
		"internal/llcflow": withoutIO,
		"internal/pnet":    append([]string{"time"}, withoutIO...),
	}
	exceptions = []string{"net/netip"}
)

// Modules that may be needed, besides the standard library.
var (
	libraryModules = []string{"golang.org/x/sys"}
	commandModules = []string{"golang.org/x/sys", "github.com/spf13/cobra", "github.com/spf13/pflag"}
	captureModules = []string{"golang.org/x/sys", "golang.org/x/net", "github.com/gopacket/gopacket"}
	agentModules   = []string{"golang.org/x/sys", "github.com/cilium/ebpf"}
	testModules    = []string{
		"golang.org/x/sys", "github.com/cilium/ebpf", "golang.org/x/net", "github.com/google/go-cmp", "github.com/gopacket/gopacket",
		"github.com/spf13/cobra", "github.com/spf13/pflag", "go.uber.org/goleak", "pgregory.net/rapid",
	}
)

// checkImport returns an error if the package in dir must not have an import.
func checkImport(dir, imported string, test bool) error {
	allowed, known := mayImport[dir]
	if !known {
		return fmt.Errorf("package %s is not in mayImport", dir)
	}
	target, inModule := strings.CutPrefix(imported, modulePath)
	first, _, _ := strings.Cut(imported, "/")
	switch {
	case inModule && (target == "" || target[0] == '/'):
		if target = strings.TrimPrefix(target, "/"); target == "" {
			target = "."
		}
		switch {
		case slices.Contains(testOnly, target) && !test && !slices.Contains(testOnly, dir):
			return fmt.Errorf("package %s imports %s outside tests", dir, target)
		case test && (target == dir || slices.Contains(testOnly, target) || slices.Contains(mayImportInTests[dir], target)):
			return nil
		case !slices.ContainsFunc(allowed, func(p string) bool { return covers(p, target) }):
			return fmt.Errorf("package %s imports %s, which it may not", dir, target)
		}
		return nil
	case strings.Contains(first, "."):
		modules := libraryModules
		switch {
		case test || slices.Contains(testOnly, dir):
			modules = testModules
		case strings.HasPrefix(dir, "cmd/") || dir == "internal/usage":
			modules = commandModules
		case dir == "internal/capture":
			modules = captureModules
		case dir == "bpf":
			modules = agentModules
		}
		if !slices.ContainsFunc(modules, func(m string) bool { return covers(m+"/...", imported) }) {
			return fmt.Errorf("package %s depends on %s, which it may not", dir, imported)
		}
		return nil
	}
	if test || slices.Contains(exceptions, imported) {
		return nil
	}
	if slices.ContainsFunc(forbidden[dir], func(p string) bool { return covers(p+"/...", imported) }) {
		return fmt.Errorf("package %s imports %q, which it may not", dir, imported)
	}
	return nil
}

// covers reports whether pattern, a path or one that ends in "/...", has p.
func covers(pattern, p string) bool {
	if tree, ok := strings.CutSuffix(pattern, "/..."); ok {
		return p == tree || strings.HasPrefix(p, tree+"/")
	}
	return p == pattern
}

// eachFile calls visit for every Go file of the module, with any build constraints.
func eachFile(t *testing.T, visit func(name string, f *ast.File)) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") || isModule(name)):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files++
		visit(filepath.ToSlash(name), f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files == 0 {
		t.Fatal("no Go files found")
	}
}

// isModule reports whether a directory is a module of its own.
func isModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

// TestImports reads the import graph of the module.
func TestImports(t *testing.T) {
	found := make(map[string]bool)
	eachFile(t, func(name string, f *ast.File) {
		dir, test := path.Dir(name), strings.HasSuffix(name, "_test.go")
		found[dir] = true
		for _, spec := range f.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if err := checkImport(dir, imported, test); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
	for dir := range mayImport {
		if !found[dir] && !slices.Contains(testOnly, dir) {
			t.Errorf("package %s is in mayImport and does not exist", dir)
		}
	}
}

// TestCheckImport shows that TestImports would find the imports that it looks for.
func TestCheckImport(t *testing.T) {
	for _, tt := range []struct {
		dir, imported string
		test, ok      bool
	}{
		{"wire", modulePath + "/internal/core", false, false},
		{"wire/clc", modulePath + "/wire", false, true},
		{"wire/clc", modulePath + "/wire/cdc", false, false},
		{"wire/clc", modulePath + "/wire/clc", true, true}, // by an external test
		{"wire/clc", "net/netip", false, true},
		{"wire/clc", "net", false, false},
		{"wire/clc", "net/http", false, false},
		{"wire/clc", "net", true, true},
		{"wire/clc", "time", false, false},
		{"wire/clc", "golang.org/x/sys/unix", false, true},
		{"wire/clc", "github.com/spf13/cobra", false, false},
		{"wire/clc", "github.com/google/go-cmp/cmp", false, false},
		{"wire/clc", "github.com/google/go-cmp/cmp", true, true},
		{"wire/clc", "example.com/other", true, false},
		{"internal/core", modulePath + "/internal/host", false, false},
		{"internal/core", modulePath + "/internal/ism", true, false},
		{"internal/core", "time", false, true},
		{"internal/core", "sync/atomic", false, false},
		{"internal/core", "math/rand/v2", false, false},
		{"internal/core", modulePath + "/internal/llcflow", false, false},
		{"internal/llcflow", modulePath + "/internal/core", false, true},
		{"internal/llcflow", "sync", false, false},
		{"internal/ism", modulePath + "/internal/core", false, false},
		{"internal/ism", modulePath + "/wire/clc", false, false},
		{"internal/stream", modulePath + "/internal/ism", false, false},
		{"internal/stream", modulePath + "/wire/cdc", false, true},
		{"internal/stream", modulePath + "/internal/smctest", false, false},
		{"internal/stream", modulePath + "/internal/smctest", true, true},
		{"internal/host", modulePath + "/internal/stream", false, true},
		{"internal/host", modulePath + "/internal/rendezvous", false, true},
		{"internal/rendezvous", modulePath + "/internal/host", false, false},
		{"internal/run/supervisor", modulePath + "/preload", false, false},
		{"internal/run/supervisor", modulePath + "/preload", true, true},
		{"internal/rendezvous", modulePath + "/internal/core", false, false},
		{"internal/host", modulePath, false, false},
		{".", modulePath + "/internal/host", false, true},
		{".", modulePath + "/internal/ism", false, false},
		{".", modulePath + "/cmd/gosmc", false, false},
		{".", modulePath + "x/other", false, false},
		{"internal/capture", "github.com/gopacket/gopacket/pcapgo", false, true},
		{"internal/capture", modulePath + "/wire", false, false},
		{"internal/dissect", "github.com/gopacket/gopacket/pcapgo", false, false},
		{"internal/dissect", modulePath + "/wire/roce", false, true},
		{"internal/dissect", modulePath + "/internal/capture", false, false},
		{"internal/dissect", modulePath + "/internal/dissect/render", false, false},
		{"internal/dissect/render", modulePath + "/internal/dissect/dissecttest", false, false},
		{"internal/host", modulePath + "/internal/capture", false, false},
		{"internal/host", modulePath + "/internal/link", false, false},
		{"internal/host", modulePath + "/internal/link", true, true},
		{"internal/host", modulePath + "/internal/smcr", false, true},
		{"internal/host", modulePath + "/internal/rdma", false, false},
		{"internal/host", modulePath + "/internal/handshake", false, true},
		{"internal/handshake", modulePath + "/internal/host", true, false},
		{"internal/handshake", modulePath + "/internal/smcr", false, false},
		{"internal/handshake", modulePath + "/internal/ism", false, false},
		{"internal/handshake", modulePath + "/internal/run/supervisor", false, false},
		{"internal/smcr", modulePath + "/internal/host", true, false},
		{"internal/host", modulePath + "/internal/conn", false, true},
		{"internal/conn", modulePath + "/internal/host", true, false},
		{"internal/conn", modulePath + "/internal/smcr", false, false},
		{"internal/conn", modulePath + "/internal/run/supervisor", false, false},
		{"cmd/gosmc", modulePath + "/internal/dissect", false, true},
		{"cmd/gosmc", modulePath, false, true},
		{"cmd/gosmc", modulePath + "/internal/core", false, false},
		{"cmd/gosmc", modulePath + "/internal/rdma", false, false},
		{"cmd/gosmc", modulePath + "/internal/bench", false, true},
		{"internal/bench", modulePath + "/internal/rdma", false, true},
		{"internal/bench", modulePath + "/internal/host", false, false},
		{"internal/bench", modulePath + "/cmd/gosmc", false, false},
		{"internal/bench", "github.com/spf13/cobra", false, false},
		{"internal/usage", "github.com/spf13/cobra", false, true},
		{"internal/usage", modulePath + "/internal/config", false, false},
		{"internal/measure", modulePath + "/internal/bench", false, false},
		{"cmd/gosmc", "github.com/spf13/cobra", false, true},
		{"cmd/gosmc", "github.com/google/go-cmp/cmp", false, false},
		{"internal/unheard-of", "fmt", false, false},
	} {
		if err := checkImport(tt.dir, tt.imported, tt.test); (err == nil) != tt.ok {
			t.Errorf("checkImport(%q, %q, %t) = %v, want ok %t", tt.dir, tt.imported, tt.test, err, tt.ok)
		}
	}
}

// notLinked are packages that no program has only because it imports package smc.
var notLinked = []string{
	"internal/run/supervisor", "internal/run/launch", "internal/run/library", "internal/run/inspect", "internal/run/procs",
	"internal/agent", "bpf", "preload",
}

// TestLinked checks that a program that imports package smc links no supervisor of gosmc run, and none
// of its tools.
func TestLinked(t *testing.T) {
	imports := make(map[string][]string) // of packages of the module, by directory
	eachFile(t, func(name string, f *ast.File) {
		if strings.HasSuffix(name, "_test.go") {
			return
		}
		dir := path.Dir(name)
		for _, spec := range f.Imports {
			if p, _ := strconv.Unquote(spec.Path.Value); strings.HasPrefix(p, modulePath+"/") {
				imports[dir] = append(imports[dir], strings.TrimPrefix(p, modulePath+"/"))
			}
		}
	})
	linked := map[string]bool{".": true}
	for list := []string{"."}; len(list) > 0; list = list[1:] {
		for _, p := range imports[list[0]] {
			if slices.Contains(notLinked, p) {
				t.Errorf("package smc links %s, which %s imports", p, list[0])
			}
			if !linked[p] {
				linked[p] = true
				list = append(list, p)
			}
		}
	}
	if !linked["internal/run/broker"] {
		t.Error("package smc has no broker for its listeners")
	}
}

// clockFunctions are the functions of package time that look at the clock or wait.
var clockFunctions = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}

// TestDecisionsAreValues checks that packages of decisions start nothing and look at no clock: the
// time is an argument.
func TestDecisionsAreValues(t *testing.T) {
	checked := map[string]int{"internal/core": 0, "internal/llcflow": 0, "internal/pnet": 0}
	eachFile(t, func(name string, f *ast.File) {
		dir := path.Dir(name)
		if _, ok := checked[dir]; !ok || strings.HasSuffix(name, "_test.go") {
			return
		}
		checked[dir]++
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: starts a goroutine", name)
			case *ast.ChanType:
				t.Errorf("%s: has a channel", name)
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clockFunctions, n.Sel.Name) {
					t.Errorf("%s: calls time.%s", name, n.Sel.Name)
				}
			}
			return true
		})
	})
	for dir, files := range checked {
		if files == 0 {
			t.Errorf("no file of %s was checked", dir)
		}
	}
}

// TestExportedTypes checks that nothing that package smc exports needs a type of an internal
// package.
func TestExportedTypes(t *testing.T) {
	checked := 0
	eachFile(t, func(name string, f *ast.File) {
		if path.Dir(name) != "." || strings.HasSuffix(name, "_test.go") {
			return
		}
		var internal []string // names by which the file knows internal packages
		for _, spec := range f.Imports {
			if p, _ := strconv.Unquote(spec.Path.Value); strings.HasPrefix(p, modulePath+"/internal/") {
				if spec.Name != nil {
					internal = append(internal, spec.Name.Name)
				} else {
					internal = append(internal, path.Base(p))
				}
			}
		}
		for _, decl := range f.Decls {
			for _, api := range exportedParts(decl) {
				checked++
				ast.Inspect(api, func(n ast.Node) bool {
					if sel, ok := n.(*ast.SelectorExpr); ok {
						if x, ok := sel.X.(*ast.Ident); ok && slices.Contains(internal, x.Name) {
							t.Errorf("%s: exports %s.%s", name, x.Name, sel.Sel.Name)
						}
					}
					return true
				})
			}
		}
	})
	if checked == 0 {
		t.Error("nothing was checked")
	}
}

// exportedParts returns the type expressions of a declaration that users of the package see.
func exportedParts(decl ast.Decl) (parts []ast.Node) {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() {
			parts = append(parts, d.Type)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.ValueSpec:
				if s.Names[0].IsExported() && s.Type != nil {
					parts = append(parts, s.Type)
				}
			case *ast.TypeSpec:
				if !s.Name.IsExported() {
					continue
				}
				fields, ok := s.Type.(*ast.StructType)
				if !ok {
					parts = append(parts, s.Type)
					continue
				}
				for _, field := range fields.Fields.List {
					if len(field.Names) == 0 || slices.ContainsFunc(field.Names, (*ast.Ident).IsExported) {
						parts = append(parts, field.Type)
					}
				}
			}
		}
	}
	return parts
}

// TestSpecMap checks that the files and tests that docs/spec-map.md and SECURITY.md name are there: a test in the
// directory of a file that its row names.
func TestSpecMap(t *testing.T) {
	functions := make(map[string][]string) // by directory
	eachFile(t, func(name string, f *ast.File) {
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasSuffix(name, "_test.go") {
				functions[path.Dir(name)] = append(functions[path.Dir(name)], fn.Name.Name)
			}
		}
	})
	files := regexp.MustCompile(`[a-z0-9_/]+\.(?:go|txt)\b`)
	tests := regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w*`)
	for _, document := range []string{"docs/spec-map.md", "SECURITY.md"} {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		named := 0
		for n, line := range strings.Split(string(text), "\n") {
			var dirs []string
			for _, file := range files.FindAllString(line, -1) {
				if _, err := os.Stat(file); err == nil {
					dirs = append(dirs, path.Dir(file))
				} else if file != "_test.go" {
					t.Errorf("%s:%d names %s: %v", document, n+1, file, err)
				}
			}
			for _, test := range tests.FindAllString(line, -1) {
				named++
				if !slices.ContainsFunc(dirs, func(dir string) bool { return slices.Contains(functions[dir], test) }) {
					t.Errorf("%s:%d names %s, which is not in %v", document, n+1, test, dirs)
				}
			}
		}
		if named == 0 {
			t.Errorf("%s names no test", document)
		}
	}
}

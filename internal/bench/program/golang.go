package program

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/gosmc/smc/internal/child"
)

// Compiled is 'gosmc go build': Go programs compiled by it, beside tcp, which is the same programs
// compiled by 'go build'.
const Compiled = "go"

// compileTime bounds the time to fetch and compile a program, on one slow processor.
const compileTime = 40 * time.Minute

// A goSource is a program of a released version of a module.
type goSource struct {
	name    string
	pkg     string // its import path
	module  string
	version string // of the module; fixed, so that a difference is ours
}

// goProgram is a work of programs in Go. They are fetched and compiled when they are needed first.
func goProgram(sources []goSource, run func(l *lab) (Result, error)) *Work {
	return &Work{
		needs: []string{"go"}, packages: "golang-go",
		run: func(l *lab, _ string) (r Result, err error) {
			for _, s := range sources {
				if err := l.home.compile(l, s); err != nil {
					return r, fmt.Errorf("%s: %w", s.name, err)
				}
			}
			if r, err = run(l); err != nil {
				return r, err
			}
			return r, l.checkHosts()
		},
	}
}

// goCache is where programs in Go are kept from one run to the next.
func goCache() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "gosmc", "bench"), nil
}

// goFile is a program that was compiled.
func goFile(cache, name string, smc bool) string {
	way := "plain"
	if smc {
		way = "smc"
	}
	return filepath.Join(cache, way, name)
}

// goCommand is a program in Go as the round runs it, with no files of the user's.
func goCommand(l *lab, name string, args ...string) (*exec.Cmd, error) {
	cache, err := goCache()
	if err != nil {
		return nil, err
	}
	cmd := l.bare(goFile(cache, name, l.smc), args...)
	cmd.Env = append(cmd.Env, "HOME="+l.dir, "XDG_CONFIG_HOME="+l.dir, "XDG_DATA_HOME="+l.dir)
	return cmd, nil
}

// compile compiles a program in both ways. The program has a module of its own, which requires the
// version and nothing else, so that the versions of all other modules follow.
func (h *Home) compile(l *lab, s goSource) error {
	if h.built[s.name] {
		return nil
	}
	ctx, cancel := context.WithTimeout(l.ctx, compileTime)
	defer cancel()
	cache, err := goCache()
	if err != nil {
		return err
	}
	dir := filepath.Join(cache, "modules", s.name)
	if err := s.require(ctx, dir); err != nil {
		return err
	}
	for _, smc := range []bool{false, true} {
		words := []string{"go", "build", "-o", goFile(cache, s.name, smc), s.pkg}
		if smc {
			words = append([]string{h.gosmc}, words...)
		}
		if err := goTool(ctx, dir, words...); err != nil {
			return err
		}
	}
	if h.built == nil {
		h.built = make(map[string]bool)
	}
	h.built[s.name] = true
	return nil
}

// require writes the module of a program, and fetches all that it needs. A module that is there stays
// as it is, so that the network is needed once.
func (s goSource) require(ctx context.Context, dir string) error {
	stamp, want := filepath.Join(dir, "required"), fmt.Sprintln(s.pkg, s.module, s.version)
	if text, err := os.ReadFile(stamp); err == nil && string(text) == want {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	const module = "module example.com/%s\n\ngo 1.26\n\nrequire %s %s\n"
	text := fmt.Appendf(nil, module, s.name, s.module, s.version)
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), text, 0o644); err != nil {
		return err
	}
	os.Remove(filepath.Join(dir, "go.sum"))
	if err := goTool(ctx, dir, "go", "get", s.pkg+"@"+s.version); err != nil {
		return err
	}
	return os.WriteFile(stamp, []byte(want), 0o644)
}

// goTool runs a command of the toolchain, without the user's settings that change a build.
func goTool(ctx context.Context, dir string, words ...string) error {
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Dir, cmd.WaitDelay = dir, child.Patience
	for _, v := range os.Environ() {
		switch name, _, _ := strings.Cut(v, "="); name {
		case "GOFLAGS", "GOWORK", "GOOS", "GOARCH", "GOTOOLCHAIN", "CGO_ENABLED":
		default:
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "GOWORK=off", "GOTOOLCHAIN=local", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		text := strings.TrimSpace(string(out))
		return fmt.Errorf("%s: %w: %s", strings.Join(words, " "), err, text[max(0, len(text)-500):])
	}
	return nil
}

// goServe starts a server in Go on a port.
func goServe(l *lab, port int, name string, args ...string) error {
	cmd, err := goCommand(l, name, args...)
	if err != nil {
		return err
	}
	return l.serve(port, cmd)
}

// goClient measures a client in Go. rate finds the operations per second in its output, n is their
// number; 0: of the seconds of the plan.
func goClient(l *lab, rate *regexp.Regexp, n int, name string, args ...string) (r Result, err error) {
	cmd, err := goCommand(l, name, args...)
	if err != nil {
		return r, err
	}
	a, err := l.measure(cmd)
	if err != nil {
		return r, err
	}
	perSecond := 0.0
	if m := rate.FindStringSubmatch(a.output); m != nil {
		perSecond, _ = strconv.ParseFloat(strings.ReplaceAll(m[1], ",", ""), 64)
	}
	if perSecond <= 0 || goFailures.MatchString(a.output) {
		return r, fmt.Errorf("%s: %w: %s", name, errOutput, a.output)
	}
	ops := float64(n)
	if n == 0 {
		ops = perSecond * float64(l.seconds())
	}
	return a.result(ops, ops/perSecond)
}

var (
	natsRate = regexp.MustCompile(`Sub stats: ([0-9,]+) msgs/sec`)
	etcdRate = regexp.MustCompile(`Requests/sec:\s+([0-9.]+)`)
	grpcRate = regexp.MustCompile(`qps: ([0-9.]+)`)
	heyRate  = regexp.MustCompile(`Requests/sec:\s+([0-9.]+)`)

	// goFailures is in the output of hey and of etcd's benchmark if some operation failed.
	goFailures = regexp.MustCompile(`Error distribution|\[[345]\d\d\]`)
)

// NATS is nats-bench with its messages of 128 bytes, from one client through nats-server to another
// one. perSecond is some number of messages that takes about a second.
func NATS(perSecond int) *Work {
	return goProgram([]goSource{
		{"nats-server", "github.com/nats-io/nats-server/v2", "github.com/nats-io/nats-server/v2", "v2.15.3"},
		{"nats-bench", "github.com/nats-io/nats.go/examples/nats-bench",
			"github.com/nats-io/nats.go", "v1.55.0"},
	}, func(l *lab) (r Result, err error) {
		port, err := freePort()
		if err != nil {
			return r, err
		}
		if err := goServe(l, port, "nats-server", "-a", loopback, "-p", strconv.Itoa(port)); err != nil {
			return r, err
		}
		n := l.scale(perSecond)
		return goClient(l, natsRate, n, "nats-bench", "-s", fmt.Sprintf("nats://%s:%d", loopback, port),
			"-np", "1", "-ns", "1", "-n", strconv.Itoa(n), "subject")
	})
}

// ETCD is etcd's benchmark with reads of one key by 8 clients, each with a connection. perSecond is some
// number of reads that takes about a second.
func ETCD(perSecond int) *Work {
	return goProgram([]goSource{
		{"etcd", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3", "v3.6.6"},
		{"etcd-benchmark", "go.etcd.io/etcd/v3/tools/benchmark", "go.etcd.io/etcd/v3", "v3.6.6"},
	}, func(l *lab) (r Result, err error) {
		port, err := freePort()
		if err != nil {
			return r, err
		}
		peers, err := freePort()
		if err != nil {
			return r, err
		}
		url := fmt.Sprintf("http://%s:%d", loopback, port)
		peerURL := fmt.Sprintf("http://%s:%d", loopback, peers)
		if err := goServe(l, port, "etcd", "--data-dir", filepath.Join(l.dir, "etcd"), "--log-level", "error",
			"--listen-client-urls", url, "--advertise-client-urls", url, "--unsafe-no-fsync",
			"--listen-peer-urls", peerURL, "--initial-advertise-peer-urls", peerURL,
			"--initial-cluster", "default="+peerURL,
		); err != nil {
			return r, err
		}
		n := l.scale(perSecond)
		return goClient(l, etcdRate, n, "etcd-benchmark", "--endpoints", fmt.Sprintf("%s:%d", loopback, port),
			"--conns", "8", "--clients", "8", "range", "key", "--total", strconv.Itoa(n))
	})
}

// GRPC is the benchmark of package grpc in its default settings: one call at a time, a byte there and
// back.
func GRPC() *Work {
	source := func(end string) goSource {
		const module = "google.golang.org/grpc"
		return goSource{"grpc-" + end, module + "/benchmark/" + end, module, "v1.77.0"}
	}
	return goProgram([]goSource{source("server"), source("client")}, func(l *lab) (r Result, err error) {
		port, err := freePort()
		if err != nil {
			return r, err
		}
		p := strconv.Itoa(port)
		// Both write profiles to /tmp and this name.
		profile := func(end string) string { return "-test_name=.." + filepath.Join(l.dir, end) }
		if err := goServe(l, port, "grpc-server", "-port", p, profile("server")); err != nil {
			return r, err
		}
		return goClient(l, grpcRate, 0, "grpc-client", "-port", p, profile("client"),
			"-w", "1", "-d", strconv.Itoa(l.seconds()))
	})
}

// Caddy is hey with its 50 clients to caddy, for a file of 200 bytes. perSecond is some number of
// requests that takes about a second.
func Caddy(perSecond int) *Work {
	return goProgram([]goSource{
		{"caddy", "github.com/caddyserver/caddy/v2/cmd/caddy", "github.com/caddyserver/caddy/v2", "v2.10.2"},
		{"hey", "github.com/rakyll/hey", "github.com/rakyll/hey", "v0.1.5"},
	}, func(l *lab) (r Result, err error) {
		port, err := freePort()
		if err != nil {
			return r, err
		}
		root, err := l.www(200)
		if err != nil {
			return r, err
		}
		addr := fmt.Sprintf("%s:%d", loopback, port)
		if err := goServe(l, port, "caddy", "file-server", "--listen", addr, "--root", root); err != nil {
			return r, err
		}
		n := l.scale(perSecond)
		n -= n % 50 // hey leaves out what is left over
		return goClient(l, heyRate, n, "hey", "-n", strconv.Itoa(n), "-c", "50", "http://"+addr+"/file")
	})
}

package applicable

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/sockdiag"
)

// follow is a sampler whose first look is over. The connections that it is about come afterwards.
func follow(t *testing.T) *sampler {
	t.Helper()
	s := newSampler()
	t.Cleanup(s.close)
	s.began = time.Now()
	s.scan(true)
	if err := s.look(true); err != nil {
		t.Fatal(err)
	}
	return s
}

// finish takes the last look and returns the pair of the server on a port.
func finish(t *testing.T, s *sampler, o Options, port int) *Pair {
	t.Helper()
	s.scan(true)
	if err := s.look(false); err != nil {
		t.Fatal(err)
	}
	for _, e := range s.ends {
		s.count(e, false)
	}
	if o.Table.rows == nil {
		o.Table = Shipped()
	}
	for _, p := range s.report(&o).Pairs {
		if int(p.Port) == port {
			return &p
		}
	}
	t.Fatalf("no pair has port %d", port)
	return nil
}

func listen(t *testing.T, address string) (l net.Listener, port int) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, l.Addr().(*net.TCPAddr).Port
}

// connect makes a connection to a listener, and sends and receives.
func connect(t *testing.T, l net.Listener, in, out int) (client, server net.Conn) {
	t.Helper()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	for _, way := range []struct {
		from, to net.Conn
		n        int
	}{{client, server, in}, {server, client, out}} {
		if _, err := way.from.Write(make([]byte, way.n)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(way.to, make([]byte, way.n)); err != nil {
			t.Fatal(err)
		}
	}
	return client, server
}

// TestSample counts each connection once, with the bytes of both directions, also one that ends
// between two looks. Its programs are Go programs.
func TestSample(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0", ":0"} {
		s := follow(t)
		l, port := listen(t, address)
		for range 2 {
			connect(t, l, 100, 2000)
		}
		s.unknown = true
		s.scan(true)
		if err := s.look(false); err != nil {
			t.Fatal(err)
		}
		client, server := connect(t, l, 10, 20)
		s.scan(true)
		if err := s.look(false); err != nil { // the third one is seen
			t.Fatal(err)
		}
		client.Close()
		server.Close()
		await(t, func() bool { // until the third one has ended for the kernel, too
			if err := s.look(false); err != nil {
				t.Fatal(err)
			}
			n := 0
			for _, e := range s.ends {
				if int(e.local.Port()) == port || int(e.peer.Port()) == port {
					n++
				}
			}
			return n == 4
		})
		p := finish(t, s, Options{}, port)
		self, _, _ := strings.Cut(filepath.Base(os.Args[0]), ".")
		if p.Connections != 3 || p.Open != 2 || p.Ended != 1 || p.Where != "local" || !strings.HasPrefix(p.Server, self) || p.Client != p.Server {
			t.Errorf("%s: %+v", address, p)
		}
		if p.BytesIn < 210 || p.BytesIn > 216 || p.BytesOut < 4020 || p.BytesOut > 4026 || p.SegmentsIn != 3 || p.SegmentsOut != 3 {
			t.Errorf("%s: %d bytes in, %d out: %+v", address, p.BytesIn, p.BytesOut, p)
		}
		if p.Can || p.Obstacle == "" || p.RequestBytes == nil || *p.RequestBytes < 70 || *p.RequestBytes > 72 {
			t.Errorf("%s: a Go program: %+v", address, p)
		}
	}
}

// TestStranger has a process, by which a namespace was found, be in another one by now: its
// connections do not count as those of the first.
func TestStranger(t *testing.T) {
	own, err := ownNamespace()
	if err != nil {
		t.Fatal(err)
	}
	called := false
	err = in(&namespace{id: own + 1, pid: os.Getpid()}, own, func() error { called = true; return nil })
	if err == nil || called {
		t.Errorf("in another namespace: %v, called: %v", err, called)
	}
}

// TestShortClient hears of connections that are shorter than a look, gives them to the only client
// that the server has, and advises against them.
func TestShortClient(t *testing.T) {
	s := follow(t)
	if s.deaf > 0 {
		t.Skip("needs CAP_NET_ADMIN")
	}
	l, port := listen(t, "127.0.0.1:0")
	connect(t, l, 1, 1) // stays
	for range 50 {
		client, server := connect(t, l, 100, 200)
		client.Close()
		server.Close()
	}
	var p *Pair
	for range 100 { // until the last news are here
		s.scan(true)
		if err := s.look(false); err != nil {
			t.Fatal(err)
		}
		if n := 0; s.heard(port, &n) >= 50 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	p = finish(t, s, Options{}, port)
	if p.Connections != 51 || p.Open != 1 || p.Class != Short || p.Can || p.Client == "" || p.LifetimeSeconds == nil {
		t.Errorf("short connections: %+v", p)
	}
	if want := "leave it: connections are too short to gain"; p.Advice != want {
		t.Errorf("advice %q, want %q", p.Advice, want)
	}
}

// heard counts connections of a port that have ended.
func (s *sampler) heard(port int, n *int) int {
	for key, p := range s.pairs {
		if int(key.port) == port {
			*n += p.ended
		}
	}
	return *n
}

// TestBounds has tables that are full: nothing grows, and the rest is counted as left out.
func TestBounds(t *testing.T) {
	s := newSampler()
	now := time.Now()
	for i := range maxEnds + 10 {
		s.see(1, sockdiag.Socket{Cookie: uint64(i), Local: netip.MustParseAddrPort("10.0.0.1:80")}, sockdiag.Info{}, now, false)
	}
	if len(s.ends) != maxEnds || s.omitted != 10 {
		t.Errorf("%d ends, %d left out", len(s.ends), s.omitted)
	}
	s = newSampler()
	for i := range maxPairs + 10 {
		peer := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80)
		s.count(&end{route: route{1, netip.MustParseAddrPort("10.1.0.1:9999"), peer}}, true)
	}
	if len(s.pairs) != maxPairs || s.omitted != 10 {
		t.Errorf("%d pairs, %d left out", len(s.pairs), s.omitted)
	}
}

// TestNewsBound has more ends come than are kept.
func TestNewsBound(t *testing.T) {
	var n news
	for range maxEnded + 1 {
		n.add(gone{})
	}
	if len(n.take()) != maxEnded || !n.lost || len(n.take()) != 0 {
		t.Errorf("news: lost %v", n.lost)
	}
}

// TestForget has an end, and a namespace, that are not there any more be forgotten.
func TestForget(t *testing.T) {
	s := newSampler()
	own, err := ownNamespace()
	if err != nil {
		t.Fatal(err)
	}
	s.spaces[own] = &namespace{id: own, pid: os.Getpid()} // and nobody tells of ends
	a, b := netip.MustParseAddrPort("127.0.0.1:80"), netip.MustParseAddrPort("127.0.0.1:9999")
	s.ends[id{own, 1 << 63}] = &end{route: route{own, a, b}, seen: time.Now()}
	if err := s.look(false); err != nil {
		t.Fatal(err)
	}
	if _, have := s.ends[id{own, 1 << 63}]; have || !s.counted[id{own, 1 << 63}] {
		t.Error("the end is not forgotten")
	}
	s.spaces[1] = &namespace{id: 1, pid: os.Getpid()}
	s.findSpaces()
	defer s.close()
	if s.spaces[1] != nil || s.spaces[own] == nil {
		t.Errorf("namespaces: %v", s.spaces)
	}
}

// TestLateNews hears of the end of a connection that was missed in a look before: it counts once.
func TestLateNews(t *testing.T) {
	s := newSampler()
	k := sockdiag.Socket{Cookie: 7, Local: netip.MustParseAddrPort("127.0.0.1:80"), Peer: netip.MustParseAddrPort("127.0.0.1:9999")}
	s.counted[id{1, 7}] = true
	over := make(map[id]*end)
	s.end(gone{1, k, sockdiag.Info{}}, time.Now(), over)
	if len(over) != 0 || len(s.counted) != 0 {
		t.Errorf("counted again: %v", over)
	}
}

// TestUnknown has servers of which no process is known share one pair.
func TestUnknown(t *testing.T) {
	s := newSampler()
	for i := range 5 {
		a := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(100+i))
		s.count(&end{route: route{1, a, netip.MustParseAddrPort("127.0.0.1:9999")}}, true)
	}
	if len(s.pairs) != 1 {
		t.Errorf("pairs: %v", s.pairs)
	}
}

// TestProcess has a number that a later process has got not count as the earlier one.
func TestProcess(t *testing.T) {
	p, err := look(os.Getpid())
	if err != nil || !p.again() || p.uid != uint32(os.Geteuid()) || p.obstacle == "" {
		t.Fatalf("this process: %+v, %v", p, err)
	}
	p.start++
	if p.again() {
		t.Error("a later process counts")
	}
	if _, err := look(1 << 30); err == nil {
		t.Error("a process that is not there")
	}
}

// TestPrograms judges real programs: redis gains, and nginx with short connections is advised
// against.
func TestPrograms(t *testing.T) {
	for _, name := range []string{"redis-server", "redis-benchmark", "nginx", "ab"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip("needs " + name)
		}
	}
	dir := t.TempDir()
	os.Chmod(dir, 0o755)
	redis, web := free(t), free(t)
	conf := fmt.Sprintf("daemon off; worker_processes 1; pid %[1]s/pid; error_log %[1]s/log; events {} http { access_log off; "+
		"client_body_temp_path %[1]s/a; proxy_temp_path %[1]s/b; fastcgi_temp_path %[1]s/c; uwsgi_temp_path %[1]s/d; "+
		"scgi_temp_path %[1]s/e; server { listen 127.0.0.1:%[2]d; return 200 hello; } }", dir, web)
	if err := os.WriteFile(filepath.Join(dir, "conf"), []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	start(t, "redis-server", "--port", strconv.Itoa(redis), "--save", "", "--dir", dir)
	start(t, "nginx", "-p", dir, "-c", filepath.Join(dir, "conf"))
	url := fmt.Sprintf("http://127.0.0.1:%d/", web)
	for _, port := range []int{redis, web} {
		await(t, func() bool {
			c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if err == nil {
				c.Close()
			}
			return err == nil
		})
	}
	start(t, "redis-benchmark", "-p", strconv.Itoa(redis), "-q", "-t", "get", "-c", "20", "-n", "1000000000")
	start(t, "ab", "-q", "-c", "4", "-t", "600", "-n", "100000000", url)
	var r *Report
	pairOf := func(port int) *Pair {
		for _, p := range r.Pairs {
			if int(p.Port) == port {
				return &p
			}
		}
		return &Pair{}
	}
	await(t, func() (done bool) { // until both have done something; a busy machine takes long
		var err error
		if r, err = Sample(context.Background(), Options{For: 2 * time.Second, Table: Shipped()}); err != nil {
			t.Fatal(err)
		}
		return pairOf(redis).Class == Many && pairOf(web).Ended >= 2*shortEnded
	})
	p := pairOf(redis)
	if p.Client != "redis-benchmark" || p.Connections < 20 || !p.Can || p.Gain == nil || p.Gain.Expected < 1.1 || p.Advice != "switch it on" {
		t.Errorf("redis: %+v, gain %+v", p, p.Gain)
	}
	found := false
	for _, step := range r.Order {
		found = found || int(step.Port) == redis
		if int(step.Port) == web {
			t.Errorf("the order has short connections: %+v", step)
		}
	}
	if !found {
		t.Errorf("the order lacks redis: %+v", r.Order)
	}
	if p := pairOf(web); p.Server != "nginx" || p.Class != Short || p.Can || p.LifetimeSeconds == nil {
		t.Errorf("nginx with short connections: %+v", p)
	}
}

// free returns a port that nobody has.
func free(t *testing.T) int {
	l, port := listen(t, "127.0.0.1:0")
	l.Close()
	return port
}

// start starts a program for the time of the test.
func start(t *testing.T, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Signal(os.Interrupt) // nginx ends its workers
		cmd.Wait()
	})
}

// await waits until done returns true.
func await(t *testing.T, done func() bool) {
	t.Helper()
	for range 300 {
		if done() {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatal("waited in vain")
}

// TestObstacle names the obstacle that comes first.
func TestObstacle(t *testing.T) {
	s := newSampler()
	s.processes = map[int]*process{
		1: {pid: 1, command: "server", uid: 7}, 2: {pid: 2, command: "client", uid: 7}, 3: {pid: 3, command: "other", uid: 8},
		4: {pid: 4, command: "static", uid: 7, obstacle: "it is statically linked"}, 5: {pid: 5, command: "a", uid: 7, under: true},
	}
	address := netip.MustParseAddrPort("127.0.0.1:80")
	for _, tt := range []struct {
		name           string
		server, client int
		where          string
		settings       config.Settings
		space          bool
		want           string // its beginning
	}{
		{"none", 1, 2, "local", config.Settings{}, false, ""},
		{"off", 1, 2, "local", config.Settings{Off: true}, false, "SMC is switched off"},
		{"port", 1, 2, "local", config.Settings{Listen: config.Filter{Ports: []string{"!80"}}}, false, "policy: port 80"},
		{"client", 1, 2, "local", config.Settings{Programs: []string{"!client"}}, false, "policy: program client"},
		{"user", 1, 3, "local", config.Settings{}, false, "the programs have different users (7 and 8)"},
		{"static", 4, 2, "local", config.Settings{}, false, "server static: it is statically linked"},
		{"static client", 1, 4, "local", config.Settings{}, false, "client static: it is statically linked"},
		{"unknown", 9, 2, "local", config.Settings{}, false, "the server's process is not known"},
		{"namespace", 1, 2, "local", config.Settings{}, true, "the programs are in different network namespaces"},
		{"elsewhere", 1, 2, "remote", config.Settings{}, false, "the other program is on another machine"},
		{"run", 5, 5, "local", config.Settings{}, false, "both were started by 'gosmc run'"},
		{"one of run", 5, 2, "local", config.Settings{}, false, ""},
	} {
		p := &pair{servers: map[int]bool{tt.server: true}, clients: map[int]bool{tt.client: true}, address: address, count: 1}
		if tt.space {
			p.spaces = map[uint64]bool{1: true}
		}
		got := s.obstacle(p, &Options{Settings: tt.settings}, tt.where)
		if len(got) < len(tt.want) || got[:len(tt.want)] != tt.want || tt.want == "" && got != "" {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

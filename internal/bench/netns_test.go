package bench

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/child"
)

// vethSite makes two network namespaces, or skips the test where that is not permitted.
func vethSite(t *testing.T, mtu int) *site {
	t.Helper()
	s, err := siteVeth(t.Context(), mtu, 1)
	if err != nil {
		t.Skipf("needs network namespaces: %v", err)
	}
	t.Cleanup(s.close)
	return s
}

// awaitEnd fails the test if a child does not end.
func awaitEnd(t *testing.T, c *child.Process) {
	t.Helper()
	select {
	case <-c.Exited():
	case <-time.After(child.Patience):
		t.Errorf("the %s process has not ended", c.Name())
	}
}

func overVeth(b *Row) *Row {
	c := *b
	c.veth = 1500
	return &c
}

// A round in two network namespaces is measured as any other, and leaves no process behind.
func TestMeasureOverVeth(t *testing.T) {
	s := vethSite(t, 1500)
	var workers []*child.Process
	start := s.start
	s.start = func(role string, files ...*os.File) (*child.Process, error) {
		c, err := start(role, files...)
		workers = append(workers, c)
		return c, err
	}
	r, err := measureRound(t.Context(), s, overVeth(findRow("bulk-64k")), transportTCP, tinyPlan, ringDefault)
	if err != nil || r.bytes <= 0 {
		t.Fatalf("measureRound = %+v, %v, want bytes", r, err)
	}
	s.close()
	if len(workers) != 2 {
		t.Fatalf("%d workers, want 2", len(workers))
	}
	for _, w := range workers {
		awaitEnd(t, w)
	}
}

// Workers in namespaces do not outlive the process that made these.
func TestVethKeeperDies(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s, err := siteVeth(ctx, 1500, 1)
	if err != nil {
		cancel()
		t.Skipf("needs network namespaces: %v", err)
	}
	defer s.close()
	var workers []*child.Process
	for _, role := range []string{roleServer, roleClient} {
		w, err := s.start(role)
		if err != nil {
			t.Fatal(err)
		}
		workers = append(workers, w)
	}
	cancel() // kills it
	for _, w := range workers {
		awaitEnd(t, w)
	}
}

// A network that cannot be made is an error that names the step that was not possible.
func TestVethImpossible(t *testing.T) {
	vethSite(t, 1500).close()
	const mtu = 1 // less than Ethernet permits
	if s, err := siteVeth(t.Context(), mtu, 1); err == nil || !strings.Contains(err.Error(), "make a veth pair") {
		if err == nil {
			s.close()
		}
		t.Errorf("siteVeth(MTU %d) = %v, want a refusal to make a veth pair", mtu, err)
	}
}

// Where there are no namespaces the same work goes over the loopback interface, and the note says so.
func TestStageLoopback(t *testing.T) {
	st := stage{noNetns: errors.New("not permitted here")}
	r, err := st.measureRound(t.Context(), overVeth(findRow("bulk-64k")), transportTCP, tinyPlan, ringDefault)
	if err != nil || r.bytes <= 0 {
		t.Fatalf("measureRound = %+v, %v, want bytes", r, err)
	}
	if want := "over the loopback interface"; !strings.Contains(r.note, want) || !strings.Contains(r.note, "not permitted here") {
		t.Errorf("note = %q, want %q and the reason", r.note, want)
	}
}

func TestStage(t *testing.T) {
	s, err := new(stage).site(t.Context(), findRow("bulk-64k"))
	if err != nil || s.note != "" || s.server.IsValid() {
		t.Errorf("site(benchmark without veth) = %+v, %v, want workers side by side", s, err)
	}
	st := stage{noNetns: errors.New("not permitted here")}
	s, err = st.site(t.Context(), overVeth(findRow("bulk-64k")))
	if err != nil || s.server == s.client || !s.server.IsLoopback() || !s.client.IsLoopback() {
		t.Errorf("site(benchmark with veth, no namespaces) = %+v, %v, want two loopback addresses", s, err)
	}
}

// Two links are two paths, or the measurement means nothing: without network namespaces there is no
// such row.
func TestStagePairs(t *testing.T) {
	st := stage{noNetns: errors.New("not permitted here")}
	if s, err := st.site(t.Context(), findRow("smcr-failover")); err == nil || !strings.Contains(err.Error(), "not permitted here") {
		t.Errorf("site(two pairs, no namespaces) = %+v, %v, want the reason why there are none", s, err)
	}
}

func TestRandomLoopback(t *testing.T) {
	network := netip.MustParsePrefix("127.0.0.0/8")
	for range 1000 {
		if a := randomLoopback(); !network.Contains(a) || a.As4()[1] < 16 || a.As4()[3] == 0 || a.As4()[3] == 255 {
			t.Fatalf("randomLoopback() = %v, want a host of 127.16.0.0 to 127.255.255.255", a)
		}
	}
}

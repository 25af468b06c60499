package supervisor

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gosmc/smc/internal/run/inspect"
)

// ask connects to the server without the library, and waits for an answer: the connection was
// accepted.
func (r *admissionRig) ask(host string) {
	r.t.Helper()
	c, err := net.Dial("tcp", net.JoinHostPort(host, fmt.Sprint(r.port)))
	if err != nil {
		r.t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("t")); err != nil {
		r.t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		r.t.Fatal(err)
	}
}

// fallbacks returns how many connections were TCP, by reason.
func (r *admissionRig) fallbacks() (all uint64, byTag map[string]uint64) {
	st := view{&r.s.record, r.s.Path, nil}.Status()
	byTag = make(map[string]uint64)
	for _, f := range st.Counters.Fallbacks {
		byTag[f.Tag] = f.Count
	}
	return st.Counters.Connections["TCP"], byTag
}

// TestBareClients has a supervisor count the connections of clients that were not started by 'gosmc
// run', and no others. Its entries in the table end with it.
func TestBareClients(t *testing.T) {
	var r *admissionRig
	link := t.TempDir()
	t.Cleanup(func() { // when the supervisor has ended
		if byPort, counted := inspect.Bare(filepath.Join(link, filepath.Base(r.s.Path))); !counted || len(byPort) != 0 {
			t.Errorf("after the end of the supervisor the table has %v, %t", byPort, counted)
		}
	})
	library := filepath.Join(link, "libgosmc-test.so") // by which the tools know programs of 'gosmc run'
	if err := os.Rename(committedLibrary(t), library); err != nil {
		t.Fatal(err)
	}
	r = newAdmissionRigWith(t, library)
	if all, byTag := r.fallbacks(); all != 0 || len(byTag) != 0 {
		t.Errorf("before the first connection there are %d of TCP, %v", all, byTag)
	}
	for range 3 {
		r.ask("127.0.0.1")
	}
	if moved := r.connect("", "short:5")[0]; moved != "mmmmm" {
		t.Fatalf("clients with the library: %s", moved)
	}
	if all, byTag := r.fallbacks(); all != 3 || byTag["PEER_NO_SMC"] != 3 {
		t.Errorf("after 3 bare clients there are %d of TCP, %v", all, byTag)
	}
	r.connect("16", "short:40") // 24 of them stay TCP, which their client has decided
	r.s.record.refusedHere()    // an offer is refused, and its connection comes
	r.ask("127.0.0.1")
	if all, byTag := r.fallbacks(); all != 27 || byTag["PEER_NO_SMC"] != 3 || byTag["SHORT"] != 24 {
		t.Errorf("after short ones and one that was refused there are %d of TCP, %v; want 3 of PEER_NO_SMC, 24 of SHORT", all, byTag)
	}
	list, err := inspect.Listeners()
	is := func(l inspect.Listening) bool { return l.PID == r.server.Process.Pid }
	if i := slices.IndexFunc(list, is); i < 0 || list[i].Bare == nil || *list[i].Bare != 4 {
		t.Errorf("listeners are %+v, %v; want one with 4 bare clients", list, err)
	}
	if err := os.Link(filepath.Join(filepath.Dir(r.s.Path), inspect.BareTable.File), filepath.Join(link, inspect.BareTable.File)); err != nil {
		t.Fatal(err)
	}
	if byPort, counted := inspect.Bare(filepath.Join(link, filepath.Base(r.s.Path))); !counted || byPort[r.port] != 28 {
		t.Errorf("the table has %v, %t; want 28 at port %d", byPort, counted, r.port)
	}
}

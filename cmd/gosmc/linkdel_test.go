package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/control"
)

// A linksHost is a host with a link group of two links, which it deletes when it is asked.
type linksHost struct {
	mu     sync.Mutex
	groups []control.StatusGroup
	asked  int                   // for its status, since a link was deleted
	then   func(*control.Status) // changes its status then, if not nil
}

func newLinksHost(t *testing.T, dir, name string) *linksHost {
	t.Helper()
	h := &linksHost{groups: []control.StatusGroup{
		{ID: 1, Mode: "SMC-D"},
		{ID: 0x1a, Mode: "SMC-R", Links: []control.StatusLink{{Number: 1, NetDev: "eth0", PeerGID: "192.0.2.2"}, {Number: 2, NetDev: "eth1", PeerGID: "198.51.100.2"}}},
	}}
	s, err := control.Serve(dir, name, h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return h
}

func (h *linksHost) Trace() control.Tracer { return nil }

func (h *linksHost) SampleCursors(list []control.TraceEvent) ([]control.TraceEvent, int) {
	return list, 0
}

// Status says that a link has ended when it is asked for the second time.
func (h *linksHost) Status() control.Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	g := &h.groups[1]
	ends := func(l control.StatusLink) bool { return l.State == "ends" }
	s := control.Status{Command: "server", Groups: h.groups}
	if h.asked++; h.then != nil && slices.ContainsFunc(g.Links, ends) {
		h.then(&s)
	} else if h.asked > 1 {
		g.Links = slices.DeleteFunc(slices.Clone(g.Links), ends)
	}
	s.Groups = slices.Clone(s.Groups)
	return s
}

func (h *linksHost) DeleteLink(group uint32, num uint8) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if group != 0x1a {
		return fmt.Errorf("there is no link group %08x of SMC-R", group)
	}
	links := slices.Clone(h.groups[1].Links)
	i := slices.IndexFunc(links, func(l control.StatusLink) bool { return l.Number == num })
	switch {
	case i < 0:
		return errors.New("it has no such link")
	case len(links) == 1:
		return errors.New("it is the last one\x1b")
	}
	links[i].State = "ends"
	h.groups[1].Links, h.asked = links, 0
	return nil
}

// TestLinkDel deletes links, and checks which host is asked for which link, the output, and the
// errors.
func TestLinkDel(t *testing.T) {
	dir := t.TempDir()
	newLinksHost(t, dir, "a")
	check := func(code int, says string, args ...string) {
		t.Helper()
		got := gosmc(t, "", append([]string{"link", "del"}, args...)...)
		if out := got.stdout + got.stderr; got.code != code || !strings.Contains(out, says) || strings.Contains(out, "\x1b") {
			t.Errorf("gosmc link del %v = %d, %q, want %d, %q", args, got.code, out, code, says)
		}
	}
	check(exitUsage, "takes 2 arguments, but got 0: LG-ID NUMBER")
	check(exitUsage, "takes 2 arguments, but got 3", "1a", "1", "2")
	check(exitUsage, `"g" is no LG-ID`, "g", "1")
	for _, num := range []string{"0", "256", "-1", "eth0"} {
		check(exitUsage, fmt.Sprintf("%q is no number of a link", num), "--dir", dir, "--", "1a", num)
	}
	check(exitFailure, "--dir names a directory that does not exist", "1a", "2", "--dir", dir+"/nowhere")
	check(exitFailure, "no host has a link group 0000001b", "1b", "2", "--dir", dir)
	check(exitFailure, "process 1 has no link group 0000001a", "1a", "2", "--dir", dir, "--pid", "1")
	check(exitFailure, "no link group 00000001 of SMC-R", "1", "2", "--dir", dir)
	check(exitFailure, "it has no such link", "1a", "3", "--dir", dir)

	complete := func(want ...string) {
		t.Helper()
		got := gosmc(t, "", append([]string{cobra.ShellCompRequestCmd, "link", "del", "--dir", dir}, want[1:]...)...)
		if !strings.HasPrefix(got.stdout, want[0]) {
			t.Errorf("completion of %q: %q, want %q", want[1:], got.stdout, want[0])
		}
	}
	complete("0000001a\t", "")
	complete("1\teth0 to 192.0.2.2\n2\teth1 to 198.51.100.2\n:4", "1a", "")
	complete(":4", "1a", "1", "")

	newLinksHost(t, dir, "b")
	check(exitFailure, "2 hosts have a link group 0000001a, choose one with --pid or --dir", "1a", "2", "--dir", dir)
	dir = t.TempDir()
	h := newLinksHost(t, dir, "a")
	check(exitOK, "link 2 of link group 0000001a has ended", "0x1a", "2", "--dir", dir)
	if n := len(h.groups[1].Links); n != 1 {
		t.Errorf("%d links are left when the command has ended", n)
	}
	check(exitFailure, "it is the last one", "1a", "1", "--dir", dir)

	dir = t.TempDir()
	newLinksHost(t, dir, "a")
	got := gosmc(t, "", "link", "del", "1a", "1", "--dir", dir, "--json")
	var r linkDelReport
	if err := json.Unmarshal([]byte(got.stdout), &r); err != nil || got.code != exitOK || r.Schema != jsonSchema || r.Group != 0x1a || r.Link != 1 || r.Dir != dir || r.Command != "server" || r.PID == 0 {
		t.Errorf("--json = %d, %v, %s", got.code, err, got.stdout)
	}
}

// TestLinkDelLost has a host end a link, and then its link group end, or the host itself, or be one that cannot be asked: none of these is the end that was asked for.
func TestLinkDelLost(t *testing.T) {
	var dir string
	for _, tt := range []struct {
		want string
		then func(s *control.Status)
	}{
		{"link group 0000001a has ended, and link 2 with it", func(s *control.Status) { s.Groups = s.Groups[:1] }},
		{"whether it has is not known: ", func(s *control.Status) { s.Command = strings.Repeat("x", 17<<20) }}, // more than an answer can have
		{"/server has ended, and link 2 of link group 0000001a with it", func(*control.Status) { removeSockets(t, dir) }},
	} {
		dir = t.TempDir()
		newLinksHost(t, dir, "a").then = tt.then
		got := gosmc(t, "", "link", "del", "1a", "2", "--dir", dir)
		if got.code != exitFailure || !strings.Contains(got.stderr, tt.want) || got.stdout != "" {
			t.Errorf("gosmc link del = %d, %q, %q, want %q", got.code, got.stdout, got.stderr, tt.want)
		}
	}
}

// removeSockets has nobody find the hosts of a run directory any more.
func removeSockets(t *testing.T, dir string) {
	t.Helper()
	list, err := filepath.Glob(dir + "/*/ctl/*")
	if err != nil || len(list) == 0 {
		t.Errorf("no sockets below %s: %v", dir, err)
	}
	for _, name := range list {
		os.Remove(name)
	}
}

// A host with one link in its group says so.
func TestLinkDelLast(t *testing.T) {
	client, server := smcrEnds(t)
	for _, e := range []smcrEnd{client, server} {
		id := lgID(asked[groupsReport](t, "linkgroup", "--dir", e.dir).Groups[0].ID)
		got := gosmc(t, "", "link", "del", id, "1", "--dir", e.dir)
		if want := "link 1 is the last one of link group " + id; got.code != exitFailure || !strings.Contains(got.stderr, want) {
			t.Errorf("gosmc link del = %d, %q, want %q", got.code, got.stderr, want)
		}
	}
}

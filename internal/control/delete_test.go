package control

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
)

// A deletingHost is a Host with links.
type deletingHost struct {
	testHost
	deleted []string
}

func (h *deletingHost) DeleteLink(group uint32, link uint8) error {
	h.deleted = append(h.deleted, fmt.Sprintf("%x/%d", group, link))
	if link == 1 {
		return errors.New("it is the last one")
	}
	return nil
}

// TestDeleteLink asks hosts to end a link: one that does, one that says why not, one that has none, and one that is not there.
func TestDeleteLink(t *testing.T) {
	dir := t.TempDir()
	h := &deletingHost{testHost: testHost{status: testStatus}}
	s, err := Serve(dir, "a", h)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	serve(t, dir, "b", testStatus)
	ask := func(dir, name string, link uint8) string {
		err := DeleteLink(t.Context(), dir, name, 0x1a, link)
		if err == nil {
			return ""
		}
		if e, ok := errors.AsType[*Error](err); !ok || !strings.HasPrefix(e.Path, dir) {
			t.Errorf("%s, link %d: %v is no *Error with the path", name, link, err)
		}
		return err.Error()
	}
	for _, tt := range []struct {
		name string
		link uint8
		want string
	}{
		{"a", 2, ""},
		{"a", 1, "it is the last one"},
		{"b", 2, `unknown request "delete-link"`},
		{"c", 2, "no such file"},
	} {
		if got := ask(dir, tt.name, tt.link); (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s, link %d: %q, want %q", tt.name, tt.link, got, tt.want)
		}
	}
	if got := fmt.Sprint(h.deleted); got != "[1a/2 1a/1]" {
		t.Errorf("it has deleted %s", got)
	}
	if err := DeleteLink(t.Context(), dir+"/nowhere", "a", 1, 2); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
	// A host may answer anything.
	for _, answer := range []string{"", "\n", "{}\n", "[]\n", `{"version":1,"status":{}}` + "\n", strings.Repeat("x", 2*maxRequest)} {
		ours, theirs := unixPair(t)
		go func() {
			bufio.NewReader(theirs).ReadBytes('\n')
			io.WriteString(theirs, answer)
			theirs.Close()
		}()
		if err := askDelete(ours, deleteRequest{1, 2}); err == nil {
			t.Errorf("the answer %.40q is taken for a yes", answer)
		}
	}
}

// unixPair returns two sockets that are connected.
func unixPair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: t.TempDir() + "/s", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr)); err != nil {
		t.Fatal(err)
	}
	if b, err = l.AcceptUnix(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

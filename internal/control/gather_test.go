package control

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rundir"
)

func TestGather(t *testing.T) {
	dir := t.TempDir()
	if list, errs := Gather(t.Context(), dir); list != nil || errs != nil {
		t.Errorf("Gather(empty directory) = %v, %v, want nothing", list, errs)
	}
	if list, errs := Gather(t.Context(), filepath.Join(dir, "absent")); list != nil || errs != nil {
		t.Errorf("Gather(no directory) = %v, %v, want nothing", list, errs)
	}
	serve(t, dir, "b", testStatus)
	serve(t, dir, "a", testStatus)

	list, errs := Gather(t.Context(), dir)
	if len(list) != 2 || errs != nil {
		t.Fatalf("Gather = %d hosts, %v, want 2 and no error", len(list), errs)
	}
	for i, name := range []string{"a", "b"} {
		want := testStatus()
		want.Name, want.Dir = name, dir
		if diff := cmp.Diff(want, list[i]); diff != "" {
			t.Errorf("Gather()[%d] (-want +got):\n%s", i, diff)
		}
	}
}

// Every field of Status must survive the bounded decoding, also one added later.
func TestParseResponseKeepsEveryField(t *testing.T) {
	st := testStatus()
	st.UID = 99 // not 0, as it is when root tests
	line, err := json.Marshal(responseLine{Version: Version, Status: &st})
	if err != nil {
		t.Fatal(err)
	}
	var fields struct{ Status map[string]json.RawMessage }
	if err := json.Unmarshal(line, &fields); err != nil {
		t.Fatal(err)
	}
	for name, value := range fields.Status {
		if v := string(value); name != "dir" && (v == "null" || v == `""` || v == "0" || v == "[]") {
			t.Errorf("testStatus() leaves %s empty, want a value to compare", name)
		}
	}
	got, err := parseResponse(line)
	if err != nil {
		t.Fatalf("parseResponse = %v", err)
	}
	if diff := cmp.Diff(&st, got); diff != "" {
		t.Errorf("parseResponse (-want +got):\n%s", diff)
	}
}

func TestGatherCleansUp(t *testing.T) {
	dir := t.TempDir()
	serve(t, dir, "live", testStatus)
	ctl := rundir.Path(dir, "ctl")
	leaveSocket(t, filepath.Join(ctl, "dead"))
	leaveSocket(t, filepath.Join(ctl, ".young"))
	leaveSocket(t, filepath.Join(ctl, ".old"))
	old := time.Now().Add(-2 * staleTemporary)
	if err := os.Chtimes(filepath.Join(ctl, ".old"), old, old); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(ctl, "note"), []byte("not a socket"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("live", filepath.Join(ctl, "link")); err != nil {
		t.Fatal(err)
	}

	list, errs := Gather(t.Context(), dir)
	if len(list) != 1 || errs != nil {
		t.Errorf("Gather = %v, %v, want one host and no error", list, errs)
	}
	for name, want := range map[string]bool{"live": true, "dead": false, ".young": true, ".old": false, "note": true, "link": true} {
		if _, err := os.Lstat(filepath.Join(ctl, name)); (err == nil) != want {
			t.Errorf("after Gather, %s exists = %v, want %v", name, err == nil, want)
		}
	}
}

// A host that ends while it is asked is none, and the socket that it leaves behind is removed.
func TestGatherEnding(t *testing.T) {
	dir := t.TempDir()
	serve(t, dir, "b", testStatus)
	for _, leaves := range []bool{false, true} { // its socket, as one that was killed
		path := filepath.Join(rundir.Path(dir, socketsDir), "a")
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		l.SetUnlinkOnClose(!leaves)
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			bufio.NewReader(c).ReadBytes('\n')
			l.Close()
			c.Close()
		}()
		if list, errs := Gather(t.Context(), dir); len(list) != 1 || errs != nil {
			t.Errorf("Gather = %v, %v, want the host that does not end", list, errs)
		}
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("its socket: %v, want none", err)
		}
	}
}

// A host that does not play by the rules is one error, in bounded time and memory.
func TestGatherHostileHost(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer string // written to every client, then the socket is closed
		want   string
	}{
		{"hangs up", "", "unexpected EOF"},
		{"half a line", `{"version":1`, "unexpected EOF"},
		{"not JSON", "hello\n", "not understood"},
		{"neither", `{"version":1}` + "\n", "neither"},
		{"error", `{"version":1,"error":"no"}` + "\n", "host answered: no"},
		{"other version", `{"version":7,"status":{}}` + "\n", "speaks version 7"},
		{"wrong type", `{"version":1,"status":{"pid":"x"}}` + "\n", "not understood"},
		{"bad reason code", `{"version":1,"status":{"connections":[{"reason_code":"12"}]}}` + "\n", "reason code"},
		{"too many connections", `{"version":1,"status":{"connections":[` + strings.Repeat("{},", MaxConns) + `{}]}}` + "\n", "list of more than"},
		{"too many link groups", `{"version":1,"status":{"link_groups":[` + strings.Repeat("{},", MaxGroups) + `{}]}}` + "\n", "list of more than"},
		{"too many links", `{"version":1,"status":{"link_groups":[{"links":[` + strings.Repeat("{},", maxLinks) + `{}]}]}}` + "\n", "list of more than"},
		{"too many devices", `{"version":1,"status":{"devices":[` + strings.Repeat("{},", maxList) + `{}]}}` + "\n", "list of more than"},
		{"too many programs", `{"version":1,"status":{"programs":[` + strings.Repeat("{},", maxList) + `{}]}}` + "\n", "list of more than"},
		{"too many ends", `{"version":1,"status":{"counters":{"ends":[` + strings.Repeat("{},", maxList) + `{}]}}}` + "\n", "list of more than"},
		{"too many types of CLC", `{"version":1,"status":{"counters":{"clc":[` + strings.Repeat("{},", maxList) + `{}]}}}` + "\n", "list of more than"},
		{"too many types of LLC", `{"version":1,"status":{"counters":{"llc":[` + strings.Repeat("{},", maxList) + `{}]}}}` + "\n", "list of more than"},
		{"too many reasons", `{"version":1,"status":{"counters":{"fallbacks":[` + strings.Repeat("{},", maxList) + `{}]}}}` + "\n", "list of more than"},
		{"not a list", `{"version":1,"status":{"ueids":{}}}` + "\n", "want a list"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.MkdirAll(rundir.Path(dir, "ctl"), 0o700); err != nil {
				t.Fatal(err)
			}
			l, err := net.Listen("unix", filepath.Join(rundir.Path(dir, "ctl"), "x"))
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					bufio.NewReader(c).ReadBytes('\n')
					io.WriteString(c, tt.answer)
					c.Close()
				}
			}()
			list, errs := Gather(t.Context(), dir)
			if len(list) != 0 || len(errs) != 1 || !strings.Contains(errs[0].Error(), tt.want) {
				t.Errorf("Gather = %v, %v, want one error with %q", list, errs, tt.want)
			}
		})
	}
}

// A host that sends descriptors can make the kernel close them within a call of ours, and that take as long as it likes.
func TestGatherLingering(t *testing.T) {
	dir := t.TempDir()
	serve(t, dir, "b", testStatus)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(rundir.Path(dir, socketsDir), "a")})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var lingering []int
	for range 8 {
		lingering = append(lingering, lingeringSocket(t))
	}
	go func() {
		c, err := l.AcceptUnix()
		if err != nil {
			return
		}
		defer c.Close()
		for _, fd := range lingering {
			c.WriteMsgUnix([]byte(" "), unix.UnixRights(fd), nil)
			unix.Close(fd)
		}
		io.Copy(io.Discard, c)
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	start := time.Now()
	list, errs := Gather(ctx, dir)
	if took := time.Since(start); len(list) != 1 || len(errs) != 1 || took > 20*time.Second {
		t.Errorf("Gather = %v, %v after %v; want that of b and an error of a, soon", list, errs, took)
	}
}

// A silent host is given up when the context ends.
func TestGatherCanceled(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(rundir.Path(dir, "ctl"), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(rundir.Path(dir, "ctl"), "x"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		c, err := l.Accept()
		if err == nil {
			defer c.Close()
			bufio.NewReader(c).ReadBytes('\n') // the question has come: now nobody will answer
			cancel()
			c.Read(make([]byte, 1))
		}
	}()
	start := time.Now()
	list, errs := Gather(ctx, dir)
	if len(list) != 0 || len(errs) != 1 {
		t.Errorf("Gather(canceled) = %v, %v, want one error", list, errs)
	}
	if d := time.Since(start); d >= ioTimeout {
		t.Errorf("Gather(canceled) took %v, want less than the deadline of a host", d)
	}
}

func TestReadLineBound(t *testing.T) {
	if _, err := readLine(zeroes{}); err == nil || !strings.Contains(err.Error(), "exceeds") {
		t.Errorf("readLine(endless line) = %v, want a complaint about its size", err)
	}
}

type zeroes struct{}

func (zeroes) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func TestGatherForeignDirectory(t *testing.T) {
	if os.Geteuid() == 0 {
		// Root reads everything; a directory that is a file fails for root too.
		dir := t.TempDir()
		if err := os.MkdirAll(rundir.Own(dir), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(rundir.Path(dir, "ctl"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if list, errs := Gather(t.Context(), dir); len(list) != 0 || len(errs) != 1 || !errors.Is(errs[0], unix.ENOTDIR) {
			t.Errorf("Gather(ctl is a file) = %v, %v, want ENOTDIR", list, errs)
		}
		return
	}
	dir := t.TempDir()
	if err := os.MkdirAll(rundir.Own(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(rundir.Path(dir, "ctl"), 0); err != nil {
		t.Fatal(err)
	}
	if list, errs := Gather(t.Context(), dir); len(list) != 0 || len(errs) != 1 || !errors.Is(errs[0], os.ErrPermission) {
		t.Errorf("Gather(no permission) = %v, %v, want ErrPermission", list, errs)
	}
}

// Whatever a host answers, the client neither panics nor takes more than the bounds allow; and the
// status that it takes says the same when it is written again.
func FuzzParseResponse(f *testing.F) {
	st := testStatus()
	line, err := json.Marshal(responseLine{Version: Version, Status: &st})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(line)
	f.Add([]byte(`{"version":1,"status":{"ueids":null,"connections":[]}}`))
	f.Add([]byte(`{"version":1,"error":"x"}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		got, err := parseResponse(line)
		if err != nil {
			return
		}
		if len(got.Connections) > MaxConns || len(got.Limits) > maxList {
			t.Fatalf("parseResponse took %d connections", len(got.Connections))
		}
		again, err := json.Marshal(responseLine{Version: Version, Status: got})
		if err != nil {
			return // not representable, such as a year beyond 9999
		}
		second, err := parseResponse(again)
		if err != nil {
			t.Fatalf("parseResponse(%s) = %v", again, err)
		}
		third, err := json.Marshal(responseLine{Version: Version, Status: second})
		if err != nil || !bytes.Equal(third, again) {
			t.Fatalf("written again:\n got %s, %v\nwant %s", third, err, again)
		}
	})
}

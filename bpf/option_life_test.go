package bpf

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/option"
	"github.com/gosmc/smc/internal/smctest"
)

// TestOptionListeners has sockets listen, two of them at one endpoint, and end: the notes of them
// end too.
func TestOptionListeners(t *testing.T) {
	p := newPlace(t)
	m, err := ebpf.LoadPinnedMap(filepath.Join(p.pins, "listeners"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	counts := func() (list []uint64) {
		var key [32]byte
		var value [2]uint64
		for it := m.Iterate(); it.Next(&key, &value); {
			if whole := binary.NativeEndian.Uint32(key[28:]); whole == 0 { // an endpoint, and no network namespace
				list = append(list, value[0])
			}
		}
		slices.Sort(list)
		return list
	}
	var list []net.Listener
	for _, addr := range []string{"127.0.0.1:7", "127.0.0.1:7", "127.0.0.2:7", "[::]:8"} {
		p.run(func() {
			lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
				return errors.Join(option.AskConn(c), c.Control(func(fd uintptr) {
					if err := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
						t.Error(err)
					}
				}))
			}}
			lc.SetMultipathTCP(false)
			var l net.Listener
			if l, err = lc.Listen(context.Background(), "tcp", addr); err == nil {
				list = append(list, l)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := counts(); !slices.Equal(got, []uint64{1, 1, 2}) {
		t.Errorf("%v listen at each endpoint, want 1, 1 and 2", got)
	}
	list[0].Close()
	if got := counts(); !slices.Equal(got, []uint64{1, 1, 1}) {
		t.Errorf("after one has ended: %v", got)
	}
	pr := p.connect(t, list[1].(*net.TCPListener), "127.0.0.1:7", true) // the other one there goes on
	pr.want(t, both, both)
	for _, l := range list[1:] {
		l.Close()
	}
	if got := counts(); len(got) > 0 {
		t.Errorf("after all have ended: %v", got)
	}
	pr.client.Close() // connections are not counted
	pr.server.Close()
	if got := counts(); len(got) > 0 {
		t.Errorf("after the connection has ended: %v", got)
	}
}

// TestOptionRestart exchanges the programs, as a new process of the agent does, between all steps
// of connections. A listening socket goes on, and the knowledge of connections stays.
func TestOptionRestart(t *testing.T) {
	p := newPlace(t)
	l := p.listen(t, "127.0.0.1:0", true)
	first := p.connect(t, l, l.Addr().String(), true)
	for range 3 {
		p.option.Close() // as a process that is killed does
		if again := p.connect(t, l, l.Addr().String(), true); true {
			again.want(t, both, both) // while there is no agent
		}
		p.attach(t)
		if !p.option.Found || !p.option.Attached() {
			t.Errorf("found %v, attached %v", p.option.Found, p.option.Attached())
		}
		first.want(t, both, both)
		p.connect(t, l, l.Addr().String(), true).want(t, both, both)
	}
	if c, err := p.option.Counters(); err != nil || c.ClientBoth != 7 {
		t.Errorf("%d connections are counted, %v; want 7 of all processes", c.ClientBoth, err)
	}
}

// TestOptionUpgrade finds the pins of a version with another layout, and half removed pins: both
// are made anew.
func TestOptionUpgrade(t *testing.T) {
	p := newPlace(t)
	works := func() {
		t.Helper()
		l := p.listen(t, "127.0.0.1:0", true)
		p.connect(t, l, l.Addr().String(), true).want(t, both, both)
	}
	for _, name := range optionMaps {
		pin := filepath.Join(p.pins, name)
		if err := os.Remove(pin); err != nil {
			t.Fatal(err)
		}
		p.attach(t)
		works()
		if err := os.Remove(pin); err != nil {
			t.Fatal(err)
		}
		other, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 12, ValueSize: 20, MaxEntries: 5})
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		if err := other.Pin(pin); err != nil {
			t.Fatal(err)
		}
		p.attach(t)
		works()
	}
	for _, prog := range optionPrograms {
		if err := os.Remove(linkPin(p.pins, prog.name)); err != nil { // detaches it, as nobody else has it open
			t.Fatal(err)
		}
		p.option.Close()
		p.attach(t)
		works()
		if !p.option.Attached() {
			t.Errorf("without the link of %s: not attached", prog.name)
		}
	}
}

// TestOptionDetach takes the programs away while another process has them open. Connections go on, nobody can ask
// any more, and nothing is left behind.
func TestOptionDetach(t *testing.T) {
	p := newPlace(t)
	l := p.listen(t, "127.0.0.1:0", true)
	pr := p.connect(t, l, l.Addr().String(), true)
	if err := DetachOption(p.pins); err != nil {
		t.Fatal(err)
	}
	if p.option.Attached() {
		t.Error("still attached")
	}
	if _, err := pr.client.Write([]byte("a")); err != nil {
		t.Fatal(err)
	}
	pr.check(t)
	raw, _ := pr.client.SyscallConn()
	if _, _, err := option.ReadConn(raw); !errors.Is(err, option.ErrNoAgent) {
		t.Errorf("Read = %v, want ErrNoAgent", err)
	}
	wire := p.tap(t)
	plain := p.connect(t, l, l.Addr().String(), false)
	checkWire(t, wire.segments(ports(plain)), false, false)
	names, err := os.ReadDir(p.pins)
	if err != nil || len(names) > 0 {
		t.Errorf("left are %v, %v", names, err)
	}
	if err := DetachOption(p.pins); err != nil {
		t.Errorf("a second time: %v", err)
	}
	p.attach(t)
	if p.option.Found {
		t.Error("found what was detached")
	}
	fresh := p.listen(t, "127.0.0.1:0", true)
	p.connect(t, fresh, fresh.Addr().String(), true).want(t, both, both)
}

// TestNoPrivilege attaches the programs without the capabilities for it, and in places that will
// not do. The error names the missing part, and nothing is left behind.
func TestNoPrivilege(t *testing.T) {
	needRoot(t)
	root, err := CgroupRoot()
	if err != nil {
		t.Fatal(err)
	}
	group, pins := smctest.EnterCgroup(t, root), mountPins(t)
	with := func(capabilities ...uint) error {
		result := make(chan error)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var caps [2]unix.CapUserData
			for _, c := range capabilities {
				caps[c/32].Effective |= 1 << (c % 32)
				caps[c/32].Permitted |= 1 << (c % 32)
			}
			if err := unix.Capset(&header, &caps[0]); err != nil {
				result <- err
				return
			}
			o, err := AttachOption(group, pins)
			if err == nil {
				o.Close()
			}
			result <- err
		}()
		return <-result
	}
	for what, tt := range map[string]struct {
		err  error
		want string
	}{
		"no capabilities": {with(), "CAP_BPF"},
		"no CAP_PERFMON":  {with(unix.CAP_BPF, unix.CAP_NET_ADMIN), "CAP_PERFMON"},
		"no cgroup":       {func() error { _, err := AttachOption(t.TempDir(), pins); return err }(), "no control group of version 2"},
		"nothing":         {func() error { _, err := AttachOption("/nowhere", pins); return err }(), "no such file"},
		"no bpf":          {PreparePins(filepath.Join(t.TempDir(), "pins")), "type bpf"},
	} {
		if tt.err == nil || !strings.Contains(tt.err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", what, tt.err, tt.want)
		}
	}
	if names, err := os.ReadDir(pins); err != nil || len(names) > 0 {
		t.Errorf("left are %v, %v", names, err)
	}
}

package ism

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// setOvercommit makes this package believe that vm.overcommit_memory has the value.
func setOvercommit(t *testing.T, value string) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "overcommit_memory")
	if err := os.WriteFile(name, []byte(value), 0o600); err != nil {
		t.Fatal(err)
	}
	overcommit.mu.Lock()
	old := overcommit.file
	overcommit.file, overcommit.read = name, time.Time{}
	overcommit.mu.Unlock()
	t.Cleanup(func() {
		overcommit.mu.Lock()
		overcommit.file, overcommit.read = old, time.Time{}
		overcommit.mu.Unlock()
	})
}

// resident returns how many bytes of a memfd have pages.
func resident(t *testing.T, fd int) int {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	return int(st.Blocks) * 512
}

// Under vm.overcommit_memory=2, pages that are not reserved can be refused at their first access.
// make interop runs two processes on a kernel that does so; here are the measures that keep them
// alive.
func TestStrictOvercommit(t *testing.T) {
	const size = 64 << 10
	for _, tt := range []struct {
		value string
		want  int // bytes with pages
	}{{"0\n", 0}, {"1\n", 0}, {"2\n", size}, {"", size}} {
		t.Run(fmt.Sprintf("%q", tt.value), func(t *testing.T) {
			setOvercommit(t, tt.value)
			fd, mem, err := newMemory("gosmc-test", size)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			defer unmap(mem)
			if got := resident(t, fd); got != tt.want {
				t.Errorf("new memory has %d bytes of pages, want %d", got, tt.want)
			}
		})
	}
	t.Run("of a peer", func(t *testing.T) {
		fd, mem, err := newMemory("gosmc-test", size)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		defer unmap(mem)
		setOvercommit(t, "2\n")
		got, err := mapReceived(fd, size)
		if err != nil {
			t.Fatal(err)
		}
		defer unmap(got)
		if got := resident(t, fd); got != size {
			t.Errorf("memory of a peer has %d bytes of pages, want %d", got, size)
		}
	})
	t.Run("no holes", func(t *testing.T) {
		x := newPair(t)
		setOvercommit(t, "2\n")
		d := mustDMB(t, x.pa, size, nil)
		x.pa.mu.Lock() // against the receiver, which takes the descriptor away: the race detector sees no messages
		fd, err := unix.Dup(int(d.seg.fd))
		x.pa.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		w := mustAttach(t, x.pb, d)
		if err := w.ReturnPages(0, size); err != nil {
			t.Errorf("ReturnPages = %v", err)
		}
		if got := resident(t, fd); got != size {
			t.Errorf("after ReturnPages %d bytes of pages, want all %d", got, size)
		}
		w.Release(false)
		d.Release(false)
	})
	t.Run("memory from before", func(t *testing.T) {
		x := newPair(t)
		d := mustDMB(t, x.pa, size, nil)
		token := d.Token()
		mustAttach(t, x.pb, d).Release(true)
		d.Release(true)
		setOvercommit(t, "2\n")
		d = mustDMB(t, x.pa, size, nil)
		if d.Token() == token || !d.seg.reserved {
			t.Errorf("token %v again, reserved %t; want memory that is reserved", d.Token(), d.seg.reserved)
		}
		d.Release(false)
	})
	t.Run("other users", func(t *testing.T) {
		d, _ := openDevice(t, Config{Dir: t.TempDir(), AnyUser: true})
		other := Cred{PID: 1, UID: os.Geteuid() + 1}
		if err := d.checkUser(other); err != nil {
			t.Errorf("checkUser = %v with AnyUser, want nil", err)
		}
		setOvercommit(t, "2\n")
		if err := d.checkUser(other); !errors.Is(err, ErrOtherUser) {
			t.Errorf("checkUser = %v, want ErrOtherUser: they could punch holes", err)
		}
		if err := d.checkUser(Cred{PID: 1, UID: os.Geteuid()}); err != nil {
			t.Errorf("checkUser of our user = %v, want nil", err)
		}
	})
}

// A setting that cannot be read any more keeps its value: a process without descriptors is not on
// another kernel.
func TestOvercommitUnreadable(t *testing.T) {
	o := overcommitMode{file: "/proc/sys/vm/overcommit_memory"}
	strict := o.isStrict()
	o.file, o.read = filepath.Join(t.TempDir(), "none"), time.Unix(1, 0)
	if got := o.isStrict(); got != strict {
		t.Errorf("isStrict() = %t when the file is gone, want %t as before", got, strict)
	}
	o.read = time.Time{}
	if !o.isStrict() {
		t.Error("isStrict() = false where the file never was, want true")
	}
}

// setMaxMapCount makes this package believe that the process may have n mappings.
func setMaxMapCount(t *testing.T, n int) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "max_map_count")
	if err := os.WriteFile(name, fmt.Appendln(nil, n), 0o600); err != nil {
		t.Fatal(err)
	}
	mappings.mu.Lock()
	old := mappings.max
	mappings.max, mappings.counted = name, time.Time{}
	mappings.mu.Unlock()
	t.Cleanup(func() {
		mappings.mu.Lock()
		mappings.max, mappings.counted = old, time.Time{}
		mappings.mu.Unlock()
	})
}

// listed returns how many mappings the process has.
func listed(t *testing.T) int {
	t.Helper()
	n, err := countLines("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestMappings(t *testing.T) {
	x := newPair(t)
	var made []*DMB
	release := func() {
		for _, d := range made {
			d.Release(false)
		}
		made = nil
	}
	defer release()

	limit := (listed(t) + 100) * 100 / mappingShare
	setMaxMapCount(t, limit)
	for {
		d, err := x.pa.NewDMB(16<<10, nil)
		if err != nil {
			if !errors.Is(err, ErrMappings) {
				t.Errorf("NewDMB = %v, want ErrMappings", err)
			}
			break
		}
		if made = append(made, d); len(made) > 200 {
			t.Fatalf("%d DMBs, and %d mappings of %d", len(made), listed(t), limit)
		}
	}
	if len(made) < 50 { // the runtime may have made some meanwhile
		t.Errorf("%d DMBs until %d %% of the mappings were used, want some 100", len(made), mappingShare)
	}
	if n := listed(t); n > limit*mappingHardShare/100 {
		t.Errorf("%d mappings of %d", n, limit)
	}
	// A peering needs mappings too, but not so a window of a connection that is agreed on.
	if _, err := x.a.Peer(testContext(t), x.a.GID()); !errors.Is(err, ErrMappings) && !errors.Is(err, ErrLimit) {
		t.Errorf("Peer = %v, want ErrMappings, or ErrLimit if the other end was first", err)
	}
	mustAttach(t, x.pb, made[0]).Release(false)
	release()
	d, err := x.pa.NewDMB(16<<10, nil)
	if err != nil {
		t.Fatalf("NewDMB = %v after others were released", err)
	}
	made = append(made, d)
}

// The mappings counted as ours are the ones that are mapped, whatever way connections end.
func TestMappingsAreCounted(t *testing.T) {
	count := func() int {
		mappings.mu.Lock()
		defer mappings.mu.Unlock()
		return mappings.own
	}
	if got, want := count(), countMaps(t); got != want {
		t.Fatalf("%d mappings counted, %d there", got, want)
	}
	x := newPair(t)
	for _, clean := range []bool{true, false, true} {
		d := mustDMB(t, x.pa, 16<<10, nil)
		w := mustAttach(t, x.pb, d)
		if got, want := count(), countMaps(t); got != want {
			t.Errorf("%d mappings counted, %d there", got, want)
		}
		w.Release(clean)
		d.Release(clean)
	}
	d := mustDMB(t, x.pa, 16<<10, nil)
	w := mustAttach(t, x.pb, d)
	x.pa.Close()
	await(t, "PeerGone", x.rb.gone)
	w.Release(true)
	d.Release(true)
	x.a.Close()
	x.b.Close()
	if got, want := count(), countMaps(t); got != want {
		t.Errorf("at the end %d mappings counted, %d there", got, want)
	}
	if got := x.b.mapped.Load(); got != 0 {
		t.Errorf("at the end %d bytes of peers are counted, want 0", got)
	}
}

// Memory of a peer is ours to pay for once we write it, so it has a budget.
func TestBudgetOfWindows(t *testing.T) {
	checkLeaks(t)
	dir := t.TempDir()
	const size, budget = 1 << 20, 8 << 20
	a, _ := openDevice(t, Config{Dir: dir})
	b, rb := openDevice(t, Config{Dir: dir, Budget: budget})
	pa := dialPeer(t, a, b)
	pb := await(t, "PeerUp", rb.ups)

	var dmbs []*DMB
	var windows []*Window
	for len(windows) < budget/size*5/4 {
		if len(windows) == budget/size-1 {
			mustDMB(t, pb, size, nil).Release(false) // there is room for one more
		}
		dmbs = append(dmbs, mustDMB(t, pa, size, nil))
		windows = append(windows, mustAttach(t, pb, dmbs[len(dmbs)-1]))
	}
	if _, err := pb.NewDMB(16<<10, nil); !errors.Is(err, ErrBudget) {
		t.Errorf("NewDMB = %v with the peer's memory over the budget, want ErrBudget", err)
	}
	last := mustDMB(t, pa, size, nil)
	if _, err := pb.Attach(testContext(t), last.Token(), size); !errors.Is(err, ErrBudget) {
		t.Errorf("Attach = %v beyond five quarters of the budget, want ErrBudget", err)
	}
	// Memory that is kept for later gives way.
	windows[0].Release(true)
	mustAttach(t, pb, last).Release(false)
	if got := b.mapped.Load(); got > budget*5/4 {
		t.Errorf("%d bytes of the peer's are mapped, budget %d", got, budget)
	}
	for _, w := range windows[1:] {
		w.Release(false)
	}
	if got := b.mapped.Load(); got != 0 {
		t.Errorf("%d bytes of the peer's are counted after all were released", got)
	}
	for _, d := range append(dmbs, last) {
		d.Release(false)
	}
}

func TestFewDescriptors(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if limit.Cur >= 1<<30 {
		t.Skip("no limit on descriptors to be near to")
	}
	for _, tt := range []struct {
		fd   int
		want bool
	}{{3, false}, {int(limit.Cur) - minFreeFDs - 1, false}, {int(limit.Cur) - minFreeFDs, true}, {int(limit.Cur) - 1, true}} {
		if got := fewDescriptors(tt.fd); got != tt.want {
			t.Errorf("fewDescriptors(%d) = %t with a limit of %d, want %t", tt.fd, got, limit.Cur, tt.want)
		}
	}
}

// A device that could not have a peering is not opened: it would take the descriptors that the
// program needs for plain TCP.
func TestOpenFewDescriptors(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	checkLeaks(t)
	fd, err := unix.Dup(0) // the lowest that is free
	if err != nil {
		t.Fatal(err)
	}
	closeFD(t, fd)
	few := limit
	few.Cur = uint64(fd + minFreeFDs)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	d, err := Open(Config{Dir: t.TempDir()})
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("Open with %d descriptors left = %v, want EMFILE", minFreeFDs, err)
	}
	if err == nil {
		d.Close()
	}
}

// childDenied opens a device where the limit on the size of files is smaller than needed.
func childDenied() error {
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}); err != nil {
		return err
	}
	d, err := Open(Config{Dir: os.Getenv(childDir)})
	if err == nil {
		d.Close()
	}
	if !errors.Is(err, ErrDenied) || !errors.Is(err, unix.EFBIG) {
		return fmt.Errorf("Open = %v, want ErrDenied and EFBIG", err)
	}
	return nil
}

func TestFileSizeLimit(t *testing.T) {
	c := startChild(t, "/proc/self/exe", "denied", nil, childDir+"="+t.TempDir())
	for line := range c.all() {
		t.Error(line)
	}
}

func TestDenied(t *testing.T) {
	for _, errno := range []error{unix.EPERM, unix.EACCES, unix.ENOSYS, unix.EAFNOSUPPORT, unix.EFBIG} {
		if err := denied("memfd_create", errno); !errors.Is(err, ErrDenied) || !errors.Is(err, errno) {
			t.Errorf("denied(%v) = %v, want ErrDenied", errno, err)
		}
	}
	if err := denied("memfd_create", unix.EMFILE); errors.Is(err, ErrDenied) || !errors.Is(err, unix.EMFILE) {
		t.Errorf("denied(EMFILE) = %v, want EMFILE only", err)
	}
}

// TestCommitRoom checks how much is left for others under vm.overcommit_memory=2.
func TestCommitRoom(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		room       int64
		ok         bool
	}{
		{"large", "MemTotal: 1 kB\nCommitLimit:     8388608 kB\nCommitted_AS:    1048576 kB\n", 7<<30 - 64<<20, true},
		{"small", "CommitLimit:  163840 kB\nCommitted_AS:  163840 kB\n", -10 << 20, true},
		{"no limit", "Committed_AS:  163840 kB\n", 0, false},
		{"no use", "CommitLimit:  163840 kB\n", 0, false},
		{"too large", "CommitLimit:  9223372036854775807 kB\nCommitted_AS: 1 kB\n", 0, false},
		{"empty", "", 0, false},
	} {
		if room, ok := commitRoom(tt.text); room != tt.room || ok != tt.ok {
			t.Errorf("%s: %d bytes, %v; want %d, %v", tt.name, room, ok, tt.room, tt.ok)
		}
	}
}

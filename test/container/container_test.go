package main

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
)

// allows reports whether a profile allows a system call whatever its arguments are.
func (p *profile) allows(name string) bool {
	for _, r := range p.Syscalls {
		if slices.Contains(r.Names, name) && len(r.Args) == 0 {
			return r.Action == "SCMP_ACT_ALLOW"
		}
	}
	return false
}

// TestProfile reads a profile with the conditions that podman's has.
func TestProfile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "seccomp.json")
	err := os.WriteFile(path, []byte(`{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38, "syscalls": [
		{"names": ["read", "ptrace", "pidfd_getfd"], "action": "SCMP_ACT_ALLOW", "includes": {}, "excludes": {}},
		{"names": ["chroot"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_CHROOT"]}},
		{"names": ["chroot"], "action": "SCMP_ACT_ERRNO", "excludes": {"caps": ["CAP_SYS_CHROOT"]}},
		{"names": ["bpf"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN"]}},
		{"names": ["bpf"], "action": "SCMP_ACT_ERRNO", "excludes": {"caps": ["CAP_SYS_ADMIN"]}},
		{"names": ["s390_runtime_instr"], "action": "SCMP_ACT_ALLOW", "includes": {"arches": ["s390x"]}}]}`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	p, err := readProfile(path)
	if err != nil {
		t.Fatal(err)
	}
	strict := p.stricter()
	for _, c := range []struct {
		name           string
		podman, strict bool
	}{
		{"read", true, true}, {"chroot", true, true}, {"bpf", false, false}, {"ptrace", true, false}, {"pidfd_getfd", true, false},
		{"process_vm_readv", false, false}, {"s390_runtime_instr", false, false},
	} {
		if got := p.allows(c.name); got != c.podman {
			t.Errorf("podman's profile allows %s: %v, want %v", c.name, got, c.podman)
		}
		if got := strict.allows(c.name); got != c.strict {
			t.Errorf("the stricter profile allows %s: %v, want %v", c.name, got, c.strict)
		}
	}
	if len(p.Syscalls) != 3 {
		t.Errorf("%d rules are left, want 3: %v", len(p.Syscalls), p.Syscalls)
	}
}

// TestHold has a writer that is stopped until it is released.
func TestHold(t *testing.T) {
	b := buffer{holds: 4, free: make(chan struct{})}
	done := make(chan struct{})
	b.Write([]byte("abc"))
	go func() {
		b.Write([]byte("de"))
		b.Write([]byte("f"))
		close(done)
	}()
	for b.Len() < 5 {
		runtime.Gosched()
	}
	select {
	case <-done:
		t.Error("the writer was not stopped")
	default:
	}
	b.release()
	<-done
	if got := b.String(); got != "abcdef" {
		t.Errorf("the buffer has %q, want abcdef", got)
	}
}

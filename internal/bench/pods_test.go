package bench

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/gosmc/smc/internal/pod"
)

// The programs of a row are in two network namespaces, which are not this one, and are not joined
// otherwise than by the bridge.
func TestPodPlace(t *testing.T) {
	pods, err := newPodSite(t.Context())
	if errors.Is(err, errNotRoot) || errors.Is(err, exec.ErrNotFound) || errors.Is(err, pod.ErrNoPairing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer pods.Close()
	c, err := pods.containers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.end()
	place := pods.place(c)
	seen := map[string]bool{}
	note := func() error {
		name, err := os.Readlink("/proc/thread-self/ns/net")
		seen[name] = true
		return err
	}
	for _, err := range []error{note(), place.Enter(true, note), place.Enter(false, note)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(seen) != 3 {
		t.Errorf("network namespaces %v, want three", seen)
	}
	cmd := exec.Command("readlink", "/proc/self/ns/mnt", "/proc/self/ns/ipc", "/proc/self/ns/uts", "/proc/self/ns/net")
	cmd.SysProcAttr = new(syscall.SysProcAttr)
	place.Begin(cmd.SysProcAttr)
	var out []byte
	if err := place.Enter(false, func() (err error) {
		out, err = cmd.Output()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for i, name := range strings.Fields(string(out)) {
		kind, _, _ := strings.Cut(name, ":")
		if own, err := os.Readlink("/proc/self/ns/" + kind); err != nil || own == name {
			t.Errorf("namespace %d of a program is %s, %v, want one that is not ours", i, name, err)
		}
	}
}

// A round between two containers is measured as any other, over TCP and over shared memory.
func TestMeasurePods(t *testing.T) {
	pods, err := newPodSite(t.Context())
	if errors.Is(err, errNotRoot) || errors.Is(err, exec.ErrNotFound) || errors.Is(err, pod.ErrNoPairing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer pods.Close()
	rows, err := Choose([]string{"pod"})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range rows {
		if b.program != nil { // they need a whole gosmc: the supervisors of a test program know no agent
			continue
		}
		for _, transport := range b.Transports {
			var r roundResult
			for range 5 { // a machine that is busy may be late with an introduction, and TCP is right then
				s, err2 := pods.site(t.Context())
				if err2 != nil {
					t.Fatal(err2)
				}
				r, err = measureRound(t.Context(), s, b, transport, tinyPlan, ringDefault)
				s.close()
				if err == nil {
					break
				}
				t.Log(err)
			}
			if err != nil || b.value(r) <= 0 || (r.mode == "SMC-D") != (transport == transportSMCD) {
				t.Errorf("%s over %s: %+v, %v; want a value", b.Name, transport, r, err)
			}
		}
	}
}

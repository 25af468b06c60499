package inventory

import (
	"cmp"
	"os"
	osuser "os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/control"
)

// TestContainerOf has the control groups of container engines, of systemd and of none.
func TestContainerOf(t *testing.T) {
	id := strings.Repeat("0123456789abcdef", 4)
	for _, tt := range []struct {
		groups string
		apart  bool
		want   string
	}{
		{"0::/system.slice/docker-" + id + ".scope\n", true, "0123456789ab"},
		{"0::/system.slice/docker-" + id + ".scope\n", false, "0123456789ab"}, // it may not be looked at
		{"12:memory:/docker/" + id + "\n0::/\n", true, "0123456789ab"},
		{"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-" + id + ".scope\n", true, "0123456789ab"},
		{"0::/../crio-" + id + "\n", true, "0123456789ab"},
		{"0::/machine.slice/libpod-" + id + ".scope/container\n", true, "0123456789ab"},
		{"0::/machine.slice/libpod-conmon-" + id + ".scope\n", false, ""},
		{"0::/lxc.payload.web/system.slice/nginx.service\n", true, "web"},
		{"0::/machine.slice/machine-my\\x2dweb.scope/payload/init.scope\n", true, "my-web"},
		{"0::/machine.slice/machine-my\\x2dweb.scope\n", true, "my-web"},
		{"0::/machine.slice/machine-qemu.scope\n", false, ""},
		{"0::/gosmc-a\n", true, "gosmc-a"}, // of runc
		{"0::/gosmc-a\n", false, ""},
		{"0::/user.slice/session-1.scope\n", true, ""}, // unshare(1)
		{"0::/system.slice/" + id[1:] + ".scope\n0::\n0\n", false, ""},
		{"", true, ""},
	} {
		if got := containerOf(tt.groups, tt.apart); got != tt.want {
			t.Errorf("containerOf(%q, %t) = %q, want %q", tt.groups, tt.apart, got, tt.want)
		}
	}
	if got := unescapeUnit(`a\x2db\xzz\x2`); got != `a-b\xzz\x2` {
		t.Errorf("unescapeUnit = %q", got)
	}
}

// fakeProc is a procfs with processes: each has a user, the numbers of a network and a process
// namespace, and a control group.
func fakeProc(t *testing.T, list map[string][4]string) string {
	t.Helper()
	dir := t.TempDir()
	for pid, v := range list {
		ns := filepath.Join(dir, pid, "ns")
		err := os.MkdirAll(ns, 0o755)
		status := "Name:\tx\nUid:\t0\t" + v[0] + "\t0\t0\n"
		for path, text := range map[string]string{"status": status, "cgroup": "0::/" + v[3] + "\n"} {
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, pid, path), []byte(text), 0o644)
			}
		}
		for name, number := range map[string]string{"net": v[1], "pid": v[2]} {
			if err == nil && number != "" {
				err = os.Symlink(name+":["+number+"]", filepath.Join(ns, name))
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestAddPlaces gives ends the places of their processes, and of the processes at the other end: by
// that end where it is there, else by its process, else by its user.
func TestAddPlaces(t *testing.T) {
	const user, nobodyHas = 4000000001, 4000000002
	root := "root"
	if u, err := osuser.LookupId("0"); err == nil {
		root = u.Username
	}
	p := newPlaces(7)
	p.proc = fakeProc(t, map[string][4]string{
		"10": {"0", "100", "1", "a"}, "11": {strconv.FormatInt(user, 10), "200", "2", "box"},
		"12": {"0", "100", "", ""}, // another user's
	})
	p.own, p.pids, p.names = "100", "pid:[1]", map[string]string{"200": "blue"}
	uid := uint32(nobodyHas)
	conn := func(local, peer string, pid, peerPID int, netns uint64) Conn {
		status := control.StatusConn{Local: local, Peer: peer, PeerPID: peerPID, NetNS: netns, UID: user}
		return Conn{StatusConn: status, PID: pid, Dir: "/run/x"}
	}
	r := Report{Connections: []Conn{
		conn("a:1", "a:2", 10, 11, 7),  // by its process
		conn("a:3", "a:4", 10, 0, 7),   // by its other end
		conn("a:4", "a:3", 11, 10, 7),  // of a container, with a socket of our namespace
		conn("a:5", "a:6", 11, 10, 9),  // nothing is known of the other end
		conn("a:7", "a:8", 10, 0, 9),   // its socket is elsewhere
		conn("a:9", "a:10", 99, 0, 7),  // its process has ended, or may not be looked at
		conn("a:11", "a:12", 12, 0, 7), // of the other end the kernel knows the user
	}, Listeners: []Listener{{StatusListener: control.StatusListener{NetNS: 7}, PID: 10}}}
	r.Connections[6].PeerUID = &uid
	r.addPlaces(p)
	number := strconv.FormatInt(user, 10)
	us, them, none := Place{root, "100", ""}, Place{number, "blue", "box"}, Place{}
	for i, want := range [][2]Place{
		{us, them}, {us, {number, "100", "box"}}, {{number, "100", "box"}, us}, {them, none},
		{{root, "", ""}, none}, {{number, "100", ""}, none}, {us, {strconv.FormatInt(nobodyHas, 10), "", ""}},
	} {
		c := &r.Connections[i]
		peer := Place{c.PeerUser, c.PeerNamespace, c.PeerContainer}
		if c.Place != want[0] || peer != want[1] {
			t.Errorf("connection %d: %+v and %+v, want %+v", i, c.Place, peer, want)
		}
	}
	if got := r.Listeners[0].Place; got != us {
		t.Errorf("listener: %+v, want %+v", got, us)
	}
}

// TestPlaceOfOurs looks at this process.
func TestPlaceOfOurs(t *testing.T) {
	r := Report{Connections: []Conn{{PID: os.Getpid(), Dir: "x"}}}
	r.AddPlaces(0)
	u, err := osuser.LookupId(strconv.Itoa(os.Geteuid()))
	if err != nil {
		t.Skip("this user has no name")
	}
	link, _ := os.Readlink("/proc/self/ns/net")
	number := strings.Trim(link, "net:[]")
	want := Place{User: u.Username, Namespace: cmp.Or(netnsNames(NamedNetNS)[number], number)}
	got := r.Connections[0].Place
	got.Container = "" // the tests may run in one
	if got != want {
		t.Errorf("this process: %+v, want %+v", got, want)
	}
}

// TestNetnsNames has the names of files by their inodes.
func TestNetnsNames(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "blue"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	names := netnsNames(dir)
	if len(names) != 1 || len(netnsNames(filepath.Join(dir, "none"))) != 0 {
		t.Errorf("names are %v", names)
	}
	for number, name := range names {
		if _, err := strconv.ParseUint(number, 10, 64); err != nil || name != "blue" {
			t.Errorf("names are %v", names)
		}
	}
}

package rendezvous

import (
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/wire"
)

func testGID(n uint64) wire.ISMGID { return wire.ISMGID{Hi: 0x4000, Lo: 0x8000_0000_0000_0000 | n} }

// TestParseAnnouncement has names that are none.
func TestParseAnnouncement(t *testing.T) {
	gid := testGID(0xabcdef).String()
	for _, name := range []string{
		"x", "@", ".", gid, gid + "@", gid + ".@*", gid + ".1", gid + ".1@", gid + ".-1@*", gid + ".1@**", gid + ".1@127.0.0.1%lo",
		gid + ".1@300.0.0.1", gid[1:] + ".1@*", strings.ToUpper(gid) + ".1@*", strings.ReplaceAll(gid, "-", "+") + ".1@*",
		"00000000-0000-0000-0000-000000000000.1@*", strings.Repeat("a", 255), "\xff\xfe\x00"[:2], gid + ".1@\n",
	} {
		if _, _, ok := parseAnnouncement(name); ok {
			t.Errorf("parseAnnouncement(%q) succeeded", name)
		}
	}
	for _, name := range []string{gid + ".1@*", gid + ".12@127.0.0.1", gid + ".7@::1"} {
		if got, _, ok := parseAnnouncement(name); !ok || got != testGID(0xabcdef) {
			t.Errorf("parseAnnouncement(%q) = %v, %t", name, got, ok)
		}
	}
}

// TestAnnounceIntoLink puts a symbolic link where a listener makes a folder, as any user can in
// a run directory that is shared: it must not lead out of that.
func TestAnnounceIntoLink(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777|fs.ModeSticky); err != nil {
		t.Fatal(err)
	}
	if err := rundir.Prepare(dir); err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort("127.0.0.1:9")
	for _, target := range []string{t.TempDir(), "/nowhere/at/all"} {
		folder := Folder(dir, 1, at.Port())
		if err := os.Symlink(target, folder); err != nil {
			t.Fatal(err)
		}
		before, _ := os.Stat(target)
		if _, err := Announce(dir, 1, testGID(1), at, false); err == nil {
			t.Errorf("announce through a link to %s has worked", target)
		}
		if after, err := os.Stat(target); err == nil && after.Mode() != before.Mode() {
			t.Errorf("the mode of %s was %v, is %v", target, before.Mode(), after.Mode())
		}
		if names, _ := os.ReadDir(target); len(names) > 0 {
			t.Errorf("%s has %v", target, names)
		}
		// Nor is one read through it.
		if target != "/nowhere/at/all" {
			name := filepath.Join(target, testGID(1).String()+".1@*")
			if err := os.WriteFile(name, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if found, _ := new(announcementCache).lookup(dir, 1, at); found != nil {
				t.Errorf("lookup through a link = %v", found)
			}
		}
		os.Remove(folder)
	}
}

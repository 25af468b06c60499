package host

import (
	"os"
	"path/filepath"
	"testing"
)

// The configuration file says what interfaces are on one physical network: a device on another one is not used, and a link group
// belongs to one.
func TestPNET(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gosmc.conf")
	if err := os.WriteFile(path, []byte("pnet NET1 lo\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOSMC_CONFIG", path)
	r := newSMCRRig(t, nil)
	c, s := r.connect()
	checkSMCR(t, c, s)
	for _, h := range []*Host{r.client, r.server} {
		st := h.Status()
		if len(st.Groups) != 1 || st.Groups[0].PNETID != "NET1" || len(st.Devices) != 1 || st.Devices[0].PNETID != "NET1" {
			t.Errorf("groups %+v and devices %+v, want them on NET1", st.Groups, st.Devices)
		}
	}
	c.Close()
	s.Close()
	if _, err := New(Config{PNET: map[string]string{"lo": "net"}}); err == nil {
		t.Error("a PNETID in lower case is none")
	}
}

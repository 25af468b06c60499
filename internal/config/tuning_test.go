package config

import (
	"os"
	"strings"
	"testing"
	"time"
)

// TestTuning checks values of file and environment, and their bounds.
func TestTuning(t *testing.T) {
	write(t, "smcr-links 1\nsmcr-links 8\nsmcr-conns 16\nsmcr-spread bytes\nsmcr-keepalive 90s\nspin off\nread-buffer 16KiB\n")
	t.Setenv(Variables[SMCRConns], "17")
	s, err := Load()
	want := Tuning{
		SMCRLinks: 8, SMCRConns: 17, SMCRSpread: "bytes", SMCRKeepAlive: 90 * time.Second, Spin: -1, ReadBuffer: 16 << 10,
	}
	if err != nil || s.Tuning != want {
		t.Errorf("Load = %+v, %v, want %+v", s.Tuning, err, want)
	}
	for word, values := range map[string]struct{ good, bad string }{
		SMCRLinks:     {"1 8", "0 9 -1 x off 1.5"},
		SMCRConns:     {"16 255", "15 256 off -1"},
		SMCRSpread:    {"connections bytes", "off Bytes links"},
		SMCRKeepAlive: {"1s 24h off 0 no", "999ms 25h on -1s 30 -1ns"},
		Spin:          {"1us 10ms off 0", "999ns 11ms on -1us -1ns 1"},
		ReadBuffer:    {"16384 16KiB 8MiB", "16383 9MiB off -1"},
	} {
		for _, v := range strings.Fields(values.good) {
			if err := Check(word, v); err != nil {
				t.Errorf("Check(%s, %q) = %v", word, v, err)
			}
		}
		for _, v := range append(strings.Fields(values.bad), "") {
			if err := Check(word, v); err == nil || !strings.HasPrefix(err.Error(), word+" ") {
				t.Errorf("Check(%s, %q) = %v, want an error that names the word", word, v, err)
			}
		}
	}
}

// TestAliases checks names of other systems: they stand for words of ours, and the file keeps them as
// long as their values stay.
func TestAliases(t *testing.T) {
	path := write(t, "smcr_max_links_per_lgr 1\nconns_per_lg 20 # as on AIX\nnet.smc.smcr_testlink_time 10\nrmem 65536\n")
	s, err := Load()
	want := Tuning{SMCRLinks: 1, SMCRConns: 20, SMCRKeepAlive: 10 * time.Second, ReadBuffer: 64 << 10}
	if err != nil || s.Tuning != want {
		t.Errorf("Load = %+v, %v, want %+v", s.Tuning, err, want)
	}
	f, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Set(SMCRConns, "30"); err != nil {
		t.Fatal(err)
	}
	if err := f.Write(); err != nil {
		t.Fatal(err)
	}
	const changed = "smcr_max_links_per_lgr 1\nsmcr-conns 30 # as on AIX\nnet.smc.smcr_testlink_time 10\nrmem 65536\n"
	if text, err := os.ReadFile(path); err != nil || string(text) != changed {
		t.Errorf("after Set the file is %q, %v, want %q", text, err, changed)
	}
	for line, want := range map[string]string{
		"smcr_testlink_time 0":        "",
		"smcr_testlink_time":          "smcr_testlink_time is smcr-keepalive",
		"smcr_max_conns_per_lgr 5":    `smcr_max_conns_per_lgr is smcr-conns "5": want a number of connections from 16 to 255`,
		"net.smc.smcr_max_send_wr 32": "net.smc.smcr_max_send_wr cannot be set: gosmc has 16",
		"wmem 65536":                  "wmem cannot be set",
		"smcr_max_conn_per_lgr 5":     `unknown word "smcr_max_conn_per_lgr"; did you mean smcr_max_conns_per_lgr?`,
		"smcr-con 5":                  `unknown word "smcr-con"; did you mean smcr-conns?`,
	} {
		list, err := Problems(write(t, "# first\n"+line+"\n"))
		switch {
		case err != nil:
			t.Errorf("%q: %v", line, err)
		case want == "" && len(list) > 0:
			t.Errorf("%q has the problems %+v", line, list)
		case want != "" && (len(list) != 1 || list[0].Line != 2 || !strings.HasPrefix(list[0].Message, want)):
			t.Errorf("%q has the problems %+v, want one on line 2: %s", line, list, want)
		}
	}
	for name, word := range Aliases {
		if _, known := numbers[word]; !known {
			t.Errorf("%s stands for %s, which is no number", name, word)
		}
	}
}

package service

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the drop-ins in testdata/plans")

var ownUID = strconv.Itoa(os.Getuid())

const systemUnits = "usr/lib/systemd/system"

// A machine is a tree for tests, with the units of testdata/units.
type machine struct {
	*Tree
	t   *testing.T
	dir string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t: t, dir: t.TempDir()}
	for _, dir := range []string{systemUnits, unitsDir, "usr/bin", "usr/lib/gosmc", "usr/lib/tmpfiles.d"} {
		m.must(os.MkdirAll(m.at(dir), 0o755))
	}
	m.link("lib", "usr/lib")
	units, err := filepath.Glob("testdata/units/*")
	m.must(err)
	for _, file := range units {
		text, err := os.ReadFile(file)
		m.must(err)
		m.put(filepath.Join(systemUnits, filepath.Base(file)), string(text))
	}
	m.put("usr/lib/tmpfiles.d/gosmc.conf", "d /run/gosmc 1777 root root -\n")
	m.put("etc/passwd", "postgres:x:"+ownUID+":"+ownUID+"::/:/bin/sh\n")
	m.put("etc/postgresql/15/main/postgresql.conf", "")
	m.put("usr/lib/postgresql/15/bin/postgres", "")
	m.put("usr/bin/static", "")
	if m.Tree, err = OpenTree(m.dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func (m *machine) at(name string) string { return filepath.Join(m.dir, name) }

func (m *machine) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) put(name, text string) {
	m.t.Helper()
	m.must(os.MkdirAll(filepath.Dir(m.at(name)), 0o755))
	m.must(os.WriteFile(m.at(name), []byte(text), 0o644))
}

func (m *machine) link(name, target string) {
	m.t.Helper()
	m.must(os.Symlink(target, m.at(name)))
}

func (m *machine) text(name string) string {
	text, err := os.ReadFile(m.at(name))
	if err != nil {
		return ""
	}
	return string(text)
}

var testOptions = Options{Command: "/usr/bin/gosmc", Obstacle: func(file string) string {
	if filepath.Base(file) == "static" {
		return "it is statically linked"
	}
	return ""
}}

func name(t *testing.T, text string) Name {
	t.Helper()
	n, err := ParseName(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (m *machine) plan(unit string) (*Plan, error) {
	m.t.Helper()
	u, err := m.Unit(name(m.t, unit))
	if err != nil {
		return nil, err
	}
	return m.Plan(u, testOptions)
}

// enable writes the drop-in of a unit.
func (m *machine) enable(unit string) *Plan {
	m.t.Helper()
	p, err := m.plan(unit)
	m.must(err)
	written, err := m.Write(p, false)
	if err != nil || !written {
		m.t.Fatalf("Write of %s = %v, %v", unit, written, err)
	}
	return p
}

// TestPlans compares the drop-ins of units with testdata/plans.
func TestPlans(t *testing.T) {
	m := newMachine(t)
	for _, unit := range []string{"redis-server", "nginx", "postgresql@15-main", "apache2", "haproxy", "memcached", "many", "strict", "denies", "socketed"} {
		t.Run(unit, func(t *testing.T) {
			p, err := m.plan(unit)
			if err != nil {
				t.Fatal(err)
			}
			got := p.Path + "\n\n" + p.Text + "\nuser " + p.User + ", run directory " + p.Dir + "\n"
			for _, n := range p.Notes {
				got += "note: " + n + "\n"
			}
			golden := filepath.Join("testdata/plans", unit+".txt")
			if *update {
				m.must(os.WriteFile(golden, []byte(got), 0o644))
			}
			want, err := os.ReadFile(golden)
			if diff := cmp.Diff(string(want), got); err != nil || diff != "" {
				t.Errorf("%v, (-want +got):\n%s", err, diff)
			}
			if !signed(p.Text) {
				t.Error("the drop-in is not signed")
			}
		})
	}
}

// TestRefusals has units that cannot be helped be refused, with the reason and the next step.
func TestRefusals(t *testing.T) {
	m := newMachine(t)
	m.link(unitsDir+"/gone.service", "/dev/null")
	m.put(systemUnits+"/empty.service", "")
	for _, tt := range []struct {
		unit, want, step string
		is               error
	}{
		{"postgresql", "starts no program of its own", "name one of those", nil},
		{"postgresql@", "not one cluster", "pg_lsclusters", nil},
		{"postgresql@14-main", "/usr/lib/postgresql/14/bin/postgres, which is not there", "pg_lsclusters", nil},
		{"postgresql@15-../../x", "", "", nil}, // no name
		{"jailed", "RootDirectory=/srv/jail", "by hand", nil},
		{"killed", "SystemCallFilter=~@ipc", "SystemCallErrorNumber=EPERM", nil},
		{"hand", "/usr/lib", "systemctl cat hand", ErrAlready},
		{"static", "statically linked", "package smc", nil},
		{"nothing", "no ExecStart=", "name the service", nil},
		{"quote", "not closed", "by hand", nil},
		{"gone", "masked", "systemctl unmask gone", ErrMasked},
		{"empty", "masked", "systemctl unmask empty", ErrMasked},
		{"redis", "no such unit", "there is redis-server", ErrNotFound},
		{"zzz", "no such unit", "list-unit-files", ErrNotFound},
	} {
		n, err := ParseName(tt.unit)
		if tt.want == "" {
			if err == nil {
				t.Errorf("ParseName(%q) = %q", tt.unit, n)
			}
			continue
		}
		p, err := m.plan(tt.unit)
		step, ok := errors.AsType[*NextError](err)
		switch {
		case err == nil:
			t.Errorf("%s has the drop-in\n%s", tt.unit, p.Text)
		case !ok || !strings.Contains(step.Next, tt.step) || tt.is != nil && !errors.Is(err, tt.is) || tt.is != ErrAlready && !strings.Contains(step.Err.Error(), tt.want):
			t.Errorf("%s: %v; want %q and the step %q", tt.unit, err, tt.want, tt.step)
		}
	}
}

// TestParseName has names that are none be refused: they become parts of paths.
func TestParseName(t *testing.T) {
	for text, want := range map[string]Name{
		"nginx": "nginx.service", "nginx.service": "nginx.service", "postgresql@15-main": "postgresql@15-main.service", `a\x2db`: `a\x2db.service`, "php8.2-fpm": "php8.2-fpm.service",
		"": "", ".service": "", "../nginx": "", "a/b": "", "a b": "", "a\nb": "", "a\x00": "", "@x": "", "..": "", "ä": "", "x$y": "", "a%i": "", "dbus.socket": "", "x.timer": "", strings.Repeat("a", 250): "", "..service": "",
	} {
		got, err := ParseName(text)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("ParseName(%q) = %q, %v; want %q", text, got, err, want)
		}
	}
}

// TestParse has comments within a continued line be left out, and a line be none of another section.
func TestParse(t *testing.T) {
	got := parse("# c\n[Unit]\nExecStart=/no\n [Service] \nA = 1 \\\n# within\n ; too\n  2\nB=\\\n\nC\nD=x=y\r\nE=end \\", 0)
	want := []setting{{"Unit", "ExecStart", "/no", 0}, {"Service", "A", "1    2", 0}, {"Service", "B", "", 0}, {"Service", "D", "x=y", 0}, {"Service", "E", "end", 0}}
	if !slices.Equal(got, want) {
		t.Errorf("parse = %+v, want %+v", got, want)
	}
}

// TestSplitWords has quotes and escapes be the same as in systemd.
func TestSplitWords(t *testing.T) {
	for line, want := range map[string]string{
		`a  b`: "a|b", `'a b' "c d"`: "a b|c d", `a"b c"d`: "ab cd", `\x41\102 \s\t`: "AB| \t", `'\'' \"`: `'|"`, `a\qb`: `a\qb`, `a \; ; "b;c"`: `a|;|;|b;c`, "": "",
		`"open`: "!", `end\`: "!", `\x00`: `\x00`, `\x4`: `\x4`, `\400 \8`: `\400|\8`,
	} {
		words, err := splitWords(line)
		var texts []string
		for _, w := range words {
			texts = append(texts, w.text)
			if !strings.Contains(line, w.raw) {
				t.Errorf("splitWords(%q): %q is not in it", line, w.raw)
			}
		}
		got := strings.Join(texts, "|")
		if err != nil {
			got = "!"
		}
		if got != want {
			t.Errorf("splitWords(%q) = %q, want %q", line, got, want)
		}
	}
}

// TestUnder has systemd read the new command line as the same program with the same arguments.
func TestUnder(t *testing.T) {
	for line, want := range map[string]string{
		"/bin/x a":            "/g run -- /bin/x a",
		"-!+/bin/x":           "-!+/g run -- /bin/x",
		"@/bin/x y z":         "/g run --argv0 y -- /bin/x z",
		"@-/bin/x 'a b'":      "-/g run --argv0 'a b' -- /bin/x",
		`"/b c/x" $A`:         `/g run -- "/b c/x" $A`,
		"/bin/$x":             "/g run -- /bin/$$x",
		":/bin/$x $y":         ":/g run -- /bin/$x $y",
		"@/bin/x":             "error",
		"-":                   "error",
		"|/bin/x":             "error",
		`/bin/x\x0ay`:         "error",
		"/a b ; /c d":         "/g run -- /a b\n/g run -- /c d",
		"/usr/bin/gosmc x":    "/g run -- /usr/bin/gosmc x",
		`/bin/x\x20y`:         `/g run -- "/bin/x y"`,
		`/bin/sh -c "a \" b"`: `/g run -- /bin/sh -c "a \" b"`,
	} {
		list, err := parseCommands(line)
		var got []string
		for _, c := range list {
			got = append(got, c.under("/g"))
		}
		if err != nil {
			got = []string{"error"}
		}
		if strings.Join(got, "\n") != want {
			t.Errorf("%q becomes %q, %v; want %q", line, got, err, want)
		}
	}
}

// TestDropIns has drop-ins apply in the order of their names, one hide another of the same name, and an empty ExecStart= take back those before.
func TestDropIns(t *testing.T) {
	m := newMachine(t)
	m.put(systemUnits+"/nginx.service.d/10-first.conf", "[Service]\nUser=vendor\n")
	m.put(unitsDir+"/nginx.service.d/10-first.conf", "[Service]\nUser=web\n")
	m.put(systemUnits+"/nginx.service.d/20-hidden.conf", "[Service]\nUser=hidden\n")
	m.link(unitsDir+"/nginx.service.d/20-hidden.conf", "/dev/null")
	m.put("run/systemd/system/nginx.service.d/30-run.conf", "[Service]\nExecStart=\nExecStart=/usr/sbin/nginx -c /other\n")
	m.put(unitsDir+"/nginx.service.d/override.conf.save", "[Service]\nUser=nobody\n")
	p, err := m.plan("nginx")
	m.must(err)
	if p.User != "web" || !strings.Contains(p.Text, "\nExecStart=/usr/bin/gosmc run -- /usr/sbin/nginx -c /other\n") || strings.Contains(p.Text, "daemon on") {
		t.Errorf("user %q\n%s", p.User, p.Text)
	}

	// Of an instance: its template's, and its own.
	m.put(unitsDir+"/many@.service", "[Service]\nExecStart=/usr/bin/many %i\n")
	m.put(unitsDir+"/many@.service.d/a.conf", "[Service]\nUser=template\nGroup=x\n")
	m.put(unitsDir+"/many@one.service.d/a.conf", "[Service]\nUser=one\n")
	m.put(unitsDir+"/service.d/b.conf", "[Service]\nRestrictAddressFamilies=AF_INET\n")
	for unit, user := range map[string]string{"many@one": "one", "many@two": "template", "many@": "template"} {
		if p, err := m.plan(unit); err != nil || p.User != user || !strings.Contains(p.Text, "\nRestrictAddressFamilies=AF_UNIX\n") {
			t.Errorf("%s: user %q, %v", unit, p.User, err)
		}
	}

	m.put(unitsDir+"/nginx.service.d/zzz.conf", "[Service]\nExecStart=\nExecStart=/usr/sbin/nginx\n")
	if p, err := m.plan("nginx"); err == nil || !strings.Contains(err.Error(), "zzz.conf") {
		t.Errorf("with a drop-in that sorts after ours: %+v, %v", p, err)
	}
}

// TestReset has an empty line take back a restriction.
func TestReset(t *testing.T) {
	m := newMachine(t)
	m.put(unitsDir+"/redis-server.service.d/x.conf", "[Service]\nNoExecPaths=\nRestrictAddressFamilies=\nSystemCallFilter=\nProtectSystem=no\n")
	p, err := m.plan("redis-server")
	if err != nil || strings.Contains(p.Text, "ExecPaths") || strings.Contains(p.Text, "ReadWritePaths") {
		t.Errorf("%v\n%s", err, p.Text)
	}
}

// TestAliases has a unit be found by its other names, and links that lead nowhere do no harm.
func TestAliases(t *testing.T) {
	m := newMachine(t)
	m.link(unitsDir+"/redis.service", "/lib/systemd/system/redis-server.service")
	m.put("opt/x/linked.service", "[Service]\nExecStart=/opt/x/linked\n")
	m.link(unitsDir+"/linked.service", "/opt/x/linked.service")
	m.link(unitsDir+"/loop.service", "/etc/systemd/system/pool.service")
	m.link(unitsDir+"/pool.service", "/etc/systemd/system/loop.service")
	m.link(unitsDir+"/out.service", "../../../../../../../../../../etc/systemd/system/out.service")
	m.link(unitsDir+"/evil.service", "/etc/systemd/system/a b.service")
	m.link(unitsDir+"/main@.service", "/lib/systemd/system/postgresql@.service")
	p := m.enable("redis")
	if p.Unit.Name != "redis-server.service" || p.Path != "/etc/systemd/system/redis-server.service.d/zz-gosmc.conf" || len(p.Notes) != 1 {
		t.Errorf("redis is %s, %s, %q", p.Unit.Name, p.Path, p.Notes)
	}
	if p, err := m.plan("linked"); err != nil || p.Unit.Files[0].Path != "/etc/systemd/system/linked.service" {
		t.Errorf("a linked unit: %v", err)
	}
	if p, err := m.plan("main@15-main"); err != nil || p.Unit.Name != "postgresql@15-main.service" {
		t.Errorf("another name of a template: %v, %v", p, err)
	}
	for _, unit := range []string{"loop", "out", "evil"} {
		if p, err := m.plan(unit); err == nil {
			t.Errorf("%s = %s", unit, p.Text)
		}
	}
	if got := m.RealName("redis.service"); got != "redis-server.service" {
		t.Errorf("RealName(redis) = %s", got)
	}
}

// TestOutside has links not lead out of the tree.
func TestOutside(t *testing.T) {
	m := newMachine(t)
	elsewhere := t.TempDir()
	m.must(os.WriteFile(filepath.Join(elsewhere, "out.service"), []byte("[Service]\nExecStart=/usr/bin/out\n"), 0o600))
	m.link(unitsDir+"/out.service", filepath.Join(elsewhere, "out.service"))
	if u, err := m.Unit("out.service"); err == nil {
		t.Errorf("a unit outside of the tree was read: %+v", u)
	}
	m.link(unitsDir+"/nginx.service.d", elsewhere)
	p, err := m.plan("nginx")
	m.must(err)
	_, err = m.Write(p, true)
	if names, _ := os.ReadDir(elsewhere); err == nil || len(names) != 1 {
		t.Errorf("Write through a link out of the tree: %v, and there is %v", err, names)
	}
}

// TestEnableDisable has the tree be after both as it was before.
func TestEnableDisable(t *testing.T) {
	m := newMachine(t)
	before := m.snapshot()
	p := m.enable("nginx")
	if got := m.text(p.Path); got != p.Text {
		t.Errorf("the drop-in is %q", got)
	}
	if info, err := os.Stat(m.at(p.Path)); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("its mode is %v, %v", info.Mode(), err)
	}
	again, err := m.plan("nginx")
	if err != nil || again.Text != p.Text {
		t.Errorf("the second time it is %v\n%s", err, again.Text)
	}
	if written, err := m.Write(again, false); err != nil || written {
		t.Errorf("Write of what is there = %v, %v", written, err)
	}
	m.must(m.Remove("nginx.service", false))
	if diff := cmp.Diff(before, m.snapshot()); diff != "" {
		t.Errorf("left behind (-before +after):\n%s", diff)
	}
	if err := m.Remove("nginx.service", true); !errors.Is(err, ErrNone) {
		t.Errorf("the second Remove = %v", err)
	}

	// Other files stay.
	m.put(unitsDir+"/nginx.service.d/override.conf", "[Service]\n")
	before = m.snapshot()
	m.enable("nginx")
	m.must(os.Remove(m.at(systemUnits + "/nginx.service"))) // the package is gone
	m.must(m.Remove("nginx.service", false))
	delete(before, systemUnits+"/nginx.service")
	if diff := cmp.Diff(before, m.snapshot()); diff != "" {
		t.Errorf("left behind (-before +after):\n%s", diff)
	}
}

// snapshot returns the contents of the tree.
func (m *machine) snapshot() map[string]string {
	files := make(map[string]string)
	m.must(filepath.WalkDir(m.dir, func(file string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(m.dir, file)
		files[name] = d.Type().String() + m.text(name)
		return err
	}))
	return files
}

// TestChanged has a drop-in that somebody has changed be kept.
func TestChanged(t *testing.T) {
	m := newMachine(t)
	p := m.enable("nginx")
	changed := strings.Replace(p.Text, "daemon on", "daemon off", 1)
	m.put(p.Path, changed)
	if _, err := m.Write(p, false); !errors.Is(err, ErrChanged) {
		t.Errorf("Write = %v", err)
	}
	if err := m.Remove("nginx.service", false); !errors.Is(err, ErrChanged) {
		t.Errorf("Remove = %v", err)
	}
	if m.text(p.Path) != changed {
		t.Error("it has not been kept")
	}
	if written, err := m.Write(p, true); err != nil || !written || m.text(p.Path) != p.Text {
		t.Errorf("Write by force = %v, %v", written, err)
	}
	m.put(p.Path, changed)
	m.must(m.Remove("nginx.service", true))
}

// TestList has each state be seen.
func TestList(t *testing.T) {
	m := newMachine(t)
	for _, unit := range []string{"nginx", "haproxy", "memcached", "apache2", "redis-server", "postgresql@15-main"} {
		m.enable(unit)
	}
	m.put(unitsDir+"/haproxy.service.d/override.conf", "[Service]\nExecStart=\nExecStart=/usr/sbin/haproxy -W\n")
	m.put(unitsDir+"/memcached.service.d/zz-gosmc.conf", m.text(unitsDir+"/memcached.service.d/zz-gosmc.conf")+"# mine\n")
	m.put(unitsDir+"/apache2.service.d/zzz.conf", "[Service]\nExecStart=\nExecStart=/usr/sbin/apachectl start\n")
	m.must(os.Remove(m.at(systemUnits + "/redis-server.service")))
	m.put(unitsDir+"/socketed.service.d/override.conf", "[Service]\nEnvironment=\"GOSMC_DIR=/run/mine\" X=1\nExecStart=\nExecStart=/usr/local/bin/gosmc run -- /usr/bin/socketed\n")
	m.put(unitsDir+"/many.service.d/override.conf", "[Service]\nNice=1\n")
	m.link(unitsDir+"/alias.service", "/lib/systemd/system/nginx.service")
	var got []string
	for _, e := range m.List(testOptions) {
		got = append(got, e.Unit.Short()+" "+e.State+" "+e.Dir)
	}
	want := []string{"apache2 overruled /run/gosmc", "haproxy outdated /run/gosmc", "memcached changed /run/gosmc", "nginx ok /run/gosmc", "postgresql@15-main ok /run/gosmc", "redis-server no unit ", "socketed by hand /run/mine"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("List (-want +got):\n%s", diff)
	}
}

// TestRunDirectory has a service have a run directory of its own where the machine makes none, or the one that is named.
func TestRunDirectory(t *testing.T) {
	m := newMachine(t)
	m.must(os.Remove(m.at("usr/lib/tmpfiles.d/gosmc.conf")))
	for unit, dir := range map[string]string{"nginx": "/run/gosmc-nginx", "postgresql@15-main": "/run/gosmc-postgresql-15-main", "redis-server": "/run/gosmc-redis-server"} {
		p, err := m.plan(unit)
		if want := "\nRuntimeDirectory=" + filepath.Base(dir) + "\n"; err != nil || p.Dir != dir || !strings.Contains(p.Text, want) || strings.Contains(p.Text, "ReadWritePaths") {
			t.Errorf("%s: %s, %v\n%s", unit, p.Dir, err, p.Text)
		}
	}
	u, err := m.Unit("redis-server.service")
	m.must(err)
	o := testOptions
	o.Dir = "/srv/shared"
	p, err := m.Plan(u, o)
	if err != nil || p.Dir != o.Dir || strings.Contains(p.Text, "RuntimeDirectory") || !strings.Contains(p.Text, "\nReadWritePaths=-/srv/shared\n") {
		t.Errorf("%v\n%s", err, p.Text)
	}
	if _, err := m.Write(p, false); err != nil {
		t.Fatal(err)
	}
	if again, err := m.plan("redis-server"); err != nil || again.Text != p.Text {
		t.Errorf("enabled again it is %v\n%s", err, again.Text)
	}
	if list := m.List(testOptions); len(list) != 1 || list[0].State != StateOK || list[0].Dir != o.Dir {
		t.Errorf("List = %+v", list)
	}
}

// TestFilters has filters that kill gosmc be told from those that do not.
func TestFilters(t *testing.T) {
	for _, tt := range []struct {
		text    string
		killed  string
		foreign bool
	}{
		{"", "", false},
		{"SystemCallFilter=@system-service\nSystemCallFilter=~@privileged @resources", "", false},
		{"SystemCallFilter=@system-service\nSystemCallFilter=~@ipc", "SystemCallFilter=~@ipc", false},
		{"SystemCallFilter=@system-service\nSystemCallFilter=~@ipc:EPERM", "", false},
		{"SystemCallErrorNumber=EPERM\nSystemCallFilter=~@ipc", "", false},
		{"SystemCallErrorNumber=kill\nSystemCallFilter=~@ipc @process", "SystemCallFilter=~@ipc @process", false},
		{"SystemCallFilter=~@ipc\nSystemCallFilter=@ipc", "", false},
		{"SystemCallFilter=~@ipc\nSystemCallFilter=", "", false},
		{"SystemCallFilter=@basic-io", "", true},
		{"SystemCallFilter=~@mount", "", false},
	} {
		u := newUnit("x.service", "x.service", []File{{text: "[Service]\n" + tt.text}})
		if killed, foreign := u.killed(), u.foreignFilter(); killed != tt.killed || foreign != tt.foreign {
			t.Errorf("%q: killed %q, foreign %v; want %q, %v", tt.text, killed, foreign, tt.killed, tt.foreign)
		}
	}
	for text, want := range map[string]bool{
		"": true, "RestrictAddressFamilies=AF_INET AF_UNIX": true, "RestrictAddressFamilies=AF_INET": false, "RestrictAddressFamilies=none": false,
		"RestrictAddressFamilies=~AF_UNIX": false, "RestrictAddressFamilies=~AF_PACKET": true, "RestrictAddressFamilies=~AF_UNIX\nRestrictAddressFamilies=AF_UNIX": true,
		"RestrictAddressFamilies=AF_UNIX AF_INET\nRestrictAddressFamilies=~AF_UNIX": false, "RestrictAddressFamilies=AF_INET\nRestrictAddressFamilies=": true,
	} {
		if got := newUnit("x.service", "x.service", []File{{text: "[Service]\n" + text}}).family("AF_UNIX"); got != want {
			t.Errorf("%q: AF_UNIX is allowed: %v", text, got)
		}
	}
}

// TestLibraryIn has a service count as under 'gosmc run' if one of its processes has the library.
func TestLibraryIn(t *testing.T) {
	proc := t.TempDir()
	for pid, maps := range map[string]string{"1": "7f00-7f01 r-xp 0 0 1 /usr/lib/x.so\n", "2": "7f00-7f01 r-xp 0 0 1 /usr/lib/gosmc/lib64/libgosmc-run.so\n"} {
		if err := errors.Join(os.Mkdir(filepath.Join(proc, pid), 0o755), os.WriteFile(filepath.Join(proc, pid, "maps"), []byte(maps), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		pids []string
		want Running
	}{{[]string{"1", "2"}, WithIt}, {[]string{"1", "3"}, AfterStart}, {nil, Unknown}} {
		if got := libraryIn(proc, tt.pids); got != tt.want {
			t.Errorf("libraryIn(%q) = %q, want %q", tt.pids, got, tt.want)
		}
	}
}

// FuzzParse has no file of a unit make gosmc panic, and no drop-in that it writes have a line that the unit's author could have put there besides ExecStart=.
func FuzzParse(f *testing.F) {
	f.Add("[Service]\nExecStart=-@/x y \\\n z\n")
	f.Add("[Service]\nExecStart=\"a\\x0ab\"\nUser=x")
	f.Fuzz(func(t *testing.T, text string) {
		u := newUnit("x.service", "x.service", []File{{"/x", text}})
		commands, err := u.commands()
		if err != nil || u.refusal(commands) != nil {
			return
		}
		for _, c := range commands {
			if line := c.under("/g"); strings.ContainsAny(line, "\n") {
				t.Errorf("%q becomes %q", text, line)
			}
		}
		u.killed()
		u.foreignFilter()
		u.family("AF_UNIX")
	})
}

package service

import (
	"crypto/sha256"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Options say where gosmc is, and how a unit is to use it.
type Options struct {
	Command string // absolute path of gosmc
	// run directory; "" is the one that was named before, /run/gosmc where the machine makes that
	// at boot, else a runtime directory of the unit
	Dir string

	// Obstacle returns why the library cannot be loaded into the program at a path outside of the
	// tree, "" if it can.
	Obstacle func(path string) string
}

// A Plan is the drop-in for a unit.
type Plan struct {
	Unit  *Unit
	Path  string // of the drop-in, in the tree
	Text  string
	Dir   string   // run directory, which clients need, too
	User  string   // of clients; "" if no other program has the user of the service
	Notes []string // for the administrator, a sentence each
}

// dropInFile sorts after the file that 'systemctl edit' writes, override.conf: the last ExecStart=
// counts.
const dropInFile = "zz-gosmc.conf"

// systemDir is the run directory of all users, which a package has made at boot.
const systemDir = "/run/gosmc"

func dropInPath(name Name) string { return path.Join(unitsDir, string(name)+".d", dropInFile) }

// Plan decides which drop-in a unit needs. Of one that gosmc has written before it keeps the run
// directory that was named.
func (t *Tree) Plan(u *Unit, o Options) (*Plan, error) {
	own := "/" + dropInPath(u.Name)
	if text, err := t.read(own); err == nil && o.Dir == "" {
		o.Dir = namedDir(text) // rule: TestRunDirectory
	}
	u = u.without(own)
	p := &Plan{Unit: u, Path: own}
	if u.Asked != u.Name {
		p.note("%s is another name of %s.", u.Asked.Short(), u.Name.Short())
	}
	commands, err := u.commands()
	if err != nil {
		return nil, err
	}
	if why := u.refusal(commands); why != nil {
		return nil, why
	}
	d := dropIn{plan: p, o: o}
	if err := t.start(&d, commands); err != nil {
		return nil, err
	}
	t.rundir(&d)
	t.restrictions(&d)
	for _, f := range u.Files[1:] {
		if path.Base(f.Path) > dropInFile && newUnit(u.Name, u.Name, []File{f}).setsStart() {
			return nil, next(fmt.Errorf("%s sets ExecStart= after the drop-in of gosmc would",
				t.outside(f.Path)), "give it a name that sorts before %s", dropInFile)
		}
	}
	p.Text = sign(fmt.Sprintf("# Written by 'gosmc service enable %[1]s'; 'gosmc service disable %[1]s' removes it.", u.Name.Short()), d.text.String())
	return p, nil
}

// namedDir returns the run directory in a drop-in, "" if it is one of those that are chosen where
// none is named.
func namedDir(text string) string {
	u := newUnit("", "", []File{{text: text}})
	if dir := u.environment("GOSMC_DIR"); dir != systemDir && u.last("RuntimeDirectory") == "" {
		return dir
	}
	return ""
}

func (p *Plan) note(format string, args ...any) {
	p.Notes = append(p.Notes, fmt.Sprintf(format, args...))
}

// setsStart reports whether a unit's files say anything of ExecStart=.
func (u *Unit) setsStart() bool {
	return slices.ContainsFunc(u.set,
		func(s setting) bool { return s.section == "Service" && s.key == "ExecStart" })
}

// commands returns the commands that a unit starts.
func (u *Unit) commands() (list []command, err error) {
	for _, s := range u.all("ExecStart") {
		more, err := parseCommands(s.value)
		if err != nil {
			return nil, next(fmt.Errorf("%s: ExecStart=%s: %w", u.Files[s.file].Path, s.value, err),
				"write the drop-in by hand: see docs/run.md, \"As a service\"")
		}
		list = append(list, more...)
	}
	return list, nil
}

// refusal returns why a unit cannot be helped, with a next step.
func (u *Unit) refusal(commands []command) error {
	name := u.Name.Short()
	if len(commands) == 0 {
		return next(fmt.Errorf("%s starts no program: it has no ExecStart=", name),
			"name the service that does")
	}
	for _, c := range commands {
		if c.isUnder() { // rule: TestRefusals
			return next(fmt.Errorf("%s: %w, in a file that gosmc has not written", name, ErrAlready),
				"'systemctl cat %s' shows it", name)
		}
	}
	if i := slices.IndexFunc(commands,
		func(c command) bool { return path.Base(c.program) != "true" }); i < 0 {
		return next(fmt.Errorf("%s starts no program of its own: it stands for other units", name), "name one of those: 'systemctl list-dependencies --reverse --before %s' and 'systemctl list-units \"%s@*\"' show them", name, name)
	}
	for _, key := range []string{"RootDirectory", "RootImage"} {
		if v := u.last(key); v != "" && v != "/" {
			return next(fmt.Errorf("%s has %s=%s, and gosmc is not in there", name, key, v), "put gosmc and its library into it, and write the drop-in by hand: see docs/run.md, \"As a service\"")
		}
	}
	if why := u.killed(); why != "" { // rule: TestRefusals
		return next(fmt.Errorf("%s has %s, and gosmc would be killed for using one of these", name, why),
			"add SystemCallErrorNumber=EPERM, or allow these, by 'systemctl edit %s'", name)
	}
	return nil
}

// A dropIn is a drop-in that is being written.
type dropIn struct {
	plan *Plan
	o    Options
	text strings.Builder
}

func (d *dropIn) line(format string, args ...any) { fmt.Fprintf(&d.text, format+"\n", args...) }

// start writes ExecStart=.
func (t *Tree) start(d *dropIn, commands []command) error {
	d.line("[Service]")
	d.line("ExecStart=")
	u := d.plan.Unit
	for _, c := range commands {
		if path.Base(c.program) == pgCtlCluster {
			return t.startPostgres(d, c)
		}
		if why := t.obstacle(u, c, d.o); why != "" {
			return next(fmt.Errorf("%s: %s would stay with TCP under 'gosmc run': %s", u.Name.Short(),
				c.program, why), "use package smc in it; docs/run.md, \"What is moved\", has the conditions")
		}
		if clearing[path.Base(c.program)] {
			d.plan.note("%s may clear the environment, by which programs find the library: look with 'gosmc service list' when it runs.", c.program)
		}
		d.line("ExecStart=%s", c.under(d.o.Command))
	}
	if u.last("Type") == "forking" && u.last("PIDFile") == "" {
		d.plan.note("The unit has Type=forking without PIDFile=: systemd cannot tell the main process from the supervisor of 'gosmc run', and shows none.")
	}
	return nil
}

// clearing are programs that start others without the environment that they have.
var clearing = map[string]bool{"sudo": true, "su": true, "runuser": true, "env": true, "setpriv": true,
	"doas": true}

// obstacle returns why a program cannot have the library, as far as its file can be found.
func (t *Tree) obstacle(u *Unit, c command, o Options) string {
	file, ok := u.Name.expand(c.program)
	if o.Obstacle == nil || !ok || !path.IsAbs(file) {
		return ""
	}
	real, err := t.resolve(file)
	if err != nil || !t.exists(real) {
		return ""
	}
	return o.Obstacle(path.Join(t.dir, real))
}

// rundir writes where the programs of the service and their clients find each other.
func (t *Tree) rundir(d *dropIn) {
	p, u := d.plan, d.plan.Unit
	switch {
	case d.o.Dir != "":
		p.Dir = d.o.Dir
	case t.exists("/usr/lib/tmpfiles.d/gosmc.conf") || t.exists("/etc/tmpfiles.d/gosmc.conf"):
		p.Dir = systemDir
	default:
		name := "gosmc-" + strings.NewReplacer("@", "-", `\`, "-").Replace(u.Name.Short())
		if u.Name.IsTemplate() {
			name += "%i"
		}
		p.Dir = "/run/" + name
		d.line("RuntimeDirectory=%s", name)
		d.line("RuntimeDirectoryPreserve=yes")
	}
	d.line("Environment=%s", quote("GOSMC_DIR="+p.Dir))
	if p.User == "" && !u.on("DynamicUser") {
		p.User = or(u.last("User"), "root")
	}
	switch {
	case u.on("DynamicUser"):
		p.note("The unit has DynamicUser=: no other program has its user, so only connections within the service leave TCP.")
	case u.on("PrivateNetwork") || u.last("NetworkNamespacePath") != "":
		p.note("The unit has a network of its own: only connections within it leave TCP.")
	}
	if sockets := t.sockets(u); sockets != "" {
		p.note("%s makes the listener of this service: connections to it stay TCP, those that the service makes may leave it.", sockets)
	}
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// sockets returns a socket unit that listens for a service, "" if none does.
func (t *Tree) sockets(u *Unit) string {
	if words := u.words("Sockets"); len(words) > 0 {
		return words[0]
	}
	for _, s := range u.allOf("Unit", "Requires") {
		for _, unit := range strings.Fields(s.value) {
			if strings.HasSuffix(unit, ".socket") {
				return unit
			}
		}
	}
	file := u.Name.Short() + ".socket" // starts the service of the same name, if it is enabled
	for _, dir := range searched {
		if t.exists(path.Join(dir, "sockets.target.wants", file)) {
			return file
		}
	}
	return ""
}

// restrictions writes permissions for the things that the unit forbids and gosmc needs.
func (t *Tree) restrictions(d *dropIn) {
	u := d.plan.Unit
	if len(u.words("NoExecPaths")) > 0 { // rule: TestPlans
		d.line("# The unit has NoExecPaths=.")
		d.line("ExecPaths=%s %s", d.o.Command, libraryDir(d.o.Command))
	}
	readOnly := u.last("ProtectSystem") == "strict" || u.on("DynamicUser") ||
		covers(slices.Concat(u.words("ReadOnlyPaths"), u.words("ReadOnlyDirectories")), d.plan.Dir)
	if readOnly && !strings.Contains(d.text.String(), "\nRuntimeDirectory=") {
		// which systemd lets the service write to
		d.line("# The unit sees the file system read-only.")
		d.line("ReadWritePaths=-%s", d.plan.Dir)
	}
	if !u.family("AF_UNIX") { // rule: TestPlans
		d.line("# The unit has RestrictAddressFamilies= without AF_UNIX.")
		d.line("RestrictAddressFamilies=AF_UNIX")
	}
	if v := u.last("ProcSubset"); v == "pid" { // rule: TestPlans
		d.line("# ProcSubset=pid hides the name of this boot, by which programs find each other.")
		d.line("ProcSubset=all")
	}
	if u.foreignFilter() { // rule: TestPlans
		d.line("# The unit has a SystemCallFilter= of its own making.")
		d.line("SystemCallFilter=@system-service")
	}
	if inaccessible := slices.Concat(u.words("InaccessiblePaths"), u.words("InaccessibleDirectories")); covers(inaccessible, d.plan.Dir) || covers(inaccessible, d.o.Command) {
		d.plan.note("The unit has InaccessiblePaths= that hide gosmc or its run directory: the service stays with TCP, or does not start. Change them by 'systemctl edit %s'.", u.Name.Short())
	}
	if u.on("ProtectHome") && strings.HasPrefix(d.o.Command, "/home/") || u.on("ProtectHome") &&
		strings.HasPrefix(d.o.Command, "/root/") {
		d.plan.note("The unit has ProtectHome=, which hides %s.", d.o.Command)
	}
}

// libraryDir is where an installation has the library, beside the command.
func libraryDir(command string) string { return path.Join(path.Dir(command), "../lib/gosmc") }

// covers reports whether one of these paths is a path, or a directory that it is in.
func covers(list []string, name string) bool {
	return slices.ContainsFunc(list, func(dir string) bool {
		dir = path.Clean(strings.TrimLeft(dir, "-+"))
		return dir == "/" || name == dir || strings.HasPrefix(name, dir+"/")
	})
}

// family reports whether a unit lets its programs make sockets of an address family. The first line
// says whether the named families are allowed or forbidden.
func (u *Unit) family(name string) bool {
	lines := u.all("RestrictAddressFamilies")
	if len(lines) == 0 {
		return true
	}
	allowList := !strings.HasPrefix(lines[0].value, "~")
	named := false
	for _, l := range lines {
		list, not := strings.CutPrefix(l.value, "~")
		if slices.Contains(strings.Fields(list), name) {
			// as the first line, so it is put into the list; otherwise it is taken out
			named = not != allowList
		}
	}
	return named == allowList
}

// needed are groups of system calls that every program of gosmc uses: systemd.exec(5).
var needed = []string{"@basic-io", "@default", "@file-system", "@io-event", "@ipc", "@network-io", "@process",
	"@signal", "@timer", "@system-service", "memfd_create", "pidfd_open", "pidfd_send_signal"}

// killed returns the part of a unit's SystemCallFilter= that would kill gosmc, "" if there is none.
func (u *Unit) killed() string {
	if number := u.last("SystemCallErrorNumber"); number != "" && number != "kill" {
		return ""
	}
	var denied []string
	for _, l := range u.all("SystemCallFilter") {
		list, not := strings.CutPrefix(l.value, "~")
		for _, w := range strings.Fields(list) {
			call, action, _ := strings.Cut(w, ":")
			// rule: TestFilters
			denied = slices.DeleteFunc(denied, func(d string) bool { return d == call })
			if not && slices.Contains(needed, call) && (action == "" || action == "kill") {
				denied = append(denied, call)
			}
		}
	}
	if len(denied) == 0 {
		return ""
	}
	return "SystemCallFilter=~" + strings.Join(denied, " ")
}

// foreignFilter reports whether a unit allows system calls by a list without the group that
// services are given commonly, which has all that gosmc uses.
func (u *Unit) foreignFilter() bool {
	lines := u.all("SystemCallFilter")
	if len(lines) == 0 || strings.HasPrefix(lines[0].value, "~") {
		return false
	}
	return !slices.ContainsFunc(lines,
		func(s setting) bool { return slices.Contains(strings.Fields(s.value), "@system-service") })
}

// sign puts comments before the text of a drop-in: the head, and a checksum by which gosmc knows
// its own text.
func sign(head, text string) string {
	return fmt.Sprintf("%s\n%s%x\n%s", head, checksumMark, sha256.Sum256([]byte(text)), text)
}

const checksumMark = "# sha256 of the lines below: "

// signed reports whether a drop-in is as gosmc has written it.
func signed(text string) bool {
	_, rest, _ := strings.Cut(text, "\n")
	sum, body, ok := strings.Cut(rest, "\n")
	return ok && strings.HasPrefix(text, "# Written by 'gosmc service enable ") &&
		sum == fmt.Sprintf("%s%x", checksumMark, sha256.Sum256([]byte(body)))
}

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/gosmc/smc"
	"github.com/gosmc/smc/internal/bench"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/usage"
)

// docTable reads the table under a heading of a document: the cells of each row, without the heading's.
func docTable(t *testing.T, document, heading string) [][]string {
	t.Helper()
	text, err := os.ReadFile("../../" + document)
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(text), "\n"+heading+"\n")
	if !ok {
		t.Fatalf("%s has no heading %q", document, heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var rows [][]string
	for line := range strings.Lines(section) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			continue
		}
		var cells []string
		for _, cell := range strings.Split(strings.Trim(line, "|"), "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		rows = append(rows, cells)
	}
	if len(rows) < 3 {
		t.Fatalf("%s has no table under %q", document, heading)
	}
	return rows[2:]
}

// The limits in docs/limits.md are the limits that info prints: each limit of the one is in the
// other, with its number.
func TestDocumentedLimits(t *testing.T) {
	got := gosmc(t, "", "info", "--json")
	var r infoReport
	if err := json.Unmarshal([]byte(got.stdout), &r); err != nil || got.code != exitOK {
		t.Fatalf("gosmc info --json = %d, %v, %q", got.code, err, got.stderr)
	}
	limits := make(map[string]control.StatusLimit)
	for _, l := range r.Limits {
		limits[l.Name] = l
		if l.Limit < 0 {
			t.Errorf("info prints no limit for %q", l.Name)
		}
	}
	said := make(map[string]string)
	for _, row := range docTable(t, "docs/limits.md", "## Limits") {
		if name := row[1]; name != "" {
			said[name] = row[2]
			if _, ok := limits[name]; !ok {
				t.Errorf("docs/limits.md explains a limit %q, which info does not print", name)
			}
		}
	}
	for name := range limits {
		if said[name] == "" {
			t.Errorf("info prints a limit %q, which docs/limits.md does not explain", name)
		}
	}

	// Numbers that are always the same.
	for _, name := range []string{"peers", "connections with a peer"} {
		first := regexp.MustCompile(`[0-9,]+`).FindString(said[name])
		if want := fmt.Sprint(limits[name].Limit); strings.ReplaceAll(first, ",", "") != want {
			t.Errorf("docs/limits.md says %q of %s, info %s", said[name], name, want)
		}
	}
	// Numbers that depend on the machine.
	if l := limits["open files"].Limit; uint64(l) != r.OpenFiles.Soft {
		t.Errorf("info says that %d files can be open, and %d", l, r.OpenFiles.Soft)
	}
	var maps int64
	if text, err := os.ReadFile("/proc/sys/vm/max_map_count"); err == nil {
		fmt.Sscan(string(text), &maps)
		if l := limits["memory mappings"].Limit; l < maps*74/100 || l > maps*76/100 {
			t.Errorf("info says that %d mappings are the limit, docs/limits.md three quarters of %d", l, maps)
		}
	}
	memory := limits["memory"].Limit
	if twice := 2 * r.MemoryTotal; memory > twice || memory < twice && !strings.Contains(said["memory"], "or half of the control group's limit") {
		t.Errorf("info says that the budget is %d, docs/limits.md %q, and the machine has %d", memory, said["memory"], r.MemoryTotal)
	}
	if l := limits["memory of peers"].Limit; l != memory {
		t.Errorf("info says that peers' memory is bounded by %d, docs/limits.md as the budget, which is %d", l, memory)
	}

	// "1 to 4 MiB by default, ... and 128 KiB or more ...; 16 KiB to 8 MiB with ReadBuffer".
	var low, high, least, from, to int
	buffer := regexp.MustCompile(`^(\d+) to (\d+) MiB by default.* (\d+) KiB or more .*; (\d+) KiB to (\d+) MiB with`).FindStringSubmatch(said["read buffer"])
	if buffer == nil {
		t.Fatalf("docs/limits.md says %q of the read buffer, want its range", said["read buffer"])
	}
	fmt.Sscan(strings.Join(buffer[1:], " "), &low, &high, &least, &from, &to)
	if l := limits["read buffer"].Limit; l < int64(low)<<20 && l < int64(least)<<10 || l > int64(high)<<20 {
		t.Errorf("info says that a buffer has %d bytes, docs/limits.md %q", l, said["read buffer"])
	}
	for size, ok := range map[int]bool{from << 10: true, from<<10 - 1: false, to << 20: true, to<<20 + 1: false} {
		h, err := smc.NewHost(&smc.Config{ReadBuffer: size})
		if err == nil {
			h.Close()
		}
		if (err == nil) != ok {
			t.Errorf("ReadBuffer of %d = %v, docs/limits.md says %q", size, err, said["read buffer"])
		}
	}
}

// toolsBlock returns the lines of the block in docs/tools.md that begins with a command.
func toolsBlock(t *testing.T, command string) []string {
	t.Helper()
	text, err := os.ReadFile("../../docs/tools.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, ok := strings.Cut(string(text), "\n$ "+command+"\n")
	if !ok {
		t.Fatalf("docs/tools.md does not show %q", command)
	}
	block, _, _ = strings.Cut(block, "\n```")
	return strings.Split(block, "\n")
}

// The capabilities that docs/tools.md shows are those that info prints, in the same words.
func TestDocumentedInfo(t *testing.T) {
	printed := make(map[string]bool)
	for line := range strings.Lines(gosmc(t, "", "info").stdout) {
		printed[strings.Join(strings.Fields(line), " ")] = true
	}
	table := false
	for _, line := range toolsBlock(t, "gosmc info") {
		line = strings.Join(strings.Fields(line), " ")
		table = table || strings.HasPrefix(line, "Capability ")
		if table && !printed[line] {
			t.Errorf("docs/tools.md shows %q of info, which prints something else", line)
		}
	}
	if !table {
		t.Error("docs/tools.md shows no table of info")
	}
}

// docs/performance.md describes every row, and no other.
func TestRowsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := make(map[string]bool)
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			continue
		}
		for _, name := range regexp.MustCompile("`([a-z0-9 -]+)`").FindAllStringSubmatch(cells[1], -1) {
			documented[name[1]] = true
		}
	}
	transports := make(map[string]bool)
	for _, b := range bench.Rows() {
		if !documented[b.Name] {
			t.Errorf("docs/performance.md does not explain the row %s", b.Name)
		}
		delete(documented, b.Name)
		for _, transport := range b.Transports {
			if way, _, several := strings.Cut(transport, " "); several && (way == "tcp" || way == "run") { // several things in a row
				transport = way
			}
			transports[transport] = true
		}
	}
	help := gosmc(t, "", "bench", "--help").stdout
	for name := range transports {
		if !strings.Contains(help, "\n  "+regexp.MustCompile(`^\d+`).ReplaceAllString(name, "N")+" ") {
			t.Errorf("bench --help does not explain the transport %s", name)
		}
		if !documented[name] {
			t.Errorf("docs/performance.md does not explain the transport %s", name)
		}
		delete(documented, name)
	}
	for name := range documented {
		t.Errorf("docs/performance.md explains %s, which bench does not have", name)
	}
}

// Every flag that the documents name is one, of some verb, and docs/dump.md has all flags of dump.
func TestDocumentedFlags(t *testing.T) {
	flags := make(map[string]bool)
	var dump []*pflag.Flag
	for _, cmd := range usage.Commands(newRootCommand()) {
		cmd.InitDefaultHelpFlag()
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			flags[f.Name] = true
			if cmd.Name() == "dump" && f.Name != "help" {
				dump = append(dump, f)
			}
		})
	}
	for _, cmd := range newRootCommand().Commands() { // those without a page, too
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { flags[f.Name] = true })
	}
	flags["version"] = true
	documents, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	inDump := make(map[string]bool)
	for _, document := range append(documents, "../../README.md", "../../CHANGELOG.md") {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		text = regexp.MustCompile("gosmc run -- .*|COPY --from=.*|(apt-get|apt|rpm) [^`]*|nsenter .*? gosmc ").ReplaceAll(text, nil) // flags of others
		for _, m := range regexp.MustCompile("[`( ]--([a-z][a-z0-9-]*)").FindAllStringSubmatch(string(text), -1) {
			if !flags[m[1]] {
				t.Errorf("%s names --%s, which no verb has", filepath.Base(document), m[1])
			}
			if strings.HasSuffix(document, "/dump.md") {
				inDump[m[1]] = true
			}
		}
		if strings.HasSuffix(document, "/dump.md") {
			for _, m := range regexp.MustCompile("[`( ]-([a-zA-Z])\\b").FindAllStringSubmatch(string(text), -1) {
				inDump[m[1]] = true
			}
		}
	}
	for _, f := range dump {
		if !inDump[f.Name] && !inDump[f.Shorthand] {
			t.Errorf("docs/dump.md does not explain --%s", f.Name)
		}
	}
}

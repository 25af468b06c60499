package measure

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/text"
)

// A Machine is the environment that a measurement belongs to. Its JSON form is part of what the tools print.
type Machine struct {
	Kernel     string  `json:"kernel"` // name, release, architecture
	CPU        string  `json:"cpu"`    // model
	CPUs       int     `json:"cpus"`   // that this process may use
	Caches     []Cache `json:"caches"` // of one core
	Governor   string  `json:"governor"`
	CPUQuota   string  `json:"cpu_quota"` // of the control group, in CPUs; empty: none
	LoadAvg1   float64 `json:"load_average_1min"`
	GOMAXPROCS int     `json:"gomaxprocs"`
	Go         string  `json:"go"`
	Commit     string  `json:"commit"`
}

// A Cache is one of the caches of a core.
type Cache struct {
	Level int    `json:"level"`
	Type  string `json:"type"` // Data, Instruction, Unified
	Size  string `json:"size"` // as the kernel prints it: 1024K
}

// ReadMachine looks around in /proc and /sys; what is not there stays empty.
func ReadMachine() Machine {
	m := Machine{
		CPUs:       runtime.NumCPU(),
		Caches:     readCaches("/sys/devices/system/cpu/cpu0/cache"),
		Governor:   readLine("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
		CPU:        cpuModel(readText("/proc/cpuinfo")),
		CPUQuota:   cpuQuota(readLine("/sys/fs/cgroup/cpu.max")),
		GOMAXPROCS: runtime.GOMAXPROCS(0),
		Go:         runtime.Version(),
		Commit:     BuildCommit(),
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = strings.Join([]string{
			unix.ByteSliceToString(u.Sysname[:]), unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Machine[:]),
		}, " ")
	}
	if load := strings.Fields(readLine("/proc/loadavg")); len(load) > 0 {
		m.LoadAvg1, _ = strconv.ParseFloat(load[0], 64)
	}
	return m
}

func readText(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(b)
}

func readLine(path string) string { return strings.TrimSpace(readText(path)) }

// cpuModel finds the name of the CPU in the text of /proc/cpuinfo. The key depends on the architecture.
func cpuModel(cpuinfo string) string {
	for _, key := range []string{"model name", "Model", "cpu model", "machine", "processor"} {
		for line := range strings.Lines(cpuinfo) {
			name, value, ok := strings.Cut(line, ":")
			if ok && strings.TrimSpace(name) == key {
				return strings.TrimSpace(value)
			}
		}
	}
	return ""
}

// cpuQuota turns "200000 100000" of cpu.max into "2"; "max" is no quota.
func cpuQuota(cpuMax string) string {
	fields := strings.Fields(cpuMax)
	if len(fields) != 2 {
		return ""
	}
	quota, err := strconv.ParseFloat(fields[0], 64)
	if err != nil {
		return ""
	}
	period, err := strconv.ParseFloat(fields[1], 64)
	if err != nil || period <= 0 {
		return ""
	}
	return strconv.FormatFloat(quota/period, 'f', -1, 64)
}

func readCaches(dir string) []Cache {
	list := []Cache{}
	indexes, err := filepath.Glob(filepath.Join(dir, "index*"))
	if err != nil {
		return list
	}
	for _, index := range indexes {
		level, err := strconv.Atoi(readLine(filepath.Join(index, "level")))
		if err != nil {
			continue
		}
		list = append(list, Cache{level, readLine(filepath.Join(index, "type")),
			readLine(filepath.Join(index, "size"))})
	}
	return list
}

// BootID names this boot of the machine; empty if the kernel does not say.
func BootID() string { return readLine("/proc/sys/kernel/random/boot_id") }

// The Makefile sets version, commit and date through the linker. They are empty in other builds.
var version, commit, date string

// BuildCommit returns the commit that the Makefile or the go command recorded in the program, or "unknown".
func BuildCommit() string {
	if commit != "" {
		return commit
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision, modified := "", false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			revision = s.Value
		case "vcs.modified":
			modified = s.Value == "true"
		}
	}
	switch {
	case revision == "":
		return "unknown"
	case modified:
		return revision + "+changes"
	}
	return revision
}

// BuildDate returns the date of the commit, in the format of RFC 3339 and UTC, or "unknown".
func BuildDate() string {
	if date != "" {
		return date
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.time" && s.Value != "" {
				return s.Value
			}
		}
	}
	return "unknown"
}

// ModuleVersion returns the version that the Makefile or the go command recorded in the program, or
// "(devel)".
func ModuleVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

// Lines describes a machine for people: pairs of a name and its value.
func (m *Machine) Lines() [][2]string {
	var caches []string
	for _, c := range m.Caches {
		name := "L" + strconv.Itoa(c.Level)
		switch c.Type {
		case "Data":
			name += "d"
		case "Instruction":
			name += "i"
		}
		caches = append(caches, name+" "+c.Size)
	}
	cpu := fmt.Sprintf("%s, %d usable", text.OrNA(m.CPU), m.CPUs)
	if m.CPUQuota != "" {
		cpu += ", quota " + m.CPUQuota
	}
	if m.Governor != "" {
		cpu += ", governor " + m.Governor
	}
	return [][2]string{
		{"Kernel", text.OrNA(m.Kernel)},
		{"CPU", cpu},
		{"Caches", text.OrNA(strings.Join(caches, ", "))},
		{"Go", fmt.Sprintf("%s, GOMAXPROCS %d", m.Go, m.GOMAXPROCS)},
	}
}

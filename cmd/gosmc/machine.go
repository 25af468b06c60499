package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A machine is the environment that a measurement belongs to.
type machine struct {
	Kernel     string  `json:"kernel"` // name, release, architecture
	CPU        string  `json:"cpu"`    // model
	CPUs       int     `json:"cpus"`   // that this process may use
	Caches     []cache `json:"caches"` // of one core
	Governor   string  `json:"governor"`
	CPUQuota   string  `json:"cpu_quota"` // of the control group, in CPUs; empty: none
	LoadAvg1   float64 `json:"load_average_1min"`
	GOMAXPROCS int     `json:"gomaxprocs"`
	Go         string  `json:"go"`
	Commit     string  `json:"commit"`
}

type cache struct {
	Level int    `json:"level"`
	Type  string `json:"type"` // Data, Instruction, Unified
	Size  string `json:"size"` // as the kernel prints it: 1024K
}

// readMachine looks around in /proc and /sys; what is not there stays empty.
func readMachine() machine {
	m := machine{
		CPUs:       runtime.NumCPU(),
		Caches:     readCaches("/sys/devices/system/cpu/cpu0/cache"),
		Governor:   readLine("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
		CPU:        cpuModel(readText("/proc/cpuinfo")),
		CPUQuota:   cpuQuota(readLine("/sys/fs/cgroup/cpu.max")),
		GOMAXPROCS: runtime.GOMAXPROCS(0),
		Go:         runtime.Version(),
		Commit:     buildCommit(),
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

// lines describes m for people.
func (m machine) lines() [][2]string {
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
	cpu := fmt.Sprintf("%s, %d usable", orNA(m.CPU), m.CPUs)
	if m.CPUQuota != "" {
		cpu += ", quota " + m.CPUQuota
	}
	if m.Governor != "" {
		cpu += ", governor " + m.Governor
	}
	return [][2]string{
		{"Kernel", orNA(m.Kernel)},
		{"CPU", cpu},
		{"Caches", orNA(strings.Join(caches, ", "))},
		{"Go", fmt.Sprintf("%s, GOMAXPROCS %d", m.Go, m.GOMAXPROCS)},
	}
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

func readCaches(dir string) []cache {
	list := []cache{}
	indexes, err := filepath.Glob(filepath.Join(dir, "index*"))
	if err != nil {
		return list
	}
	for _, index := range indexes {
		level, err := strconv.Atoi(readLine(filepath.Join(index, "level")))
		if err != nil {
			continue
		}
		list = append(list, cache{level, readLine(filepath.Join(index, "type")), readLine(filepath.Join(index, "size"))})
	}
	return list
}

// buildCommit is the commit that the program was built from, as far as the build knows.
func buildCommit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	commit, modified := "", false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			commit = s.Value
		case "vcs.modified":
			modified = s.Value == "true"
		}
	}
	switch {
	case commit == "":
		return "unknown"
	case modified:
		return commit + "+changes"
	}
	return commit
}

// moduleVersion is the version of this module, as far as the build knows.
func moduleVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

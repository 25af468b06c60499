package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gosmc/smc/internal/measure"
)

// machineLines describes a machine for people: pairs of a name and its value.
func machineLines(m *measure.Machine) [][2]string {
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

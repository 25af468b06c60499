package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
)

// capabilities are those of podman's containers, containers.conf(5).
var capabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_NET_BIND_SERVICE", "CAP_SETFCAP",
	"CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
}

// refusals are the system calls that the stricter profile refuses besides: those by which one process looks into another,
// as Docker's does without CAP_SYS_PTRACE on older kernels.
var refusals = []string{"ptrace", "pidfd_getfd", "process_vm_readv", "process_vm_writev", "kcmp"}

// A rule is one of seccomp.json, containers-common. OCI runtime-spec, config-linux.md has the same but for the conditions.
type rule struct {
	Names    []string         `json:"names"`
	Action   string           `json:"action"`
	Args     []map[string]any `json:"args,omitempty"`
	Errno    *uint            `json:"errnoRet,omitempty"`
	Includes *condition       `json:"includes,omitempty"`
	Excludes *condition       `json:"excludes,omitempty"`
}

type condition struct {
	Caps   []string `json:"caps"`
	Arches []string `json:"arches"`
}

// A profile is OCI's linux.seccomp.
type profile struct {
	DefaultAction string   `json:"defaultAction"`
	DefaultErrno  *uint    `json:"defaultErrnoRet,omitempty"`
	Architectures []string `json:"architectures"`
	Syscalls      []rule   `json:"syscalls"`
}

// readProfile returns podman's profile for a container with the capabilities above, on this machine.
func readProfile(path string) (*profile, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var file struct {
		profile
		ArchMap []struct {
			Architecture     string   `json:"architecture"`
			SubArchitectures []string `json:"subArchitectures"`
		} `json:"archMap"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	native := map[string]string{"amd64": "SCMP_ARCH_X86_64", "arm64": "SCMP_ARCH_AARCH64"}[runtime.GOARCH]
	p := file.profile
	p.Syscalls, p.Architectures = nil, []string{native}
	for _, m := range file.ArchMap {
		if m.Architecture == native {
			p.Architectures = append(p.Architectures, m.SubArchitectures...)
		}
	}
	for _, r := range file.Syscalls {
		if r.Includes.holds(true) && !r.Excludes.holds(false) {
			r.Includes, r.Excludes = nil, nil
			p.Syscalls = append(p.Syscalls, r)
		}
	}
	if len(p.Syscalls) == 0 || p.DefaultAction != "SCMP_ACT_ERRNO" {
		return nil, fmt.Errorf("%s refuses nothing", path)
	}
	return &p, nil
}

// holds reports whether the container meets a condition; empty of one that says nothing.
func (c *condition) holds(empty bool) bool {
	if c == nil || len(c.Caps) == 0 && len(c.Arches) == 0 {
		return empty
	}
	for _, name := range c.Caps {
		if !slices.Contains(capabilities, name) {
			return false
		}
	}
	return len(c.Arches) == 0 || slices.Contains(c.Arches, runtime.GOARCH)
}

// stricter returns a profile that refuses the calls of refusals, too.
func (p *profile) stricter() *profile {
	s := *p
	s.Syscalls = nil
	for _, r := range p.Syscalls {
		r.Names = slices.DeleteFunc(slices.Clone(r.Names), func(n string) bool { return slices.Contains(refusals, n) })
		if len(r.Names) > 0 {
			s.Syscalls = append(s.Syscalls, r)
		}
	}
	eperm := uint(1)
	s.Syscalls = append(s.Syscalls, rule{Names: refusals, Action: "SCMP_ACT_ERRNO", Errno: &eperm})
	return &s
}

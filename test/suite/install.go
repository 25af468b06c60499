package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// policyFile keeps apt-get from starting the servers that it installs, as test/run has it.
const policyFile = "/usr/sbin/policy-rc.d"

// lockTimeout has apt-get wait for another one, for so many seconds: a new machine upgrades itself.
const lockTimeout = "DPkg::Lock::Timeout=300"

// missing returns the packages that suites need, and those whose libraries they are linked with, as
// far as they are not there.
func missing(chosen []*suite) (packages []string) {
	for _, s := range chosen {
		for ; s != nil; s = s.after {
			for _, need := range s.absent() {
				if _, pkg, _ := strings.Cut(need, " "); !slices.Contains(packages, pkg) {
					packages = append(packages, pkg)
				}
			}
		}
	}
	return packages
}

// install installs what suites need and is not there, as root and where there is apt-get. A suite
// whose packages cannot be had says so when it is built.
func install(ctx context.Context, out io.Writer, chosen []*suite) {
	packages := missing(chosen)
	if len(packages) == 0 || os.Geteuid() != 0 {
		return
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return
	}
	if f, err := os.OpenFile(policyFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755); err == nil {
		_, err = f.WriteString("#!/bin/sh\nexit 101\n")
		f.Close()
		defer os.Remove(policyFile)
		if err != nil {
			fmt.Fprintln(out, err)
		}
	}
	apt := func(args ...string) {
		ctx, cancel := context.WithTimeout(ctx, installTimeout)
		defer cancel()
		cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-q", "-o", lockTimeout}, args...)...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if err := finish(cmd); err != nil {
			fmt.Fprintln(out, err)
		}
	}
	fmt.Fprintln(out, "installing", strings.Join(packages, ", "))
	apt("update")
	for _, name := range packages { // one by one: what cannot be had keeps nothing else away
		apt("install", "-y", "--no-install-recommends", name)
	}
}

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"time"
)

// policyFile keeps apt-get from starting the programs that it installs: the servers of this machine
// are none of our concern.
const policyFile = "/usr/sbin/policy-rc.d"

// lockTimeout has apt-get wait for another one, for so many seconds: a new machine upgrades itself.
const lockTimeout = "DPkg::Lock::Timeout=300"

// install installs the packages of programs that are not there, where it may. It reports whether it
// may: then all of them have to be there.
func install(ctx context.Context, out io.Writer, chosen []*program) bool {
	if os.Geteuid() != 0 {
		return false
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return false
	}
	var packages []string
	for _, p := range chosen {
		if len(p.lacks()) > 0 {
			for _, name := range p.packages {
				if !slices.Contains(packages, name) {
					packages = append(packages, name)
				}
			}
		}
	}
	if len(packages) == 0 {
		return true
	}
	if f, err := os.OpenFile(policyFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755); err == nil {
		_, err = f.WriteString("#!/bin/sh\nexit 101\n")
		f.Close()
		defer os.Remove(policyFile)
		if err != nil {
			fmt.Fprintln(out, err)
		}
	}
	apt := func(args ...string) error {
		ctx, cancel := context.WithTimeout(ctx, installTimeout)
		defer cancel()
		cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-o", lockTimeout}, args...)...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		cmd.WaitDelay = 10 * time.Second
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %v: %w\n%s", args, err, text)
		}
		return nil
	}
	fmt.Fprintln(out, "installing", packages)
	if err := apt("update"); err != nil {
		fmt.Fprintln(out, err)
	}
	for _, name := range packages { // one by one: a missing package keeps nothing else away
		if err := apt("install", "-y", "--no-install-recommends", name); err != nil {
			fmt.Fprintln(out, err)
		}
	}
	return true
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

// tools has the programs that the test needs, and their Debian packages. A name with a slash is a pattern of files.
var tools = map[string]string{
	runc: "runc", crun: "crun", "socat": "socat", "redis-server": "redis-server", "redis-benchmark": "redis-tools", "nft": "nftables", "ip": "iproute2",
	"nginx": "nginx-light", "curl": "curl", "haproxy": "haproxy",
	"/usr/lib/postgresql/*/bin/postgres": "postgresql", "/usr/lib/postgresql/*/bin/pgbench": "postgresql",
}

// policyFile keeps apt-get from starting the servers that it installs.
const policyFile = "/usr/sbin/policy-rc.d"

// install installs the Debian packages that are missing.
func (l *lab) install() error {
	var packages []string
	for tool, name := range tools {
		if _, err := lookPath(tool); err != nil && !slices.Contains(packages, name) {
			packages = append(packages, name)
		}
	}
	if len(packages) == 0 {
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("needs %v", packages)
	}
	if f, err := os.OpenFile(policyFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755); err == nil {
		defer os.Remove(policyFile)
		_, err = f.WriteString("#!/bin/sh\nexit 101\n")
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	fmt.Println("installing", packages)
	if err := l.apt("", "update"); err != nil {
		fmt.Println(err)
	}
	return l.apt("", append([]string{"install", "-y", "--no-install-recommends"}, packages...)...)
}

// apt runs apt-get in a directory.
func (l *lab) apt(dir string, args ...string) error {
	ctx, cancel := context.WithTimeout(l.ctx, installTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-o", "DPkg::Lock::Timeout=300"}, args...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	cmd.Dir, cmd.WaitDelay = dir, 10*time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get %v: %w\n%s", args, err, out)
	}
	return nil
}

// unpack has the files of a Debian package in a directory, without installing it: busybox would take the place of
// busybox-static on this machine, and the profile's package brings iptables with it.
func (l *lab) unpack(name, dir string) error {
	fetched := filepath.Join(l.dir, "deb-"+name)
	if err := os.Mkdir(fetched, 0o755); err != nil {
		return err
	}
	if err := l.apt(fetched, "download", name); err != nil {
		fmt.Println(err)
		if err := errors.Join(l.apt("", "update"), l.apt(fetched, "download", name)); err != nil {
			return err
		}
	}
	files, err := filepath.Glob(filepath.Join(fetched, "*.deb"))
	if err != nil || len(files) != 1 {
		return fmt.Errorf("the package %s is %v", name, files)
	}
	return l.command("dpkg-deb", "-x", files[0], dir)
}

// lookPath finds a program by its name or the pattern of its file.
func lookPath(name string) (string, error) {
	if !filepath.IsAbs(name) {
		return exec.LookPath(name)
	}
	found, err := filepath.Glob(name)
	if err != nil || len(found) == 0 {
		return "", fmt.Errorf("%s: %w", name, errors.Join(err, os.ErrNotExist))
	}
	return found[len(found)-1], nil
}

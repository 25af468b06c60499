package usage

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"syscall"
)

// nextSteps are what to do about errors of the system, in the order in which they are looked for.
var nextSteps = []struct {
	err  error
	step string
}{
	{syscall.ECONNREFUSED, "nobody listens there, or a firewall rejects it: 'ss -tln' lists the listeners " +
		"of a machine, 'gosmc ss -l' those with SMC"},
	{syscall.EADDRINUSE, "another program has the port: 'ss -tulnp' names it"},
	{syscall.EADDRNOTAVAIL, "no interface of this machine has the address: 'ip address' lists them"},
	{syscall.EHOSTUNREACH, "there is no way to the address: 'ip route get ADDRESS' shows it"},
	{syscall.ENETUNREACH, "there is no way to the address: 'ip route get ADDRESS' shows it"},
	{exec.ErrNotFound, "give the path of the program, or install it"},
	{syscall.ENOEXEC, "the file is no program, or one of another machine: 'file PATH' says which; " +
		"a script needs '#!/bin/sh' as its first line"},
	{syscall.EMFILE, "raise the limit on open files: 'ulimit -n'"},
	{syscall.ENOSPC, "make room: 'df' shows where there is none"},
	{syscall.EROFS, "name a place that can be written to"},
	{os.ErrPermission, "it takes root, or the owner of the file; a program has to be executable"},
	{os.ErrDeadlineExceeded, timedOut},
	{syscall.ETIMEDOUT, timedOut},
	{context.DeadlineExceeded, timedOut},
}

const timedOut = "a firewall may drop it: 'gosmc doctor HOST:PORT' checks the way"

// NextStep says what to do about an error of the system, or "" where nothing is known. Errors of gosmc
// itself say so in their own text.
func NextStep(err error) string {
	if e, ok := errors.AsType[*net.DNSError](err); ok {
		if e.Err == "unknown port" { // of net.LookupPort
			return "give the number of the port, or a name of /etc/services"
		}
		return "give an address, or look the name up: 'getent hosts NAME'"
	}
	e, ok := errors.AsType[*net.OpError](err)
	if ok && e.Net == "tcp" && errors.Is(err, os.ErrPermission) { // rule: cmd/gosmc TestNextSteps
		if e.Op == "listen" { // rule: cmd/gosmc TestNextSteps: "listen" -> ""
			return "ports below 'sysctl net.ipv4.ip_unprivileged_port_start' take root"
		}
		return "a firewall of this machine may forbid it: 'nft list ruleset' shows it"
	}
	for _, s := range nextSteps {
		if errors.Is(err, s.err) {
			return s.step
		}
	}
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return timedOut
	}
	return ""
}

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// isolate runs this program in a network namespace of its own, where the ports are its own, and
// where TCP acknowledges at once. Where that is not permitted it runs here, and settle in
// player/actor.c waits a little longer.
func isolate() int {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM) // the process inside ends, and then this one
	flags := []uintptr{syscall.CLONE_NEWNET, 0}
	if os.Geteuid() != 0 {
		flags = []uintptr{syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET, 0}
	}
	for _, f := range flags {
		cmd := exec.Command("/proc/self/exe", append([]string{"-inside"}, os.Args[1:]...)...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: f, Pdeathsig: syscall.SIGKILL}
		if f&syscall.CLONE_NEWUSER != 0 {
			cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}}
			cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
			cmd.SysProcAttr.AmbientCaps = []uintptr{12} // CAP_NET_ADMIN
		}
		if err := cmd.Start(); err != nil {
			if f != 0 {
				continue
			}
			fmt.Fprintln(os.Stderr, "equal:", err)
			return 2
		}
		go func() {
			for s := range signals {
				cmd.Process.Signal(s)
			}
		}()
		err := cmd.Wait()
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() >= 0 {
			return exit.ExitCode()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "equal:", err)
			return 2
		}
		return 0
	}
	return 2
}

// sysctls are how TCP is to be in a namespace of our own. The machine may have larger buffers, which
// "fill" fills, and a congestion control that sends by a timer: neither changes an observation, and
// both cost most of the time of a script.
var sysctls = map[string]string{
	"tcp_congestion_control": "reno",
	"tcp_rmem":               "4096 131072 262144",
	"tcp_wmem":               "4096 16384 4194304", // of what a script pumps no send is to be refused, where no mode refuses any
}

// settleNetwork prepares TCP and the loopback interface of a namespace of our own. In the machine's
// namespace the interface is up, and its settings and routes are none of ours.
func settleNetwork(ctx context.Context) {
	ip, err := exec.LookPath("ip")
	if err != nil {
		return
	}
	if lo, err := net.InterfaceByName("lo"); err != nil || lo.Flags&net.FlagUp != 0 {
		return // the namespace is not ours
	}
	for name, value := range sysctls {
		if err := os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(value), 0); err != nil {
			fmt.Fprintln(os.Stderr, "equal:", err)
		}
	}
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"route", "replace", "table", "local", "local", "127.0.0.0/8", "dev", "lo", "proto", "kernel", "scope", "host", "src", "127.0.0.1", "quickack", "1", "initcwnd", "100"},
		{"route", "replace", "table", "local", "local", "127.0.0.1", "dev", "lo", "proto", "kernel", "scope", "host", "src", "127.0.0.1", "quickack", "1", "initcwnd", "100"},
		{"-6", "route", "add", "table", "local", "local", "::1", "dev", "lo", "proto", "kernel", "metric", "10", "quickack", "1", "initcwnd", "100"},
		{"-6", "route", "del", "table", "local", "local", "::1", "dev", "lo", "metric", "0"}, // the kernel's own: metric 0 is no number to ip
	} {
		if text, err := exec.CommandContext(ctx, ip, args...).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "equal: ip %v: %v: %s\n", args, err, text)
		}
	}
}

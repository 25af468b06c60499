package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/child"
	"github.com/gosmc/smc/internal/netns"
)

// Two hosts on one machine: each process is in a network namespace of its own, and a veth pair
// joins them. The namespaces end with the processes, and the pair with the namespaces.

// ErrNotRoot says that the caller may not make network namespaces.
var ErrNotRoot = errors.New("two hosts are network namespaces, which only root can make: run as root, or without --hosts")

// vethMTU is the MTU of Ethernet.
const vethMTU = 1500

// Addresses of the two hosts. Nobody else is in their namespaces.
var (
	serverPrefix = netip.MustParsePrefix("10.77.0.1/30")
	clientPrefix = netip.MustParsePrefix("10.77.0.2/30")
)

// start starts the two processes; the client gets the file. hosts says that each is to be in a
// network namespace of its own.
func start(ctx context.Context, file *os.File, hosts bool) (server, client *child.Process, err error) {
	attr := func() *syscall.SysProcAttr {
		a := new(syscall.SysProcAttr)
		if hosts {
			a.Cloneflags = unix.CLONE_NEWNET
		}
		return a
	}
	if server, err = child.StartIn(ctx, roleServer, WorkerVerb, attr()); err != nil {
		return nil, nil, notRoot(err)
	}
	if client, err = child.StartIn(ctx, roleClient, WorkerVerb, attr(), file); err != nil {
		server.Stop()
		return nil, nil, notRoot(err)
	}
	if hosts {
		if err = netns.Join(vethMTU, server.PID(), serverPrefix, client.PID(), clientPrefix); err != nil {
			server.Stop()
			client.Stop()
			return nil, nil, fmt.Errorf("join two network namespaces: %w", notRoot(err))
		}
	}
	return server, client, nil
}

// checkRoot says before all work whether it will be in vain.
func checkRoot() error {
	if os.Geteuid() != 0 {
		return ErrNotRoot
	}
	return nil
}

// notRoot puts the kernel's refusal into words.
func notRoot(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w (%w)", ErrNotRoot, err)
	}
	return err
}

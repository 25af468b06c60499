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
	"github.com/gosmc/smc/internal/pod"
)

// Setting is where the two processes of a demo run.
type Setting int

const (
	// OneHost has both as they are started: SMC-D.
	OneHost Setting = iota
	// Hosts has each in a network namespace of its own, and a veth pair joins them: SMC-R.
	Hosts
	// Containers has each in namespaces of its own, as a user of its own, in a root directory with
	// nothing in it. A veth pair joins them, and an agent introduces them: SMC-D.
	Containers
)

// Users that two containers become. They need not exist.
const (
	serverUser = 54311
	clientUser = 54312
)

// ErrNotRoot says that the caller may not make network namespaces.
var ErrNotRoot = errors.New("only root can make network namespaces: run as root, or without --hosts and --containers")

// vethMTU is the MTU of Ethernet.
const vethMTU = 1500

// Addresses of the two hosts or containers. Nobody else is in their namespaces.
var (
	serverPrefix = netip.MustParsePrefix("10.77.0.1/30")
	clientPrefix = netip.MustParsePrefix("10.77.0.2/30")
)

// transport is the one that the setting shows beside TCP.
func (s Setting) transport() string {
	if s == Hosts {
		return transportSMCR
	}
	return transportSMCD
}

// A place is a setting as it was prepared. The namespaces end with their processes, the pair with its
// namespaces, and the rest with close.
type place struct {
	setting Setting
	pods    *pod.Site // of Containers
}

// prepare makes everything that both transports need.
func (s Setting) prepare(ctx context.Context) (*place, error) {
	p := &place{setting: s}
	if s == OneHost {
		return p, nil
	}
	if os.Geteuid() != 0 {
		return nil, ErrNotRoot
	}
	if s == Containers {
		var err error
		if p.pods, err = pod.New(ctx); err != nil {
			return nil, notRoot(err)
		}
	}
	return p, nil
}

func (p *place) close() {
	if p.pods != nil {
		p.pods.Close()
	}
}

// network says in words what is between the two processes.
func (p *place) network() string {
	veth := fmt.Sprintf("a veth pair of MTU %d", vethMTU)
	switch p.setting {
	case Hosts:
		return "two network namespaces, " + veth
	case Containers:
		return fmt.Sprintf("two network namespaces, %s; users %d and %d, empty roots; introduced by %s",
			veth, serverUser, clientUser, p.pods.Introducer())
	default:
		return ""
	}
}

// attr is how a process begins.
func (p *place) attr() *syscall.SysProcAttr {
	a := new(syscall.SysProcAttr)
	if p.setting != OneHost {
		a.Cloneflags = unix.CLONE_NEWNET
	}
	if p.pods != nil {
		p.pods.Begin(a)
	}
	return a
}

// task completes the task of a process.
func (p *place) task(t spec) spec {
	if p.setting != OneHost {
		t.Listen = serverPrefix.Addr().String()
	}
	if p.pods != nil {
		t.Root, t.User = p.pods.Dir, clientUser
		if t.Role == roleServer {
			t.User = serverUser
		}
	}
	return t
}

// start starts the two processes; the client gets the file.
func (p *place) start(ctx context.Context, file *os.File) (server, client *child.Process, err error) {
	if server, err = child.StartIn(ctx, roleServer, WorkerVerb, p.attr()); err != nil {
		return nil, nil, notRoot(err)
	}
	if client, err = child.StartIn(ctx, roleClient, WorkerVerb, p.attr(), file); err != nil {
		server.Stop()
		return nil, nil, notRoot(err)
	}
	if p.setting != OneHost {
		if err = netns.Join(vethMTU, server.PID(), serverPrefix, client.PID(), clientPrefix); err != nil {
			server.Stop()
			client.Stop()
			return nil, nil, fmt.Errorf("join two network namespaces: %w", notRoot(err))
		}
	}
	return server, client, nil
}

// notRoot puts the kernel's refusal into words.
func notRoot(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w (%w)", ErrNotRoot, err)
	}
	return err
}

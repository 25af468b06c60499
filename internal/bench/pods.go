package bench

import (
	"context"
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/child"
	"github.com/gosmc/smc/internal/pod"
)

var errNotRoot = errors.New("only root can make containers")

// A podSite has the containers of one round, and makes those of the next.
type podSite struct {
	*pod.Site
}

// newPodSite finds out whether there can be containers.
func newPodSite(ctx context.Context) (*podSite, error) {
	if os.Geteuid() != 0 {
		return nil, errNotRoot
	}
	if err := pod.CheckTools(); err != nil {
		return nil, err
	}
	s, err := pod.New(ctx)
	if err != nil {
		return nil, err
	}
	return &podSite{s}, nil
}

// site starts two workers as containers, and a process that keeps the network between them.
func (p *podSite) site(ctx context.Context) (_ *site, err error) {
	var started []*child.Process
	start := func(name string, attr *syscall.SysProcAttr) *child.Process {
		if err != nil {
			return nil
		}
		var c *child.Process
		if c, err = child.StartIn(ctx, name, WorkerVerb, attr); err == nil {
			started = append(started, c)
		}
		return c
	}
	end := func() {
		for _, c := range started {
			c.CloseInput()
		}
		for _, c := range started {
			c.Stop()
		}
	}
	container := func() *syscall.SysProcAttr {
		a := new(syscall.SysProcAttr)
		p.Begin(a)
		return a
	}
	bridge := start("bridge", &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET})
	server, client := start(roleServer, container()), start(roleClient, container())
	if err == nil {
		err = pod.Join(bridge.PID(), server.PID(), client.PID())
	}
	if err != nil {
		end()
		return nil, err
	}
	return &site{
		server: pod.Server, service: pod.Service,
		note: "two containers on a bridge, through DNAT and masquerading, introduced by " + p.Introducer(),
		start: func(role string, files ...*os.File) (*child.Process, error) {
			if len(files) > 0 {
				return nil, errors.New("a container can be given no files")
			}
			if role == roleServer {
				return server, nil
			}
			return client, nil
		},
		close: end,
	}, nil
}

package bench

import (
	"context"
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/bench/program"
	"github.com/gosmc/smc/internal/child"
	"github.com/gosmc/smc/internal/netns"
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

// A podPair is two containers and the network between them. Each has a worker, which waits for its work.
type podPair struct{ bridge, server, client *child.Process }

// containers starts two workers as containers, and a process that keeps the network between them.
func (p *podSite) containers(ctx context.Context) (c *podPair, err error) {
	start := func(name string, attr *syscall.SysProcAttr) (w *child.Process) {
		if err == nil {
			w, err = child.StartIn(ctx, name, WorkerVerb, attr)
		}
		return w
	}
	container := func() *syscall.SysProcAttr {
		a := new(syscall.SysProcAttr)
		p.Begin(a)
		return a
	}
	c = new(podPair)
	c.bridge = start("bridge", &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET})
	c.server, c.client = start(roleServer, container()), start(roleClient, container())
	if err == nil {
		err = pod.Join(c.bridge.PID(), c.server.PID(), c.client.PID())
	}
	if err != nil {
		c.end()
		return nil, err
	}
	return c, nil
}

func (c *podPair) end() {
	all := []*child.Process{c.bridge, c.server, c.client}
	for _, w := range all {
		if w != nil {
			w.CloseInput()
		}
	}
	for _, w := range all {
		if w != nil {
			w.Stop()
		}
	}
}

func (p *podSite) note() string {
	return "two containers on a bridge, through DNAT and masquerading, introduced by " + p.Introducer()
}

// site has the workers of two containers.
func (p *podSite) site(ctx context.Context) (*site, error) {
	c, err := p.containers(ctx)
	if err != nil {
		return nil, err
	}
	return &site{
		server: pod.Server, service: pod.Service,
		note: p.note(),
		start: func(role string, files ...*os.File) (*child.Process, error) {
			if len(files) > 0 {
				return nil, errors.New("a container can be given no files")
			}
			if role == roleServer {
				return c.server, nil
			}
			return c.client, nil
		},
		close: c.end,
	}, nil
}

// place has programs in the network namespaces of two containers. Each program has its other namespaces
// for itself; its process numbers are ours, so that its processor time can be known.
func (p *podSite) place(c *podPair) *program.Place {
	return &program.Place{
		Listen: pod.Server.String(), Connect: pod.Service.String(),
		Enter: func(clients bool, f func() error) error {
			if clients {
				return netns.In(c.client.PID(), f)
			}
			return netns.In(c.server.PID(), f)
		},
		Begin: p.BeginBeside,
	}
}

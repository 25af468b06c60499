package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/child"
	"github.com/gosmc/smc/internal/netns"
)

// A site is where the two workers of a round run, and by which addresses they reach each other.
type site struct {
	server, client netip.Addr // zero: the transport has its own
	service        netip.Addr // to which the client connects in place of the server's; zero: there is none
	note           string     // says it to people; empty if there is nothing to say
	start          func(role string, files ...*os.File) (*child.Process, error)
	close          func()
}

// siteHere runs the workers beside us.
func siteHere(ctx context.Context) *site {
	return &site{
		start: func(role string, files ...*os.File) (*child.Process, error) {
			return child.Start(ctx, role, WorkerVerb, files...)
		},
		close: func() {},
	}
}

// siteLoopback does the same with two addresses of the loopback interface, since two programs
// cannot have the same port of one address. why is the reason that there is no better site.
func siteLoopback(ctx context.Context, why error) *site {
	s := siteHere(ctx)
	s.server, s.client = randomLoopback(), randomLoopback()
	for s.client == s.server {
		s.client = randomLoopback()
	}
	s.note = fmt.Sprintf("over the loopback interface, since there are no network namespaces: %v", why)
	return s
}

// randomLoopback is an address that hardly anybody else uses: 127.16.0.1 to 127.255.255.254.
func randomLoopback() netip.Addr {
	return netip.AddrFrom4([4]byte{127, 16 + byte(rand.IntN(240)), byte(rand.IntN(256)),
		1 + byte(rand.IntN(254))})
}

// vethNet has the addresses of both ends of all veth pairs. Nobody else is in their namespaces.
var vethNet = netip.MustParsePrefix("10.77.0.0/16")

// vethPrefix is the address of an end of the i-th pair, which is a network of its own.
func vethPrefix(role string, i int) netip.Prefix {
	host := byte(1)
	if role == roleClient {
		host = 2
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 77, byte(i), host}), 30)
}

// NetnsVerb is the hidden verb of the command that makes network namespaces for workers, see [KeepNetns].
const NetnsVerb = "bench-netns"

const (
	firstPipe = 3 // the first of exec.Cmd.ExtraFiles
)

// siteVeth runs the workers in two new network namespaces that veth pairs join. They are
// the children of a third process, which makes the pairs: so it can be done without
// privilege, in a user namespace where the three are root. A namespace ends with its last process.
func siteVeth(ctx context.Context, mtu, pairs int) (*site, error) {
	s, err := startNetns(ctx, mtu, pairs, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET})
	if err == nil {
		return s, nil
	}
	s, errUser := startNetns(ctx, mtu, pairs, &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	})
	if errUser == nil {
		s.note += ", in a user namespace"
		return s, nil
	}
	if os.Geteuid() == 0 {
		return nil, err // it says more
	}
	return nil, errUser
}

// startNetns starts the third process with its namespaces in attr, and through it the workers.
func startNetns(ctx context.Context, mtu, pairs int, attr *syscall.SysProcAttr) (*site, error) {
	var workers [2]*child.Process
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
	}()
	// Both are followed before anything can go wrong; a worker that is followed needs an end of its
	// pipes.
	for i, role := range []string{roleServer, roleClient} {
		w, ends, err := child.NewPiped(role)
		theirs = append(theirs, ends...)
		if err != nil {
			if i > 0 {
				workers[0].CloseInput()
			}
			return nil, err
		}
		workers[i] = w
	}
	keeper, err := child.StartIn(ctx, "namespace", NetnsVerb, attr, theirs...)
	if err != nil {
		for _, w := range workers {
			w.CloseInput()
		}
		return nil, err
	}
	for _, w := range workers {
		w.EndsWith(keeper) // they die with it
	}
	note := fmt.Sprintf("two network namespaces, a veth pair of MTU %d", mtu)
	if pairs > 1 {
		note = fmt.Sprintf("two network namespaces, %d veth pairs of MTU %d, each a network of its own", pairs, mtu)
	}
	s := &site{
		server: vethPrefix(roleServer, 0).Addr(), client: vethPrefix(roleClient, 0).Addr(),
		note: note,
		start: func(role string, files ...*os.File) (*child.Process, error) {
			if len(files) > 0 {
				return nil, errors.New("a worker in another network namespace can be given no files")
			}
			if role == roleServer {
				return workers[0], nil
			}
			return workers[1], nil
		},
		close: func() {
			for _, w := range workers {
				w.CloseInput()
			}
			keeper.Stop()
		},
	}
	var m netnsMessage
	if err = keeper.Send(netnsSpec{MTU: mtu, Pairs: pairs}); err == nil {
		err = keeper.Receive(ctx, child.Patience, &m)
	}
	if err == nil && m.Problem != "" {
		err = errors.New(m.Problem)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// netnsSpec is the first thing that the third process hears.
type netnsSpec struct {
	MTU   int `json:"mtu"`
	Pairs int `json:"pairs"`
}

// netnsMessage is the message of the third process when the network is ready, or cannot be made.
type netnsMessage struct {
	Problem string `json:"problem,omitempty"`
}

// KeepNetns does the work of the hidden verb [NetnsVerb]: it starts the workers, one in its own
// network namespace and one in another, joins the two namespaces, and waits until the parent has
// had enough. in and out are standard input and output of the process.
func KeepNetns(ctx context.Context, in io.Reader, out io.Writer) error {
	parent := child.NewParent(in, out)
	var spec netnsSpec
	if err := parent.Receive(&spec); err != nil {
		return child.ErrNotFromHere
	}
	// The kernel kills the workers when the thread that has started them ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	for fd := firstPipe; fd < firstPipe+2*child.Pipes; fd++ {
		unix.CloseOnExec(fd) // no worker may hold a pipe of the other open
	}
	ended := make(chan struct{}, 2)
	var workers [2]*exec.Cmd
	for i := range workers {
		w, err := startInherited(ctx, firstPipe+i*child.Pipes, i == 1)
		if err != nil {
			return parent.Send(netnsMessage{Problem: err.Error()})
		}
		workers[i] = w
		go func() {
			w.Wait()
			ended <- struct{}{}
		}()
	}
	if err := joinNetns(spec.MTU, spec.Pairs, workers[1].Process.Pid); err != nil {
		return parent.Send(netnsMessage{Problem: err.Error()})
	}
	if err := parent.Send(netnsMessage{}); err != nil {
		return err
	}
	parent.Receive(&spec) // there is nothing more to hear but the end
	timer := time.NewTimer(child.Patience / 2)
	defer timer.Stop()
	for range workers {
		select {
		case <-ended:
		case <-timer.C:
			return errors.New("the workers do not end")
		}
	}
	return nil
}

// startInherited starts a worker on three pipes that we have inherited.
func startInherited(ctx context.Context, firstPipe int, newNetns bool) (*exec.Cmd, error) {
	w := child.Command(ctx, WorkerVerb)
	var pipes [child.Pipes]*os.File
	for i := range pipes {
		pipes[i] = os.NewFile(uintptr(firstPipe+i), "pipe")
		if pipes[i] == nil {
			return nil, os.ErrInvalid
		}
		defer pipes[i].Close()
	}
	w.Stdin, w.Stdout, w.Stderr = pipes[0], pipes[1], pipes[2]
	w.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if newNetns {
		w.SysProcAttr.Cloneflags = unix.CLONE_NEWNET
	}
	if err := w.Start(); err != nil {
		return nil, fmt.Errorf("start a worker: %w", err)
	}
	return w, nil
}

// joinNetns makes veth pairs between our network namespace and the namespace of process client.
func joinNetns(mtu, pairs, client int) error {
	here, err := netns.Open()
	if err != nil {
		return err
	}
	defer here.Close()
	for i, name := range netns.VethNames(pairs) {
		if err := here.AddVeth(name, mtu, client); err != nil {
			return err
		}
		if err := here.SetUpVeth(name, vethPrefix(roleServer, i)); err != nil {
			return err
		}
		if err := netns.SetUpVethOf(client, name, vethPrefix(roleClient, i)); err != nil {
			return err
		}
	}
	names := netns.VethNames(pairs)
	if err := netns.AwaitRunning(names); err != nil {
		return err
	}
	return netns.In(client, func() error { return netns.AwaitRunning(names) })
}

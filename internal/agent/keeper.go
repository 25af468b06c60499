package agent

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/introduce"
)

// KeeperVerb is the verb with which the agent's program is started again as its keeper: [Keep].
const KeeperVerb = "agent-keeper"

// keeperFD is the keeper's descriptor of the socket to the agent.
const keeperFD = 3

// Keep is the life of a keeper ([introduce.Keep]). It ends with the agent, and with nothing before: a
// signal that is for all processes of a terminal or of a service leaves it alone.
func Keep() error {
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGPIPE)
	unix.CloseOnExec(keeperFD)
	return introduce.Keep(os.NewFile(keeperFD, "agent"))
}

// keep starts a keeper, again and again until the service ends. The error is that the first one cannot
// be started.
func (i *introducer) keep(command []string) error {
	if len(command) == 0 {
		return nil
	}
	keeper, err := i.startKeeper(command)
	if err != nil {
		return err
	}
	i.wg.Go(func() {
		for {
			ended := make(chan struct{})
			go func() { keeper.Wait(); close(ended) }()
			select {
			case <-i.stop:
				<-i.given
				keeper.Process.Kill() // nothing is left to keep
				<-ended
				return
			case <-ended:
			}
			for keeper = nil; keeper == nil; {
				select {
				case <-i.stop:
					return
				case <-time.After(keeperPause):
				}
				next, err := i.startKeeper(command)
				if err != nil {
					i.log.Warn("introduction: no keeper", "err", err)
					continue
				}
				keeper = next
			}
		}
	})
	return nil
}

func (i *introducer) startKeeper(command []string) (*exec.Cmd, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("keeper: %w", os.NewSyscallError("socketpair", err))
	}
	own, other := os.NewFile(uintptr(fds[0]), "keeper"), os.NewFile(uintptr(fds[1]), "agent")
	defer other.Close()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir, cmd.Stderr, cmd.ExtraFiles = "/", os.Stderr, []*os.File{other}
	if err := cmd.Start(); err != nil {
		own.Close()
		return nil, fmt.Errorf("keeper: %w", err)
	}
	i.server.KeepWith(own)
	i.log.Info("introduction: keeper", "pid", cmd.Process.Pid)
	return cmd, nil
}

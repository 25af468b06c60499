package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"os"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/host"
	"github.com/gosmc/smc/internal/port"
	"github.com/gosmc/smc/internal/survey"
	"github.com/gosmc/smc/internal/text"
	"github.com/gosmc/smc/wire/clc"
)

// checkSelf makes a connection between two hosts of this process, as two programs of this user would, to
// find limits of memory that keep every connection on TCP. Other checks find all else that can.
func checkSelf(ctx context.Context, r *Report) {
	mode, reason, err := dialSelf(ctx)
	if err == nil && mode == conn.ModeTCP && reason.Code == clc.DiagMemory { // rule: cmd/gosmc TestDoctorFaults: reason.Code == -> reason.Code == 1+
		r.add(Fail, "shared-memory", "Connections within this machine stay TCP: "+reason.Sentence+" "+
			reason.Cause+From(config.Memory), reason.Advice)
	}
}

// dialSelf returns the mode of a connection between two hosts of this process, and the reason of TCP.
func dialSelf(ctx context.Context) (mode conn.Mode, reason clc.Reason, err error) {
	ctx, cancel := context.WithTimeout(ctx, plainTimeout)
	defer cancel()
	var ends [2]*host.Host
	for i := range ends {
		if ends[i], err = host.New(host.Config{ShortAfter: -1}); err != nil {
			return mode, reason, err
		}
		defer ends[i].Close()
	}
	l, err := ends[0].Listen(ctx, "tcp", "127.0.0.1:0", host.ListenOptions{})
	if err != nil {
		return mode, reason, err
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			c.Close()
		}
	}()
	c, err := ends[1].Dial(ctx, "tcp", l.Addr().String(), host.DialOptions{})
	if err != nil {
		return mode, reason, err
	}
	defer c.Close()
	return c.Mode(), c.Reason(), nil
}

// An agentWord is the part of an agent's status that is needed here.
type agentWord struct {
	Version string `json:"version"`
	Option  struct {
		Enabled  bool   `json:"enabled"`
		Attached bool   `json:"attached"`
		Cgroup   string `json:"cgroup"`
	} `json:"option"`
}

// checkAgent checks the agent of this machine, if there is one or one was there.
func checkAgent(ctx context.Context, r *Report, probe *survey.Probe) {
	const restart = "sudo systemctl restart gosmc-agent; without systemd: sudo gosmc agent"
	attached := probe.Capabilities.TCPOption.Available
	answer, socket, err := port.Ask(ctx, port.Paths(""), port.Request{Request: "status"})
	if socket != nil {
		socket.Close()
	}
	var word agentWord
	_, refused := errors.AsType[*port.RefusedError](err)
	switch {
	case refused:
		r.add(OK, "agent", "The agent answers", "")
	case errors.Is(err, port.ErrNoAgent) && hasSocket(port.Paths("")): // rule: cmd/gosmc TestDoctorAgent
		r.add(Warn, "agent", "The agent has ended, as if it was killed: its socket is there, and "+
			"nobody answers. Programs that start now are not introduced, and share no UDP port", restart)
	case err != nil && attached:
		r.add(Warn, "agent", "The agent's programs are attached to control groups, and no agent answers: "+
			"it has ended", restart+"; or: sudo gosmc agent --detach")
	case err != nil: // a UEID that needs one is another check's
	case json.Unmarshal(answer.Status, &word) != nil || word.Version != r.opts.Version: // rule: cmd/gosmc TestDoctorAgent: word.Version != r.opts.Version -> false
		r.add(Warn, "agent", "The agent has another version than this command: "+
			text.Printable(text.OrNA(word.Version))+", not "+r.opts.Version, restart)
	case word.Option.Enabled && !word.Option.Attached:
		r.add(Fail, "agent", "Somebody has detached the agent's programs from the control group "+
			text.Printable(word.Option.Cgroup), restart)
	case word.Option.Enabled && !attached: // rule: cmd/gosmc TestDoctorAgent
		r.add(Warn, "agent", "The agent serves the control group "+text.Printable(word.Option.Cgroup)+
			", in which this program is not", "start the agent without --cgroup, or programs in that group")
	default:
		r.add(OK, "agent", "The agent answers", "")
	}
}

// hasSocket reports whether an agent has left a socket.
func hasSocket(paths []string) bool {
	for _, path := range paths {
		if _, err := os.Lstat(path); err == nil {
			return true
		}
	}
	return false
}

package survey

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/bureau"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/pairing"
	"github.com/gosmc/smc/internal/port"
)

// Pairing says whether the kernel pairs the sockets of this process, and otherwise why
// not, as far as an agent of the run directory or of the machine can be asked.
func Pairing(ctx context.Context, dir string) control.Capability {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return control.Capability{Why: err.Error()}
	}
	defer unix.Close(fd)
	if _, _, err = pairing.TokensOf(uintptr(fd)); err == nil {
		return control.Capability{Available: true}
	}
	c := control.Capability{Why: err.Error()}
	if !errors.Is(err, pairing.ErrNoService) {
		return c
	}
	var status struct { // the part of an agent's status that has the reason
		Pairing struct {
			Reason string `json:"reason"`
		} `json:"pairing"`
	}
	answer, socket, err := port.Ask(ctx, port.Paths(dir), port.Request{Request: "status"})
	if socket != nil {
		socket.Close()
	}
	if err == nil && json.Unmarshal(answer.Status, &status) == nil && status.Pairing.Reason != "" {
		c.Why = "the agent: " + status.Pairing.Reason
	}
	return c
}

// Introduces says whether the agent introduces programs of this network namespace to others of this
// machine, whatever their users and namespaces are, and otherwise why not. The agent gets to know the
// namespace by the question, so its name may come a moment later.
func Introduces(ctx context.Context) control.Capability {
	if c := Pairing(ctx, ""); !c.Available {
		return c
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return control.Capability{Why: err.Error()}
	}
	defer unix.Close(fd)
	list := port.Paths("")
	for end := time.Now().Add(bureau.NameTime); ; time.Sleep(bureau.NamePause) {
		name, err := pairing.ServiceName(uintptr(fd))
		if err == nil {
			list = append(list, "@"+name)
		}
		if !errors.Is(err, pairing.ErrNoName) || time.Now().After(end) {
			break
		}
	}
	for _, at := range list {
		var d net.Dialer
		if c, err := d.DialContext(ctx, "unixpacket", at); err == nil {
			c.Close()
			return control.Capability{Available: true}
		}
	}
	return control.Capability{Why: "the agent does not answer: it was stopped, or killed"}
}

package survey

import (
	"context"
	"encoding/json"
	"errors"

	"golang.org/x/sys/unix"

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

package doctor

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/option"
)

// modeSMCR is the mode of a connection that an engine takes, if its peer agrees.
const modeSMCR = "SMC-R"

// between takes the steps of a connection of a program of 'gosmc run' with another host. seen says how the
// address is none of this machine. The mode is that of an attempt: the peer may decline.
func (e *Server) between(
	server netip.AddrPort, seen string, s *config.Settings, step func(ok bool, what string, args ...any) bool,
) {
	if !s.BetweenHosts {
		step(false, "%s, and between-hosts is off%s", seen, From(config.BetweenHosts))
		return
	}
	if !step(true, "%s, and between-hosts is on%s", seen, From(config.BetweenHosts)) ||
		!step(len(s.UEIDs) > 0 || s.SMCRv1, "%s", ueidsOf(s)) {
		return
	}
	peers, err := config.ParsePeers(s.Peers)
	switch err2 := optionErr(); {
	case err == nil && peers.Speak(server.Addr(), server.Port()):
		step(true, "the configuration says that it speaks SMC-R%s", From(config.Peer))
	case err2 == nil:
		step(true, "TCP option 254 asks it whether it speaks SMC-R; if not, the connection is TCP: 'gosmc doctor "+
			"%v' tries", server)
	default:
		step(false, "no entry 'peer' of the configuration names it, and it cannot be asked: %v", err2)
		return
	}
	e.Mode = modeSMCR
}

// ueidsOf is a sentence about the IDs of this host, without which there is no SMC-R.
func ueidsOf(s *config.Settings) string {
	if len(s.UEIDs) == 0 && !s.SMCRv1 {
		return "no UEID is set, so there is no SMC-R here"
	}
	if len(s.UEIDs) == 0 {
		return "version 1 of SMC-R is on" + From(config.SMCRv1)
	}
	return fmt.Sprintf("the UEID of this host is %s%s", s.UEIDs[0], From(config.UEID))
}

// optionErr says why sockets here cannot ask for TCP option 254; nil if they can.
func optionErr() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return option.Ask(uintptr(fd))
}

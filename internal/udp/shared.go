package udp

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// openShared makes the descriptors of a socket on a port that others share. After an error Close
// releases those that were made.
func (s *Socket) openShared(local netip.AddrPort, family int, cfg *Config) error {
	fd, err := takeOver(cfg, local, family)
	if err != nil {
		return err
	}
	if s.shared, err = newDescriptor(fd); err != nil {
		return err
	}
	s.reader, s.local = s.shared, local
	if err := s.setOptions(fd, family, cfg, true); err != nil {
		return err
	}
	coalescing, readBuffer := s.coalescing, s.readBuffer

	if fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK,
		unix.IPPROTO_UDP); err != nil {
		return fmt.Errorf("udp: socket: %w", err)
	}
	if s.writer, err = newDescriptor(fd); err != nil {
		return err
	}
	sender := *cfg
	sender.NoCoalescing = true
	if err := s.setOptions(fd, family, &sender, false); err != nil {
		return err
	}
	s.coalescing, s.readBuffer = coalescing, readBuffer
	if err := discardAll(fd); err != nil {
		return fmt.Errorf("udp: filter: %w", err)
	}
	s.source, err = s.bind(fd, netip.AddrPortFrom(local.Addr(), 0))
	return err
}

// takeOver returns a descriptor of cfg.Socket, if that is a UDP socket bound to local, and closes
// cfg.Socket.
func takeOver(cfg *Config, local netip.AddrPort, family int) (int, error) {
	defer cfg.Socket.Close()
	raw, err := cfg.Socket.SyscallConn()
	if err != nil {
		return -1, fmt.Errorf("udp: shared socket: %w", err)
	}
	fd := -1
	if cerr := raw.Control(func(its uintptr) { fd, err = unix.FcntlInt(its, unix.F_DUPFD_CLOEXEC, 3) }); cerr != nil {
		err = cerr
	}
	if err != nil {
		return -1, fmt.Errorf("udp: shared socket: %w", err)
	}
	if err := checkShared(fd, cfg, local, family); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("udp: shared socket: %w", err)
	}
	return fd, nil
}

func checkShared(fd int, cfg *Config, local netip.AddrPort, family int) error {
	if cfg.Headers == HeadersAlways {
		return fmt.Errorf("a packet socket would see what is for others: %w", unix.EINVAL)
	}
	for _, o := range []struct {
		name         string
		option, want int
	}{{"domain", unix.SO_DOMAIN, family}, {"type", unix.SO_TYPE, unix.SOCK_DGRAM}, {"protocol",
		unix.SO_PROTOCOL, unix.IPPROTO_UDP}} {
		if got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, o.option); err != nil || got != o.want {
			return fmt.Errorf("%s %d, want %d: %w", o.name, got, o.want, unix.EINVAL)
		}
	}
	bound, err := boundTo(fd)
	if err != nil {
		return err
	}
	if want := netip.AddrPortFrom(local.Addr().WithZone(""), local.Port()); bound != want {
		return fmt.Errorf("bound to %v, want %v: %w", bound, want, unix.EINVAL)
	}
	return unix.SetNonblock(fd, true)
}

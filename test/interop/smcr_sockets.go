package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/host"
	"github.com/gosmc/smc/internal/sockdiag"
)

// A case about what Linux says of its sockets of SMC, and what internal/sockdiag makes of it: gosmc
// ss and gosmc metrics show that.

// unreadBytes is what our end sends, and the guest's program does not read.
const unreadBytes = 3000

// seen is the output of 'smcpeer sockets', which explains it.
type seen struct {
	Sockets  []sockdiag.SMCSocket
	Stats    *sockdiag.SMCStats
	Raw      [][]byte
	Listener uint16
	SMC, TCP uint16
	Sent     uint64
	Inet     uint16
	InetWhy  string
}

// kernelSockets has programs of the guest listen, connect to us by SMC-R, and connect to a server
// without SMC. Its kernel must tell of all with their states, and count the bytes that wait.
func kernelSockets(ctx context.Context, l *lab) error {
	if err := l.ready(ctx); err != nil {
		return err
	}
	h, err := l.host(host.Config{})
	if err != nil {
		return err
	}
	listener, err := l.listen(ctx, h, conn.AnyMode)
	if err != nil {
		return err
	}
	plain, err := new(net.ListenConfig).Listen(ctx, "tcp4", net.JoinHostPort(ourAddr4.String(), "0"))
	if err != nil {
		return err
	}
	l.atEnd(plain.Close)
	finish, err := l.vm.start(ctx, fmt.Sprintf("smcpeer sockets %v %v", listener.Addr(), plain.Addr()))
	if err != nil {
		return err
	}
	listener.SetDeadline(time.Now().Add(commandTimeout))
	c, err := listener.Accept()
	if err == nil {
		l.atEnd(c.Close)
		_, err = c.Write(make([]byte, unreadBytes))
	}
	said, guestErr := finish()
	if err := errors.Join(err, guestErr); err != nil {
		return fmt.Errorf("%w\nthe guest says:\n%s", err, said)
	}
	var s seen
	if err := json.Unmarshal([]byte(said), &s); err != nil {
		return fmt.Errorf("smcpeer sockets: %w\n%s", err, said)
	}
	if l.verbose {
		fmt.Println(said)
	}
	if dir := os.Getenv(captureVariable); dir != "" {
		if err := s.save(dir); err != nil {
			return err
		}
	}
	return s.check(l)
}

// captureVariable names a directory for the kernel's messages, as testdata of internal/sockdiag has
// them.
const captureVariable = "GOSMC_INTEROP_CAPTURE"

// save writes each message as a line of hexadecimal digits.
func (s *seen) save(dir string) error {
	var b strings.Builder
	for _, msg := range s.Raw {
		b.WriteString(hex.EncodeToString(msg) + "\n")
	}
	return os.WriteFile(filepath.Join(dir, "smc_diag.txt"), []byte(b.String()), 0o644)
}

// find returns the socket with a port of the guest.
func (s *seen) find(port uint16) (found sockdiag.SMCSocket, err error) {
	i := slices.IndexFunc(s.Sockets, func(f sockdiag.SMCSocket) bool { return f.Local.Port() == port })
	if i < 0 {
		return found, fmt.Errorf("no socket with port %d", port)
	}
	return s.Sockets[i], nil
}

func (s *seen) check(l *lab) error {
	var errs []error
	check := func(port uint16, what string, good func(f *sockdiag.SMCSocket) bool) {
		f, err := s.find(port)
		if err != nil || !good(&f) {
			errs = append(errs, fmt.Errorf("%s: %w: %+v", what, err, f))
		}
	}
	check(s.Listener, "the listener", func(f *sockdiag.SMCSocket) bool {
		return f.State == sockdiag.TCPListen && f.Inode != 0 && f.Peer.Port() == 0
	})
	check(s.SMC, "the connection by SMC-R", func(f *sockdiag.SMCSocket) bool {
		return f.Mode == sockdiag.SMCModeR && f.State == sockdiag.TCPEstablished && f.Link != 0 && f.Inode != 0 &&
			f.Local.Addr() == guestAddr4 && f.Peer.Addr() == ourAddr4 && f.Reason == 0 &&
			f.RecvQ == unreadBytes && f.SendQ == s.Sent && f.RcvBuf > unreadBytes && f.SndBuf > 0
	})
	check(s.TCP, "the connection by TCP", func(f *sockdiag.SMCSocket) bool {
		return f.Mode == sockdiag.SMCModeTCP && f.Reason == peerNoSMC && f.Peer.Addr() == ourAddr4
	})
	if s.Inet == 0 {
		l.note("no socket of IPPROTO_SMC: %s", s.InetWhy)
	} else if f, err := s.find(s.Inet); err != nil {
		errs = append(errs, fmt.Errorf("the socket of IPPROTO_SMC: %w", err))
	} else {
		l.note("IPPROTO_SMC: mode %d, %v to %v", f.Mode, f.Local, f.Peer)
	}
	if st := s.Stats; st == nil || st.SMCR.Client == 0 || st.SMCR.Out == 0 || st.ClientFallbacks == 0 ||
		!slices.ContainsFunc(st.Reasons, func(r sockdiag.SMCReason) bool {
			return !r.Server && r.Code == peerNoSMC && r.Count > 0
		}) {
		errs = append(errs, fmt.Errorf("the kernel's counters are %+v", st))
	}
	l.note("%d sockets, %d bytes wait to be sent", len(s.Sockets), s.Sent)
	return errors.Join(errs...)
}

// peerNoSMC is the reason of Linux for a peer that does not echo TCP option 254.
const peerNoSMC = 0x03010000

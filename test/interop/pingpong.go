package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/wire"
)

// The protocol of ibv_rc_pingpong of rdma-core.
const (
	pingPongPort = 18515
	pingPongDone = "done\x00"
	guestPage    = 4096 // its buffer is checked at the start of every page, with -c
)

// A greeting is the message that both sides send over TCP before they ping.
//
//	offset  size  field
//	     0     4  LID  0, hexadecimal digits as all that follow
//	     4     1  ":"
//	     5     6  QPN
//	    11     1  ":"
//	    12     6  PSN  of the sender's first packet
//	    18     1  ":"
//	    19    32  GID
//	    51     1  NUL
//
// Observed in a capture of rdma-core 44.
type greeting remote

const greetingLen = 52

func (g greeting) String() string {
	return fmt.Sprintf("%04x:%06x:%06x:%s\x00", 0, uint32(g.qpn), uint32(g.psn), hexGID(g.gid))
}

func parseGreeting(text string) (greeting, error) {
	var g greeting
	words := strings.Split(strings.TrimSuffix(text, "\x00"), ":")
	if len(text) != greetingLen || len(words) != 4 {
		return g, fmt.Errorf("greeting %q, want LID:QPN:PSN:GID", text)
	}
	qpn, qpnErr := strconv.ParseUint(words[1], 16, 24)
	psn, psnErr := strconv.ParseUint(words[2], 16, 24)
	gid, gidErr := hex.DecodeString(words[3])
	if err := errors.Join(qpnErr, psnErr, gidErr); err != nil {
		return g, fmt.Errorf("greeting %q: %w", text, err)
	}
	if len(gid) != len(g.gid) {
		return g, fmt.Errorf("greeting %q has a GID of %d bytes", text, len(gid))
	}
	return greeting{gid: wire.GID(gid), qpn: wire.QPN(qpn), psn: wire.PSN(psn)}, nil
}

func readGreeting(r io.Reader) (greeting, error) {
	text := make([]byte, greetingLen)
	if _, err := io.ReadFull(r, text); err != nil {
		return greeting{}, err
	}
	return parseGreeting(string(text))
}

// A pingPong is one run of ibv_rc_pingpong with us.
type pingPong struct {
	client       bool // we are; else the guest
	size, rounds int
}

// pingPongs returns a case function that does all runs after each other.
func pingPongs(client bool, runs []pingPong) func(context.Context, *lab) error {
	return func(ctx context.Context, l *lab) error {
		dev, err := l.openDevice()
		if err != nil {
			return err
		}
		var sizes []string
		for _, p := range runs {
			p.client = client
			began := time.Now()
			if err := p.run(ctx, l, dev); err != nil {
				return fmt.Errorf("%d bytes, %d rounds: %w", p.size, p.rounds, err)
			}
			sizes = append(sizes, fmt.Sprintf("%dx%d B", p.rounds, p.size))
			if l.verbose {
				fmt.Printf("      %d rounds of %d bytes took %.1f s\n", p.rounds, p.size, time.Since(began).Seconds())
			}
		}
		l.note("%s", strings.Join(sizes, ", "))
		return nil
	}
}

func (p pingPong) run(ctx context.Context, l *lab, dev *rdma.Device) error {
	slot := (p.size + guestPage - 1) &^ (guestPage - 1) // the first for sending, the second for receiving
	e, err := l.openEndpoint(dev, 2*slot, rdma.LocalWrite)
	if err != nil {
		return err
	}
	conn, program, err := p.startGuest(ctx, l)
	if err != nil {
		return err
	}
	if err := p.greet(conn, e, l, slot); err != nil {
		return err
	}

	err = p.play(ctx, e, slot, l.loss)
	if errors.Is(err, errStalled) {
		err = l.pingPongStalled(ctx, err)
	}
	output, programErr := program()
	if err = errors.Join(err, programErr); err != nil {
		return err
	}
	if !strings.Contains(output, fmt.Sprintf("%d iters in", p.rounds)) || strings.Contains(output, "invalid data") {
		return fmt.Errorf("ibv_rc_pingpong said:\n%s", output)
	}
	if !p.client {
		return p.lastSend(ctx, e, l)
	}
	return nil
}

// errTheirTurn is in the error about a stall after the guest has acknowledged all that we have
// sent; errGuestSleeps, if its rxe has sent nothing more, and so does not wait for an
// acknowledgement of ours.
var (
	errTheirTurn   = errors.New("it is the guest's turn")
	errGuestSleeps = errors.New("rxe in the guest sleeps")
)

// pingPongStalled ends the guest's program, and adds its state to err.
func (l *lab) pingPongStalled(ctx context.Context, err error) error {
	const look = `for p in $(pidof ibv_rc_pingpong); do grep State /proc/$p/status; cat /proc/$p/stack; done; /bin/rdma res show qp`
	before, countErr := l.guestCounters(ctx)
	state, lookErr := l.vm.run(ctx, commandTimeout, look+"; sleep 5; "+look)
	after, againErr := l.guestCounters(ctx)
	_, killErr := l.vm.run(ctx, commandTimeout, "killall -9 ibv_rc_pingpong")
	if more := errors.Join(countErr, lookErr, againErr, killErr); more != nil {
		return errors.Join(err, more)
	}
	return stalled(err, before, after, state)
}

// stalled tells the fault of the guest's kernel, which it says nothing of, from ours.
func stalled(err error, before, after map[string]uint64, state string) error {
	if errors.Is(err, errTheirTurn) && before["sent_pkts"] == after["sent_pkts"] && before["completer_retry_err"] == after["completer_retry_err"] {
		err = fmt.Errorf("%w: %w", errGuestSleeps, err)
	}
	return fmt.Errorf("%w\nthe guest: %v, five seconds later %v\n%s", err, before, after, state)
}

// startGuest starts ibv_rc_pingpong and returns the TCP connection with it, and a function that
// waits for its end.
func (p pingPong) startGuest(ctx context.Context, l *lab) (net.Conn, func() (string, error), error) {
	index, err := l.gidIndex(ctx)
	if err != nil {
		return nil, nil, err
	}
	script := fmt.Sprintf("timeout %d /bin/ibv_rc_pingpong -c -d rxe0 -g %d -s %d -n %d -m %d",
		int(caseTimeout.Seconds()), index, p.size, p.rounds, l.mtu().Bytes())
	if p.client {
		return l.startServer(ctx, script, pingPongPort)
	}
	address := netip.AddrPortFrom(ourControl, pingPongPort)
	listener, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(address))
	if err != nil {
		return nil, nil, err
	}
	defer listener.Close()
	listener.SetDeadline(time.Now().Add(commandTimeout))
	program, err := l.vm.start(ctx, script+" "+ourControl.String())
	if err != nil {
		return nil, nil, err
	}
	conn, err := listener.Accept()
	if err != nil {
		return nil, nil, err
	}
	l.closeWith(ctx, conn)
	return conn, program, nil
}

// greet exchanges greetings, connects the queue pair and posts the first receives.
func (p pingPong) greet(conn net.Conn, e *endpoint, l *lab, slot int) error {
	ours := greeting{gid: e.dev.GID(), qpn: e.qp.QPN(), psn: e.psn}
	if p.client {
		if _, err := io.WriteString(conn, ours.String()); err != nil {
			return err
		}
	}
	theirs, err := readGreeting(conn)
	if err != nil {
		return err
	}
	if theirs.gid != l.guestGID() {
		return fmt.Errorf("the guest's GID is %v, want %v", theirs.gid, l.guestGID())
	}
	for id := range uint64(2) {
		if err := e.qp.PostRecv(rdma.RecvWR{ID: id, Local: [2]rdma.SGE{e.sge(slot, p.size)}}); err != nil {
			return err
		}
	}
	rts := l.timing().rts()
	if err := e.connect(remote(theirs), l.mtu(), rts); err != nil {
		return err
	}
	if p.client {
		_, err = io.WriteString(conn, pingPongDone)
		return err
	}
	if _, err := io.WriteString(conn, ours.String()); err != nil {
		return err
	}
	done := make([]byte, len(pingPongDone))
	if _, err := io.ReadFull(conn, done); err != nil || string(done) != pingPongDone {
		return fmt.Errorf("after the greetings came %q, %v; want %q", done, err, pingPongDone)
	}
	return nil
}

// sendID is the ID of our sends; receives have lower ones.
const sendID = 100

// play sends and receives in turns, the client first. The guest has one buffer: it sends the
// message that it has received last, so that every byte that comes back can be compared.
//
// With the last answer the guest has all and ends. If its acknowledgement of our last message was
// lost, which loss says is possible, there is nobody to repeat it.
func (p pingPong) play(ctx context.Context, e *endpoint, slot int, loss bool) error {
	sent, received := e.mr.Bytes()[:p.size], e.mr.Bytes()[slot:slot+p.size]
	want := make([]byte, p.size) // the guest's buffer
	for i := range want {
		if want[i] = '{'; i%guestPage == 0 { // its initial content
			want[i] = 0
		}
	}
	send := func(round int) error {
		fill(sent, uint64(round))
		for i := 0; i < p.size; i += guestPage { // -c expects it at the end
			sent[i] = 0
		}
		copy(want, sent)
		return e.qp.PostSend(rdma.SendWR{ID: sendID, Op: rdma.OpSend, Signaled: true, Local: [2]rdma.SGE{e.sge(0, p.size)}})
	}
	sending := false // until our send has completed
	for round := range p.rounds {
		if p.client {
			if err := send(round); err != nil {
				return err
			}
			sending = true
		}
		last := round == p.rounds-1
		for arrived := false; !arrived || sending && !(last && loss); {
			c, err := e.await(ctx)
			switch {
			case errors.Is(err, errStalled) && !sending:
				return fmt.Errorf("round %d: %w: %w", round, errTheirTurn, err)
			case err != nil:
				return fmt.Errorf("round %d: %w", round, err)
			case c.Status != rdma.StatusOK:
				return fmt.Errorf("round %d: our completion: %v: %v", round, c.Op, c.Status)
			case c.Op == rdma.CompletedSend:
				sending = false
				continue
			case int(c.Len) != p.size || !bytes.Equal(received, want):
				return fmt.Errorf("round %d: received %d bytes that the guest did not send: %s", round, c.Len, difference(received, want))
			}
			arrived = true
			clear(received)
			if err := e.qp.PostRecv(rdma.RecvWR{ID: c.ID, Local: [2]rdma.SGE{e.sge(slot, p.size)}}); err != nil {
				return err
			}
		}
		if !p.client {
			if err := send(round); err != nil {
				return err
			}
			sending = true
		}
	}
	return nil
}

// lastSend waits for the completion of our last message, the answer to the guest's last one. The
// guest ends when it has it, and if its acknowledgement is lost there is nobody to repeat it.
func (p pingPong) lastSend(ctx context.Context, e *endpoint, l *lab) error {
	if l.loss {
		return nil
	}
	_, err := e.awaitOK(ctx, sendID, rdma.CompletedSend)
	return err
}

// difference describes the first byte in which two slices of equal length differ.
func difference(got, want []byte) string {
	for i := range want {
		if got[i] != want[i] {
			return fmt.Sprintf("byte %d of %d is %#02x, want %#02x", i, len(want), got[i], want[i])
		}
	}
	return "no difference"
}

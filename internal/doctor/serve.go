package doctor

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/host"
	"github.com/gosmc/smc/internal/text"
)

// The conversation of 'gosmc doctor HOST:PORT' with 'gosmc doctor --serve', over a connection of
// any mode. The server speaks first, so that the client need not send anything to other programs.
//
//	server  greeting, a peerWord as JSON, LF
//	client  nonce in hexadecimal digits, LF
//	server  "1" if a datagram with the nonce has arrived, else "0", LF
//	both    the server sends back what the client sends
const (
	greeting    = "gosmc-doctor 1 "
	maxGreeting = 4096 // bytes, with the LF

	talkTimeout  = 5 * time.Second // for each step of the client
	nonceTimeout = 2 * talkTimeout // until the server has the client's nonce
	serveTimeout = time.Minute     // for a connection of the server after that
	maxServed    = 64              // connections of the server at once
	// maxServedEach are those from one client. One that opens many, or says nothing on them, leaves
	// places to others.
	maxServedEach = 8
	maxEcho       = 16 << 20 // bytes that the server sends back on a connection
	maxNonces     = 256      // that the server remembers, the latest
)

// A peerWord is the server's report about a connection as it sees it, and about itself.
type peerWord struct {
	Mode      string   `json:"mode"`
	UEIDs     []string `json:"ueids"`
	SMCRv1    bool     `json:"smcr_v1"`
	Option    bool     `json:"option"`     // an agent puts TCP option 254 on its segments
	OptionWhy string   `json:"option_why"` // not
}

// A nonce is in the datagrams of one trial.
type nonce [8]byte

func newNonce() (n nonce) {
	rand.Read(n[:]) // never fails
	return n
}

// probeMark follows the header of RoCE in a datagram with a nonce. The header has an opcode that no
// transport of InfiniBand has, and there is no ICRC: a device that knows nothing of it drops it.
const (
	probeMark   = "gosmc doctor"
	probeHeader = 12 // bytes: IBTA 9.2, base transport header
	probeOpcode = 0xff
	probeEvery  = time.Millisecond
	rocePort    = 4791
)

// send sends datagrams with the nonce to UDP port 4791 of an address until stop is called. Each has
// another number in the upper byte of the queue pair number, by which an agent chooses the process.
func (n nonce) send(to netip.Addr) (stop func()) {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, rocePort)))
	if err != nil { // the address is of no use for TCP, either
		return func() {}
	}
	done := make(chan bool)
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(probeEvery)
		defer tick.Stop()
		datagram := make([]byte, probeHeader, 64)
		datagram[0] = probeOpcode
		datagram = append(append(datagram, probeMark...), n[:]...)
		for {
			datagram[5]++
			c.Write(datagram) // an error tells that nobody had the port when an earlier one came
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	})
	return func() { close(done); wg.Wait(); c.Close() }
}

// nonces are those that have arrived, the latest. The zero value is empty, and several goroutines
// may use it.
type nonces struct {
	mu   sync.Mutex
	list []nonce
}

// take remembers the nonce of a datagram. It reports false for a datagram without one.
func (l *nonces) take(datagram []byte) bool {
	if len(datagram) != probeHeader+len(probeMark)+len(nonce{}) || datagram[0] != probeOpcode ||
		!bytes.HasPrefix(datagram[probeHeader:], []byte(probeMark)) {
		return false
	}
	n := nonce(datagram[probeHeader+len(probeMark):])
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.find(n) {
		if len(l.list) == maxNonces {
			l.list = l.list[1:]
		}
		l.list = append(l.list, n)
	}
	return true
}

// find needs the lock.
func (l *nonces) find(n nonce) bool {
	for _, x := range l.list {
		if x == n {
			return true
		}
	}
	return false
}

// has reports whether a nonce has arrived.
func (l *nonces) has(n nonce) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.find(n)
}

// Serve answers the checks of other hosts on a TCP address, in the mode that each connection gets,
// until ctx ends. It calls listening once, with the address. A client gets its own bytes back, and
// the UEIDs of this host; both are bounded.
func Serve(ctx context.Context, address string, listening func(addr string)) error {
	var seen nonces
	cfg := host.Config{ShortAfter: -1}
	cfg.RDMA.Drop = seen.take
	h, err := host.New(cfg)
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := h.Listen(ctx, "tcp", address, host.ListenOptions{})
	if err != nil {
		return err
	}
	defer l.Close()
	unhook := context.AfterFunc(ctx, func() { l.Close() })
	defer unhook()
	listening(l.Addr().String())
	var served places
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				c.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil: // of that connection, or a shortage that passes
			time.Sleep(10 * time.Millisecond)
			continue
		}
		leave, ok := served.take(c.RemoteAddr())
		if !ok {
			c.Close()
			continue
		}
		wg.Go(func() {
			defer leave()
			defer c.Close()
			unhook := context.AfterFunc(ctx, func() { c.Close() })
			defer unhook()
			answer(h, c, &seen)
		})
	}
}

// answer carries out the server's part of the conversation.
func answer(h *host.Host, c conn.Conn, seen *nonces) {
	c.SetDeadline(time.Now().Add(nonceTimeout)) // rule: TestServeSilent: nonceTimeout -> serveTimeout
	s := h.Status()
	word, err := json.Marshal(peerWord{
		Mode: c.Mode().String(), UEIDs: s.UEIDs, SMCRv1: s.Capabilities.SMCRv1.Available,
		Option: s.Capabilities.TCPOption.Available, OptionWhy: s.Capabilities.TCPOption.Why,
	})
	if err != nil {
		return
	}
	if _, err := fmt.Fprintf(c, "%s%s\n", greeting, word); err != nil {
		return
	}
	in := bufio.NewReader(c)
	line := make([]byte, hex.EncodedLen(len(nonce{}))+1)
	if _, err := io.ReadFull(in, line); err != nil {
		return
	}
	var n nonce
	if k, err := hex.Decode(n[:], line[:len(line)-1]); err != nil || k != len(n) {
		return
	}
	c.SetDeadline(time.Now().Add(serveTimeout))
	reply := "0\n"
	if seen.has(n) {
		reply = "1\n"
	}
	if _, err := io.WriteString(c, reply); err != nil {
		return
	}
	if _, err := io.Copy(c, io.LimitReader(in, maxEcho)); err == nil {
		c.CloseWrite()
		io.Copy(io.Discard, io.LimitReader(in, maxEcho)) // until the client has the end
	}
}

// listen finds out whether the server is 'gosmc doctor --serve', and asks it whether datagrams of
// ours have arrived.
func (t *trial) listen(c conn.Conn) {
	c.SetDeadline(time.Now().Add(talkTimeout))
	defer c.SetDeadline(time.Time{})
	line, err := readLine(c, greeting)
	if err != nil {
		return
	}
	p := new(peerWord)
	if json.Unmarshal(line[len(greeting):], p) != nil {
		return
	}
	if _, err := fmt.Fprintf(c, "%x\n", t.nonce[:]); err != nil {
		return
	}
	if line, err = readLine(c, ""); err != nil {
		return
	}
	t.peer, t.reached = p, string(line) == "1"
}

// errStranger is that a program does not speak as 'gosmc doctor --serve' does.
var errStranger = errors.New("not 'gosmc doctor --serve'")

// readLine reads a line without its LF, and not a byte more. It must begin with start.
func readLine(r io.Reader, start string) ([]byte, error) {
	var line []byte
	for len(line) < maxGreeting {
		var b [1]byte
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return nil, err
		}
		if b[0] == '\n' {
			if !strings.HasPrefix(string(line), start) {
				return nil, errStranger
			}
			return line, nil
		}
		line = append(line, b[0])
		if n := min(len(line), len(start)); string(line[:n]) != start[:n] {
			return nil, errStranger
		}
	}
	return nil, errStranger
}

// data has the server send bytes back: few, which fit into one small packet, and then many, which
// need packets of the path's full MTU.
func (r *Report) data(t *trial, h *host.Host, c conn.Conn) {
	if t.peer == nil && !r.opts.Echo {
		r.add(OK, "data", t.at("the link works; whether packets of full size pass was not tested, "+
			"as another program listens there"),
			"run 'gosmc doctor --serve' there, and this command with its port; or, with a server that "+
				"sends back what it gets, 'gosmc doctor --echo'")
		return
	}
	const few, many = 64, 1 << 20
	if err := echo(c, few); err != nil {
		r.add(Fail, "data", t.at("the link was made, and no byte came back over it: "+
			errorText(err)),
			"gosmc dump --problems, on both hosts")
		return
	}
	mtu := 0
	for _, g := range h.Status().Groups {
		for _, l := range g.Links {
			mtu = max(mtu, l.MTU)
		}
	}
	if err := echo(c, many); err != nil { // rule: cmd/gosmc TestDoctorBetween
		r.add(Fail, "mtu", t.at(fmt.Sprintf("small RoCE packets pass, and those with %d bytes of "+
			"payload do not: the MTU of the path is smaller than those of the interfaces (%s)", mtu,
			errorText(err))),
			"give the interfaces of both hosts the MTU of the path: ip link set DEVICE mtu BYTES")
		return
	}
	for _, g := range h.Status().Groups {
		for _, l := range g.Links {
			trip := time.Duration(l.RoundTrip).Round(time.Microsecond)
			r.add(OK, "data", t.at(fmt.Sprintf("%s went there and back; RoCE MTU %d, round trip "+
				"%v, %d of %d packets sent again", text.Bytes(many), l.MTU, trip, l.Retransmitted,
				l.SentPackets)), "")
		}
	}
}

// echoTimeout bounds an echo: a link that loses all large packets is given up before.
const echoTimeout = 30 * time.Second

// echo sends bytes, and compares those that come back.
func echo(c conn.Conn, size int) error {
	c.SetDeadline(time.Now().Add(echoTimeout))
	out := make([]byte, size)
	rand.Read(out)
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(out)
		sent <- err
	}()
	in := make([]byte, size)
	_, err := io.ReadFull(c, in)
	if err != nil {
		c.SetDeadline(time.Unix(1, 0)) // ends the write, too
	}
	if e := <-sent; e != nil && err == nil {
		err = e
	}
	if err == nil && !bytes.Equal(in, out) {
		err = errors.New("other bytes came back than were sent")
	}
	return err
}

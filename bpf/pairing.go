package bpf

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/pairing"
)

// A Pairing reads which sockets the kernel has paired, and says where in each network namespace the
// agent is reached. It is safe for use by several goroutines, but for Close, which comes last.
type Pairing struct {
	pairs, names, counters, reports *ebpf.Map
}

// newPairing takes its maps from those of the programs, and sees to it that the kernel has a
// secret.
func newPairing(maps map[string]*ebpf.Map) (p *Pairing, err error) {
	var key [16]byte
	secret := maps["secret"]
	if err := secret.Lookup(uint32(0), &key); err != nil {
		return nil, fmt.Errorf("bpf: secret: %w", err)
	}
	if key == ([16]byte{}) { // not one of an earlier agent, whose connections are being made
		rand.Read(key[:])
		if err := secret.Put(uint32(0), key); err != nil {
			return nil, fmt.Errorf("bpf: secret: %w", err)
		}
	}
	p = &Pairing{}
	for name, m := range p.maps() {
		if *m, err = maps[name].Clone(); err != nil {
			p.Close()
			return nil, fmt.Errorf("bpf: %s: %w", name, err)
		}
	}
	return p, nil
}

func (p *Pairing) maps() map[string]**ebpf.Map {
	return map[string]**ebpf.Map{
		"pairs": &p.pairs, "names": &p.names, "pair_counters": &p.counters, "reports": &p.reports,
	}
}

// OpenPairing opens the maps that [Attach] has pinned, in another process. It is no proof that the
// programs are attached.
func OpenPairing(pins string) (p *Pairing, err error) {
	p = &Pairing{}
	for name, m := range p.maps() {
		if *m, err = ebpf.LoadPinnedMap(filepath.Join(pins, name), nil); err != nil {
			p.Close()
			if errors.Is(err, os.ErrNotExist) {
				return nil, pairing.ErrNoService
			}
			return nil, explain("pinned map "+name, err)
		}
	}
	return p, nil
}

// Pairing returns what reads pairs, which is closed with o. The error says why sockets are not
// paired.
func (o *Option) Pairing() (*Pairing, error) {
	if o.noPair != nil {
		return nil, o.noPair
	}
	return o.pairing, nil
}

// A Socket is a TCP socket that is an end of a connection.
type Socket struct {
	Tokens pairing.Tokens
	Cookie uint64 // identifies the socket on this machine, as long as it runs
	Netns  uint64 // the cookie of its network namespace
}

// An UnpairedError says why a socket has no tokens.
type UnpairedError struct{ Cause pairing.Cause }

// Error implements [error].
func (e *UnpairedError) Error() string { return e.Cause.String() }

// Errors of sockets that are no proof of a connection.
var (
	ErrNotTCP     = errors.New("it is no TCP socket")
	ErrListens    = errors.New("the socket listens")
	ErrNotAlive   = errors.New("the connection has ended, or is not established")
	ErrSameSocket = errors.New("it is the same socket twice")
	ErrNoPair     = errors.New("the two sockets are not the ends of one connection")
)

// Read returns the tokens of a socket that a process has passed, by the kernel's word. fd stays
// open. It is an error if fd is no TCP socket, listens, or is no living connection, or, of the type
// [*UnpairedError], if the socket has no tokens.
func (p *Pairing) Read(fd int) (s Socket, err error) {
	if err := checkSocket(fd); err != nil {
		return s, err
	}
	if s.Cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE); err == nil {
		s.Netns, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	}
	if err != nil {
		return s, fmt.Errorf("socket: %w", err)
	}
	var value [pairing.ValueLen]byte
	switch err := p.pairs.Lookup(int32(fd), &value); {
	case errors.Is(err, ebpf.ErrKeyNotExist):
		return s, &UnpairedError{pairing.NotAsked}
	case err != nil:
		return s, fmt.Errorf("bpf: tokens: %w", err)
	}
	tokens, cause, err := pairing.Decode(value[:])
	if err != nil {
		return s, err
	}
	if cause != pairing.Paired { // rule: TestSelfConnectTokens
		return s, &UnpairedError{cause}
	}
	s.Tokens = tokens
	return s, nil
}

// checkSocket checks that fd is a TCP socket that is connected.
func checkSocket(fd int) error {
	for _, must := range []struct {
		option, value int
		err           error
	}{
		{unix.SO_PROTOCOL, unix.IPPROTO_TCP, ErrNotTCP}, // also not one of multipath TCP
		{unix.SO_TYPE, unix.SOCK_STREAM, ErrNotTCP},     // not a raw one
		{unix.SO_ACCEPTCONN, 0, ErrListens},
	} {
		if value, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, must.option); err != nil {
			return ErrNotTCP
		} else if value != must.value { // rule: TestRequestErrors
			return must.err
		}
	}
	info, err := unix.GetsockoptTCPInfo(fd, unix.SOL_TCP, unix.TCP_INFO)
	if err != nil {
		return ErrNotTCP
	}
	if !isAlive(info.State) { // rule: TestRequestErrors
		return ErrNotAlive
	}
	return nil
}

// isAlive says whether bytes can still go in a direction of a connection whose socket is open: in
// its states from ESTABLISHED on, before both ends have sent their FIN.
func isAlive(state uint8) bool {
	switch state {
	case tcpEstablished, tcpFinWait1, tcpFinWait2, tcpCloseWait:
		return true
	}
	return false
}

// States of TCP: Linux include/net/tcp_states.h.
const (
	tcpEstablished = 1
	tcpFinWait1    = 4
	tcpFinWait2    = 5
	tcpCloseWait   = 8
)

// Join reads two sockets and checks that they are the two ends of one connection: that each has as
// its peer's the token that the other has as its own, that both are alive, and that they are not
// one. The sockets are of this kernel, as both are here.
func (p *Pairing) Join(a, b int) error {
	var s [2]Socket
	for i, fd := range []int{a, b} {
		var err error
		if s[i], err = p.Read(fd); err != nil {
			return err
		}
	}
	return s[0].Joins(s[1])
}

// Joins checks that two sockets that were read are the ends of one connection. They must still be
// alive, so whoever read one of them some time ago reads it again.
func (s Socket) Joins(other Socket) error {
	if s.Cookie == other.Cookie { // rule: TestRequestErrors
		return ErrSameSocket
	}
	if !pairing.Match(s.Tokens, other.Tokens) { // rule: TestRequestErrors
		return ErrNoPair
	}
	return nil
}

// SetName says that the agent is reached at the abstract Unix socket name in the network namespace
// with the cookie. name is without the zero byte in front, and has 1 to [pairing.MaxName] bytes.
func (p *Pairing) SetName(netns uint64, name string) error {
	if len(name) == 0 || len(name) > pairing.MaxName {
		return fmt.Errorf("bpf: name %q: %d bytes, want 1 to %d", name, len(name), pairing.MaxName)
	}
	var value [4 + pairing.MaxName]byte
	binary.NativeEndian.PutUint32(value[:], uint32(len(name)))
	copy(value[4:], name)
	if err := p.names.Put(netns, value); err != nil {
		return fmt.Errorf("bpf: name: %w", err)
	}
	return nil
}

// RemoveName takes back what SetName said. It is no error if nothing was.
func (p *Pairing) RemoveName(netns uint64) error {
	if err := p.names.Delete(netns); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("bpf: name: %w", err)
	}
	return nil
}

// Names returns the cookies of the network namespaces that have a name: also those of an agent
// before this one, which a new agent removes or replaces.
func (p *Pairing) Names() (list []uint64, err error) {
	var netns uint64
	var value [4 + pairing.MaxName]byte
	it := p.names.Iterate()
	for it.Next(&netns, &value) {
		list = append(list, netns)
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("bpf: names: %w", err)
	}
	return list, nil
}

// A Report says that a process asks for tokens in a network namespace that has no name.
type Report struct {
	Netns   uint64 // its cookie
	Process uint32 // in the machine's numbers; 0 where the kernel does not tell, before Linux 6.10
	User    uint32
}

// Reports reads the reports, of which there is one per second for each network namespace, and one
// per millisecond for each user, as long as processes ask there. What does not fit into 64 KiB
// until it is read is lost.
type Reports struct{ reader *ringbuf.Reader }

// Reports starts to read reports. One process at a time can do so, one time.
func (p *Pairing) Reports() (*Reports, error) {
	r, err := ringbuf.NewReader(p.reports)
	if err != nil {
		return nil, explain("reports", err)
	}
	return &Reports{r}, nil
}

// Next waits for the next report. The error is [os.ErrClosed] after Close.
func (r *Reports) Next() (Report, error) {
	for {
		record, err := r.reader.Read()
		if err != nil {
			return Report{}, err
		}
		if b, native := record.RawSample, binary.NativeEndian; len(b) >= 16 {
			return Report{Netns: native.Uint64(b), Process: native.Uint32(b[8:]),
				User: native.Uint32(b[12:])}, nil
		}
	}
}

// Close ends Next.
func (r *Reports) Close() error { return r.reader.Close() }

// PairingCounters are the counts of the programs since they were first attached.
type PairingCounters struct {
	SYNSent        uint64 `json:"syn_sent"`    // with a token
	SYNACKSent     uint64 `json:"synack_sent"` // with a token
	ClientPaired   uint64 `json:"client_paired"`
	ClientUnpaired uint64 `json:"client_unpaired"`
	ServerPaired   uint64 `json:"server_paired"`
	ServerUnpaired uint64 `json:"server_unpaired"`
	Reports        uint64 `json:"reports"` // of network namespaces
	ReportsLost    uint64 `json:"reports_lost"`
}

// Counters reads the counters.
func (p *Pairing) Counters() (c PairingCounters, err error) {
	err = sumCounters(p.counters, // in the order of option.bpf.c, enum pairing_counter
		&c.SYNSent, &c.SYNACKSent, &c.ClientPaired, &c.ClientUnpaired, &c.ServerPaired, &c.ServerUnpaired,
		&c.Reports, &c.ReportsLost)
	return c, err
}

// Close lets go of the maps. What they have stays.
func (p *Pairing) Close() {
	for _, m := range p.maps() {
		if *m != nil {
			(*m).Close()
		}
	}
}

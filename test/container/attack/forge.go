package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/introduce"
	"github.com/gosmc/smc/internal/pairing"
)

// A forger sends segments of a host that does not exist, from 10.9.9.9, to a server of its own on 127.0.0.1. Its network
// sends the answers to nobody, and a socket of packets sees them.
type forger struct {
	raw, packets int
	port         uint16 // of the next connection
	server       uint16
}

var ghost, home = [4]byte{10, 9, 9, 9}, [4]byte{127, 0, 0, 1}

func newForger(server int) (*forger, error) {
	f := &forger{port: 20000, server: uint16(server)}
	var err error
	if f.raw, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW); err != nil {
		return nil, fmt.Errorf("raw socket: %w", err)
	}
	// SOCK_DGRAM: packets without a header of the link. The protocol's bytes are those of the network.
	if f.packets, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0x0008); err != nil {
		return nil, fmt.Errorf("socket of packets: %w", err)
	}
	return f, unix.SetsockoptTimeval(f.packets, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10})
}

// Flags of TCP.
const (
	flagSYN = 0x02
	flagACK = 0x10
)

// send sends a segment. RFC 9293 §3.1, RFC 791 §3.1.
func (f *forger) send(seq, ack uint32, flags byte, options []byte) error {
	tcp := make([]byte, 20, 60)
	binary.BigEndian.PutUint16(tcp, f.port)
	binary.BigEndian.PutUint16(tcp[2:], f.server)
	binary.BigEndian.PutUint32(tcp[4:], seq)
	binary.BigEndian.PutUint32(tcp[8:], ack)
	tcp[12], tcp[13] = byte(5+len(options)/4)<<4, flags
	binary.BigEndian.PutUint16(tcp[14:], 65535)
	tcp = append(tcp, options...)
	pseudo := append(append(append([]byte{}, ghost[:]...), home[:]...), 0, unix.IPPROTO_TCP, 0, byte(len(tcp)))
	binary.BigEndian.PutUint16(tcp[16:], checksum(append(pseudo, tcp...)))
	ip := []byte{0x45, 0, 0, byte(20 + len(tcp)), 0, 0, 0, 0, 64, unix.IPPROTO_TCP, 0, 0}
	ip = append(append(ip, ghost[:]...), home[:]...)
	return unix.Sendto(f.raw, append(ip, tcp...), 0, &unix.SockaddrInet4{Addr: home})
}

func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// answer waits for the SYN-ACK of the next connection, and returns its sequence number and its token, 0 for none.
func (f *forger) answer() (seq uint32, token uint64, err error) {
	for b := make([]byte, 65536); ; {
		n, _, err := unix.Recvfrom(f.packets, b, 0)
		if err != nil {
			return 0, 0, fmt.Errorf("no answer to a SYN: %w", err)
		}
		p := b[:n]
		if len(p) < 40 || p[0] != 0x45 || [4]byte(p[16:20]) != ghost || binary.BigEndian.Uint16(p[22:]) != f.port || p[33] != flagSYN|flagACK {
			continue
		}
		seq = binary.BigEndian.Uint32(p[24:])
		for o := p[40:min(len(p), 20+int(p[32]>>4)*4)]; len(o) > 1; {
			switch {
			case o[0] == 1:
				o = o[1:]
				continue
			case o[0] == 0, o[1] < 2, int(o[1]) > len(o):
				return seq, 0, nil
			case o[0] == 254 && o[1] == pairing.OptionLen && string(o[2:6]) == pairing.Magic:
				return seq, binary.NativeEndian.Uint64(o[6:]), nil
			}
			o = o[o[1]:]
		}
		return seq, 0, nil
	}
}

// connect connects to the server with a token on the SYN. The server's socket and its tokens are returned.
func (f *forger) connect(l net.Listener, token uint64) (fd int, got pairing.Tokens, paired bool, err error) {
	f.port++
	option := append([]byte{254, pairing.OptionLen}, pairing.Magic...)
	option = append(binary.NativeEndian.AppendUint64(option, token), 1, 1)
	if err := f.send(1000, 0, flagSYN, option); err != nil {
		return -1, got, false, err
	}
	seq, answered, err := f.answer()
	if err != nil {
		return -1, got, false, err
	}
	if err := f.send(1001, seq+1, flagACK, nil); err != nil {
		return -1, got, false, err
	}
	s, err := l.Accept()
	if err != nil {
		return -1, got, false, err
	}
	if fd, err = descriptor(s.(*net.TCPConn)); err != nil {
		return -1, got, false, err
	}
	s.Close()
	got, cause, err := pairing.TokensOf(uintptr(fd))
	if err != nil && cause == pairing.Paired {
		return fd, got, false, err
	}
	if (cause == pairing.Paired) != (answered != 0) {
		fmt.Printf("beaten: the SYN-ACK has the token %x, and the socket is %q\n", answered, cause)
	}
	return fd, got, cause == pairing.Paired, nil
}

// forge replays the tokens of connections in this network, and invents others. The agent may introduce none of the sockets that
// come of them as the other end of one of these connections.
func forge() error {
	client, err := dial()
	if err != nil {
		return err
	}
	l, err := (&net.ListenConfig{Control: ask}).Listen(context.Background(), "tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	f, err := newForger(l.Addr().(*net.TCPAddr).Port)
	if err != nil {
		return err
	}
	// A victim, the tokens of which the attacker knows: both ends wait for their introduction.
	victims, err := (&net.ListenConfig{Control: ask}).Listen(context.Background(), "tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("attacking")
	replayed, invented := 0, 0
	for round := 0; ; round++ {
		v, err := (&net.Dialer{Control: ask}).Dial("tcp", victims.Addr().String())
		if err != nil {
			return err
		}
		s, err := victims.Accept()
		if err != nil {
			return err
		}
		victim, err := descriptor(v.(*net.TCPConn))
		if err != nil {
			return err
		}
		tokens, cause, err := pairing.TokensOf(uintptr(victim))
		if err != nil || cause != pairing.Paired {
			return fmt.Errorf("the victim is %q: %v", cause, err)
		}
		waiting, err := client.Ask(introduce.RoleClient, uintptr(victim), introduce.MaxWait)
		if err != nil {
			return err
		}
		for i, token := range []uint64{tokens.Mine, tokens.Theirs, tokens.Mine ^ 1, rand.Uint64()} {
			fd, got, paired, err := f.connect(l, token)
			if err != nil {
				return err
			}
			switch {
			case paired && i < 2:
				replayed++
			case paired: // one in 65,536 guesses is right
				invented++
			}
			if paired && (pairing.Match(got, tokens) || got.Mine == tokens.Theirs) {
				fmt.Printf("beaten: %x is an end of the connection %x\n", got, tokens)
			}
			q, err := client.Ask(introduce.RoleServer, uintptr(fd), 10*time.Millisecond)
			if err != nil {
				return err
			}
			if a := <-q.Answer(); a.Socket >= 0 {
				fmt.Printf("beaten: introduced by the token %x\n", token)
			}
			unix.Close(fd)
		}
		waiting.Withdraw()
		unix.Close(victim)
		if err := errors.Join(v.Close(), s.Close()); err != nil {
			return err
		}
		if invented > 1 {
			fmt.Printf("beaten: %d invented tokens were answered\n", invented)
		}
		fmt.Printf("round %d: %d replayed and %d invented tokens were answered\n", round, replayed, invented)
	}
}

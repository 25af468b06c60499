package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/wire"
)

const verbspeerPort = 7001

// The arguments and answers of guest/verbspeer.c, numbers of infiniband/verbs.h.
const (
	flagSignaled  = 1
	flagSolicited = 2
	flagImm       = 4

	accessWrite = 2 // IBV_ACCESS_REMOTE_WRITE
	stateError  = 6 // IBV_QPS_ERR

	wcSuccess         = 0  // IBV_WC_SUCCESS
	wcLocalOperation  = 2  // IBV_WC_LOC_QP_OP_ERR
	wcFlushed         = 5  // IBV_WC_WR_FLUSH_ERR
	wcRemoteInvalid   = 9  // IBV_WC_REM_INV_REQ_ERR
	wcRemoteAccess    = 10 // IBV_WC_REM_ACCESS_ERR
	wcRemoteOperation = 11 // IBV_WC_REM_OP_ERR
	wcRetryExceeded   = 12 // IBV_WC_RETRY_EXC_ERR
	wcRNRExceeded     = 13 // IBV_WC_RNR_RETRY_EXC_ERR
	wcOpSend          = 0
	wcOpWrite         = 1
	wcOpReceived      = 128
	wcOpReceivedWrite = 129 // IBV_WC_RECV_RDMA_WITH_IMM
)

// A peer is a verbspeer that runs in the guest: its queue pair and its memory region.
type peer struct {
	remote
	addr uint64
	rkey wire.RKey
	size int // of the region

	conn  net.Conn
	in    *bufio.Scanner
	close func() error // ends the program
	want  []byte       // the expected content of the region
}

// psnBeforeWrap is where both sides start to count packets: soon they reach 2^24 and go on with 0.
const psnBeforeWrap wire.PSN = 1<<24 - 100

// A timing is the timer and the retry counts that both sides of a case set for their queue pairs.
type timing struct{ timeout, retries, rnrRetries uint8 }

func (t timing) rts() rdma.RTS {
	return rdma.RTS{Timeout: t.timeout, RetryCount: t.retries, RNRRetry: t.rnrRetries}
}

// timing returns the timing of a case that provokes no errors. If nothing is lost, no timer is to
// fire. If packets are lost, the last one of a message may be among them, and only the timer can
// repair that.
func (l *lab) timing() timing {
	if l.loss {
		return timing{lossTimeout, retryCount, rnrRetry}
	}
	return timing{ackTimeout, retryCount, rnrRetry}
}

// startPeer starts verbspeer, opens its queue pair and connects it with the queue pair of e. access
// is the access flags of its queue pair: accessWrite or none.
func (l *lab) startPeer(ctx context.Context, e *endpoint, size, access int, t timing) (*peer, error) {
	script := fmt.Sprintf("exec /bin/verbspeer %d %d", verbspeerPort, int(caseTimeout.Seconds()))
	conn, program, err := l.startServer(ctx, script, verbspeerPort)
	if err != nil {
		return nil, err
	}
	p := &peer{
		remote: remote{gid: l.guestGID(), psn: psnBeforeWrap},
		size:   size, conn: conn, in: bufio.NewScanner(conn), want: make([]byte, size),
	}
	p.close = sync.OnceValue(func() error {
		conn.Close()
		_, err := program()
		return err
	})
	l.atEnd(p.close)
	var qpn, rkey uint32
	open := fmt.Sprintf("open rxe0 %s %d %d %d %d", hexGID(p.gid), size, queueDepth, queueDepth, access)
	if err := p.ask(open, &qpn, &p.addr, &rkey); err != nil {
		return nil, err
	}
	p.qpn, p.rkey = wire.QPN(qpn), wire.RKey(rkey)
	err = p.ask(fmt.Sprintf("connect %d %s %d %d %d %d %d %d %d", uint32(e.qp.QPN()), hexGID(e.dev.GID()), l.mtu().Bytes(),
		uint32(e.psn), uint32(p.psn), t.timeout, t.retries, t.rnrRetries, minRNRTimer))
	return p, err
}

// openPair makes an endpoint and a peer and connects them. Each has a region of size bytes, to which
// the other one may write.
func (l *lab) openPair(ctx context.Context, dev *rdma.Device, size int, t timing) (*endpoint, *peer, error) {
	return l.openPairFor(ctx, dev, size, rdma.LocalWrite|rdma.RemoteWrite, accessWrite, t)
}

// openPairFor is openPair with the access that our and the guest's queue pair allow.
func (l *lab) openPairFor(
	ctx context.Context, dev *rdma.Device, size int, ours rdma.Access, guest int, t timing,
) (*endpoint, *peer, error) {
	e, err := l.openEndpoint(dev, size, ours)
	if err != nil {
		return nil, nil, err
	}
	e.psn = psnBeforeWrap
	p, err := l.startPeer(ctx, e, size, guest, t)
	if err != nil {
		return nil, nil, err
	}
	return e, p, e.connect(p.remote, l.mtu(), t.rts())
}

// tell sends lines without waiting for their answers, which answers takes.
func (p *peer) tell(lines ...string) error {
	_, err := p.conn.Write([]byte(strings.Join(lines, "\n") + "\n"))
	return err
}

// answer reads one answer into results.
func (p *peer) answer(results ...any) error {
	if !p.in.Scan() {
		return errors.Join(errors.New("verbspeer is gone"), p.in.Err())
	}
	words, ok := strings.CutPrefix(p.in.Text(), "ok")
	if !ok {
		return fmt.Errorf("verbspeer: %s", p.in.Text())
	}
	if len(results) == 0 {
		return nil
	}
	if _, err := fmt.Sscan(words, results...); err != nil {
		return fmt.Errorf("verbspeer answered %q: %w", p.in.Text(), err)
	}
	return nil
}

// answers reads the answers to n lines that have no results.
func (p *peer) answers(n int) error {
	for range n {
		if err := p.answer(); err != nil {
			return err
		}
	}
	return nil
}

// ask sends a line and reads its answer.
func (p *peer) ask(line string, results ...any) error {
	if err := p.tell(line); err != nil {
		return err
	}
	if err := p.answer(results...); err != nil {
		return fmt.Errorf("%s: %w", line, err)
	}
	return nil
}

// all sends lines that have no results and reads the answers. There may be any number: the lines
// are few enough for the buffers on the way.
func (p *peer) all(lines ...string) error {
	if err := p.tell(lines...); err != nil {
		return err
	}
	return p.answers(len(lines))
}

// A span is a piece of a region.
type span struct{ offset, length int }

func spans(s []span) string {
	var pair [2]span
	copy(pair[:], s)
	return fmt.Sprintf("%d %d %d %d", pair[0].offset, pair[0].length, pair[1].offset, pair[1].length)
}

func recvLine(id uint64, local ...span) string {
	return fmt.Sprintf("recv %d %s", id, spans(local))
}

func sendLine(id uint64, flags int, imm uint32, local ...span) string {
	return fmt.Sprintf("send %d %d %d %s", id, flags, imm, spans(local))
}

func writeLine(id uint64, flags int, imm uint32, addr uint64, rkey wire.RKey, local ...span) string {
	return fmt.Sprintf("write %d %d %d %d %d %s", id, flags, imm, addr, uint32(rkey), spans(local))
}

// A guestCompletion is a struct ibv_wc of the guest.
type guestCompletion struct {
	id     uint64
	status int
	op     int
	length int
	imm    uint32
}

// await returns the guest's next completion.
func (p *peer) await(ctx context.Context) (c guestCompletion, err error) {
	for ctx.Err() == nil {
		var first string
		if err := p.ask(fmt.Sprintf("poll %d", time.Second.Milliseconds()), &first); err != nil {
			return c, err
		}
		if first == "none" {
			continue
		}
		_, err := fmt.Sscan(p.in.Text(), new(string), &c.id, &c.status, &c.op, &c.length, &c.imm)
		return c, err
	}
	return c, fmt.Errorf("the guest has no completion: %w", context.Cause(ctx))
}

// expect takes the guest's next completion, which has to be that one.
func (p *peer) expect(ctx context.Context, want guestCompletion) error {
	got, err := p.await(ctx)
	if err == nil && got != want {
		err = fmt.Errorf("the guest's completion: %+v, want %+v", got, want)
	}
	return err
}

// fill fills the guest's region.
func (p *peer) fill(seed uint64) error {
	fill(p.want, seed)
	return p.ask(fmt.Sprintf("fill 0 %d %d", p.size, seed))
}

// check compares the whole of the guest's region with the expected content.
func (p *peer) check() error {
	var got uint64
	if err := p.ask(fmt.Sprintf("sum 0 %d", p.size), &got); err != nil {
		return err
	}
	if got == sum(p.want) {
		return nil
	}
	// Where is it? Halve the wrong range until a byte is left.
	from, to := 0, p.size
	for to-from > 1 {
		middle := (from + to) / 2
		if err := p.ask(fmt.Sprintf("sum %d %d", from, middle-from), &got); err != nil {
			return err
		}
		if got != sum(p.want[from:middle]) {
			to = middle
		} else {
			from = middle
		}
	}
	return fmt.Errorf("the guest's region has a wrong byte at offset %d", from)
}

// sum is the checksum of the command of that name: FNV-1a, 64 bits.
func sum(b []byte) uint64 {
	h := fnv.New64a()
	h.Write(b)
	return h.Sum64()
}

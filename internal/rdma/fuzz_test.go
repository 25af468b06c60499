package rdma

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

// Inputs of the fuzz targets are programs, so that mutations get past the first check. A step is a
// byte that names the action, and its arguments.
const (
	fuzzRaw      = iota // length (2), a packet as it is, without ICRC
	fuzzPacket          // opcode, PSN from the expected one, payload length (2), address from the region (2), length (2), flags
	fuzzReply           // PSN from una, syndrome
	fuzzPost            // operation, length (2)
	fuzzRecv            // length (2)
	fuzzTransmit        // packets
	fuzzTime            // microseconds (2)
	fuzzDeregister
	fuzzSteps
)

var fuzzMem = randomBytes(testGuard+testSize+testGuard, 3)

// A fuzzer runs a program on a queue pair in RTS, and checks the results.
type fuzzer struct {
	*solo
	sends, recvs []uint64 // posted, not complete
	ids          uint64
	gone         bool // the region is
	raw          []byte
}

func newFuzzer(t testing.TB) *fuzzer {
	f := &fuzzer{solo: soloOf(t, slices.Clone(fuzzMem))}
	delete(f.pd.regions, f.mr.rkey)
	f.mr.rkey, f.mr.addr = 0x11223344, 1<<40 // the same each time
	f.pd.regions[f.mr.rkey] = f.mr
	f.keepers = new(keeperPool)
	f.to(StateRTS)
	return f
}

// run plays a program. The part before the region and the one after it may not change in any case.
func (f *fuzzer) run(program []byte) {
	program = slices.Clip(program) // the bytes behind it are not ours to append to
	next := func(n int) []byte {
		if n > len(program) {
			program = append(program, make([]byte, n)...)
		}
		b := program[:n]
		program = program[n:]
		return b
	}
	for steps := 0; len(program) > 0 && steps < 500; steps++ {
		switch next(1)[0] % fuzzSteps {
		case fuzzRaw:
			n := int(binary.BigEndian.Uint16(next(2))) % 1024
			f.raw = append(append(f.raw[:0], next(min(n, len(program)))...), 0, 0, 0, 0)
			var p roce.Packet
			if p.Parse(f.raw) == nil {
				f.receive(f.now, &p)
			}
		case fuzzPacket:
			a := next(9)
			n := int(binary.BigEndian.Uint16(a[2:]))
			p := roce.Packet{
				BTH: roce.BTH{Opcode: roce.Opcode(a[0] & 0x1f), PSN: f.expected.Add(int(int8(a[1]))), AckReq: a[8]&1 != 0, Solicited: a[8]&2 != 0},
				RETH: roce.RETH{
					VA: f.mr.addr + uint64(int64(int16(binary.BigEndian.Uint16(a[4:])))), RKey: 0x11223344,
					Length: uint32(binary.BigEndian.Uint16(a[6:])),
				},
				AETH: roce.AETH{Syndrome: roce.Syndrome(a[8])}, Imm: 77,
				Payload: f.was[:min(n, 600)],
			}
			if a[8]&4 != 0 {
				p.RETH.RKey++
			}
			if a[8]&8 != 0 {
				p.RETH.Length = -p.RETH.Length
			}
			if a[8]&16 != 0 {
				p.RETH.VA = -p.RETH.VA
			}
			if p.Opcode.Known() {
				f.take(p)
			}
		case fuzzReply:
			a := next(2)
			f.take(roce.Packet{BTH: roce.BTH{Opcode: roce.Acknowledge, PSN: f.una.Add(int(int8(a[0])))}, AETH: roce.AETH{Syndrome: roce.Syndrome(a[1])}})
		case fuzzPost:
			a := next(3)
			f.ids++
			wr := SendWR{ID: f.ids, Op: Op(1 + a[0]%4), Signaled: true, Remote: 5, Local: [2]SGE{f.sge(0, int(binary.BigEndian.Uint16(a[1:])))}}
			if f.postSend(&wr) == nil {
				f.sends = append(f.sends, wr.ID)
			}
		case fuzzRecv:
			f.ids++
			n := int(binary.BigEndian.Uint16(next(2)))
			if f.postRecv(&RecvWR{ID: f.ids, Local: [2]SGE{f.sge(n/2, n/2), f.sge(n, 7)}}) == nil {
				f.recvs = append(f.recvs, f.ids)
			}
		case fuzzTransmit:
			for range next(1)[0] {
				if _, ok := f.nextPacket(); !ok {
					break
				}
			}
		case fuzzTime:
			f.now += time.Duration(binary.BigEndian.Uint16(next(2))) * time.Microsecond
			if at := f.deadline(); at != 0 && f.now >= at {
				f.advance(f.now)
			}
		case fuzzDeregister:
			if !f.gone && len(program) > 0 && next(1)[0] == 0x77 {
				f.gone = true
				f.mr.Deregister()
				copy(f.was, f.mem) // nothing may change from here on
			}
		}
		f.look()
	}
}

// look fails if something has happened that must not.
func (f *fuzzer) look() {
	f.t.Helper()
	if f.gone {
		f.untouched()
	} else {
		f.only(0, testSize)
	}
	for _, c := range f.completions() {
		list := &f.sends
		if c.Op.IsRecv() {
			list = &f.recvs
		}
		if len(*list) == 0 || (*list)[0] != c.ID {
			f.t.Fatalf("completion %+v, the oldest of %v is due", c, *list)
		}
		*list = (*list)[1:]
		if c.Status != StatusOK && f.state != StateError {
			f.t.Fatalf("completion %+v in %v", c, f.state)
		}
	}
	if f.state == StateError {
		if len(f.sends)+len(f.recvs) > 0 || f.deadline() != 0 {
			f.t.Fatalf("in ERR: sends %v and receives %v are not complete, deadline %v", f.sends, f.recvs, f.deadline())
		}
		return
	}
	if f.state != StateRTS {
		f.t.Fatalf("state %v", f.state)
	}
	if f.next.Sub(f.una) < 0 || f.max.Sub(f.next) < 0 || f.posted.Sub(f.max) < 0 || f.next.Sub(f.una) > maxWindow {
		f.t.Fatalf("una %v, next %v, max %v, posted %v", f.una, f.next, f.max, f.posted)
	}
	if int(f.tail-f.head) != len(f.sends) || int(f.rqTail-f.rqHead) != len(f.recvs) {
		f.t.Fatalf("%d sends, %d receives in the queues; %v, %v posted", f.tail-f.head, f.rqTail-f.rqHead, f.sends, f.recvs)
	}
}

// finish plays a sound peer, which acknowledges all that comes.
func (f *fuzzer) finish() {
	f.t.Helper()
	for range 3000 {
		if f.state != StateRTS || len(f.sends) == 0 {
			return
		}
		for _, p := range f.drain() {
			if p.AckReq && p.Opcode != roce.Acknowledge {
				f.take(roce.Packet{BTH: roce.BTH{Opcode: roce.Acknowledge, PSN: p.PSN}, AETH: roce.AETH{Syndrome: roce.AckUnlimited}})
			}
		}
		f.look()
		if at := f.deadline(); at != 0 {
			f.now = max(f.now, at)
			f.advance(f.now)
		}
	}
	f.t.Fatalf("sends %v never complete", f.sends)
}

// exchange is the packets of one side of a real exchange, as a program.
func exchange(tb testing.TB, replies bool) (program []byte) {
	a, b := newFuzzer(tb), newFuzzer(tb)
	for _, f := range []*fuzzer{a, b} { // so that each is the other's peer
		f.reset()
		f.must(f.init(LocalWrite | RemoteWrite))
	}
	a.must(a.readyToReceive(RTR{RemoteQPN: testQPN, PathMTU: wire.MTU256, RecvPSN: testRecvPSN}))
	b.must(b.readyToReceive(RTR{RemoteQPN: testQPN, PathMTU: wire.MTU256, RecvPSN: testSendPSN}))
	a.must(a.readyToSend(RTS{SendPSN: testSendPSN}))
	b.must(b.readyToSend(RTS{SendPSN: testRecvPSN}))
	program = append(program, fuzzRecv, 2, 0, fuzzRecv, 3, 0)
	to, from := a, b // a is the one that is fuzzed
	if replies {
		program = append(program, fuzzPost, 2, 3, 0, fuzzPost, 0, 0, 44, fuzzTransmit, 100)
		to, from = b, a
	}
	to.postReceive(1, 0, 1000)
	to.postReceive(2, 0, 1000)
	from.must(from.postSend(&SendWR{Op: OpWrite, Local: [2]SGE{a.sge(0, 0), from.sge(5, 0x300)}, Remote: to.mr.addr, RKey: to.mr.rkey}))
	from.must(from.postSend(&SendWR{Op: OpSend, Local: [2]SGE{from.sge(0, 44)}}))
	from.must(from.postSend(&SendWR{Op: OpWriteImm, Local: [2]SGE{from.sge(0, 300)}, Remote: to.mr.addr, RKey: to.mr.rkey}))
	for {
		room := make([]byte, 1024)
		n := from.transmit(from.now, room)
		if n == 0 {
			return program
		}
		var p roce.Packet
		if err := p.Parse(room[:n+4]); err != nil {
			tb.Fatal(err)
		}
		to.receive(to.now, &p)
		if !replies {
			program = append(append(program, fuzzRaw, byte(n>>8), byte(n)), room[:n]...)
		} else if n := to.transmit(to.now, room); n > 0 {
			program = append(append(program, fuzzRaw, byte(n>>8), byte(n)), room[:n]...)
		}
	}
}

// FuzzResponder gives any packets to a queue pair with receives. Nothing outside of its region may
// be written, nothing after the region is gone, and nothing may complete that was not posted.
func FuzzResponder(f *testing.F) {
	f.Add(exchange(f, false))
	f.Add([]byte{fuzzRecv, 0, 100, fuzzPacket, 4, 0, 0, 90, 0, 0, 0, 90, 1, fuzzTransmit, 3, fuzzPacket, 4, 0, 0, 90, 0, 0, 0, 90, 1})
	f.Add([]byte{fuzzPacket, 6, 0, 1, 0, 0, 0, 3, 0, 1, fuzzPacket, 7, 1, 1, 0, 0, 0, 3, 0, 1, fuzzPacket, 7, 0, 1, 0, 0, 0, 3, 0, 1, fuzzPacket, 8, 0, 1, 0, 0, 0, 3, 0, 1})
	f.Add([]byte{fuzzPacket, 10, 2, 0, 8, 0xff, 0xf8, 0, 8, 16, fuzzPacket, 10, 0, 0, 8, 0xff, 0xf8, 0, 8, 16})
	f.Add([]byte{fuzzRecv, 2, 0, fuzzPacket, 0, 0, 1, 0, 0, 0, 0, 0, 0, fuzzDeregister, 0x77, fuzzPacket, 2, 0, 0, 9, 0, 0, 0, 0, 0})
	smctest.Fuzz(f, func(t *testing.T, program []byte) {
		z := newFuzzer(t)
		z.run(program)
		z.finish()
	})
}

// FuzzRequester gives any acknowledgements to a queue pair with work. Work completes in order and
// once; and when the peer comes to its senses all of it does.
func FuzzRequester(f *testing.F) {
	f.Add(exchange(f, true))
	f.Add([]byte{fuzzPost, 0, 4, 0, fuzzTransmit, 9, fuzzReply, 1, 0x60, fuzzTransmit, 9, fuzzReply, 0, 0x60, fuzzTime, 9, 9, fuzzReply, 3, 0x1f})
	f.Add([]byte{fuzzPost, 2, 255, 0, fuzzTransmit, 200, fuzzReply, 70, 0x25, fuzzReply, 0, 0x60, fuzzTime, 0, 61, fuzzTransmit, 200, fuzzReply, 3, 0x1f, fuzzReply, 2, 0x62})
	f.Add([]byte{fuzzPost, 2, 255, 0, fuzzTransmit, 200, fuzzTime, 255, 255, fuzzTransmit, 200, fuzzReply, 0, 0x1f, fuzzTransmit, 20, fuzzReply, 7, 0x1f})
	smctest.Fuzz(f, func(t *testing.T, program []byte) {
		z := newFuzzer(t)
		for range 5 {
			z.ids++
			z.post(z.ids, 5000)
			z.sends = append(z.sends, z.ids)
		}
		z.drain()
		z.run(program)
		z.finish()
	})
}

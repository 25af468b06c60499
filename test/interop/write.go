package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/gosmc/smc/internal/rdma"
)

// The region of either side of a WRITE case.
const (
	maxWrite   = 1 << 20
	dataSize   = maxWrite + 8192 // WRITEs go here
	markerAt   = dataSize        // the SENDs that follow them go here
	markerLen  = 44              // like a CDC message of SMC-R
	regionSize = dataSize + 4096 // also a multiple of the page size
	alignments = 64              // offsets 0 to 63 from an aligned address
	batchLen   = 8               // WRITEs between two SENDs
	batchBytes = 2 << 20         // and their bytes
)

// A transfer is one WRITE.
type transfer struct {
	from []span // in the writer's region, one or two
	to   int    // offset in the region that is written
}

func (t transfer) length() (n int) {
	for _, s := range t.from {
		n += s.length
	}
	return n
}

// lengths returns the lengths that are tried: all small ones, powers of two and multiples of the
// path MTU with their neighbours.
func lengths(mtu int) []int {
	var all []int
	around := func(n int) {
		for _, n := range []int{n - 1, n, n + 1} {
			if n >= 1 && n <= maxWrite {
				all = append(all, n)
			}
		}
	}
	for n := 1; n <= 17; n++ {
		all = append(all, n)
	}
	for n := 32; n <= maxWrite; n *= 2 {
		around(n)
	}
	for _, n := range []int{1, 2, 3, 5, 63, 64, 65, 127, 128, 129} {
		around(n * mtu)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// transfers returns the WRITEs of a case: every length at eight pairs of alignments, one with losses,
// and some at every alignment of both ends.
func (l *lab) transfers(rng *rand.Rand) []transfer {
	mtu, pairs := l.mtu().Bytes(), 8
	if l.loss {
		pairs = 1
	}
	var all []transfer
	add := func(length, source, destination int) {
		t := transfer{from: []span{place(rng, length, source)}, to: place(rng, length, destination).offset}
		if cut := rng.IntN(2 * length); cut > 0 && cut < length { // two SGEs, as at a wrap of a ring
			second := place(rng, length-cut, rng.IntN(alignments))
			t.from = []span{{t.from[0].offset, cut}, second}
		}
		all = append(all, t)
	}
	for _, length := range lengths(mtu) {
		for range pairs {
			add(length, rng.IntN(alignments), rng.IntN(alignments))
		}
	}
	if l.loss {
		return all
	}
	for _, length := range []int{1, 63, mtu - 1, mtu, mtu + 1, 4 * mtu} {
		for source := range alignments {
			add(length, source, (29*source+7)%alignments) // 29 and 64 have no common divisor
		}
	}
	return all
}

// place returns a span of that length somewhere in the data part, at an offset of that alignment.
func place(rng *rand.Rand, length, alignment int) span {
	places := (dataSize-length-alignment)/alignments + 1
	return span{rng.IntN(places)*alignments + alignment, length}
}

// batches cuts transfers into the batches before each SEND.
func batches(all []transfer) (cut [][]transfer) {
	for len(all) != 0 {
		n, size := 0, 0
		for n < len(all) && n < batchLen && (n == 0 || size+all[n].length() <= batchBytes) {
			size += all[n].length()
			n++
		}
		cut, all = append(cut, all[:n]), all[n:]
	}
	return cut
}

// seeds of the regions' contents; the writer's does not change.
const writerSeed, writtenSeed, transferSeed = 1, 2, 3

// writes returns a case function that WRITEs in one direction or in the other.
func writes(toGuest bool) func(context.Context, *lab) error {
	return func(ctx context.Context, l *lab) error {
		dev, err := l.openDevice()
		if err != nil {
			return err
		}
		e, p, err := l.openPair(ctx, dev, regionSize, l.timing())
		if err != nil {
			return err
		}
		all := l.transfers(rand.New(rand.NewPCG(transferSeed, 0)))
		count, total := 0, 0
		do, seeds := writeFromGuest, [2]uint64{writtenSeed, writerSeed}
		if toGuest {
			do, seeds = writeToGuest, [2]uint64{writerSeed, writtenSeed}
		}
		fill(e.mr.Bytes(), seeds[0])
		if err := p.fill(seeds[1]); err != nil {
			return err
		}
		mirror := bytes.Clone(e.mr.Bytes()) // the expected content of our region
		for i, batch := range batches(all) {
			if err := do(ctx, e, p, mirror, i, batch); err != nil {
				return fmt.Errorf("after %d WRITEs of %d bytes: %w; the batch: %v", count, total, err, batch)
			}
			for _, t := range batch {
				count++
				total += t.length()
			}
		}
		l.note("%d WRITEs, %d bytes", count, total)
		return nil
	}
}

// apply applies a transfer to a copy of the written region.
func apply(written, writer []byte, t transfer) {
	at := t.to
	for _, s := range t.from {
		at += copy(written[at:], writer[s.offset:s.offset+s.length])
	}
}

// marker returns how the writer says that the WRITEs of batch i are complete: one way after the
// other. Only a WRITE with immediate data tells the other side.
func marker(i int) (imm uint32, flags int, write bool) {
	return uint32(i)*0x01010101 + 1, []int{0, flagSolicited, flagImm, flagSolicited | flagImm}[i%4], i%8 >= 6
}

// writeToGuest posts a batch, and a marker after it: a SEND, with and without immediate data, or a
// WRITE with immediate data. The guest takes the marker's completion, and the whole of its region
// is compared.
func writeToGuest(ctx context.Context, e *endpoint, p *peer, _ []byte, i int, batch []transfer) error {
	if err := p.ask(recvLine(uint64(i), span{markerAt + 64, markerLen})); err != nil {
		return err
	}
	var wrs []rdma.SendWR
	for n, t := range batch {
		wr := rdma.SendWR{ID: uint64(n), Op: rdma.OpWrite, Remote: p.addr + uint64(t.to), RKey: p.rkey}
		for k, s := range t.from {
			wr.Local[k] = e.sge(s.offset, s.length)
		}
		wrs = append(wrs, wr)
		apply(p.want, e.mr.Bytes(), t)
	}
	imm, flags, write := marker(i)
	wr := rdma.SendWR{ID: sendID, Op: rdma.OpSend, Signaled: true, Solicited: flags&flagSolicited != 0, Imm: imm}
	wr.Local[0] = e.sge(markerAt+i%alignments, markerLen)
	want := guestCompletion{id: uint64(i), status: wcSuccess, op: wcOpReceived, length: markerLen}
	done := rdma.CompletedSend
	if flags&flagImm != 0 {
		wr.Op, want.imm = rdma.OpSendImm, imm
	}
	to := markerAt + 64
	if write {
		to = markerAt + 2048 + i%alignments
		wr.Op, wr.Remote, wr.RKey = rdma.OpWriteImm, p.addr+uint64(to), p.rkey
		want.op, done = wcOpReceivedWrite, rdma.CompletedWrite
	}
	apply(p.want, e.mr.Bytes(), transfer{[]span{{markerAt + i%alignments, markerLen}}, to})
	if err := e.qp.PostSend(append(wrs, wr)...); err != nil {
		return err
	}
	if _, err := e.awaitOK(ctx, sendID, done); err != nil {
		return err
	}
	if err := p.expect(ctx, want); err != nil {
		return err
	}
	return p.check()
}

// writeFromGuest is the same in the other direction.
func writeFromGuest(ctx context.Context, e *endpoint, p *peer, mirror []byte, i int, batch []transfer) error {
	recv := rdma.RecvWR{ID: uint64(i), Local: [2]rdma.SGE{e.sge(markerAt+64, 20), e.sge(markerAt+128, markerLen-20)}}
	if err := e.qp.PostRecv(recv); err != nil {
		return err
	}
	var lines []string
	for n, t := range batch {
		lines = append(lines, writeLine(uint64(n), 0, 0, e.mr.Addr()+uint64(t.to), e.mr.RKey(), t.from...))
		apply(mirror, p.want, t)
	}
	imm, flags, write := marker(i)
	from := span{markerAt + i%alignments, markerLen}
	want := guestCompletion{id: sendID, status: wcSuccess, op: wcOpSend}
	op := rdma.Received
	if write {
		to := markerAt + 2048 + i%alignments
		lines = append(lines, writeLine(sendID, flags|flagSignaled, imm, e.mr.Addr()+uint64(to), e.mr.RKey(), from))
		want.op, op = wcOpWrite, rdma.ReceivedWriteImm
		apply(mirror, p.want, transfer{[]span{from}, to})
	} else {
		lines = append(lines, sendLine(sendID, flags|flagSignaled, imm, from))
		apply(mirror, p.want, transfer{[]span{{from.offset, 20}}, markerAt + 64})
		apply(mirror, p.want, transfer{[]span{{from.offset + 20, markerLen - 20}}, markerAt + 128})
	}
	if err := p.all(lines...); err != nil {
		return err
	}
	c, err := e.awaitOK(ctx, uint64(i), op)
	if err != nil {
		return err
	}
	if !bytes.Equal(e.mr.Bytes(), mirror) { // before the guest's completion: all is there when ours is
		return fmt.Errorf("our region: %s", difference(e.mr.Bytes(), mirror))
	}
	wantImm := uint32(0)
	if flags&flagImm != 0 {
		wantImm = imm
	}
	solicited := flags&flagSolicited != 0
	if c.Len != markerLen || c.HasImm != (flags&flagImm != 0) || c.HasImm && c.Imm != wantImm || c.Solicited != solicited {
		return fmt.Errorf("our completion: %+v; want %d bytes, immediate data %#x, solicited %t", c, markerLen, wantImm, solicited)
	}
	return p.expect(ctx, want)
}

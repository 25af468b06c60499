package dissect

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/dissect/dissecttest"
	"github.com/gosmc/smc/internal/frame"
)

// routed returns packets as another place sees them: later, and with the fields changed that change
// on the way.
func routed(packets []Packet, source int, late time.Duration) []Packet {
	out := slices.Clone(packets)
	for i := range out {
		p := &out[i]
		p.Source, p.Time, p.Data = source, p.Time.Add(late), bytes.Clone(p.Data)
		etherType, ip, whole := frame.Strip(p.Link, p.Data)
		if !whole || etherType != frame.TypeIPv4 || len(ip) < 20 {
			continue
		}
		ip[1], ip[8] = ip[1]|3, ip[8]-1 // congestion, lifetime
		ip[10], ip[11] = ip[10]^0x55, ip[11]^0xaa
		if header := int(ip[0]&15) * 4; ip[9] == protoTCP && len(ip) >= header+18 {
			ip[header+16] ^= 0x55 // the checksum, which adapters may compute
		}
	}
	return out
}

// merged returns packets of several places in the order of their times, numbered through. Packets
// of the same time come in the order of the arguments.
func merged(places ...[]Packet) []Packet {
	all := slices.Concat(places...)
	slices.SortStableFunc(all, func(a, b Packet) int { return a.Time.Compare(b.Time) })
	for i := range all {
		all[i].Number = i + 1
	}
	return all
}

// withoutAlso returns a summary without the counters that a second place changes.
func withoutAlso(s *Summary) Summary {
	out := *s
	out.Packets, out.Bytes, out.AlsoSeen, out.Last = 0, 0, 0, time.Time{}
	return out
}

// Captures of both hosts, merged, give the counts of one capture, and each event once.
func TestBothHosts(t *testing.T) {
	for name := range dissecttest.Captures {
		packets := dissecttest.Captured(t, name)
		lines, alone := track(packets, Options{})
		for _, late := range []time.Duration{0, time.Millisecond, time.Hour} { // clocks may differ
			both := merged(packets, routed(packets, 1, late))
			got, sum := track(both, Options{})
			if late != time.Hour { // by which one capture has ended before the other begins
				checkSame(t, name, late, sum, alone)
				if sum.AlsoSeen != sum.Packets-alone.Packets-uint64(others(packets)) {
					t.Errorf("%s, %v later: %d of %d packets also seen", name, late, sum.AlsoSeen, sum.Packets)
				}
			}
			if a, b := withoutNumbers(slices.Clone(lines)), withoutNumbers(got); late == 0 && !slices.Equal(a, b) {
				t.Errorf("%s: other events than of one capture", name)
			}
		}
	}
}

func checkSame(t *testing.T, name string, late time.Duration, got, want *Summary) {
	t.Helper()
	g, w := withoutAlso(got), withoutAlso(want)
	if g.Retransmissions != w.Retransmissions || g.Gaps != w.Gaps || g.RoCEPackets != w.RoCEPackets || g.TCPSegments != w.TCPSegments ||
		g.RDMABytes != w.RDMABytes || g.Conns != w.Conns || g.Links != w.Links || !slices.Equal(g.Messages, w.Messages) || !slices.Equal(g.Problems, w.Problems) {
		t.Errorf("%s, %v later:\n got %+v\nwant %+v", name, late, g, w)
	}
}

// others counts packets that are no TCP or UDP.
func others(packets []Packet) (n int) {
	var l layers
	for i := range packets {
		if l.decode(&packets[i]); l.outcome == outcomeOther {
			n++
		}
	}
	return n
}

// Another place may have a packet that one place has lost. A packet that was sent again is counted
// once, no matter which place saw it.
func TestPlacesWithLosses(t *testing.T) {
	packets := dissecttest.Captured(t, "two-links")
	_, alone := track(packets, Options{})
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0))
		var a, b []Packet
		for i, p := range packets {
			which := r.IntN(10) // 0: lost at the first place, 1: at the second
			if which != 0 {
				a = append(a, p)
			}
			if which != 1 {
				b = append(b, routed(packets[i:i+1], 1, 0)...)
			}
		}
		_, sum := track(merged(a, b), Options{})
		checkSame(t, "two-links with losses", 0, sum, alone)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// A packet that was damaged on the way is not the one that was sent.
func TestDamagedOnTheWay(t *testing.T) {
	s := dissecttest.NewScript()
	s.Handshake()
	s.Write(c2s, 0, 1000)
	there := routed(s.Packets, 1, time.Microsecond)
	last := there[len(there)-1].Data
	last[len(last)-100] ^= 1
	lines, sum := track(merged(s.Packets, there), Options{})
	if got := lines[len(lines)-1]; !strings.Contains(got, "[bad ICRC") || sum.Retransmissions != 0 {
		t.Errorf("%d retransmissions, and the last event is %s; want a bad ICRC", sum.Retransmissions, got)
	}
}

// Adapters that compute ICRCs behind the capture leave the sender's views with bad ones, and the
// receiver's with good ones.
func TestICRCBehindOnePlace(t *testing.T) {
	s := dissecttest.NewScript()
	s.Handshake()
	for i := range 4 {
		s.Write(c2s, 1000*i, 1000)
	}
	here := slices.Clone(s.Packets)
	for i := range here {
		if b := bytes.Clone(here[i].Data); b[14+9] == protoUDP {
			b[len(b)-1] ^= 1
			here[i].Data = b
		}
	}
	_, sum := track(merged(routed(s.Packets, 1, 0), here), Options{})
	if sum.Retransmissions != 0 || len(sum.Problems) != 0 || sum.AlsoSeen != uint64(len(here)) {
		t.Errorf("good ICRCs first: %d retransmissions, %d also seen, problems %v", sum.Retransmissions, sum.AlsoSeen, sum.Problems)
	}
	some := routed(s.Packets, 1, 0)
	some = slices.Delete(some, len(some)-2, len(some)-1) // which its capture has lost
	_, sum = track(merged(some, here), Options{})
	if sum.Retransmissions != 0 || sum.RDMABytes != 4000 {
		t.Errorf("one lost: %d retransmissions, %d bytes", sum.Retransmissions, sum.RDMABytes)
	}
	_, sum = track(merged(here, routed(s.Packets, 1, 0)), Options{})
	if sum.Retransmissions != 0 || sum.AlsoSeen != uint64(len(here)) || sum.RDMABytes != 4000 {
		t.Errorf("bad ICRCs first: %d retransmissions, %d also seen, %d bytes", sum.Retransmissions, sum.AlsoSeen, sum.RDMABytes)
	}
}

// A packet that is sent again with the same bytes is seen twice at each place.
func TestSentAgain(t *testing.T) {
	s := dissecttest.NewScript()
	s.Handshake()
	s.Write(c2s, 0, 1000)
	again := s.Packets[len(s.Packets)-1]
	for range 2 {
		s.Now = s.Now.Add(time.Millisecond)
		again.Time = s.Now
		s.Packets = append(s.Packets, again)
	}
	for i := range s.Packets {
		s.Packets[i].Number = i + 1
	}
	_, alone := track(s.Packets, Options{})
	if alone.Retransmissions != 2 {
		t.Fatalf("%d retransmissions of one place, want 2", alone.Retransmissions)
	}
	for _, late := range []time.Duration{0, 1500 * time.Microsecond, 5 * time.Millisecond} {
		_, sum := track(merged(s.Packets, routed(s.Packets, 1, late)), Options{})
		checkSame(t, "sent again", late, sum, alone)
	}
	lost := slices.Delete(routed(s.Packets, 1, 0), len(s.Packets)-3, len(s.Packets)-1) // on the way
	_, sum := track(merged(s.Packets, lost), Options{})
	checkSame(t, "sent again and lost", 0, sum, alone)
}

// One capture of all interfaces has a packet once for each that it goes through; one capture of
// 128 bytes of each packet, and another of 200, have the same packets.
func TestPlacesOfOneInput(t *testing.T) {
	s := dissecttest.NewScript()
	s.Handshake()
	s.Write(c2s, 0, 1000)
	_, alone := track(s.Packets, Options{NoICRC: true})
	cooked := func(index byte) (out []Packet) {
		for _, p := range routed(s.Packets, 0, 0) {
			p.Link = frame.Cooked2
			p.Data = slices.Concat(p.Data[12:14], []byte{0, 0, 0, 0, 0, index, 0, 1, 0, 6}, make([]byte, 8), p.Data[14:])
			p.OrigLen = len(p.Data)
			out = append(out, p)
		}
		return out
	}
	_, sum := track(merged(cooked(2), cooked(3), cooked(4)), Options{NoICRC: true})
	checkSame(t, "three interfaces", 0, sum, alone)

	cut := func(source, n int) []Packet {
		out := routed(s.Packets, source, 0)
		for i := range out {
			out[i].Data = out[i].Data[:min(len(out[i].Data), n)]
		}
		return out
	}
	_, alone = track(cut(0, 160), Options{})
	_, sum = track(merged(cut(0, 160), cut(1, 200)), Options{})
	checkSame(t, "cut at two lengths", 0, sum, alone)
}

// Memory and work are bounded: nothing is remembered of a capture with one place, and of others so many packets.
func TestSightingsAreBounded(t *testing.T) {
	s := dissecttest.NewScript()
	s.Open(true, true)
	tr := New(Options{})
	p := s.Packets[0]
	p.Data = bytes.Clone(p.Data)
	play := func(n, sources int) {
		for i := range n {
			p.Source, p.Number = i%sources, p.Number+1
			p.Data[14+4], p.Data[14+5] = byte(i>>8), byte(i)        // identification
			p.Data[14+24], p.Data[14+25] = byte(i>>24), byte(i>>16) // sequence number
			tr.Packet(p, func(*Event) {})
		}
	}
	play(soloPackets+1, 1)
	if tr.seen.young != nil {
		t.Errorf("%d packets of one place are remembered", len(tr.seen.young))
	}
	play(3*maxSightings, maxPoints+5)
	if len(tr.seen.young) > maxSightings || len(tr.seen.old) > maxSightings || len(tr.seen.points) > maxPoints {
		t.Errorf("%d and %d packets, %d places", len(tr.seen.young), len(tr.seen.old), len(tr.seen.points))
	}
}

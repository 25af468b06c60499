package udp

import (
	"fmt"
	"hash/crc32"
	"net/netip"
	"testing"
	"time"
)

// benchModes are the ways to receive that are worth comparing.
var benchModes = []struct {
	name string
	cfg  Config
}{
	{"udp", Config{}},
	{"headers", Config{Headers: HeadersAlways}},
	{"plain", Config{NoSegmentation: true, NoCoalescing: true}},
}

// eachPair runs f with a sender and a receiver for each way, on lo and on a cable between two namespaces.
func eachPair(b *testing.B, f func(b *testing.B, from, to *Socket)) {
	for _, mode := range benchModes {
		b.Run("lo/"+mode.name, func(b *testing.B) {
			from, to := mode.cfg, mode.cfg
			from.Local = randomLoopback()
			to.Local = from.Local
			if mode.cfg.Headers == HeadersAlways {
				f(b, listenHeaders(b, from), listenHeaders(b, to))
				return
			}
			f(b, listen(b, from), listen(b, to))
		})
		b.Run("veth/"+mode.name, func(b *testing.B) {
			v := newVeth(b, 65535)
			from, to := mode.cfg, mode.cfg
			from.Local, to.Local = netip.AddrPortFrom(v.addr[0], 0), netip.AddrPortFrom(v.addr[1], 0)
			f(b, v.listen(b, 0, from), v.listen(b, 1, to))
		})
	}
}

// bulk fills a batch with datagrams as a long RDMA WRITE has them, in whole super-packets.
func bulk(b *TxBatch, to netip.AddrPort, superPackets int) {
	b.To(to, 0)
	for range superPackets * 62 { // 62 of 1,040 bytes are the most in one
		b.Next(1040)
		b.Commit(1040)
	}
}

// crcSealer reads every datagram, as the sender of a checksum does.
type crcSealer struct{}

func (crcSealer) Seal(_ int, _ uint16, datagram []byte) { crc32.ChecksumIEEE(datagram) }

// BenchmarkChecked is BenchmarkTransfer with every datagram read before it is sent and after it was
// received: it measures the gain or loss in the caches from receiving many messages at a time.
func BenchmarkChecked(b *testing.B) {
	for _, messages := range []int{1, 2, 4, 8, 16} {
		b.Run(fmt.Sprintf("messages=%d", messages), func(b *testing.B) {
			addr := randomLoopback()
			from, to := listen(b, Config{Local: addr}), listen(b, Config{Local: addr})
			tx, rx := NewTxBatch(1<<20), NewRxBatch(messages)
			bulk(tx, to.LocalAddr(), 16)
			b.SetBytes(int64(tx.Bytes()))
			b.ReportAllocs()
			for b.Loop() {
				if err := from.Send(tx, crcSealer{}); err != nil {
					b.Fatal(err)
				}
				for got := 0; got < tx.Len(); {
					if err := to.Recv(rx); err != nil {
						b.Fatal(err, to.Stats())
					}
					for i := range rx.Len() {
						m := rx.Message(i)
						got += m.Segments()
						for k := range m.Segments() {
							datagram, _ := m.Segment(k)
							crc32.ChecksumIEEE(datagram)
						}
					}
				}
			}
		})
	}
}

// BenchmarkTransfer is one goroutine that sends super-packets and receives them, so that nobody
// waits: it measures the cost of the calls. messages is the size of the RxBatch.
func BenchmarkTransfer(b *testing.B) {
	for _, messages := range []int{1, 2, 4, 8} {
		b.Run(fmt.Sprintf("messages=%d", messages), func(b *testing.B) {
			eachPair(b, func(b *testing.B, from, to *Socket) {
				tx, rx := NewTxBatch(0), NewRxBatch(messages)
				if !to.coalescing {
					rx = NewRxBatch(64 * messages)
				}
				bulk(tx, to.LocalAddr(), 3)
				b.SetBytes(int64(tx.Bytes()))
				b.ReportAllocs()
				for b.Loop() {
					if err := from.Send(tx, nil); err != nil {
						b.Fatal(err)
					}
					for got := 0; got < tx.Len(); {
						if err := to.Recv(rx); err != nil {
							b.Fatal(err, to.Stats())
						}
						for i := range rx.Len() {
							got += rx.Message(i).Segments()
						}
					}
				}
			})
		})
	}
}

// BenchmarkStream is a goroutine that sends super-packets and one that receives them, with at most a
// megabyte between them.
func BenchmarkStream(b *testing.B) {
	eachPair(b, func(b *testing.B, from, to *Socket) {
		tx := NewTxBatch(0)
		bulk(tx, to.LocalAddr(), 3)
		credit := make(chan bool, 5)
		done := make(chan error)
		stop := time.Now().Add(patience)
		go func() {
			rx := NewRxBatch(4)
			if !to.coalescing {
				rx = NewRxBatch(64)
			}
			got := 0
			for {
				if err := to.Recv(rx); err != nil {
					done <- err
					return
				}
				for i := range rx.Len() {
					if m := rx.Message(i); len(m.Data) == 1 {
						done <- nil
						return
					} else {
						got += m.Segments()
					}
				}
				for ; got >= tx.Len(); got -= tx.Len() {
					<-credit
				}
			}
		}()
		b.SetBytes(int64(tx.Bytes()))
		b.ReportAllocs()
		for b.Loop() {
			select {
			case credit <- true:
			default:
				select {
				case credit <- true:
				case err := <-done:
					b.Fatal(err, to.Stats())
				}
			}
			if err := from.Send(tx, nil); err != nil {
				b.Fatal(err)
			}
		}
		last := NewTxBatch(0)
		last.To(to.LocalAddr(), 0)
		last.Next(1)
		last.Commit(1)
		if err := from.Send(last, nil); err != nil {
			b.Fatal(err)
		}
		if err := <-done; err != nil {
			b.Fatal(err, to.Stats(), time.Until(stop))
		}
	})
}

// BenchmarkPingPong is a datagram of 64 bytes there and back, between two goroutines that sleep in
// turn, and between two that look again and again.
func BenchmarkPingPong(b *testing.B) {
	for _, spin := range []bool{false, true} {
		b.Run(fmt.Sprintf("spin=%v", spin), func(b *testing.B) {
			eachPair(b, func(b *testing.B, from, to *Socket) {
				recv := func(s *Socket, rx *RxBatch) error {
					for spin {
						if ok, err := s.TryRecv(rx); ok || err != nil {
							return err
						}
					}
					return s.Recv(rx)
				}
				done := make(chan error)
				go func() {
					rx, tx := NewRxBatch(4), NewTxBatch(0)
					for {
						if err := recv(to, rx); err != nil {
							done <- err
							return
						}
						m := rx.Message(0)
						if len(m.Data) == 1 {
							done <- nil
							return
						}
						tx.Reset()
						tx.To(m.From, 0)
						copy(tx.Next(64), m.Data)
						tx.Commit(64)
						if err := to.Send(tx, nil); err != nil {
							done <- err
							return
						}
					}
				}()
				tx, rx := NewTxBatch(0), NewRxBatch(4)
				ping := func(size int) {
					tx.Reset()
					tx.To(to.LocalAddr(), 0)
					tx.Next(size)
					tx.Commit(size)
					if err := from.Send(tx, nil); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportAllocs()
				for b.Loop() {
					ping(64)
					if err := recv(from, rx); err != nil {
						b.Fatal(err)
					}
				}
				ping(1)
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}

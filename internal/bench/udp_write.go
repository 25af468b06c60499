package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/gosmc/smc/internal/udp"
)

// The bare UDP transfer: an RDMA WRITE without acknowledgements, repair or order. Its packets are
// as large as RDMA's, are sent and received in the same super-packets, have a CRC-32 that is made
// and checked, and their payload is copied into place.
//
// A datagram is as large as a packet in the middle of a WRITE:
//
//	offset  size  field
//	     0     8  its number, from 0; its place is that number modulo the number of places
//	     8     4  zero
//	    12     n  payload
//	  12+n     4  CRC-32 of the preceding bytes, little-endian
//
// The receiver answers every so often with how far it is: 8 bytes, the number of the next datagram.
// The sender runs ahead of that by no more than a window, since a receiver with a full buffer only
// wastes time on the packets that it loses.
const (
	udpHeader  = 12 // as the base transport header of RoCE
	udpTrailer = 4  // as its ICRC
	udpCredit  = 8
)

const (
	// udpWindow is how many bytes of payload may be under way. Measured: half of it makes the
	// sender wait, and with a full receive buffer a tenth or more is lost, and less arrives.
	udpWindow = 1 << 20

	// udpRxMessages is how many super-packets are received at once.
	udpRxMessages = 4

	// A credit that does not come within udpCreditPatience is lost: go on as if it had come.
	udpCreditPatience = 10 * time.Millisecond
)

// udpWrite sends datagrams one way. The receiver counts the intact datagrams.
var udpWrite = &workload{server: receiveDatagrams, client: sendDatagrams}

func receiveDatagrams(m *meter, l net.Listener) error {
	peer, err := m.acceptControl(l)
	if err != nil {
		return err
	}
	defer peer.Close()
	s, err := openUDPFor(peer)
	if err != nil {
		return err
	}
	defer s.Close()
	buffer := s.Capabilities().ReadBuffer
	m.note("UDP", buffer)
	// The kernel counts some more than the payload.
	r := &datagramReceiver{packet: m.settings.Packet, window: min(udpWindow, buffer/2)}
	r.ring = make([]byte, rdmaRing/r.packet*r.packet)
	if err := peer.tell(udpHello{Addr: s.LocalAddr(), Window: r.window}); err != nil {
		return err
	}
	go func() {
		var nothing struct{}
		peer.hearWithin(0, &nothing) // until the client ends
		s.Close()
	}()

	rx, credit := udp.NewRxBatch(udpRxMessages), udp.NewTxBatch(udpCredit)
	var credited uint64
	for {
		if err := s.Recv(rx); err != nil {
			if gone(err) {
				return nil
			}
			return err
		}
		first := r.next
		arrived, err := r.take(rx)
		if err != nil {
			return err
		}
		m.count(1, arrived*r.packet)
		m.countPackets(int(r.next-first), int(r.next-first)-arrived)
		if r.next-credited < uint64(r.window/r.packet/4) {
			continue
		}
		credited = r.next
		credit.Reset()
		credit.To(rx.Message(0).From, 0)
		binary.LittleEndian.PutUint64(credit.Next(udpCredit), credited)
		credit.Commit(udpCredit)
		if err := s.Send(credit, nil); err != nil && !gone(err) {
			return err
		}
	}
}

// A datagramReceiver puts payload in its place.
type datagramReceiver struct {
	packet int // bytes of payload in a datagram
	window int // bytes of payload that may be under way
	ring   []byte
	next   uint64 // number of the next datagram
}

// take takes a batch and returns how many datagrams it had. A late one counts as any other, and
// its number as lost until then. A damaged one is an error.
func (r *datagramReceiver) take(rx *udp.RxBatch) (arrived int, err error) {
	places := uint64(len(r.ring) / r.packet)
	for i := range rx.Len() {
		message := rx.Message(i)
		for k := range message.Segments() {
			d, _ := message.Segment(k)
			number, ok := openDatagram(d, r.packet)
			if !ok {
				return arrived, fmt.Errorf("a datagram of %d bytes is damaged", len(d))
			}
			copy(r.ring[int(number%places)*r.packet:], d[udpHeader:udpHeader+r.packet])
			r.next = max(r.next, number+1)
			arrived++
		}
	}
	return arrived, nil
}

// udpHello is the receiver's message to the sender.
type udpHello struct {
	Addr   netip.AddrPort `json:"addr"`
	Window int            `json:"window"` // bytes of payload
}

func sendDatagrams(m *meter, dial dialFunc) error {
	peer, err := dialControl(dial)
	if err != nil {
		return err
	}
	defer peer.Close()
	s, err := openUDPFor(peer)
	if err != nil {
		return err
	}
	defer s.Close()
	var server udpHello
	if err := peer.hear(&server); err != nil {
		return err
	}
	m.note("UDP"+describeSocket(s.Capabilities()), 0)

	// The batch is made once: only numbers and checksums change.
	tx := udp.NewTxBatch(0)
	tx.To(server.Addr, 0)
	for size := udpHeader + m.settings.Packet + udpTrailer; ; tx.Commit(size) {
		room := tx.Next(size)
		if room == nil {
			break
		}
		fillPattern(room[udpHeader:])
	}
	w := datagramWindow{socket: s, rx: udp.NewRxBatch(udpRxMessages)}
	w.size = uint64(max(server.Window/m.settings.Packet, tx.Len())) // or a batch would never fit
	var seal datagramSealer
	for !m.stopped() {
		if err := s.Send(tx, &seal); err != nil {
			return err
		}
		m.start()
		if err := w.await(seal.next, uint64(tx.Len())); err != nil {
			return err
		}
	}
	return nil
}

// A datagramWindow makes the sender wait for credits.
type datagramWindow struct {
	socket *udp.Socket
	rx     *udp.RxBatch
	size   uint64 // datagrams
	acked  uint64 // number of the next datagram, as the receiver knows it
}

// await takes the credits that are there, and waits for more until n datagrams may follow, of
// which next is the first.
func (w *datagramWindow) await(next, n uint64) error {
	ok, err := w.socket.TryRecv(w.rx)
	for {
		if err != nil {
			return err
		}
		if ok {
			w.acked = lastCredit(w.rx, w.acked)
		}
		if next+n <= w.acked+w.size {
			return nil
		}
		if err := w.socket.SetReadDeadline(time.Now().Add(udpCreditPatience)); err != nil {
			return err
		}
		err = w.socket.Recv(w.rx)
		ok = err == nil
		if errors.Is(err, os.ErrDeadlineExceeded) {
			w.acked, err = next, nil
		}
	}
}

// A datagramSealer numbers datagrams and writes their checksums.
type datagramSealer struct{ next uint64 }

func (s *datagramSealer) Seal(_ int, _ uint16, d []byte) {
	binary.LittleEndian.PutUint64(d, s.next)
	s.next++
	body := len(d) - udpTrailer
	binary.LittleEndian.PutUint32(d[body:], crc32.ChecksumIEEE(d[:body]))
}

// openDatagram returns the number of a datagram, and whether it is whole.
func openDatagram(d []byte, packet int) (uint64, bool) {
	if len(d) != udpHeader+packet+udpTrailer {
		return 0, false
	}
	body := len(d) - udpTrailer
	return binary.LittleEndian.Uint64(d), crc32.ChecksumIEEE(d[:body]) == binary.LittleEndian.Uint32(d[body:])
}

// lastCredit returns the newest credit in b, or acked if there is none that is newer.
func lastCredit(b *udp.RxBatch, acked uint64) uint64 {
	for i := range b.Len() {
		message := b.Message(i)
		for k := range message.Segments() {
			if d, _ := message.Segment(k); len(d) == udpCredit {
				acked = max(acked, binary.LittleEndian.Uint64(d))
			}
		}
	}
	return acked
}

// describeSocket lists the capabilities of a socket, behind the name of the protocol.
func describeSocket(c udp.Capabilities) string {
	var s string
	if c.Segmentation {
		s += ", GSO"
	}
	if c.Coalescing {
		s += ", GRO"
	}
	return s + fmt.Sprintf(", receive buffer %d KiB", c.ReadBuffer>>10)
}

// openUDPFor opens a socket for many datagrams on our address of a control connection.
func openUDPFor(peer *controlConn) (*udp.Socket, error) {
	ip, err := peer.localIP()
	if err != nil {
		return nil, err
	}
	return udp.Listen(udp.Config{Local: netip.AddrPortFrom(ip, 0)})
}

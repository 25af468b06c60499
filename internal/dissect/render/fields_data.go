package render

import (
	"encoding/binary"
	"fmt"

	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/roce"
)

// cdc goes through the CDC message of SMC-R: RFC 7609 p.126.
func (w *walker) cdc() {
	all := w.b
	w.code(1, "type", "smc.llc_msg", cdcType)
	length := int(w.uint(1, "length", "smc.length", nil))
	if len(all) > cdc.MessageLen && length == cdc.MessageLen {
		w.b = all[:cdc.MessageLen]
	}
	w.uint(2, "sequence number", "smc.rmbe.ctrl.seqno", nil)
	w.uint(4, "alert token", "smc.rmbe.ctrl.alert.token", both)
	w.reserved(2)
	w.uint(2, "producer wrap", "smc.rmbe.ctrl.prod.wrap.seq", nil)
	w.uint(4, "producer count", "smc.rmbe.ctrl.peer.prod.curs", nil)
	w.reserved(2)
	w.uint(2, "consumer wrap", "smc.rmbe.ctrl.cons.wrap.seq", nil)
	w.uint(4, "consumer count", "smc.rmbe.ctrl.peer.cons.curs", nil)
	w.cdcFlags("smc.rmbe.ctrl.")
	w.reserved(min(18, len(w.b)-w.at))
	w.b = all
	w.rest("bytes after the message", "smc.trailing")
}

func cdcType(v uint64) string {
	if v == cdc.TypeMessage {
		return "CDC"
	}
	return "unknown"
}

// cdcFlags: RFC 7609 p.126.
func (w *walker) cdcFlags(prefix string) {
	w.bits("producer flags", prefix+"conn.rw.status.flags",
		bit{0x80, "writer blocked", prefix + "write.blocked", nil, false},
		bit{0x40, "urgent data pending", prefix + "urgent.pending", nil, false},
		bit{0x20, "urgent data present", prefix + "urgent.present", nil, false},
		bit{0x10, "cursor update requested", prefix + "cons.update.requested", nil, false},
		bit{0x08, "failover validation", prefix + "failover.validation", nil, false})
	w.bits("connection flags", prefix+"peer.conn.state.flags",
		bit{0x80, "done writing", prefix + "peer.sending.done", nil, false},
		bit{0x40, "closed", prefix + "peer.closed.conn", nil, false},
		bit{0x20, "abort", prefix + "peer.abnormal.close", nil, false})
}

// smcd goes through the header of a DMB element, which is in the byte order of this machine.
func (w *walker) smcd() {
	const prefix = "smc.cdc.smcd."
	all := w.b
	w.b = all[:min(len(all), cdc.HeaderLen)]
	w.code(1, "type", prefix+"type", cdcType)
	w.reserved(min(7, len(w.b)-w.at))
	w.native(2, "producer wrap", prefix+"prod.wrap.seq")
	w.native(4, "producer count", prefix+"peer.prod.curs")
	w.reserved(min(2, len(w.b)-w.at))
	w.native(2, "consumer wrap", prefix+"cons.wrap.seq")
	w.native(4, "consumer count", prefix+"peer.cons.curs")
	w.cdcFlags(prefix)
	w.reserved(min(8, len(w.b)-w.at))
	w.b = all
}

// native makes a field of a number in the byte order of this machine.
func (w *walker) native(n int, name, key string) {
	f, b := w.take(n, name, key)
	switch {
	case f == nil:
	case n == 2:
		f.setUint(uint64(binary.NativeEndian.Uint16(b)), nil)
	default:
		f.setUint(uint64(binary.NativeEndian.Uint32(b)), nil)
	}
}

// roce goes through a RoCEv2 packet: IBTA 9.2 and 9.3, with Wireshark's names. t says how long the
// packet was on the wire, nil if it is all there. hasICRC is false for a packet that was made by hand.
func (w *walker) roce(t *dissect.Transport, hasICRC bool) {
	all := w.b
	w.reservedKey = "infiniband.reserved"
	opcode := roce.Opcode(w.code(1, "opcode", "infiniband.bth.opcode", as(roce.Opcode.String)))
	flags := w.bits("flags", "",
		bit{0x80, "solicited event", "infiniband.bth.se", nil, false},
		bit{0x40, "MigReq", "infiniband.bth.m", nil, false},
		bit{0x30, "pad count", "infiniband.bth.padcnt", nil, false},
		bit{0x0f, "version", "infiniband.bth.tver", nil, false})
	w.uint(2, "P_Key", "infiniband.bth.p_key", hexadecimal)
	w.bits("congestion", "",
		bit{0x80, "FECN", "infiniband.bth.fecn", nil, false},
		bit{0x40, "BECN", "infiniband.bth.becn", nil, false})
	w.uint(3, "destination QPN", "infiniband.bth.destqp", both)
	w.bits("acknowledge", "",
		bit{0x80, "acknowledge request", "infiniband.bth.a", nil, false},
		bit{0x7f, "reserved", "infiniband.bth.reserved7", nil, false})
	if f := w.last(); f != nil && f.Mask == 0x7f {
		f.Reserved = true
	}
	w.uint(3, "PSN", "infiniband.bth.psn", both)
	if !opcode.Known() {
		w.payload(len(all) - w.at) // the next headers are not known, nor whether there is an ICRC
		return
	}
	switch {
	case opcode.HasRETH():
		w.reth()
	case opcode.HasAtomicETH():
		w.uint(8, "virtual address", "infiniband.reth.va", hexadecimal)
		w.uint(4, "R_Key", "infiniband.reth.r_key", both)
		w.uint(8, "swap or add", "infiniband.atomiceth.swapdt", hexadecimal)
		w.uint(8, "compare", "infiniband.atomiceth.cmpdt", hexadecimal)
	}
	if opcode.HasAETH() {
		w.aeth()
	}
	if opcode.HasAtomicAckETH() {
		w.uint(8, "original data", "infiniband.atomicacketh.origremdt", hexadecimal)
	}
	if opcode.HasImm() {
		w.opaque(4, "immediate data", "infiniband.immdt")
	}
	if opcode.HasIETH() {
		w.uint(4, "R_Key to invalidate", "infiniband.ieth", both)
	}
	tail := int(flags >> 4 & 3) // pad and ICRC
	if hasICRC {
		tail += roce.ICRCLen
	}
	payloadLen := len(all) - w.at - tail
	if t != nil && t.PayloadLen > payloadLen {
		payloadLen = t.PayloadLen // and all that follows it is cut off
	}
	w.payload(min(payloadLen, len(all)-w.at))
	if pad := int(flags >> 4 & 3); pad > 0 && w.at < len(all) {
		w.opaque(min(pad, len(all)-w.at), "pad", "infiniband.pad")
		w.last().Reserved = true
	}
	if !hasICRC || w.at >= len(all) {
		return
	}
	f, b := w.take(roce.ICRCLen, "ICRC", "infiniband.invariant.crc")
	if f == nil {
		return
	}
	f.setUint(uintOf(b), func(v uint64) string { return fmt.Sprintf("0x%08x", v) })
	if t != nil {
		f.Text += ", " + t.ICRC.String()
		f.words = true
	}
}

func (w *walker) reth() {
	w.uint(8, "virtual address", "infiniband.reth.va", hexadecimal)
	w.uint(4, "R_Key", "infiniband.reth.r_key", both)
	w.uint(4, "DMA length", "infiniband.reth.dmalen", nil)
}

// aeth: IBTA 9.7.5.
func (w *walker) aeth() {
	var s roce.Syndrome
	if w.at < len(w.b) {
		s = roce.Syndrome(w.b[w.at])
	}
	value := bit{0x1f, "value", "infiniband.aeth.syndrome.reserved_value", nil, false}
	switch s.Kind() {
	case roce.KindAck:
		value.name, value.key, value.format = "credit count", "infiniband.aeth.syndrome.credit_count", creditText
		value.code = true
	case roce.KindRNRNak:
		value.name, value.key, value.format = "timer", "infiniband.aeth.syndrome.timer", timerText
		value.code = true
	case roce.KindNak:
		value.name, value.key = "error code", "infiniband.aeth.syndrome.error_code"
	case roce.KindReserved:
	}
	at := len(w.fields)
	w.bits("syndrome", "infiniband.aeth.syndrome",
		bit{0x80, "reserved bit", "infiniband.aeth.syndrome.reserved", nil, false},
		bit{0x60, "kind", "infiniband.aeth.syndrome.opcode", kindText, true},
		value)
	if at < len(w.fields) {
		f := &w.fields[at]
		f.Text, f.words = s.String(), true
	}
	w.uint(3, "MSN", "infiniband.aeth.msn", nil)
}

func creditText(v uint64) string {
	n, limited := roce.Syndrome(v).Credits()
	if !limited {
		return "no credits"
	}
	return fmt.Sprintf("%d messages", n)
}

func timerText(v uint64) string {
	us := roce.RNRTimer(uint8(v))
	return fmt.Sprintf("%d.%02d ms", us/1000, us%1000/10)
}

func kindText(v uint64) string {
	switch roce.SyndromeKind(v) {
	case roce.KindAck:
		return "ACK"
	case roce.KindRNRNak:
		return "RNR NAK"
	case roce.KindNak:
		return "NAK"
	}
	return "reserved"
}

// payload makes a field of n bytes of data, without their contents.
func (w *walker) payload(n int) {
	if n <= 0 {
		return
	}
	if f, _ := w.take(n, "payload", "infiniband.payload"); f != nil {
		f.Text = fmt.Sprintf("%d bytes", n)
	}
}

package render

import (
	"encoding/binary"
	"fmt"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/llc"
)

// llc goes through an LLC message: RFC 7609 pp.107-125, SMCv2 pp.80-97. The bytes come from the
// SEND; the bytes after the message get a name that says so.
func (w *walker) llc() {
	all := w.b
	if len(all) == 0 {
		return
	}
	first := w.bits("type", "smc.llc_msg",
		bit{0xf0, "version", "smc.llc.version", llcVersion, false},
		bit{0x0f, "message", "smc.llc.type", as(llc.Type.String), true})
	w.fields[0].Text, w.fields[0].words = llcText(first), true
	w.fields[1].words = true
	version := 0
	switch first & 0xf0 {
	case 0x00:
		version = 1
	case 0x20:
		version = 2
	}
	typ := llc.Type(first & 0x0f)
	if !typ.In(version) {
		return
	}
	length := w.llcLength(version, typ)
	if llc.MinLen <= length && length <= len(all) {
		w.b = all[:length]
	}
	switch typ {
	case llc.TypeConfirmLink:
		w.confirmLink(version)
	case llc.TypeAddLink:
		w.addLink(version)
	case llc.TypeAddLinkCont:
		w.addLinkCont()
	case llc.TypeDeleteLink:
		w.deleteLink()
	case llc.TypeRequestAddLink:
		w.requestAddLink()
	case llc.TypeConfirmRKey:
		w.confirmRKey()
	case llc.TypeTestLink:
		w.flags("smc.test.link.flags", "smc.test.link.response")
		w.opaque(16, "user data", "smc.test.link.user_data")
	case llc.TypeConfirmRKeyCont:
		w.confirmRKeyCont()
	case llc.TypeDeleteRKey:
		w.deleteRKey(version)
	}
	w.reserved(len(w.b) - w.at)
	w.b = all
	w.rest("bytes after the message", "smc.trailing")
}

// llcVersion returns the meaning of the upper half of the first byte: RFC 7609 p.106, SMCv2 p.80.
func llcVersion(v uint64) string {
	switch {
	case v == 0:
		return "1"
	case v == 2:
		return "2"
	case v>>2 == 0b10:
		return "none: optional messages have no version"
	}
	return "unknown"
}

// llcText names the message that starts with a byte.
func llcText(first byte) string {
	typ := llc.Type(first & 0x0f)
	switch {
	case first&0xf0 == 0 && typ.In(1):
		return typ.String()
	case first&0xf0 == 0x20 && typ.In(2):
		return typ.String() + ", version 2"
	case first>>6 == 0b10:
		return fmt.Sprintf("optional message 0x%02x", first)
	}
	return fmt.Sprintf("unknown message 0x%02x", first)
}

// llcLength goes on to the flags, past the length, and returns it. Version 2 has two bytes for it,
// in one of two byte orders: see [llc.Form].
func (w *walker) llcLength(version int, typ llc.Type) int {
	if version == 1 {
		n := int(w.uint(1, "length", "smc.length", nil))
		if typ == llc.TypeAddLink {
			w.bits("reason", "", bit{0x0f, "reason", "smc.add.link.response.reject_reason",
				as(llc.RejectReason.String), true})
		} else {
			w.reserved(1)
		}
		return n
	}
	f, b := w.take(2, "length", "smc.length")
	if f == nil {
		return 0
	}
	n, little := int(binary.BigEndian.Uint16(b)), int(binary.LittleEndian.Uint16(b))
	fits := func(n int) bool { return n == llc.MinLen || llc.MinLen < n && n == len(w.b) }
	if fits(little) && !fits(n) {
		n = little
		f.Value, f.Text, f.words = uint64(n), fmt.Sprintf("%d, little-endian", n), true
		return n
	}
	f.setUint(uint64(n), nil)
	return n
}

// flags makes fields of the flags: the reply flag, and the other flags of the message.
func (w *walker) flags(key, replyKey string, more ...bit) byte {
	parts := append([]bit{{0x80, "reply", replyKey, nil, false}}, more...)
	return w.bits("flags", key, parts...)
}

func (w *walker) linkNum(key string) {
	w.uint(1, "link number", key, nil)
}

// confirmLink: RFC 7609 pp.107-109, SMCv2 p.83.
func (w *walker) confirmLink(version int) {
	w.flags("smc.confirm.link.flags", "smc.confirm.link.response",
		bit{0x0f, "cache size", "smc.confirm.link.cache_size", hexadecimal, false})
	w.mac("MAC", "smc.confirm.link.sender.mac")
	w.gid("GID", "smc.sender.gid")
	w.uint(3, "QPN", "smc.confirm.link.sender.qp.number", both)
	w.linkNum("smc.confirm.link.number")
	w.uint(4, "link user ID", "smc.confirm.link.sender.link.userid", as(wire.LinkID.String))
	w.uint(1, "max links", "smc.confirm.link.max.links", nil)
	if version == 2 {
		w.uint(1, "max connections", "smc.confirm.link.max.conns", nil)
	}
}

// addLink: RFC 7609 pp.109-111, SMCv2 p.85.
func (w *walker) addLink(version int) {
	more := []bit{{0x40, "rejected", "smc.add.link.response.rejected", nil, false}}
	if version == 2 {
		more = append(more, bit{0x0f, "reason", "smc.add.link.response.reject_reason",
			as(llc.RejectReason.String), true})
	}
	flags := w.flags("smc.add.link.flags", "smc.add.link.response", more...)
	w.mac("MAC", "smc.add.link.sender.mac")
	w.reserved(2)
	w.gid("GID", "smc.add.link.sender.gid")
	w.uint(3, "QPN", "smc.add.link.sender.qp.number", both)
	w.linkNum("smc.add.link.link.number")
	w.bits("MTU", "smc.add.link.flags2", bit{0x0f, "MTU", "smc.add.link.qp.mtu.value", mtuText, true})
	w.uint(3, "initial PSN", "smc.add.link.initial.psn", both)
	w.reserved(8)
	if rejected := flags&0xc0 == 0xc0; version == 1 || rejected {
		return
	}
	w.bits("path", "smc.add.link.flags3", bit{0x80, "direct", "smc.add.link.direct_link", nil, false})
	w.reserved(1)
	w.gid("target GID", "smc.add.link.client_target_gid")
	w.reserved(8)
	f, b := w.take(2, "number of RKeys", "smc.add.link.rkey_count")
	if f == nil {
		return
	}
	n := uint64(b[0]) + uint64(b[1]) // one of them is zero: the sender's byte order
	if b[0] != 0 && b[1] != 0 {
		n = uintOf(b) // more than there can be
	}
	f.setUint(n, nil)
	if b[0] != 0 && b[1] == 0 {
		f.Text, f.words = fmt.Sprintf("%d, little-endian", n), true
	}
	const key = "smc.add.link.rmb.RTok."
	for i := uint64(1); i <= n && len(w.b)-w.at >= 16; i++ {
		w.rkeyPair(int(i), key+"Rkey1", key+"Rkey2", key+"virt")
	}
}

// rkeyPair: RFC 7609 p.114, SMCv2 p.85.
func (w *walker) rkeyPair(i int, reference, rkey, virt string) {
	w.uint(4, fmt.Sprintf("reference RKey %d", i), reference, both)
	w.uint(4, fmt.Sprintf("RKey %d", i), rkey, both)
	w.uint(8, fmt.Sprintf("virtual address %d", i), virt, hexadecimal)
}

// addLinkCont: RFC 7609 pp.112-114.
func (w *walker) addLinkCont() {
	w.flags("smc.add.link.cont.flags", "smc.add.link.cont.response")
	w.linkNum("smc.add.link.cont.link.number")
	n := int(w.uint(1, "number of RKeys", "smc.add.link.cont.rkey.number", nil))
	w.reserved(2)
	for i := 1; i <= min(n, 2); i++ {
		key := fmt.Sprintf("smc.add.link.cont.rmb.RTok%d.", i)
		w.rkeyPair(i, key+"Rkey1", key+"Rkey2", key+"virt")
	}
}

// deleteLink: RFC 7609 pp.115-117, SMCv2 p.90.
func (w *walker) deleteLink() {
	w.flags("smc.delete.link.flags", "smc.delete.link.response",
		bit{0x40, "all", "smc.delete.link.all", nil, false},
		bit{0x20, "orderly", "smc.delete.link.orderly", nil, false})
	w.linkNum("smc.delete.link.number")
	w.uint(4, "reason", "smc.delete.link.reason.code", as(llc.DeleteReason.String))
	if f := w.last(); f.Name == "reason" {
		f.words = true
	}
}

// requestAddLink: SMCv2 "SMC-Rv2 LLC Request Add Link Message".
func (w *walker) requestAddLink() {
	flags := w.flags("smc.add.link.flags", "smc.request.add.link.response",
		bit{0x40, "rejected", "smc.request.add.link.response.rejected", nil, false},
		bit{0x0f, "reason", "smc.request.add.link.response.reject_reason", as(llc.RejectReason.String), true})
	w.reserved(20)
	if flags&0x80 != 0 {
		return
	}
	n := w.uint(1, "number of GIDs", "smc.request.add.link.gid.list.entry_count", nil)
	w.reserved(3)
	for i := uint64(1); i <= n && len(w.b)-w.at >= 16; i++ {
		w.gid(fmt.Sprintf("GID %d", i), "smc.request.add.link.gid.list.entry")
	}
}

// confirmRKey: RFC 7609 pp.117-119, SMCv2 p.91.
func (w *walker) confirmRKey() {
	w.flags("smc.confirm.rkey.flags", "smc.confirm.rkey.response",
		bit{0x20, "negative", "smc.confirm.rkey.negative.response", nil, false},
		bit{0x10, "retry", "smc.confirm.rkey.retry.rkey.set", nil, false})
	n := int(w.uint(1, "number of other RTokens", "smc.confirm.rkey.number.qp", nil))
	w.uint(4, "RKey", "smc.confirm.rkey.new.rkey", both)
	w.uint(8, "virtual address", "smc.confirm.rkey.new.virt", hexadecimal)
	w.rtokens(min(n, 2))
}

// rtokens: RFC 7609 p.119, SMCv2 p.91.
func (w *walker) rtokens(n int) {
	for i := 1; i <= n; i++ {
		w.uint(1, fmt.Sprintf("link number %d", i), "smc.confirm.rkey.link.number", nil)
		w.uint(4, fmt.Sprintf("RKey %d", i), "smc.confirm.rkey.new.rkey", both)
		w.uint(8, fmt.Sprintf("virtual address %d", i), "smc.confirm.rkey.new.virt", hexadecimal)
	}
}

// confirmRKeyCont: RFC 7609 pp.120-121.
func (w *walker) confirmRKeyCont() {
	w.flags("smc.confirm.rkey.flags", "smc.confirm.rkey.response",
		bit{0x20, "negative", "smc.confirm.rkey.negative.response", nil, false})
	n := int(w.uint(1, "number of RTokens", "smc.confirm.rkey.number.qp", nil))
	w.rtokens(min(n, 3))
}

// deleteRKey: RFC 7609 pp.122-123, SMCv2 pp.93-95.
func (w *walker) deleteRKey(version int) {
	flags := w.flags("smc.delete.rkey.flags", "smc.delete.rkey.response",
		bit{0x20, "negative", "smc.delete.rkey.negative.response", nil, false})
	reply, negative := flags&0x80 != 0, flags&0xa0 == 0xa0
	n := int(w.uint(1, "number of RKeys", "smc.delete.rkey.count", nil))
	switch {
	case version == 1:
		w.uint(1, "error mask", "smc.delete.rkey.error.mask",
			func(v uint64) string { return fmt.Sprintf("%08b", v) })
	case version == 2 && negative:
		n = min(8, int(w.uint(1, "number of RKeys not deleted", "smc.delete.rkey.count.invalid", nil)))
	default:
		w.reserved(1)
	}
	if version == 2 && reply && !negative {
		return
	}
	w.reserved(2)
	for i := 1; i <= n && len(w.b)-w.at >= 4; i++ {
		w.uint(4, fmt.Sprintf("RKey %d", i), "smc.delete.rkey.deleted", both)
	}
}

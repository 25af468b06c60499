package render

import (
	"fmt"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// exchangeKeys has the keys of an Accept or a Confirm; both have the same layout.
type exchangeKeys struct {
	flags, firstR, firstD, smcType                           string
	peerID, gid, mac, qpn, rkey, rmbeIndex, token, flags2    string
	rmbeSize, mtu, rmbAddr, psn                              string
	ismGID, dmbToken, dmbeIndex, dmbeFlags, dmbeSize, linkID string
	chid, eid, os, release, hostName                         string
}

// Keys of Wireshark. It files some fields under the names of other messages.
var (
	acceptKeys = exchangeKeys{
		flags: "smc.accept.flags", firstR: "smc.proposal.first.contact", firstD: "smc.accept.first.contact",
		smcType: "smc.accept.smc.type",
		peerID:  "smc.accept.sender.server.peer.id", gid: "smc.accept.server.preferred.gid",
		mac: "smc.accept.server.preferred.mac", qpn: "smc.accept.server.qp.number",
		rkey: "smc.accept.server.rmb.rkey", rmbeIndex: "smc.accept.server.tcp.conn.index",
		token: "smc.accept.server.rmb.element.alert.token", flags2: "smc.accept.flags.2",
		rmbeSize: "smc.accept.rmb.buffer.size", mtu: "smc.accept.qp.mtu.value",
		rmbAddr: "smc.accept.server.rmb.virtual.address", psn: "smc.accept.initial.psn",
		ismGID: "smc.accept.sender.server.ism.gid", dmbToken: "smc.accept.dmb.token",
		dmbeIndex: "smc.accept.dmbe.conn.index", dmbeFlags: "smc.accept.dmbe.size",
		dmbeSize: "smc.accept.dmbe.buffer.size", linkID: "smc.accept.server.linkid",
		chid: "smc.accept.smc.chid", eid: "smc.accept.eid", os: "smc.accept.os.type",
		release: "smc.accept.smc.version.relnum", hostName: "smc.accept.peer.host.name",
	}
	confirmKeys = exchangeKeys{
		flags: "smc.confirm.flags", firstR: "smc.confirm.first.contact", firstD: "smc.confirm.first.contact",
		smcType: "smc.confirm.smc.type",
		peerID:  "smc.confirm.sender.client.peer.id", gid: "smc.client.gid",
		mac: "smc.confirm.client.mac", qpn: "smc.confirm.client.qp.number",
		rkey: "smc.confirm.client.rmb.rkey", rmbeIndex: "smc.confirm.client.tcp.conn.index",
		token: "smc.client.rmb.element.alert.token", flags2: "smc.confirm.flags.2",
		rmbeSize: "smc.confirm.rmb.buffer.size", mtu: "smc.confirm.qp.mtu.value",
		rmbAddr: "smc.client.rmb.virtual.address", psn: "smc.initial.psn",
		ismGID: "smc.confirm.sender.client.ism.gid", dmbToken: "smc.confirm.dmb.token",
		dmbeIndex: "smc.confirm.dmbe.conn.index", dmbeFlags: "smc.confirm.dmbe.size",
		dmbeSize: "smc.confirm.dmbe.buffer.size", linkID: "smc.confirm.client.linkid",
		chid: "smc.confirm.smc.chid", eid: "smc.confirm.eid", os: "smc.confirm.os.type",
		release: "smc.confirm.smc.version.relnum", hostName: "smc.confirm.peer.host.name",
	}
)

// exchange goes through an Accept or a Confirm: RFC 7609 pp.98, 102, SMCv2 pp.61-76.
func (w *walker) exchange(typ clc.Type, version clc.Version, k *exchangeKeys) {
	smcType, firstKey := clc.TypesNone, k.firstD
	if w.at < len(w.b) {
		if smcType = clc.SMCTypes(w.b[w.at] & 3); smcType == clc.TypesR {
			firstKey = k.firstR
		}
	}
	parts := []bit{
		{0xf0, "version", "smc.proposal.smc.version", nil, false},
		{0x08, "first contact", firstKey, nil, false},
		{0x03, "SMC type", k.smcType, typesText, true},
	}
	if typ == clc.TypeAccept && version > clc.V1 && smcType == clc.TypesR && w.b[w.at]&0x04 != 0 {
		// SMCv2 p.66
		parts = append(parts, bit{0x04, "reason for not SMC-D kept", "smc.v21.rc_saved", nil, false})
	}
	flags := w.bits("flags", k.flags, parts...)
	hasFCE := version > clc.V1 && flags&0x08 != 0
	switch smcType {
	case clc.TypesR:
		w.paramsR(k)
		if version == clc.V1 {
			return
		}
		w.text(32, "EID", k.eid)
		w.reserved(8)
		if !hasFCE {
			return
		}
		w.fce(k, true)
		if typ == clc.TypeConfirm && w.skipTo(156) {
			n := w.uint(1, "number of GIDs", "smc.confirm.gid.list.entry_count", nil)
			w.reserved(3)
			for i := range n {
				w.gid(fmt.Sprintf("GID %d", i+1), "smc.confirm.gid.list.entry")
			}
		}
	case clc.TypesD:
		w.paramsD(k, version)
		if hasFCE {
			w.fce(k, false)
		}
	case clc.TypesNone, clc.TypesBoth:
		// No layout has been chosen.
	}
}

// paramsR goes through the parameters for an SMC-R peer: RFC 7609 p.98, SMCv2 p.66.
func (w *walker) paramsR(k *exchangeKeys) {
	w.peerID(k.peerID)
	w.gid("GID", k.gid)
	w.mac("MAC", k.mac)
	w.uint(3, "QPN", k.qpn, both)
	w.uint(4, "RKey", k.rkey, both)
	w.uint(1, "RMB element index", k.rmbeIndex, nil)
	w.uint(4, "alert token", k.token, both)
	w.bits("RMB element size and MTU", k.flags2,
		bit{0xf0, "RMB element size", k.rmbeSize, bufferText, true},
		bit{0x0f, "MTU", k.mtu, mtuText, true})
	w.reserved(1)
	w.uint(8, "RMB virtual address", k.rmbAddr, hexadecimal)
	w.reserved(1)
	w.uint(3, "initial PSN", k.psn, both)
}

// bufferText and mtuText say how many bytes a code stands for: RFC 7609 p.100.
func bufferText(v uint64) string { return fmt.Sprintf("%d bytes", wire.SizeCode(v).Bytes()) }

func mtuText(v uint64) string {
	if m := wire.MTU(v); m.Valid() {
		return fmt.Sprintf("%d bytes", m.Bytes())
	}
	return "reserved"
}

// paramsD goes through the parameters for an SMC-D peer, up to the start of the first contact
// extension: SMCv2 p.63.
func (w *walker) paramsD(k *exchangeKeys, version clc.Version) {
	gid := len(w.fields)
	w.ismGID("GID", k.ismGID)
	w.uint(8, "DMB token", k.dmbToken, func(v uint64) string { return fmt.Sprintf("%016x", v) })
	w.uint(1, "DMB element index", k.dmbeIndex, nil)
	w.bits("DMB element size", k.dmbeFlags, bit{0xf0, "DMB element size", k.dmbeSize, bufferText, true})
	w.reserved(2)
	w.uint(4, "link ID", k.linkID, as(wire.LinkID.String))
	if version == clc.V1 {
		w.reserved(12)
		return
	}
	chid := w.chid("CHID", k.chid)
	w.text(32, "EID", k.eid)
	if !chid.IsEmulated() {
		w.reserved(8)
		return
	}
	if len(w.b)-w.at >= 8 {
		g := wire.ISMGID{Hi: uintOf(w.b[8:16]), Lo: uintOf(w.b[w.at:][:8])}
		w.fields[gid].Text, w.fields[gid].words = extendedText(g), true
	}
	w.ismGID("GID, part 2", keyGIDPart2)
}

// fce goes through the first contact extension: SMCv2 pp.61, 63, 66.
func (w *walker) fce(k *exchangeKeys, smcr bool) {
	if smcr {
		w.bits("path", "smc.accept.fce1.flags", bit{0x80, "direct", "smc.accept.v2_lg.type", nil, false})
	} else {
		w.reserved(1)
	}
	release := 0x0f & w.bits("OS and release", "smc.accept.fce.flags",
		bit{0xf0, "OS", k.os, as(clc.OS.String), true},
		bit{0x0f, "release", k.release, nil, false})
	w.reserved(2)
	w.text(clc.HostNameLen, "host name", k.hostName)
	if release == 0 || len(w.b)-w.at < 16 {
		return
	}
	if smcr {
		w.uint(1, "max conns", keyMaxConns, nil)
		w.uint(1, "max links", keyMaxLinks, nil)
	} else {
		w.reserved(2)
	}
	w.features()
	w.opaque(4, "vendor options", keyVendorOptions)
	w.reserved(8)
}

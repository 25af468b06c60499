package render

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// Keys of fields of SMCv2.1 that Wireshark has no names for; it shows the bytes as reserved.
const (
	keyMaxConns      = "smc.v21.max_conns"
	keyMaxLinks      = "smc.v21.max_links"
	keyFeatures      = "smc.v21.feature_mask"
	keyVendorOUI     = "smc.v21.vendor_oui"
	keyVendorOptions = "smc.v21.vendor_options"
	keyGIDPart2      = "smc.v21.gid.part2"
	keyProposalPart2 = "smc.v21.proposal.gid.part2"
)

// option goes through TCP option 254: RFC 7609 p.92.
func (w *walker) option() {
	w.uint(1, "kind", "tcp.option_kind", nil)
	w.uint(1, "length", "tcp.option_len", nil)
	// Wireshark takes two bytes for the identifier and the others for data; RFC 7609 has four, as
	// RFC 6994 allows.
	w.eyecatcher("identifier", "smc.option.exid")
}

// eyecatcher makes a field of the four letters in EBCDIC.
func (w *walker) eyecatcher(name, key string) {
	f, b := w.take(4, name, key)
	if f == nil {
		return
	}
	f.setHex(b)
	f.words = true
	switch f.Value {
	case "e2d4c3d9":
		f.Text = "SMC-R"
	case "e2d4c3c4":
		f.Text = "SMC-D"
	default:
		f.Text = "wrong: " + f.Text
	}
}

const clcEyecatcherLen = 4

// clc goes through a message of the handshake.
func (w *walker) clc() {
	all := w.b
	w.eyecatcher("eyecatcher", "smc.eyecatcher")
	typ := clc.Type(w.code(1, "type", "smc.clc_msg", as(clc.Type.String)))
	length := int(w.uint(2, "length", "smc.length", nil))
	if len(all) < clc.HeaderLen {
		return
	}
	end := length // of the message; if it lies, there is nothing that can be taken for its end
	if complete := clc.HeaderLen+clcEyecatcherLen <= length && length <= len(all); complete {
		w.b = all[:length-clcEyecatcherLen]
	} else {
		end = len(all)
	}
	switch version := clc.Version(all[7] >> 4); typ {
	case clc.TypeProposal:
		w.proposal(version)
	case clc.TypeAccept:
		w.exchange(typ, version, &acceptKeys)
	case clc.TypeConfirm:
		w.exchange(typ, version, &confirmKeys)
	case clc.TypeDecline:
		w.decline()
	default:
		w.bits("flags", "", bit{0xf0, "version", "smc.proposal.smc.version", nil, false})
	}
	w.unknown()
	w.b = all[:end]
	if w.at < end {
		w.eyecatcher("final eyecatcher", "smc.eyecatcher.final")
	}
	w.b = all
	w.rest("bytes after the message", "smc.trailing")
}

// typesText says which SMC types a proposal offers.
func typesText(v uint64) string {
	switch clc.SMCTypes(v) {
	case clc.TypesR:
		return "SMC-R"
	case clc.TypesD:
		return "SMC-D"
	case clc.TypesBoth:
		return "SMC-R and SMC-D"
	}
	return "none"
}

// proposal goes through a Proposal: RFC 7609 p.94, SMCv2 p.53.
func (w *walker) proposal(version clc.Version) {
	parts := []bit{
		{0xf0, "version", "smc.proposal.smc.version", nil, false},
		{0x0c, "version 2 types", "smc.proposal.smcv2.type", typesText, true},
		{0x03, "version 1 types", "smc.proposal.smc.type", typesText, true},
	}
	if version == clc.V1 { // the bits are reserved
		parts = append(parts[:1], parts[2])
	}
	flags := w.bits("flags", "smc.proposal.flags", parts...)
	v1, v2 := clc.SMCTypes(flags&3), clc.SMCTypes(flags>>2&3)
	if version == clc.V1 {
		v2 = clc.TypesNone
	}
	w.peerID("smc.proposal.sender.client.peer.id")
	w.gid("GID", "smc.proposal.client.preferred.gid")
	w.mac("MAC", "smc.proposal.client.preferred.mac")
	ipAt := w.offset("IP offset", "smc.proposal.smcv1_subnet_ext_offset")
	var v2At int
	if version == clc.V1 {
		if area := ipAt - w.at; v1.HasD() && area >= 8 {
			w.ismGID("ISM GID", "smc.proposal.ism.gid")
			if area >= 10 {
				w.chid("ISM CHID", "smc.proposal.smc.chid")
			}
		}
	} else {
		w.ismGID("ISM GID", "smc.proposal.ism.gid")
		w.chid("ISM CHID", "smc.proposal.smc.chid")
		v2At = w.offset("v2 offset", "smc.proposal.smcv2_ext_offset")
		w.opaque(3, "vendor OUI", keyVendorOUI)
		w.opaque(5, "vendor options", keyVendorOptions)
		w.reserved(20)
	}
	if v1 != clc.TypesNone {
		if !w.skipTo(ipAt) {
			return
		}
		w.ipArea()
	}
	if v2 != clc.TypesNone && v2At != 0 && w.skipTo(v2At) {
		w.proposalV2(v2.HasD())
	}
}

// offset makes a field of the two bytes that say how many bytes there are between them and
// something else. It returns where that is; 0 if there are no such bytes, or they are zero and not the
// offset of the IP area, for which zero means that it comes next.
func (w *walker) offset(name, key string) int {
	f, b := w.take(2, name, key)
	if f == nil {
		return 0
	}
	v := uintOf(b)
	target := w.at + int(v)
	f.setUint(v, nil)
	if v == 0 {
		f.Text = "0"
		if name != "IP offset" {
			return 0
		}
		return target
	}
	f.Text = fmt.Sprintf("%d, to offset %d", v, target)
	f.words = true
	return target
}

func (w *walker) ismGID(name, key string) {
	w.uint(8, name, key, func(v uint64) string { return fmt.Sprintf("%016x", v) })
}

func (w *walker) chid(name, key string) wire.CHID {
	return wire.CHID(w.uint(2, name, key, chidText))
}

// chidText returns the sort of device that has a CHID: SMCv2, "Emulated-ISM", items 9 and 10.
func chidText(v uint64) string {
	chid := wire.CHID(v)
	switch {
	case chid == wire.CHIDLoopback:
		return "0xffff, Emulated-ISM, loopback"
	case chid.IsEmulated():
		return "0x" + chid.String() + ", Emulated-ISM"
	}
	return "0x" + chid.String()
}

// ipArea goes through the networks of the client: RFC 7609 p.97, SMCv2 p.56.
func (w *walker) ipArea() {
	f, b := w.take(4, "IPv4 network", "smc.outgoing.interface.subnet.mask")
	if f != nil {
		addr := netip.AddrFrom4([4]byte(b))
		f.Value, f.Text = addr.String(), addr.String()
		if w.at < len(w.b) {
			f.Text += "/" + strconv.Itoa(int(w.b[w.at]))
			f.words = true
		}
	}
	w.uint(1, "prefix length", "smc.outgoing.interface.subnet.mask.number.of.significant.bits", nil)
	w.reserved(2)
	n := w.uint(1, "number of prefixes", "smc.proposal.ipv6.prefix.count", nil)
	for i := range n {
		f, b := w.take(16, fmt.Sprintf("IPv6 prefix %d", i+1), "smc.proposal.ipv6.prefix.value")
		if f == nil {
			break
		}
		addr := netip.AddrFrom16([16]byte(b))
		f.Value, f.Text = addr.String(), addr.String()
		if w.at < len(w.b) {
			f.Text += "/" + strconv.Itoa(int(w.b[w.at]))
			f.words = true
		}
		w.uint(1, fmt.Sprintf("prefix length %d", i+1), "smc.proposal.ipv6.prefix.length", nil)
	}
}

// proposalV2 goes through the version 2 extension: SMCv2 p.57.
func (w *walker) proposalV2(offersD bool) {
	start := w.at
	eids := w.uint(1, "number of UEIDs", "smc.proposal.eid.count", nil)
	entries := int(w.uint(1, "number of ISM entries", "smc.proposal.ismv2_gid_count", nil))
	w.reserved(1)
	flags := w.bits("flags", "smc.proposal.extflags.2",
		bit{0xf0, "release", "smc.proposal.smc.version.relnum", nil, false},
		bit{0x01, "SEID present", "smc.proposal.smc.seid", nil, false})
	w.reserved(2)
	dOffset := int(w.uint(2, "SMC-Dv2 offset", "smc.proposal.smcdv2_ext_offset", nil))
	const gidName = "RoCEv2 GID"
	if b := w.b[min(w.at, len(w.b)):]; len(b) >= 16 && isIPv4(b) {
		w.gid(gidName, "smc.proposal.rocev2.gid.ipv4")
		f := w.last()
		f.Value, f.words = f.Text, false
	} else {
		w.gid(gidName, "smc.proposal.rocev2.gid.ipv6")
	}
	w.uint(1, "max conns", keyMaxConns, nil)
	w.uint(1, "max links", keyMaxLinks, nil)
	w.features()
	w.reserved(12)
	for i := range eids {
		w.text(32, fmt.Sprintf("UEID %d", i+1), "smc.proposal.eid")
	}
	if !offersD || dOffset == 0 || !w.skipTo(start+8+dOffset) {
		return
	}
	w.text(32, "SEID", "smc.proposal.system.eid")
	if f := w.last(); flags&1 == 0 && f != nil && f.Value == "" {
		f.Text = "not present"
	}
	w.reserved(16)
	w.ismEntries(entries)
}

func isIPv4(b []byte) bool {
	_, ok := wire.GID(b[:16]).IPv4()
	return ok
}

// ismEntries goes through the array of ISM devices: SMCv2 p.60. An Emulated-ISM device has two
// entries, of which the second has the rest of its GID.
func (w *walker) ismEntries(n int) {
	for i := 0; i < n; i++ {
		if len(w.b)-w.at < 10 {
			w.rest("ISM entry (cut off)", "smc.proposal.ism.gid")
			return
		}
		at, first := len(w.fields), i+1
		hi := uintOf(w.b[w.at:][:8])
		w.ismGID(fmt.Sprintf("GID %d", first), "smc.proposal.ism.gid")
		chid := w.chid(fmt.Sprintf("CHID %d", first), "smc.proposal.smc.chid")
		if !chid.IsEmulated() || i+1 >= n || len(w.b)-w.at < 10 {
			continue
		}
		i++
		g := wire.ISMGID{Hi: hi, Lo: uintOf(w.b[w.at:][:8])}
		w.fields[at].Text = extendedText(g)
		w.fields[at].words = true
		w.ismGID(fmt.Sprintf("GID %d, part 2", first), keyProposalPart2)
		w.chid(fmt.Sprintf("CHID %d, again", first), "smc.proposal.smc.chid")
	}
}

// extendedText says that eight bytes are the first half of a GID.
func extendedText(g wire.ISMGID) string { return g.String() + " (Extended GID)" }

func (w *walker) features() {
	w.uint(2, "features", keyFeatures, featureText)
	if f := w.last(); f != nil && f.Key == keyFeatures {
		f.words = true
	}
}

// featureText names the bits of the mask: SMCv2 p.57.
func featureText(v uint64) string {
	var names []string
	if clc.Features(v)&clc.FeatureEmulatedISM != 0 {
		names = append(names, "Emulated-ISM")
	}
	if other := clc.Features(v) &^ clc.FeatureEmulatedISM; other != 0 {
		names = append(names, fmt.Sprintf("unknown 0x%04x", uint16(other)))
	}
	if names == nil {
		return "none"
	}
	return strings.Join(names, ", ")
}

// decline goes through a Decline: RFC 7609 p.105, SMCv2 p.78.
func (w *walker) decline() {
	w.bits("flags", "smc.decline.flags",
		bit{0xf0, "version", "smc.decline.smc.version", nil, false},
		bit{0x08, "out of sync", "smc.decline.osync", nil, false})
	w.peerID("smc.sender.peer.id")
	var os clc.OS
	if len(w.b) > 20 {
		os = clc.OS(w.b[20] >> 4)
	}
	diagnosis := func(name, key string) {
		w.uint(4, name, key, func(v uint64) string { return diagnosisText(clc.Diagnosis(v), os) })
		if f := w.last(); f != nil && f.Name == name {
			f.words = true
		}
	}
	diagnosis("diagnosis", "smc.peer.diag.info")
	w.bits("OS", "smc.decline.flags2", bit{0xf0, "OS", "smc.decline.os.type", as(clc.OS.String), true})
	w.reserved(3)
	if len(w.b)-w.at >= 16 {
		diagnosis("diagnosis SMC-Dv2", "smc.decline.diag.smcdv2")
		diagnosis("diagnosis SMC-Dv1", "smc.decline.diag.smcdv1")
		diagnosis("diagnosis SMC-Rv2", "smc.decline.diag.smcrv2")
		diagnosis("diagnosis SMC-Rv1", "smc.decline.diag.smcrv1")
	}
}

// diagnosisText explains a reason code that a peer with the given operating system has sent.
func diagnosisText(d clc.Diagnosis, os clc.OS) string {
	r := clc.Decline{Diagnosis: d, OS: os}.Reason()
	return r.String() + ": " + r.Sentence
}

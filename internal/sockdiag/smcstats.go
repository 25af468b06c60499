package sockdiag

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// Commands and attributes of the generic netlink family of Linux net/smc, of linux/smc.h. An
// attribute that holds others has no name of its own here if it has that of its command.
const (
	smcGenericFamily = "SMC_GEN_NETLINK"

	smcGetStats     = 7 // SMC_NETLINK_GET_STATS
	smcGetFallbacks = 8 // SMC_NETLINK_GET_FBACK_STATS
	smcGenStats     = 7 // SMC_GEN_STATS
	smcGenFallbacks = 8 // SMC_GEN_FBACK_STATS

	smcStatsD            = 1 // SMC_NLA_STATS_SMCD_TECH
	smcStatsR            = 2
	smcStatsClientErrors = 3 // SMC_NLA_STATS_CLNT_HS_ERR_CNT
	smcStatsServerErrors = 4

	smcTechSendBuffers = 5 // SMC_NLA_STATS_T_TX_RMB_STATS
	smcTechClientV1    = 7 // SMC_NLA_STATS_T_CLNT_V1_SUCC
	smcTechClientV2    = 8
	smcTechServerV1    = 9
	smcTechServerV2    = 10
	smcTechIn          = 16 // SMC_NLA_STATS_T_RX_BYTES
	smcTechOut         = 17
	smcBuffersPeerFull = 3 // SMC_NLA_STATS_RMB_FULL_PEER_CNT

	smcFallbackServer  = 1 // SMC_NLA_FBACK_STATS_TYPE: 1 for servers
	smcFallbackServers = 2 // SMC_NLA_FBACK_STATS_SRV_CNT
	smcFallbackClients = 3
	smcFallbackCode    = 4
	smcFallbackCount   = 5

	genericHeaderLen = 4
	genericVersion   = 1
)

// maxSMCReasons is how many reasons of fallbacks are listed: more than twice those that net/smc keeps,
// 30 of servers and 30 of clients.
const maxSMCReasons = 128

// SMCStats are the counters of the kernel's SMC in a network namespace, since that or the module is
// there.
type SMCStats struct {
	SMCD, SMCR                       SMCTech
	ClientErrors, ServerErrors       uint64 // handshakes that ended their connections
	ClientFallbacks, ServerFallbacks uint64 // connections that stayed TCP
	Reasons                          []SMCReason
}

// An SMCTech has the counters of one way to carry connections.
type SMCTech struct {
	Client, Server uint64 // connections
	In, Out        uint64 // bytes that programs have received, and sent
	PeerFull       uint64 // writes that found no room in the peer's buffer
}

// An SMCReason counts the fallbacks of a kernel for one reason.
type SMCReason struct {
	Server bool
	Code   uint32 // as the peer diagnosis of a Decline
	Count  uint64 // up to 65535, as the kernel counts
}

// Stats returns the counters of the kernel's SMC in this network namespace. The result is nil where
// the kernel has no SMC, or it is not loaded, or this process may not ask.
func Stats() (*SMCStats, error) {
	if !smcLoaded("/proc/net/protocols") { // as in SMC
		return nil, nil
	}
	family, err := genericFamily(smcGenericFamily)
	if err != nil || family == 0 {
		return nil, err
	}
	s := new(SMCStats)
	for _, command := range []byte{smcGetStats, smcGetFallbacks} {
		request, body := newRequestOf(family, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, genericHeaderLen)
		body[0], body[1] = command, genericVersion
		if err := askOn(unix.NETLINK_GENERIC, request, func(msg []byte) { s.parse(msg) }); err != nil {
			if absent(err) {
				return nil, nil
			}
			return nil, err
		}
	}
	return s, nil
}

// genericFamily returns the number of a family of generic netlink; 0: the kernel has no such family.
func genericFamily(name string) (family uint16, err error) {
	const getFamily, familyID, familyName = 3, 1, 2 // CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_ID, _NAME
	length := unix.SizeofNlAttr + len(name) + 1
	request, body := newRequestOf(unix.GENL_ID_CTRL, unix.NLM_F_REQUEST, genericHeaderLen+align(length))
	body[0], body[1] = getFamily, genericVersion
	binary.NativeEndian.PutUint16(body[4:], uint16(length))
	binary.NativeEndian.PutUint16(body[6:], familyName)
	copy(body[8:], name)
	err = askOn(unix.NETLINK_GENERIC, request, func(msg []byte) {
		if len(msg) < genericHeaderLen {
			return
		}
		attributes(msg[genericHeaderLen:], func(kind uint16, v []byte) {
			if kind == familyID && len(v) >= 2 {
				family = binary.NativeEndian.Uint16(v)
			}
		})
	})
	if errors.Is(err, ErrNoSocket) || absent(err) {
		return 0, nil
	}
	return family, err
}

// parse adds the counters of a message to s. Attributes that are cut short count nothing.
func (s *SMCStats) parse(msg []byte) {
	if len(msg) < genericHeaderLen {
		return
	}
	nested(msg[genericHeaderLen:], func(kind uint16, v []byte) {
		switch kind {
		case smcGenStats:
			s.parseStats(v)
		case smcGenFallbacks:
			s.parseFallbacks(v)
		}
	})
}

func (s *SMCStats) parseStats(b []byte) {
	nested(b, func(kind uint16, v []byte) {
		switch kind {
		case smcStatsD:
			s.SMCD = parseTech(v)
		case smcStatsR:
			s.SMCR = parseTech(v)
		case smcStatsClientErrors:
			s.ClientErrors = unsigned(v)
		case smcStatsServerErrors:
			s.ServerErrors = unsigned(v)
		}
	})
}

func parseTech(b []byte) (t SMCTech) {
	nested(b, func(kind uint16, v []byte) {
		switch kind {
		case smcTechClientV1, smcTechClientV2:
			t.Client += unsigned(v)
		case smcTechServerV1, smcTechServerV2:
			t.Server += unsigned(v)
		case smcTechIn:
			t.In = unsigned(v)
		case smcTechOut:
			t.Out = unsigned(v)
		case smcTechSendBuffers:
			nested(v, func(kind uint16, v []byte) {
				if kind == smcBuffersPeerFull {
					t.PeerFull = unsigned(v)
				}
			})
		}
	})
	return t
}

func (s *SMCStats) parseFallbacks(b []byte) {
	var r SMCReason
	nested(b, func(kind uint16, v []byte) {
		switch kind {
		case smcFallbackServer:
			r.Server = unsigned(v) != 0
		case smcFallbackServers:
			s.ServerFallbacks = unsigned(v)
		case smcFallbackClients:
			s.ClientFallbacks = unsigned(v)
		case smcFallbackCode:
			r.Code = uint32(unsigned(v))
		case smcFallbackCount:
			r.Count = unsigned(v)
		}
	})
	if r.Code != 0 && len(s.Reasons) < maxSMCReasons { // rule: TestParseSMCStats: len(s.Reasons) < maxSMCReasons -> true
		s.Reasons = append(s.Reasons, r)
	}
}

// nested is attributes for those that may hold others, which their kind says.
func nested(b []byte, found func(kind uint16, value []byte)) {
	attributes(b, func(kind uint16, v []byte) {
		found(kind&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), v)
	})
}

// unsigned is the value of an attribute that is a number of 1, 2, 4 or 8 bytes, in the byte order of
// the machine; 0 for others.
func unsigned(v []byte) uint64 {
	switch len(v) {
	case 1:
		return uint64(v[0])
	case 2:
		return uint64(binary.NativeEndian.Uint16(v))
	case 4:
		return uint64(binary.NativeEndian.Uint32(v))
	case 8:
		return binary.NativeEndian.Uint64(v)
	}
	return 0
}

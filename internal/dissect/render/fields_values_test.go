package render

import (
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
	"github.com/gosmc/smc/wire/roce"
)

// Fields that tshark does not know or does not name are compared with the values that messages were
// made from. Each line has a key, "@" the offset of the field, and the text for people.
func TestFieldValues(t *testing.T) {
	pair := llc.RKeyPair{Reference: 0x41424344, New: llc.RToken{RKey: 0x51525354, VA: 0x6162636465666768}}
	here := llc.RToken{RKey: 0xd1d2d3d4, VA: 0xd5d6d7d8d9dadbdc}
	v2 := llc.Header{Form: llc.V2}
	v2reply := llc.Header{Form: llc.V2Little, Reply: true}
	for _, tt := range []struct {
		message any
		want    string
	}{
		{llc.ConfirmLink{Header: v2, CacheSize: 3, MAC: sampleMAC, GID: sampleGID4, QPN: 0x010203, Link: 4, LinkUserID: 0x101, MaxLinks: 2, MaxConns: 32}, `
			smc.llc_msg @0 CONFIRM LINK, version 2
			smc.llc.version @0 2
			smc.length @1 44
			smc.confirm.link.response @3 no
			smc.confirm.link.cache_size @3 0x3
			smc.confirm.link.sender.mac @4 98:03:9b:ab:cd:ef
			smc.sender.gid @10 192.0.2.1
			smc.confirm.link.sender.qp.number @26 0x10203 (66051)
			smc.confirm.link.number @29 4
			smc.confirm.link.sender.link.userid @30 00000101
			smc.confirm.link.max.links @34 2
			smc.confirm.link.max.conns @35 32`},
		{llc.AddLink{Header: v2reply, MAC: sampleMAC, GID: sampleGID4, QPN: 0x010203, Link: 2, MTU: 9, PSN: 0x0a0b0c, Direct: true, TargetGID: sampleGID6, RKeys: []llc.RKeyPair{pair, pair}}, `
			smc.length @1 104, little-endian
			smc.add.link.response @3 yes
			smc.add.link.response.rejected @3 no
			smc.add.link.sender.mac @4 98:03:9b:ab:cd:ef
			smc.add.link.sender.gid @12 192.0.2.1
			smc.add.link.sender.qp.number @28 0x10203 (66051)
			smc.add.link.link.number @31 2
			smc.add.link.qp.mtu.value @32 9 (reserved)
			smc.add.link.initial.psn @33 0xa0b0c (658188)
			smc.add.link.direct_link @44 yes
			smc.add.link.client_target_gid @46 fe80::9a03:9bff:feab:cdef
			smc.add.link.rkey_count @70 2, little-endian
			smc.add.link.rmb.RTok.Rkey1 @72 0x41424344 (1094861636)
			smc.add.link.rmb.RTok.Rkey2 @76 0x51525354 (1364349780)
			smc.add.link.rmb.RTok.virt @80 0x6162636465666768`},
		{llc.AddLink{Header: v2reply, Rejected: true, Reason: llc.RejectMTU}, `
			smc.add.link.response.rejected @3 yes
			smc.add.link.response.reject_reason @3 2 (invalid MTU value)`},
		{llc.AddLink{Header: llc.Header{Form: llc.V1, Reply: true}, Rejected: true, Reason: llc.RejectNoPath}, `
			smc.llc_msg @0 ADD LINK
			smc.llc.version @0 1
			smc.add.link.response.reject_reason @2 1 (no alternate path available)`},
		{llc.RequestAddLink{Header: v2, GIDs: []wire.GID{sampleGID6, sampleGID4}}, `
			smc.llc_msg @0 REQUEST ADD LINK, version 2
			smc.length @1 60
			smc.request.add.link.response @3 no
			smc.request.add.link.gid.list.entry_count @24 2
			smc.request.add.link.gid.list.entry @28 fe80::9a03:9bff:feab:cdef`},
		{llc.DeleteLink{Header: v2, Link: 3, Orderly: true, Reason: llc.DeleteLostPath}, `
			smc.delete.link.all @3 no
			smc.delete.link.orderly @3 yes
			smc.delete.link.number @4 3
			smc.delete.link.reason.code @5 lost path (0x00010000)`},
		{llc.ConfirmRKey{Header: v2reply, Negative: true, Retry: true, RToken: here, Remaining: 1, Others: []llc.LinkRToken{{Link: 2, RToken: here}}}, `
			smc.confirm.rkey.response @3 yes
			smc.confirm.rkey.negative.response @3 yes
			smc.confirm.rkey.retry.rkey.set @3 yes
			smc.confirm.rkey.number.qp @4 1
			smc.confirm.rkey.new.rkey @5 0xd1d2d3d4 (3520254932)
			smc.confirm.rkey.new.virt @9 0xd5d6d7d8d9dadbdc
			smc.confirm.rkey.link.number @17 2`},
		{llc.ConfirmRKeyCont{Header: llc.Header{Form: llc.V1}, Remaining: 1, RTokens: []llc.LinkRToken{{Link: 5, RToken: here}}}, `
			smc.confirm.rkey.link.number @5 5
			smc.confirm.rkey.new.rkey @6 0xd1d2d3d4 (3520254932)
			smc.confirm.rkey.new.virt @10 0xd5d6d7d8d9dadbdc`},
		{llc.AddLinkCont{Header: llc.Header{Form: llc.V1}, Link: 2, Remaining: 2, RKeys: []llc.RKeyPair{pair, pair}}, `
			smc.add.link.cont.link.number @4 2
			smc.add.link.cont.rkey.number @5 2
			smc.add.link.cont.rmb.RTok1.Rkey1 @8 0x41424344 (1094861636)
			smc.add.link.cont.rmb.RTok1.Rkey2 @12 0x51525354 (1364349780)
			smc.add.link.cont.rmb.RTok1.virt @16 0x6162636465666768
			smc.add.link.cont.rmb.RTok2.Rkey1 @24 0x41424344 (1094861636)
			smc.add.link.cont.rmb.RTok2.virt @32 0x6162636465666768`},
		{llc.DeleteRKey{Header: v2reply, Negative: true, Count: 9, Invalid: 1, RKeys: []wire.RKey{0x501}}, `
			smc.delete.rkey.negative.response @3 yes
			smc.delete.rkey.count @4 9
			smc.delete.rkey.count.invalid @5 1
			smc.delete.rkey.deleted @8 0x501 (1281)`},
		{llc.DeleteRKey{Header: llc.Header{Form: llc.V1, Reply: true}, Negative: true, ErrorMask: 0x80, RKeys: []wire.RKey{0x501}}, `
			smc.delete.rkey.error.mask @5 10000000
			smc.delete.rkey.deleted @8 0x501 (1281)`},
		{llc.TestLink{Header: v2, UserData: [16]byte{0xab, 15: 0xcd}}, `
			smc.test.link.response @3 no
			smc.test.link.user_data @4 ab0000000000000000000000000000cd`},
		{clc.Accept{Version: clc.V2, FirstContact: true, D: sampleE, EID: mustEID("EID-ONE"), FCE: sampleFCE}, `
			smc.accept.first.contact @7 yes
			smc.accept.sender.server.ism.gid @8 e34ad0f5-2d18-78b5-1595-9739727ee7be (Extended GID)
			smc.accept.dmb.token @16 3132333435363738
			smc.accept.dmbe.buffer.size @25 2 (65536 bytes)
			smc.accept.smc.chid @32 0xffff, Emulated-ISM, loopback
			smc.accept.eid @34 "EID-ONE"
			smc.v21.gid.part2 @66 15959739727ee7be
			smc.accept.os.type @75 2 (Linux)
			smc.accept.peer.host.name @78 "host-1"
			smc.v21.feature_mask @112 Emulated-ISM, unknown 0x8000
			smc.v21.vendor_options @114 01020304`},
		{clc.Confirm{Version: clc.V2, FirstContact: true, R: sampleR, FCE: sampleFCE0, ClientGIDs: []wire.GID{sampleGID6}}, `
			smc.accept.v2_lg.type @104 no
			smc.confirm.os.type @105 1 (z/OS)
			smc.confirm.smc.version.relnum @105 0
			smc.confirm.peer.host.name @108 "ZOS1"
			smc.confirm.gid.list.entry_count @156 1
			smc.confirm.gid.list.entry @160 fe80::9a03:9bff:feab:cdef`},
		{clc.Accept{Version: clc.V2, R: sampleR, ReasonKept: true}, `
			smc.v21.rc_saved @7 yes`},
		{clc.Accept{Version: clc.V2, FirstContact: true, R: sampleR, FCE: sampleFCE}, `
			smc.accept.server.rmb.element.alert.token @46 0x8090a0b (134810123)
			smc.v21.max_conns @140 32
			smc.v21.max_links @141 2
			smc.v21.feature_mask @142 Emulated-ISM, unknown 0x8000
			smc.v21.vendor_options @144 01020304`},
		{clc.Decline{Version: clc.V2, Diagnosis: 0x11, OS: clc.OSAIX, ByType: clc.DiagnosisByType{SMCDv2: 1, SMCDv1: 2, SMCRv2: 3, SMCRv1: 4}}, `
			smc.peer.diag.info @16 VENDOR (0x00000011): The peer declined with a reason code of its own operating system (AIX).
			smc.decline.os.type @20 3 (AIX)
			smc.decline.diag.smcdv2 @24 VENDOR (0x00000001): The peer declined with a reason code of its own operating system (AIX).
			smc.decline.diag.smcrv1 @36 VENDOR (0x00000004): The peer declined with a reason code of its own operating system (AIX).`},
		{cdc.Header{Producer: cdc.Cursor{Wrap: 0x102, Count: 0x3040506}, Consumer: cdc.Cursor{Wrap: 7, Count: 8}, ProducerFlags: cdc.UrgentPresent, ConnFlags: cdc.Abort}, `
			smc.cdc.smcd.prod.wrap.seq @8 258
			smc.cdc.smcd.peer.prod.curs @10 50595078
			smc.cdc.smcd.cons.wrap.seq @16 7
			smc.cdc.smcd.peer.cons.curs @18 8
			smc.cdc.smcd.urgent.present @22 yes
			smc.cdc.smcd.write.blocked @22 no
			smc.cdc.smcd.peer.abnormal.close @23 yes`},
		{&roce.Packet{BTH: roce.BTH{Opcode: roce.Acknowledge, BECN: true}, AETH: roce.AETH{Syndrome: roce.RNRNak(14), MSN: 9}}, `
			infiniband.bth.opcode @0 17 (RC ACKNOWLEDGE)
			infiniband.bth.fecn @4 no
			infiniband.bth.becn @4 yes
			infiniband.aeth.syndrome @12 RNR NAK 1.28 ms
			infiniband.aeth.syndrome.opcode @12 1 (RNR NAK)
			infiniband.aeth.syndrome.timer @12 14 (1.28 ms)
			infiniband.aeth.msn @13 9`},
		{&roce.Packet{BTH: roce.BTH{Opcode: roce.CompareSwap}, Atomic: roce.AtomicETH{VA: 0x10, RKey: 0x20, SwapAdd: 0x30, Compare: 0x40}}, `
			infiniband.reth.va @12 0x10
			infiniband.reth.r_key @20 0x20 (32)
			infiniband.atomiceth.swapdt @24 0x30
			infiniband.atomiceth.cmpdt @32 0x40`},
		{&roce.Packet{BTH: roce.BTH{Opcode: roce.SendOnlyInvalidate}, InvalidateRKey: 0x99}, `
			infiniband.ieth @12 0x99 (153)`},
		{&roce.Packet{BTH: roce.BTH{Opcode: roce.AtomicAcknowledge}, AtomicAck: 0x77}, `
			infiniband.atomicacketh.origremdt @16 0x77`},
		{&roce.Packet{BTH: roce.BTH{Opcode: roce.WriteOnlyImm}, Imm: 0x01020304}, `
			infiniband.immdt @28 01020304`},
		{dissect.Option{Present: true}, `
			tcp.option_kind @0 254
			tcp.option_len @1 6
			smc.option.exid @2 SMC-R`},
	} {
		e := dissect.MessageEvent(tt.message, nil)
		for line := range strings.Lines(strings.TrimSpace(tt.want)) {
			key, rest, _ := strings.Cut(strings.TrimSpace(line), " @")
			offset, want, _ := strings.Cut(rest, " ")
			f := fieldNamed(t, e, key)
			if got := f.String(); got != want || decimal(uint64(f.Offset)) != offset {
				t.Errorf("%s: %s = %q at %d, want %q at %s", Describe(tt.message, nil), key, got, f.Offset, want, offset)
			}
		}
	}
}

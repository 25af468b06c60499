package llc

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"github.com/gosmc/smc/wire"
)

// TestValidate has the messages that cannot be sent; Append panics for them.
func TestValidate(t *testing.T) {
	add := func(change func(*AddLink)) AddLink { return testAddLink.with(change) }
	for _, tt := range []struct {
		what string
		msg  Message
	}{
		{"no form", ConfirmLink{}},
		{"no form", add(func(a *AddLink) { a.Form = 0 })},
		{"no form", AddLinkCont{}},
		{"no form", DeleteLink{}},
		{"no form", RequestAddLink{GIDs: []wire.GID{testGID}}},
		{"no form", ConfirmRKey{}},
		{"no form", TestLink{}},
		{"no form", ConfirmRKeyCont{}},
		{"no form", DeleteRKey{RKeys: rkeys(1)}},
		{"form 4", TestLink{Header: Header{Form: 4}}},
		{"version 2", AddLinkCont{Header: request2}},
		{"version 2", AddLinkCont{Header: request2l}},
		{"version 2", ConfirmRKeyCont{Header: request2}},
		{"version 1", RequestAddLink{Header: request1, GIDs: []wire.GID{testGID}}},

		{"cache size", ConfirmLink{Header: request2, CacheSize: 16}},
		{"QPN", ConfirmLink{Header: request2, QPN: wire.MaxQPN + 1}},

		{"rejecting request", add(func(a *AddLink) { a.Rejected = true })},
		{"reason", add(func(a *AddLink) { a.Reply, a.Rejected, a.Reason = true, true, 16 })},
		{"QPN", add(func(a *AddLink) { a.QPN = wire.MaxQPN + 1 })},
		{"PSN", add(func(a *AddLink) { a.PSN = wire.MaxPSN + 1 })},
		{"MTU", add(func(a *AddLink) { a.MTU = 16 })},
		{"256 RKeys", add(func(a *AddLink) { a.Form, a.RKeys = V2, make([]RKeyPair, 256) })},
		{"zeros", AddLink{Header: request1}},
		{"zeros", AddLink{Header: request2}},

		{"3 RKeys", AddLinkCont{Header: request1, Remaining: 3, RKeys: make([]RKeyPair, 3)}},
		{"too few RKeys", AddLinkCont{Header: request1, Remaining: 3, RKeys: pairs[:1]}},
		{"too many RKeys", AddLinkCont{Header: request1, Remaining: 1, RKeys: pairs}},

		{"rejecting request", RequestAddLink{Header: request2, Rejected: true, GIDs: []wire.GID{testGID}}},
		{"reason", RequestAddLink{Header: reply2, Rejected: true, Reason: 16}},
		{"no GIDs", RequestAddLink{Header: request2}},
		{"9 GIDs", RequestAddLink{Header: request2l, GIDs: make([]wire.GID, 9)}},

		{"negative request", ConfirmRKey{Header: request1, Negative: true}},
		{"8 remain", ConfirmRKey{Header: request1, Remaining: 8, Others: tokens[:2]}},
		{"3 remain in version 2", ConfirmRKey{Header: request2, Remaining: 3, Others: tokens[:2]}},
		{"3 RTokens", ConfirmRKey{Header: request1, Remaining: 3, Others: tokens}},
		{"too few RTokens", ConfirmRKey{Header: request1, Remaining: 2, Others: tokens[:1]}},
		{"too many RTokens", ConfirmRKey{Header: request1, Others: tokens[:1]}},

		{"negative request", ConfirmRKeyCont{Header: request1, Negative: true}},
		{"8 remain", ConfirmRKeyCont{Header: request1, Remaining: 8, RTokens: tokens}},
		{"too few RTokens", ConfirmRKeyCont{Header: request1, Remaining: 5, RTokens: tokens[:2]}},
		{"4 RTokens", ConfirmRKeyCont{Header: request1, Remaining: 5, RTokens: make([]LinkRToken, 4)}},

		{"negative request", DeleteRKey{Header: request1, Negative: true, RKeys: rkeys(1)}},
		{"no RKeys", DeleteRKey{Header: request1}},
		{"no RKeys", DeleteRKey{Header: request2}},
		{"9 RKeys in version 1", DeleteRKey{Header: request1, RKeys: rkeys(9)}},
		{"9 RKeys in version 1", DeleteRKey{Header: reply1, RKeys: rkeys(9)}},
		{"256 RKeys", DeleteRKey{Header: request2, RKeys: rkeys(256)}},
		{"9 RKeys in a reply", DeleteRKey{Header: reply2, Negative: true, Count: 9, Invalid: 9, RKeys: rkeys(9)}},
		{"more invalid than asked", DeleteRKey{Header: reply2, Negative: true, Count: 1, Invalid: 2}},
		{"more RKeys than invalid", DeleteRKey{Header: reply2l, Negative: true, Count: 2, Invalid: 1, RKeys: rkeys(2)}},
	} {
		err := tt.msg.Validate()
		if err == nil || !strings.HasPrefix(err.Error(), "llc: impossible "+tt.msg.Type().String()+": ") {
			t.Errorf("%v, %s: Validate = %v, want an error", tt.msg.Type(), tt.what, err)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%v, %s: Append did not panic", tt.msg.Type(), tt.what)
				}
			}()
			tt.msg.Append(nil)
		}()
	}
}

// TestNotSent checks that fields that a message does not have in its version, or as a request or a
// reply, are not sent.
func TestNotSent(t *testing.T) {
	v2 := func(a *AddLink) { a.Direct, a.TargetGID, a.RKeys, a.Missing = true, testGID, pairs, 3 }
	for _, tt := range []struct {
		what      string
		got, want Message
	}{
		{"version 1 CONFIRM LINK", ConfirmLink{Header: request1, MaxConns: 255}, ConfirmLink{Header: request1}},
		{"version 1 ADD LINK", testAddLink.with(v2), testAddLink},
		{"reason of an agreement", testAddLink.with(func(a *AddLink) { a.Header, a.Reason = reply1, RejectMTU }),
			testAddLink.with(func(a *AddLink) { a.Header = reply1 })},
		{"version 2 rejection", testAddLink.with(v2).with(func(a *AddLink) { a.Header, a.Rejected, a.Reason = reply2, true, 1 }),
			testAddLink.with(func(a *AddLink) { a.Header, a.Rejected, a.Reason = reply2, true, 1 })},
		{"missing RKeys", testAddLink.with(v2).with(func(a *AddLink) { a.Form = V2 }),
			testAddLink.with(v2).with(func(a *AddLink) { a.Form, a.Missing = V2, 0 })},
		{"reply to REQUEST ADD LINK", RequestAddLink{Header: reply2, Reason: 1, GIDs: make([]wire.GID, 9)}, RequestAddLink{Header: reply2}},
		{"link number with all", DeleteLink{Header: request1, All: true, Link: 5}, DeleteLink{Header: request1, All: true}},
		{"retry of a positive reply", ConfirmRKey{Header: reply1, Retry: true}, ConfirmRKey{Header: reply1}},
		{"mask of a positive reply", DeleteRKey{Header: reply1, RKeys: rkeys(1), ErrorMask: 0x80}, DeleteRKey{Header: reply1, RKeys: rkeys(1)}},
		{"counts in version 1", DeleteRKey{Header: reply1, RKeys: rkeys(1), Count: 7, Invalid: 8}, DeleteRKey{Header: reply1, RKeys: rkeys(1)}},
		{"positive reply in version 2", DeleteRKey{Header: reply2, RKeys: rkeys(1), Count: 7, Invalid: 8, ErrorMask: 1},
			DeleteRKey{Header: reply2, Count: 7}},
	} {
		got, err := Parse(tt.got.Append(nil))
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: Parse(Append) = %v, %v; want %v", tt.what, got, err, tt.want)
		}
		if got, want := tt.got.Append(nil), tt.want.Append(nil); !bytes.Equal(got, want) {
			t.Errorf("%s: Append = %x, want %x", tt.what, got, want)
		}
	}
}

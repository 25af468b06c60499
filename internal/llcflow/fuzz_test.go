package llcflow

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// FuzzControl feeds messages made of any bytes, mixed with calls of a caller and with time, and
// checks the rules that hold for all of them. It plays them twice: the same inputs have to give the
// same outputs.
func FuzzControl(f *testing.F) {
	b := newControlBench(f, core.RoleClient, "r")
	script := func(words ...string) (in []byte) {
		for _, w := range words {
			if m := b.message(w); m != nil {
				e := m.Append(nil)
				in = append(append(in, 0xff, byte(len(e))), e...)
				continue
			}
			in = append(in, map[string]byte{"sent": 1, "want": 4, "unwanted": 5, "late": 9}[w], 3)
		}
		return in
	}
	f.Add(true, script("confirm-reply", "rejected", "want", "late", "rkey", "drop-rkey", "delete", "late"))
	f.Add(false, script("confirm", "sent", "add", "want", "rkey-retry", "late", "delete-all"))
	f.Add(true, script("confirm-reply", "accepted", "delete", "delete2-reply", "unwanted", "drop-reply"))
	f.Fuzz(func(t *testing.T, server bool, in []byte) {
		role, kind := core.RoleClient, "r"
		if server {
			role = core.RoleServer
		}
		b, again := newControlBench(t, role, kind), newControlBench(t, role, kind)
		b.do("start")
		again.do("start")
		for len(in) >= 2 {
			op, arg := in[0], in[1]
			in = in[2:]
			before := b.lc.State()
			var message []byte
			if op >= 0x80 {
				message = in[:min(int(arg), len(in))]
				in = in[len(message):]
			}
			outs := fuzzInput(b, op, arg, message)
			if other := fuzzInput(again, op, arg, message); !reflect.DeepEqual(outs, other) {
				t.Fatalf("in %v: %s, and again %s", before, controlWords(b.now, outs), controlWords(b.now, other))
			}
			b.all = append(b.all, outs...)
			checkControl(t, "fuzz", b, before, outs)
			if len(b.lc.own) > llc.MaxRKeys || len(b.lc.peer.rmbs) > llc.MaxRKeys || len(b.lc.deletes) > maxSlots || len(b.lc.wishes) > llc.MaxRKeys {
				t.Fatalf("%d and %d RMBs, %d deletes, %d wishes", len(b.lc.own), len(b.lc.peer.rmbs), len(b.lc.deletes), len(b.lc.wishes))
			}
			if t.Failed() {
				return
			}
		}
		// After any inputs, the caller and time end it.
		b.all = append(b.all, b.lc.End(b.now, EndShutdown, nil)...)
		for range 3 {
			if d := b.lc.Deadline(); !d.IsZero() {
				b.all = append(b.all, b.lc.Advance(d, nil)...)
			}
		}
		if b.lc.State() != StateEnded {
			t.Fatalf("in %v after End and time", b.lc.State())
		}
		checkControl(t, "the end", b, StateEnding, nil)
	})
}

// fuzzInput plays one input.
func fuzzInput(b *controlBench, op, arg byte, message []byte) []Output {
	lc := b.lc
	b.now = b.now.Add(time.Duration(arg) * 10 * time.Millisecond)
	if message != nil {
		m, err := llc.Parse(message)
		return lc.HandleMessage(b.now, llc.LinkNum(op&1), m, err, nil)
	}
	id := RMBID(arg & 7)
	switch op % 12 {
	case 1:
		return lc.Sent(b.now, tagConfirm, nil)
	case 2:
		return lc.Sent(b.now, tagEnd, nil)
	case 3:
		if arg == 0 {
			return lc.LinkFailed(b.now, 0, errors.New("retries"), nil)
		}
	case 4:
		return b.opened(lc.ConfirmRMB(b.now, id, onFirst(llc.RToken{RKey: 0x100 + wire.RKey(id), VA: uint64(id) << 16}), nil))
	case 5:
		return lc.DeleteRMB(b.now, id, arg&8 == 0, nil)
	case 6:
		_, why, outs := lc.TakeElement(&clc.ParamsR{RKey: 0x200 + wire.RKey(arg&1), RMBAddr: peerToken.VA, RMBEIndex: arg >> 4}, Owner(arg)+1, nil)
		return append(outs, RMBRefused{0, why})
	case 7:
		lc.ReleaseElement(Owner(arg) + 1)
	case 8:
		return lc.Suspect(b.now, 0, nil)
	case 9:
		if d := lc.Deadline(); !d.IsZero() && d.After(b.now) {
			b.now = d
		}
		return lc.Advance(b.now, nil)
	case 10:
		if arg == 0 {
			return lc.Drop(b.now, nil)
		}
	case 11:
		if arg == 0 {
			return lc.End(b.now, EndOperator, nil)
		}
	}
	return nil
}

package llcflow

import (
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// rmbAnswers returns the outputs that answer requests about RMBs.
func rmbAnswers(outs []Output) string {
	var list []Output
	for _, o := range outs {
		if isRMBAnswer(o) {
			list = append(list, o)
		}
	}
	return controlWords(epoch, list)
}

func TestControlRKeyLimit(t *testing.T) {
	b := newControlBench(t, core.RoleServer, "r")
	b.play(serverActive)
	for i := range RMBID(llc.MaxRKeys - 1) {
		if !b.lc.Room() {
			t.Fatalf("no room after %d RMBs", i+1)
		}
		if got := rmbAnswers(b.lc.ConfirmRMB(b.now, 100+i, onFirst(llc.RToken{RKey: wire.RKey(i)}), nil)); got != "" {
			t.Fatalf("RMB %d: %s", i, got)
		}
	}
	if b.lc.Room() {
		t.Error("room for another RMB")
	}
	if got := rmbAnswers(b.lc.ConfirmRMB(b.now, 9999, onFirst(llc.RToken{RKey: 9999}), nil)); got != "refused(9999) RTOKENERR (0x09990001)" {
		t.Errorf("one more: %s", got)
	}
}

// TestControlQuarantine keeps an RMB into which the peer may still write.
func TestControlQuarantine(t *testing.T) {
	b := newControlBench(t, core.RoleServer, "r")
	b.play(serverActive)
	if got := b.play("quarantine unwanted want rkey-reply drop-reply"); got != "" || len(sentOf(b.all)) != 3 {
		t.Errorf("an RMB in quarantine: %q, sent %v", got, sentOf(b.all))
	}
	if _, ok := b.lc.own[1]; !ok {
		t.Error("the RMB was forgotten")
	}
	if got := b.play("end unwanted sent-end unwanted"); got != "deleted(1)" {
		t.Errorf("after the end of the group: %q", got)
	}
}

// TestControlRKeyTimeout has a peer that does not answer: Linux net/smc drops requests that cross its own.
func TestControlRKeyTimeout(t *testing.T) {
	for _, kind := range []string{"CONFIRM RKEY", "DELETE RKEY"} {
		b := newControlBench(t, core.RoleServer, "r", func(c *Config) { c.TestInterval = -1 })
		b.play(serverActive)
		b.now = epoch.Add(5 * time.Second)
		b.lc.Advance(b.now, nil) // the timer of ADD LINK
		b.all = nil
		if kind == "CONFIRM RKEY" {
			b.play("want")
			b.all = append(b.all, b.lc.ConfirmRMB(b.now, 3, onFirst(llc.RToken{RKey: 0x103}), nil)...)
		} else {
			b.play("unwanted")
			b.all = append(b.all, b.lc.DeleteRMB(b.now, 5, true, nil)...)
		}
		if m := sentOf(b.all); len(m) != 1 || m[0].Type().String() != kind {
			t.Fatalf("%s: sent %v", kind, m)
		}
		b.play("late")
		if m := sentOf(b.all); len(m) != 2 || m[1].String() != m[0].String() || rmbAnswers(b.all) != "" && kind == "CONFIRM RKEY" {
			t.Fatalf("%s: sent %v", kind, m)
		}
		b.play("late")
		m := sentOf(b.all)
		if len(m) != 3 || m[2].Type() != llc.TypeTestLink || b.lc.State() != StateActive {
			t.Fatalf("%s: sent %v", kind, m)
		}
		want := "refused(2) REGERR (0x09990003), refused(3) REGERR (0x09990003)"
		if kind == "DELETE RKEY" {
			want = "deleted(5)" // which nobody knew
			if b.lc.own[1].state != rmbQuarantined {
				t.Errorf("the RMB is in state %d", b.lc.own[1].state)
			}
		}
		if got := rmbAnswers(b.all); got != want {
			t.Errorf("%s: %s, want %s", kind, got, want)
		}
		b.now = b.now.Add(time.Second)
		if got := b.play("rkey-reply drop-reply"); got != "" {
			t.Errorf("%s, late answers: %s", kind, got)
		}
		if kind == "CONFIRM RKEY" { // the peer may know it all the same
			if b.play("test-reply"); b.lc.State() != StateActive {
				t.Errorf("the peer has answered: %v", b.lc.Failure())
			}
			b.all = nil
			if b.lc.DeleteRMB(b.now, 3, true, nil); len(b.lc.own) != 2 {
				t.Errorf("%d RMBs", len(b.lc.own))
			}
			if m := sentOf(b.lc.DeleteRMB(b.now, 2, true, nil)); len(m) != 1 || m[0].Type() != llc.TypeDeleteRKey {
				t.Errorf("sent %v", m)
			}
			continue
		}
		if b.lc.links[0].lastHeard = epoch; true { // nothing else was heard
			b.play("late")
		}
		if b.lc.State() != StateEnded || b.lc.Failure().Kind != EndSilent {
			t.Errorf("the peer is silent: %v, %v", b.lc.State(), b.lc.Failure())
		}
	}
}

// TestControlRKeyRetry asks again when the peer's links are as they are to be, but not for ever.
func TestControlRKeyRetry(t *testing.T) {
	b := newControlBench(t, core.RoleClient, "r")
	b.play(clientActive + " want rkey-retry")
	b.all = nil
	b.play("rkey-reply") // nobody has asked
	if rmbAnswers(b.all) != "" {
		t.Errorf("an answer that was not asked for: %s", controlWords(b.now, b.all))
	}
	b.play("late")
	if m := sentOf(b.all); len(m) != 1 || m[0].Type() != llc.TypeConfirmRKey {
		t.Fatalf("sent %v", m)
	}
	b.play("rkey-reply")
	if got := rmbAnswers(b.all); got != "confirmed(2)" {
		t.Errorf("%s", got)
	}

	b = newControlBench(t, core.RoleClient, "r")
	b.play(clientActive + " want")
	for range 100 {
		b.play("rkey-retry late")
	}
	if got := rmbAnswers(b.all); got != "refused(2) REGERR (0x09990003)" || b.lc.State() != StateActive || b.lc.exchange.kind != exchangeNone {
		t.Errorf("a peer that always asks to try again: %s, %v", got, b.lc.State())
	}
}

func TestControlFirstElement(t *testing.T) {
	b := newControlBench(t, core.RoleServer, "r", func(c *Config) {
		p := *c.Result.R
		p.RMBEIndex, p.RMBESize = 3, wire.SizeCodeFor(65536)
		c.Result.R = &p
	})
	want := Element{RKey: peerToken.RKey, VA: peerToken.VA + 2*65536, Size: 65536}
	if got := b.lc.FirstElement(); got != want {
		t.Errorf("FirstElement = %+v, want %+v", got, want)
	}
	for _, role := range []core.Role{core.RoleClient, core.RoleServer} {
		b = newControlBench(t, role, "r", func(c *Config) {
			p := *c.Result.R
			p.RMBAddr = 1<<64 - 100
			c.Result.R = &p
		})
		if got := b.play("start"); got != "step failed RTOKENERR (0x09990001), ending fell back, ended" {
			t.Errorf("%v, an element that goes on at address 0: %s", role, got)
		}
	}
}

func TestControlElements(t *testing.T) {
	b := newControlBench(t, core.RoleServer, "r")
	b.play(serverActive)
	p := *b.lc.cfg.Result.R
	el, why, outs := b.lc.TakeElement(&p, 11, nil)
	if why != clc.DiagNone || el.VA != peerToken.VA || controlWords(b.now, outs) != "lost(10)" {
		t.Errorf("the element of the first connection: %+v, %v, %s", el, why, controlWords(b.now, outs))
	}
	b.lc.ReleaseElement(10) // which has it no more
	if _, _, outs = b.lc.TakeElement(&p, 12, nil); controlWords(b.now, outs) != "lost(11)" {
		t.Errorf("taken again: %s", controlWords(b.now, outs))
	}
	b.lc.ReleaseElement(12)
	if _, _, outs = b.lc.TakeElement(&p, 13, nil); len(outs) > 0 {
		t.Errorf("taken after its release: %s", controlWords(b.now, outs))
	}
	if got := b.play("drop-rkey"); !strings.HasPrefix(got, "lost(13), send(1) DELETE RKEY reply") {
		t.Errorf("the RMB is deleted: %s", got)
	}
	if _, why, _ = b.lc.TakeElement(&p, 14, nil); why != clc.DiagRToken {
		t.Errorf("an element of an RMB that is deleted: %v", why)
	}
}

func TestRTokens(t *testing.T) {
	var table rtokens
	p := clc.ParamsR{RKey: 1, RMBAddr: 1 << 40, RMBEIndex: 255, RMBESize: wire.SizeCodeFor(16384)}
	if _, _, why := table.take(0, &p, 1); why != clc.DiagRToken {
		t.Errorf("an RMB that nobody has told of: %v", why)
	}
	table.add(0, llc.RToken{RKey: 1, VA: 1 << 40})
	if el, _, why := table.take(0, &p, 1); why != clc.DiagNone || el.VA != 1<<40+254*16384 || el.Size != 16384 {
		t.Errorf("take = %+v, %v", el, why)
	}
	for name, change := range map[string]func(p *clc.ParamsR){
		"index 0":         func(p *clc.ParamsR) { p.RMBEIndex = 0 },
		"another address": func(p *clc.ParamsR) { p.RMBAddr++ },
		"the last address": func(p *clc.ParamsR) {
			p.RKey, p.RMBEIndex, p.RMBAddr = 2, 1, 1<<64-16383
		},
	} {
		lie := p
		change(&lie)
		table.add(0, llc.RToken{RKey: 2, VA: 1<<64 - 16383})
		if el, _, why := table.take(0, &lie, 2); why != clc.DiagRToken {
			t.Errorf("%s: %+v, %v", name, el, why)
		}
	}
	last := clc.ParamsR{RKey: 3, RMBAddr: 1<<64 - 16384, RMBEIndex: 1}
	table.add(0, llc.RToken{RKey: 3, VA: last.RMBAddr})
	if _, _, why := table.take(0, &last, 3); why != clc.DiagNone {
		t.Errorf("an element up to the last address: %v", why)
	}
	if table.add(0, llc.RToken{RKey: 1, VA: 7}) != nil {
		t.Error("the address of an RMB in use has changed")
	}
	if table.release(1); table.add(0, llc.RToken{RKey: 1, VA: 7}) == nil || len(table.rmbs) != 3 {
		t.Errorf("the RMB is not told again: %d RMBs", len(table.rmbs))
	}
	p.RMBAddr = 7
	table.take(0, &p, 4)
	if _, previous, _ := table.take(0, &p, 5); previous != 4 || len(table.users) != 2 {
		t.Errorf("the previous user is %d of %d", previous, len(table.users))
	}
	p.RMBEIndex = 7
	if _, previous, _ := table.take(0, &p, 5); previous != 0 || len(table.users) != 2 { // it has moved
		t.Errorf("the previous user is %d of %d", previous, len(table.users))
	}
	for i := range llc.MaxRKeys - 3 {
		if table.add(0, llc.RToken{RKey: wire.RKey(100 + i)}) == nil {
			t.Fatalf("no room after %d", i)
		}
	}
	if table.add(0, llc.RToken{RKey: 9999}) != nil || table.room() {
		t.Error("room for more than 255 RMBs")
	}
}

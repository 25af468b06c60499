package llcflow

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// controlWords describes the outputs of a LinkControl in short.
func controlWords(now time.Time, outs []Output) string {
	var list []string
	for _, o := range outs {
		switch o := o.(type) {
		case SendLLC:
			w := fmt.Sprintf("send(%d) %v", o.Link, o.Message)
			if o.Tag != 0 {
				w += fmt.Sprintf(" tag=%d", o.Tag)
			}
			list = append(list, w)
		case LinkStep:
			w := "step " + o.Kind.String()
			if o.Kind == core.StepFailed {
				w += " " + o.Why.String()
			}
			list = append(list, w)
		case ReadyToSend:
			list = append(list, fmt.Sprintf("ready(%d)", o.Link))
		case OpenLink:
			list = append(list, fmt.Sprintf("open(%d) %v", o.Link, o.GID))
		case ConnectLink:
			list = append(list, fmt.Sprintf("connect(%d) %v", o.Link, o.Peer.QPN))
		case LinkUp:
			list = append(list, fmt.Sprintf("up(%d)", o.Link))
		case LinkLeaving:
			list = append(list, fmt.Sprintf("leaving(%d)", o.Link))
		case LinkDown:
			w := fmt.Sprintf("down(%d) %v", o.Link, o.Why)
			if o.Orderly {
				w += ", orderly"
			}
			list = append(list, w)
		case CloseLink:
			list = append(list, fmt.Sprintf("close(%d)", o.Link))
		case RMBConfirmed:
			list = append(list, fmt.Sprintf("confirmed(%d)", o.ID))
		case RMBRefused:
			list = append(list, fmt.Sprintf("refused(%d) %v", o.ID, o.Why))
		case RMBDeleted:
			list = append(list, fmt.Sprintf("deleted(%d)", o.ID))
		case ElementLost:
			list = append(list, fmt.Sprintf("lost(%d)", o.Owner))
		case GroupEnding:
			w := "ending " + o.Why.String()
			if o.LinkAlive {
				w += " alive"
			}
			list = append(list, w)
		case GroupEnded:
			list = append(list, "ended")
		case SetTimer:
			list = append(list, fmt.Sprintf("t(%v)", o.At.Sub(now)))
		case ClearTimer:
			list = append(list, "-t")
		default:
			list = append(list, fmt.Sprintf("unknown %T", o))
		}
	}
	return strings.Join(list, ", ")
}

// TestConfirmLinkChecked has another host, another queue pair or other limits in CONFIRM LINK than CLC has said.
func TestConfirmLinkChecked(t *testing.T) {
	for name, change := range map[string]func(m *llc.ConfirmLink){
		"queue pair":      func(m *llc.ConfirmLink) { m.QPN++ },
		"GID":             func(m *llc.ConfirmLink) { m.GID[15]++ },
		"MAC":             func(m *llc.ConfirmLink) { m.MAC[5]++ },
		"link":            func(m *llc.ConfirmLink) { m.Link = 0 },
		"max links":       func(m *llc.ConfirmLink) { m.MaxLinks++ },
		"max connections": func(m *llc.ConfirmLink) { m.MaxConns++ },
		"eyecatcher":      func(m *llc.ConfirmLink) { m.CacheSize = 0 },
	} {
		for _, role := range []core.Role{core.RoleClient, core.RoleServer} {
			b := newControlBench(t, role, "r", func(c *Config) { c.RefuseEyecatcher = true })
			b.play("start")
			m := b.confirmLink(llc.Header{Form: llc.V2, Reply: role == core.RoleServer})
			change(&m)
			outs := b.lc.HandleMessage(epoch, 0, m, nil, nil)
			if b.lc.State() != StateEnded || b.lc.Failure().Kind != EndViolation {
				t.Errorf("%v, another %s: %v, %s", role, name, b.lc.State(), controlWords(epoch, outs))
			}
			steps := strings.Join(stepsOf(outs), " ")
			if want := map[core.Role]string{core.RoleClient: "requested failed", core.RoleServer: "failed"}[role]; steps != want {
				t.Errorf("%v, another %s: steps %q, want %q", role, name, steps, want)
			}
		}
	}
	b := newControlBench(t, core.RoleServer, "r")
	b.play("start")
	m := b.confirmLink(llc.Header{Form: llc.V2, Reply: true})
	m.Link = 2
	if b.lc.HandleMessage(epoch, 0, m, nil, nil); b.lc.State() != StateEnded {
		t.Errorf("a reply for link 2: %v", b.lc.State())
	}
	// Values that are only informational, or not asked for.
	for name, change := range map[string]func(c *Config, m *llc.ConfirmLink){
		"MAC of an indirect link":      func(c *Config, m *llc.ConfirmLink) { c.Result.Direct = false; m.MAC[5]++ },
		"limits of release 0":          func(c *Config, m *llc.ConfirmLink) { c.Result.Release = 0; m.MaxLinks, m.MaxConns = 7, 0 },
		"GID in the other form":        func(c *Config, m *llc.ConfirmLink) { m.GID[10], m.GID[11] = 0, 0 },
		"eyecatcher, which is allowed": func(c *Config, m *llc.ConfirmLink) { m.CacheSize = 0 },
	} {
		var m llc.ConfirmLink
		b := newControlBench(t, core.RoleClient, "r", func(c *Config) { change(c, &llc.ConfirmLink{}) })
		b.play("start")
		m = b.confirmLink(llc.Header{Form: llc.V2})
		change(&Config{}, &m)
		b.lc.HandleMessage(epoch, 0, m, nil, nil)
		if b.lc.State() != StateReplied || b.lc.PeerEyecatcher() != (m.CacheSize == 0) {
			t.Errorf("%s: %v, %v, eyecatcher %t", name, b.lc.State(), b.lc.Failure(), b.lc.PeerEyecatcher())
		}
	}
}

// stepsOf returns the steps among outputs.
func stepsOf(outs []Output) (list []string) {
	for _, o := range outs {
		if s, ok := o.(LinkStep); ok {
			list = append(list, s.Kind.String())
		}
	}
	return list
}

// sentOf returns the messages among outputs.
func sentOf(outs []Output) (list []llc.Message) {
	for _, o := range outs {
		if s, ok := o.(SendLLC); ok {
			list = append(list, s.Message)
		}
	}
	return list
}

// TestControlForms sends requests in the form of the peer's first message, and answers in the form
// of the request.
func TestControlForms(t *testing.T) {
	for _, tt := range []struct {
		form, want llc.Form
		v1         bool
	}{{llc.V2, llc.V2, false}, {llc.V2Little, llc.V2Little, false}, {llc.V1, llc.V1, true}, {llc.V1, llc.V2, false}, {llc.V2Little, llc.V1, true}} {
		b := newControlBench(t, core.RoleClient, "r", func(c *Config) {
			c.Result.Release = 0
			if tt.v1 {
				c.Result.Version = clc.V1
			}
		})
		b.head.Form = tt.form
		b.play("start confirm sent-confirm add")
		for _, m := range sentOf(b.all) {
			if m.Head().Form != tt.form {
				t.Errorf("form %v: answered %v", tt.form, m)
			}
		}
		b.all = nil
		b.play("want")
		if m := sentOf(b.all); len(m) != 1 || m[0].Head().Form != tt.want {
			t.Errorf("form %v: asked %v, want %v", tt.form, m, tt.want)
		}
		b.play("rkey-reply")
		if tt.form != tt.want {
			continue
		}
		b.head.Form = llc.V2Little // later messages change nothing
		b.play("test")
		b.all = nil
		b.play("unwanted")
		if m := sentOf(b.all); len(m) != 1 || m[0].Head().Form != tt.want {
			t.Errorf("form %v: asked %v later, want %v", tt.form, m, tt.want)
		}
	}
	// A server's first message is a guess: it goes by the peer's operating system.
	for os, want := range map[clc.OS]llc.Form{clc.OSLinux: llc.V2Little, clc.OSZOS: llc.V2} {
		b := newControlBench(t, core.RoleServer, "r", func(c *Config) { c.Result.PeerOS = os })
		b.play("start")
		if m := sentOf(b.all); m[0].Head().Form != want {
			t.Errorf("%v: first message %v", os, m[0])
		}
	}
}

func TestControlRejects(t *testing.T) {
	for word, want := range map[string]llc.RejectReason{"add": llc.RejectNoPath, "add-mtu": llc.RejectMTU} {
		b := newControlBench(t, core.RoleClient, "r")
		b.play("start confirm sent-confirm " + word)
		m, _ := sentOf(b.all)[1].(llc.AddLink)
		if !m.Rejected || m.Reason != want || m.QPN != 0x44 || m.Link != 2 {
			t.Errorf("%s: %v, want the reason %v", word, m, want)
		}
	}
}

// TestControlHostile has messages that lie, or come where they have no place: the group ends, or nothing happens.
func TestControlHostile(t *testing.T) {
	b := newControlBench(t, core.RoleServer, "r")
	b.play(serverActive)
	if got := b.play("optional"); got != "" || b.lc.State() != StateActive {
		t.Errorf("an optional message: %s, %v", got, b.lc.State())
	}
	many := llc.ConfirmRKey{Header: llc.Header{Form: llc.V1}, RToken: llc.RToken{RKey: 0x300}, Remaining: 3,
		Others: []llc.LinkRToken{{Link: 7}, {Link: 8}}}
	m, _ := sentOf(b.lc.HandleMessage(b.now, 1, many, nil, nil))[0].(llc.ConfirmRKey)
	if !m.Negative || !m.Retry || b.lc.peer.find(0, 0x300) != nil {
		t.Errorf("CONFIRM RKEY for more links than there are: %v", m)
	}
	if outs := b.lc.HandleMessage(b.now, 9, llc.TestLink{Header: b.head}, nil, nil); len(outs) > 0 {
		t.Errorf("a message on a link that is not ours: %s", controlWords(b.now, outs))
	}
	if outs := b.lc.LinkFailed(b.now, 9, nil, nil); len(outs) > 0 {
		t.Errorf("the failure of a link that is not ours: %s", controlWords(b.now, outs))
	}
	keys := llc.DeleteRKey{Header: llc.Header{Form: llc.V2}}
	for i := range llc.MaxRKeys {
		keys.RKeys = append(keys.RKeys, wire.RKey(i))
	}
	outs := b.lc.HandleMessage(b.now, 1, keys, nil, nil) // 200 of them twice would be as good
	if d, ok := sentOf(outs)[0].(llc.DeleteRKey); !ok || !d.Negative || d.Count != 255 || d.Invalid != 255 {
		t.Errorf("DELETE RKEY of 255 that are not known: %v", sentOf(outs))
	}
}

// TestControlForeign has types that no specification has: of one the sender is known.
func TestControlForeign(t *testing.T) {
	for first, want := range map[byte]State{0x0a: StateActive, 0x2a: StateActive, 0x0b: StateEnding, 0x20: StateEnding, 0xfe: StateEnding} {
		b := newControlBench(t, core.RoleServer, "r")
		b.play(serverActive)
		raw := make([]byte, llc.MinLen)
		raw[0], raw[1] = first, llc.MinLen
		m, err := llc.Parse(raw)
		if b.lc.HandleMessage(b.now, 0, m, err, nil); b.lc.State() != want {
			t.Errorf("type %#x: %v, want %v", first, b.lc.State(), want)
		}
	}
}

// TestControlFlood sends a thousand of each message: each has one answer at most, and nothing grows.
func TestControlFlood(t *testing.T) {
	for _, role := range []core.Role{core.RoleClient, core.RoleServer} {
		for _, word := range controlEventOrder {
			b := newControlBench(t, role, "r")
			b.play(map[core.Role]string{core.RoleClient: clientActive, core.RoleServer: serverActive}[role] + " want")
			m := b.message(word)
			if m == nil {
				continue
			}
			b.all = nil
			for range 1000 {
				b.do(word)
			}
			if n := len(sentOf(b.all)); n > 1000 {
				t.Errorf("%v: 1000 of %s have %d answers", role, word, n)
			}
			if len(b.lc.deletes) > llc.MaxLinks || len(b.lc.wishes) > 1 || len(b.lc.peer.rmbs) > 2 {
				t.Errorf("%v, %s: %d parked, %d wishes, %d RMBs", role, word, len(b.lc.deletes), len(b.lc.wishes), len(b.lc.peer.rmbs))
			}
		}
	}
	// A thousand RMBs, of which a link group has 255.
	b := newControlBench(t, core.RoleServer, "r")
	b.play(serverActive)
	taken := 0
	for i := range 1000 {
		outs := b.lc.HandleMessage(b.now, 0, llc.ConfirmRKey{Header: b.head, RToken: llc.RToken{RKey: wire.RKey(0x1000 + i)}}, nil, nil)
		if m, _ := sentOf(outs)[0].(llc.ConfirmRKey); !m.Negative {
			taken++
		} else if m.Retry {
			t.Fatal("a full table asks to try again")
		}
	}
	if taken != llc.MaxRKeys-1 || b.lc.Room() { // one came with CLC
		t.Errorf("%d RMBs taken, room %t", taken, b.lc.Room())
	}
}

// TestControlKeepalive asks on a link that is silent, and only there.
func TestControlKeepalive(t *testing.T) {
	b := newControlBench(t, core.RoleServer, "r")
	b.play(serverActive)
	at := func(d time.Duration) []Output {
		b.now = epoch.Add(d)
		return b.lc.Advance(b.now, nil)
	}
	at(5 * time.Second) // the timer of ADD LINK
	b.lc.Heard(1, epoch.Add(20*time.Second))
	if outs := at(TestLinkInterval); len(sentOf(outs)) > 0 {
		t.Errorf("a link that was heard is tested: %s", controlWords(b.now, outs))
	}
	outs := at(50 * time.Second)
	if m := sentOf(outs); len(m) != 1 || m[0].Type() != llc.TypeTestLink {
		t.Fatalf("a silent link: %s", controlWords(b.now, outs))
	}
	if got := b.play("test-reply"); got != "" || b.lc.links[0].test.due != (time.Time{}) {
		t.Errorf("the answer: %s", got)
	}
	at(52 * time.Second) // the timer still belongs to the answer
	if outs := at(80 * time.Second); len(sentOf(outs)) != 1 || sentOf(outs)[0].(llc.TestLink).UserData == [16]byte{1} {
		t.Errorf("the second: %s", controlWords(b.now, outs))
	}
	b.lc.Heard(1, epoch.Add(81*time.Second)) // the answer may be behind much data
	if at(82 * time.Second); b.lc.State() != StateActive {
		t.Errorf("%v: a link that was heard is given up", b.lc.Failure())
	}
	at(111 * time.Second)
	outs = at(113 * time.Second)
	if b.lc.State() != StateEnded || b.lc.Failure().Kind != EndSilent {
		t.Errorf("a silent peer: %v, %s", b.lc.State(), controlWords(b.now, outs))
	}

	b = newControlBench(t, core.RoleServer, "r")
	b.play(serverActive)
	b.now = epoch.Add(time.Minute)
	b.lc.Advance(b.now, nil)
	b.now = epoch.Add(2 * time.Minute)
	b.lc.Advance(b.now, nil)
	if b.play("test-wrong"); b.lc.Failure().Kind != EndViolation && b.lc.Failure().Kind != EndSilent {
		t.Errorf("a wrong answer: %v", b.lc.Failure())
	}
	b = newControlBench(t, core.RoleServer, "r")
	b.play(serverActive + " late late")
	if b.lc.links[0].test.due.IsZero() {
		t.Fatal("no test is under way")
	}
	if b.play("test-wrong"); b.lc.Failure().Kind != EndViolation {
		t.Errorf("a wrong answer: %v", b.lc.Failure())
	}

	b = newControlBench(t, core.RoleServer, "r", func(c *Config) { c.TestInterval = -1 })
	b.play(serverActive)
	if at(time.Hour); !b.lc.Deadline().IsZero() {
		t.Errorf("a timer runs at %v, and no test is wanted", b.lc.Deadline())
	}
}

// TestControlLateAnswer has the answer to TEST LINK arrive so late that another one is under way,
// as from a host with too much to do that has been heard meanwhile. The answer is not taken for a
// wrong one, nor for the answer to the other.
func TestControlLateAnswer(t *testing.T) {
	b := newControlBench(t, core.RoleServer, "r")
	b.play(serverActive)
	answer := func(data ...byte) {
		m := llc.TestLink{Header: llc.Header{Form: b.lc.form, Reply: true}}
		copy(m.UserData[:], data)
		b.lc.HandleMessage(b.now, 1, m, nil, nil)
	}
	at := func(second int) time.Time {
		b.now = epoch.Add(time.Duration(second) * time.Second)
		b.lc.Advance(b.now, nil)
		return b.now
	}
	b.lc.Suspect(at(10), 1, nil)
	b.lc.Heard(1, at(11))
	b.lc.Suspect(at(20), 1, nil)
	test := &b.lc.links[0].test
	if test.n != 2 || test.due.IsZero() {
		t.Fatalf("not under way: %+v", test)
	}
	answer(1)
	if b.lc.State() != StateActive || test.due.IsZero() {
		t.Errorf("an answer that was late: %v, %v, %+v", b.lc.State(), b.lc.Failure(), test)
	}
	answer(2)
	if b.lc.State() != StateActive || !test.due.IsZero() {
		t.Errorf("the answer: %v, %v, %+v", b.lc.State(), b.lc.Failure(), test)
	}
	for name, wrong := range map[string][]byte{"one that is to come": {4}, "none": {}, "more than was sent": {1, 0, 0, 0, 0, 0, 0, 0, 1}} {
		b := newControlBench(t, core.RoleServer, "r")
		b.play(serverActive)
		b.lc.links[0].test.n = 2
		b.now = epoch.Add(time.Minute)
		b.lc.Advance(b.now, nil)
		m := llc.TestLink{Header: llc.Header{Form: b.lc.form, Reply: true}}
		copy(m.UserData[:], wrong)
		if b.lc.HandleMessage(b.now, 1, m, nil, nil); b.lc.Failure().Kind != EndViolation {
			t.Errorf("%s: %v, %v", name, b.lc.State(), b.lc.Failure())
		}
	}
}

// TestControlUnasked gives answers to requests that were not sent, or were sent before.
func TestControlUnasked(t *testing.T) {
	b := newControlBench(t, core.RoleServer, "r")
	b.play(serverActive + " want unwanted")
	b.all = nil
	outs := b.lc.HandleMessage(b.now, 0, llc.ConfirmRKey{Header: llc.Header{Form: llc.V2, Reply: true}, RToken: llc.RToken{RKey: 0x999}}, nil, nil)
	outs = append(outs, b.do("drop-reply")...)
	if len(outs) > 0 {
		t.Errorf("%s", controlWords(b.now, outs))
	}
	b.play("rkey-reply")
	if outs := b.do("rkey-reply"); len(outs) > 0 { // twice
		t.Errorf("%s", controlWords(b.now, outs))
	}

	b = newControlBench(t, core.RoleServer, "r", func(c *Config) { c.Result.Version, c.Result.Release = clc.V1, 0 })
	b.play(serverActive + " unwanted")
	wrong := llc.DeleteRKey{Header: llc.Header{Form: llc.V1, Reply: true}, RKeys: []wire.RKey{0x999}}
	if outs := b.lc.HandleMessage(b.now, 0, wrong, nil, nil); len(outs) > 0 {
		t.Errorf("the answer for another RKey: %s", controlWords(b.now, outs))
	}
	if got := b.play("drop-reply"); got != "deleted(1)" {
		t.Errorf("%s", got)
	}
}

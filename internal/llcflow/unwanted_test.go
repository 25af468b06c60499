package llcflow

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/wire/llc"
)

// tellRMB has the server of three links tell of RMB 9, and returns a function that answers on
// behalf of the client. The client's own answers are lost.
func tellRMB(t *testing.T) (p *linkPair, answer func(negative, retry bool)) {
	t.Helper()
	p = newTriplet(t)
	p.lose = lost("client", llc.TypeConfirmRKey, true)
	p.server.do(p.server.lc.ConfirmRMB(p.now, 9, p.server.tokens(9), nil))
	p.run()
	return p, func(negative, retry bool) {
		x := p.server.lc.exchange
		p.server.do(p.server.lc.HandleMessage(p.now, x.via, llc.ConfirmRKey{
			Header: llc.Header{Form: llc.V1, Reply: true}, Negative: negative, Retry: retry, RToken: p.server.token(x.id, x.via),
		}, nil, nil))
		p.run()
	}
}

// TestUnwantedWhileTold has an RMB that is not wanted any more while the peer is being told of it.
// With any outcome of that, the RMB is deleted once, by DELETE RKEY unless the peer did not take
// it, and nobody is told that it was confirmed or refused.
func TestUnwantedWhileTold(t *testing.T) {
	for name, tt := range map[string]struct {
		then     func(p *linkPair, answer func(negative, retry bool))
		messages string // that follow
		answers  string
	}{
		"taken":               {func(_ *linkPair, answer func(negative, retry bool)) { answer(false, false) }, "1:DELETE RKEY", "deleted(9)"},
		"refused":             {func(_ *linkPair, answer func(negative, retry bool)) { answer(true, false) }, "", "deleted(9)"},
		"refused for a while": {func(_ *linkPair, answer func(negative, retry bool)) { answer(true, true) }, "", "deleted(9)"},
		"link lost":           {func(p *linkPair, _ func(negative, retry bool)) { p.server.fail(1); p.run() }, "2:DELETE LINK 2:DELETE RKEY", "deleted(9)"},
		"not answered": {func(p *linkPair, _ func(negative, retry bool)) { p.pass(rkeyTries*LLCTimeout + time.Second) },
			"1:CONFIRM RKEY 1:TEST LINK 1:DELETE RKEY", "deleted(9)"},
		"end of the group": {func(p *linkPair, _ func(negative, retry bool)) {
			p.server.do(p.server.lc.End(p.now, EndIdle, nil))
			p.pass(time.Minute)
		}, "1:DELETE LINK", ""},
	} {
		p, answer := tellRMB(t)
		p.server.do(p.server.lc.DeleteRMB(p.now, 9, true, nil))
		p.server.sent = nil
		tt.then(p, answer)
		p.server.sent = slices.DeleteFunc(p.server.sent, func(w string) bool { return strings.Contains(w, "ADD LINK") || strings.Contains(w, "CONFIRM LINK") }) // replace lost links
		if got := strings.Join(p.server.sent, " "); got != tt.messages {
			t.Errorf("%s: sent %q, want %q", name, got, tt.messages)
		}
		if got := strings.Join(p.server.answers, " "); got != tt.answers {
			t.Errorf("%s: %q, want %q", name, got, tt.answers)
		}
	}
}

// TestToldAgain tells again of an RMB that is in use, as a link has come. With any outcome of that,
// the RMB stays in use, and nobody hears of it.
func TestToldAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		then func(p *linkPair, answer func(negative, retry bool))
		told bool // of it on all links in the end
	}{
		"taken":   {func(_ *linkPair, answer func(negative, retry bool)) { answer(false, false) }, true},
		"refused": {func(_ *linkPair, answer func(negative, retry bool)) { answer(true, false) }, false},
		"not answered": {func(p *linkPair, _ func(negative, retry bool)) {
			p.pass(rkeyTries*LLCTimeout + time.Second)
		}, false},
		"another link has come": {func(p *linkPair, answer func(negative, retry bool)) {
			p.server.lc.exchange.named = []llc.LinkNum{1, 2}
			answer(false, false)
			if n := p.server.count("CONFIRM RKEY"); n != 2 {
				p.t.Errorf("told %d times of it", n)
			}
			answer(false, false)
		}, true},
		"link lost": {func(p *linkPair, answer func(negative, retry bool)) {
			p.server.fail(1)
			p.run()
			answer(false, false)
		}, true},
	} {
		p, answer := tellRMB(t)
		answer(false, false)
		if got := strings.Join(p.server.answers, " "); got != "confirmed(9)" {
			t.Fatalf("the first time: %q", got)
		}
		p.server.answers, p.server.sent = nil, nil
		b := p.server.lc.own[9]
		delete(b.told, 3)
		p.server.lc.refreshRMBs()
		p.server.lc.refreshRMBs() // once is enough
		p.server.do(p.server.lc.next(p.now, nil))
		p.run()
		if len(p.server.lc.wishes) > 0 || p.server.count("CONFIRM RKEY") != 1 {
			t.Errorf("%s: sent %v, and %v are to be told", name, p.server.sent, p.server.lc.wishes)
		}
		tt.then(p, answer)
		if b.state != rmbConfirmed || b.told[3] != tt.told || len(p.server.answers) > 0 || p.server.count("DELETE RKEY") > 0 {
			t.Errorf("%s: state %d, told %v, %v, sent %v", name, b.state, b.told, p.server.answers, p.server.sent)
		}
		// Its end is no news either, but for the news of the group's end.
		delete(b.told, 3)
		p.server.lc.refreshRMBs()
		p.server.do(p.server.lc.next(p.now, nil))
		p.server.do(p.server.lc.End(p.now, EndIdle, nil))
		if len(p.server.answers) > 0 {
			t.Errorf("%s: at the end of the group %v", name, p.server.answers)
		}
	}
}

// TestToldAgainLater has a peer refuse, or not answer, when it is told again of an RMB that is in use, as a link has come: it is told after a while, more and more rarely
// where nothing comes of that, and as soon as the first time when something has.
func TestToldAgainLater(t *testing.T) {
	for _, by := range []string{"server", "client"} {
		for name, negative := range map[string]bool{"refused": true, "not answered": false} {
			p := newTriplet(t)
			s := map[string]*pairSide{"server": p.server, "client": p.client}[by]
			lc := s.lc
			lc.SetTestInterval(-1, nil)
			s.do(lc.ConfirmRMB(p.now, 9, s.tokens(9), nil))
			p.run()
			refuse := func(from *pairSide, o SendLLC) bool {
				m, ok := o.Message.(llc.ConfirmRKey)
				if !ok || !m.Reply || from == s {
					return false
				}
				if negative {
					m.Negative = true
					p.queue = append(p.queue, func() { s.do(lc.HandleMessage(p.now, o.Link, m, nil, nil)) })
				}
				return true
			}
			short := func(num llc.LinkNum) {
				delete(lc.own[9].told, num)
				lc.refreshRMBs()
				s.do(lc.arm(lc.next(p.now, nil)))
				p.run()
			}
			took := time.Duration(0) // until it is refused, or given up
			tries := 1
			if !negative {
				took, tries = rkeyTries*LLCTimeout, rkeyTries
			}
			p.lose = refuse
			if by == "client" { // which waits for an answer of another kind meanwhile
				p.lose = func(from *pairSide, o SendLLC) bool {
					return refuse(from, o) || o.Message.Type() == llc.TypeDeleteLink
				}
				s.do(lc.DeleteLink(p.now, 2, nil))
			}
			s.answers, s.sent = nil, nil
			short(3)
			p.pass(took + rkeyAgainDelay - time.Millisecond)
			if n := s.count("CONFIRM RKEY"); n != tries {
				t.Errorf("%s, %s: told %d times too early", by, name, n)
			}
			p.pass(time.Hour)
			if n := s.count("CONFIRM RKEY"); n < 6*tries || n > 20*tries || lc.own[9].state != rmbConfirmed || len(s.answers) > 0 || lc.State() != StateActive {
				t.Errorf("%s, %s: told %d times in an hour, state %d, %v, %v", by, name, n, lc.own[9].state, s.answers, lc.State())
			}
			p.lose = nil
			p.pass(rkeyAgainMax)
			if !lc.own[9].told[3] {
				t.Errorf("%s, %s: not told in the end", by, name)
			}
			p.check(by+", "+name, p.server.links(), RedundancySymmetric)
			p.pass(time.Hour)
			if n := s.count("CONFIRM RKEY"); lc.again.at != (time.Time{}) {
				t.Errorf("%s, %s: told %d times, and again at %v", by, name, n, lc.again.at)
			}
			p.lose = refuse
			num := s.lc.Links()[2].Num
			short(num)
			p.pass(took)
			p.lose = nil
			if p.pass(rkeyAgainDelay + time.Millisecond); !lc.own[9].told[num] {
				t.Errorf("%s, %s: the second time it is not told after %v, but at %v", by, name, rkeyAgainDelay, lc.again.at.Sub(p.now))
			}
		}
	}
}

// TestQuarantineWhileTold has a connection end without the peer's promise while the peer is told
// again of its RMB, as a link has come, or is to be. The RMB is in quarantine at once, and with any
// outcome of that message it stays there, so that its memory is not given back while the peer may
// write.
func TestQuarantineWhileTold(t *testing.T) {
	for name, then := range map[string]func(p *linkPair, answer func(negative, retry bool)){
		"taken":               func(_ *linkPair, answer func(negative, retry bool)) { answer(false, false) },
		"refused":             func(_ *linkPair, answer func(negative, retry bool)) { answer(true, false) },
		"refused for a while": func(_ *linkPair, answer func(negative, retry bool)) { answer(true, true); answer(false, false) },
		"not answered":        func(p *linkPair, _ func(negative, retry bool)) { p.pass(rkeyTries*LLCTimeout + time.Second) },
		"link lost":           func(p *linkPair, _ func(negative, retry bool)) { p.server.fail(1); p.run() },
	} {
		for _, waits := range []bool{false, true} {
			p, answer := tellRMB(t)
			answer(false, false)
			lc := p.server.lc
			b := lc.own[9]
			if waits { // for the end of another exchange
				p.server.do(lc.ConfirmRMB(p.now, 11, p.server.tokens(11), nil))
				p.run()
			}
			delete(b.told, 3)
			lc.refreshRMBs()
			p.server.do(lc.next(p.now, nil))
			p.run()
			if waits != slices.Contains(lc.wishes, 9) || !waits && b.state != rmbConfirming {
				t.Fatalf("%s: state %d, %v are to be told", name, b.state, lc.wishes)
			}
			p.server.sent, p.server.answers = nil, nil
			p.server.do(lc.DeleteRMB(p.now, 9, false, nil))
			if b.state != rmbQuarantined || slices.Contains(lc.wishes, 9) {
				t.Errorf("%s, waits %t: state %d, %v are to be told", name, waits, b.state, lc.wishes)
			}
			then(p, answer)
			p.lose = nil
			p.pass(time.Minute)
			if b.state != rmbQuarantined || lc.own[9] != b || slices.Contains(p.server.answers, "deleted(9)") || p.server.count("DELETE RKEY") > 0 {
				t.Errorf("%s, waits %t: state %d, %v, sent %v", name, waits, b.state, p.server.answers, p.server.sent)
			}
			if lc.State() != StateActive || lc.exchange.kind != exchangeNone || len(lc.wishes) > 0 {
				t.Errorf("%s, waits %t: %v, exchange %d, wishes %v", name, waits, lc.State(), lc.exchange.kind, lc.wishes)
			}
		}
	}
}

// TestToldTwice has an RMB told that is on its way when a link comes: it is confirmed when it is known there too.
func TestToldTwice(t *testing.T) {
	p, answer := tellRMB(t)
	p.server.lc.exchange.named = []llc.LinkNum{1, 2}
	answer(false, false)
	if len(p.server.answers) > 0 || p.server.count("CONFIRM RKEY") != 2 {
		t.Errorf("%v, sent %v", p.server.answers, p.server.sent)
	}
	answer(false, false)
	if got := strings.Join(p.server.answers, " "); got != "confirmed(9)" {
		t.Errorf("in the end %q", got)
	}
}

// TestRMBOrder has RMBs wait for their exchange: first come those for which connections wait, then those that are not known on all links, then those
// that nobody needs. One of those that is known on no link is deleted without a word.
func TestRMBOrder(t *testing.T) {
	p := newTriplet(t)
	for id := RMBID(5); id <= 6; id++ {
		p.server.do(p.server.lc.ConfirmRMB(p.now, id, p.server.tokens(id), nil))
		p.run()
	}
	p.server.answers, p.server.sent = nil, nil
	p.lose = lost("client", llc.TypeConfirmRKey, true)
	p.server.do(p.server.lc.ConfirmRMB(p.now, 7, p.server.tokens(7), nil))
	p.run()
	p.server.do(p.server.lc.DeleteRMB(p.now, 5, true, nil))
	p.server.do(p.server.lc.DeleteRMB(p.now, 5, true, nil)) // said before
	delete(p.server.lc.own[6].told, 3)
	p.server.lc.refreshRMBs()
	p.server.do(p.server.lc.ConfirmRMB(p.now, 8, p.server.tokens(8), nil))
	p.server.do(p.server.lc.ConfirmRMB(p.now, 9, p.server.tokens(9), nil))
	p.server.do(p.server.lc.DeleteRMB(p.now, 9, true, nil)) // of which nobody has been told
	if got := strings.Join(p.server.answers, " "); got != "deleted(9)" {
		t.Errorf("while RMB 7 is told of: %s", got)
	}
	var order []RMBID
	for range 3 {
		x := p.server.lc.exchange
		order = append(order, x.id)
		p.server.do(p.server.lc.HandleMessage(p.now, x.via, llc.ConfirmRKey{
			Header: llc.Header{Form: llc.V1, Reply: true}, RToken: p.server.token(x.id, x.via),
		}, nil, nil))
		p.run()
	}
	if !slices.Equal(order, []RMBID{7, 8, 6}) || strings.Join(p.server.answers, " ") != "deleted(9) confirmed(7) confirmed(8) deleted(5)" {
		t.Errorf("the order is %v, then %v", order, p.server.answers)
	}
	if got := strings.Join(p.server.sent, " "); got != "1:CONFIRM RKEY 1:CONFIRM RKEY 1:CONFIRM RKEY 1:DELETE RKEY" {
		t.Errorf("sent %s", got)
	}
	p.server.sent, p.server.answers = nil, nil
	clear(p.server.lc.own[6].tokens)
	p.server.do(p.server.lc.DeleteRMB(p.now, 6, true, nil))
	if len(p.server.sent) > 0 || strings.Join(p.server.answers, " ") != "deleted(6)" {
		t.Errorf("an RMB that the peer cannot know: sent %v, %v", p.server.sent, p.server.answers)
	}
}

// TestConfirmRKeyInUse has a peer tell again of an RMB while one of our connections writes to it:
// its places on other links do not change either, but unknown places are learned.
func TestConfirmRKeyInUse(t *testing.T) {
	p := newTriplet(t)
	p.client.do(p.client.lc.ConfirmRMB(p.now, 9, p.client.tokens(9), nil))
	p.run()
	lc := p.server.lc
	first := p.client.token(9, 1)
	b := lc.peer.find(lc.links[0].slot, first.RKey)
	if b == nil {
		t.Fatal("the RMB is not known")
	}
	tell := func() {
		m := llc.ConfirmRKey{Header: headV1, RToken: first, Remaining: 2}
		for num := llc.LinkNum(2); num <= 3; num++ {
			m.Others = append(m.Others, llc.LinkRToken{Link: num, RToken: llc.RToken{RKey: 0x666, VA: 0x666}})
		}
		p.server.do(lc.HandleMessage(p.now, 1, m, nil, nil))
	}
	at := func(num llc.LinkNum) llc.RToken { token, _ := b.on(lc.link(num).slot); return token }
	b.users = map[uint8]Owner{1: 77}
	b.known &^= 1 << lc.link(3).slot
	tell()
	if at(2) != p.client.token(9, 2) || at(3).RKey != 0x666 {
		t.Errorf("in use: on link 2 %v, on link 3, where it was not known, %v", at(2), at(3))
	}
	b.users = nil
	tell()
	if at(2).RKey != 0x666 {
		t.Errorf("not in use: on link 2 %v", at(2))
	}
	// A continuation where none is owed.
	for _, left := range []uint8{0, 1} {
		outs := lc.HandleMessage(p.now, 1, llc.ConfirmRKeyCont{Header: headV1, Remaining: left, RTokens: []llc.LinkRToken{{Link: 2, RToken: first}}}, nil, nil)
		if m := sentOf(outs); len(m) > 0 || at(2).RKey != 0x666 {
			t.Errorf("a continuation of nothing, %d left: %v, on link 2 %v", left, m, at(2))
		}
	}
}

// TestRMBUnwantedEarly has RMBs that are not wanted any more without the peer's promise, before it knows of them, and while it is to be told again.
func TestRMBUnwantedEarly(t *testing.T) {
	p, answer := tellRMB(t)
	p.server.do(p.server.lc.ConfirmRMB(p.now, 10, p.server.tokens(10), nil))
	p.server.do(p.server.lc.DeleteRMB(p.now, 10, false, nil))
	if got := strings.Join(p.server.answers, " "); got != "deleted(10)" {
		t.Errorf("one of which nobody has been told: %q", got)
	}
	answer(false, false)
	p.server.do(p.server.lc.ConfirmRMB(p.now, 11, p.server.tokens(11), nil))
	p.run()
	p.server.answers = nil
	delete(p.server.lc.own[9].told, 3)
	p.server.lc.refreshRMBs()
	p.server.do(p.server.lc.DeleteRMB(p.now, 9, true, nil))
	answer(false, false)
	if got := strings.Join(p.server.answers, " "); got != "confirmed(11) deleted(9)" {
		t.Errorf("one that was to be told again: %q", got)
	}
	// The memory of a group that ends is the peer's until it has ended.
	p.server.do(p.server.lc.ConfirmRMB(p.now, 1, map[llc.LinkNum]llc.RToken{1: {RKey: 0x666}}, nil))
	if got := p.server.answers[2:]; len(got) != 1 || !strings.HasPrefix(got[0], "refused(1)") {
		t.Errorf("one that is somewhere else than the peer knows: %v", got)
	}
	p.lose = func(*pairSide, SendLLC) bool { return true }
	p.server.do(p.server.lc.End(p.now, EndIdle, nil))
	p.server.answers = nil
	p.server.do(p.server.lc.DeleteRMB(p.now, 11, true, nil))
	if len(p.server.answers) > 0 {
		t.Errorf("while the group ends: %v", p.server.answers)
	}
	p.server.do(p.server.lc.ConfirmRMB(p.now, 11, p.server.tokens(11), nil))
	if got := strings.Join(p.server.answers, " "); !strings.HasPrefix(got, "refused(11)") {
		t.Errorf("asked for while the group ends: %q", got)
	}
}

// TestRKeyAsk asks again when it is time, and not with other timers; not while a link is being
// made, as the answer would be the same; and takes an answer literally.
func TestRKeyAsk(t *testing.T) {
	p, answer := tellRMB(t)
	p.server.do(p.server.lc.SetTestInterval(LLCTimeout/4, nil))
	p.pass(LLCTimeout * 3 / 4)
	if n, tests := p.server.count("CONFIRM RKEY"), p.server.count("TEST LINK"); n != 1 || tests == 0 {
		t.Errorf("asked %d times after %d other timers", n, tests)
	}
	answer(true, true)
	p.server.lc.add.phase = addNone + 1
	p.pass(3 * rkeyRetryDelay)
	if n := p.server.count("CONFIRM RKEY"); n != 1 {
		t.Errorf("asked %d times while a link is being made", n)
	}
	p.server.lc.add.phase = addNone
	p.pass(2 * rkeyRetryDelay)
	if n := p.server.count("CONFIRM RKEY"); n != 2 {
		t.Errorf("asked %d times when it is there", n)
	}
	answer(false, true) // positive, even with the retry flag
	if got := strings.Join(p.server.answers, " "); got != "confirmed(9)" {
		t.Errorf("confirmed and to be tried again: %q", got)
	}

	p, answer = tellRMB(t)
	p.server.lc.exchange.rest = []llc.LinkRToken{{Link: 3, RToken: p.server.token(9, 3)}}
	answer(true, false)
	if got := strings.Join(p.server.answers, " "); !strings.HasPrefix(got, "refused(9)") || p.server.count("CONFIRM RKEY CONTINUATION") > 0 {
		t.Errorf("refused before all was told: %q, sent %v", got, p.server.sent)
	}
}

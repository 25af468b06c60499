package smc

import (
	"encoding/json"
	"io"
	"net"
	"reflect"
	"slices"
	"testing"

	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire/clc"
)

// talk sends hello over a connection, and good day back.
func talk(t *testing.T, c, s net.Conn) {
	t.Helper()
	for _, x := range []struct {
		from, to net.Conn
		text     string
	}{{c, s, "hello"}, {s, c, "good day"}} {
		b := make([]byte, len(x.text))
		if _, err := io.WriteString(x.from, x.text); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(x.to, b); err != nil {
			t.Fatal(err)
		}
	}
}

// TestStatsModes checks the counters of both ends of connections, while these are open and later.
func TestStatsModes(t *testing.T) {
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	for _, tt := range []struct {
		mode    Mode
		dialer  Config
		connect func(t *testing.T, client, server *Host) (c, s *Conn)
	}{
		{ModeSMCD, Config{Dir: dir}, nil},
		{ModeTCP, Config{Disabled: true}, nil},
	} {
		t.Run(tt.mode.String(), func(t *testing.T) {
			client, err := NewHost(&tt.dialer)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			server, err := NewHost(&Config{Dir: dir})
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			l, err := (&ListenConfig{Host: server}).Listen(t.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			c, err := (&Dialer{Host: client}).Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			s, err := l.AcceptSMC()
			if err != nil {
				t.Fatal(err)
			}
			checkStats(t, tt.mode, client, server, c, s)
		})
	}
	t.Run("SMC-R", func(t *testing.T) {
		p := newSMCRPair(t, nil)
		c, s := p.connect(t)
		st := p.server.Stats()
		if st.LinkGroups[ModeSMCR] != 1 || st.Links["LINK_ACTIVE"] != 1 || st.RMBBytes == 0 {
			t.Errorf("server with a connection of SMC-R: link groups %v, links %v, RMBs of %d bytes; want 1, 1 active, some",
				st.LinkGroups, st.Links, st.RMBBytes)
		}
		checkStats(t, ModeSMCR, p.dialer.Host, p.server, c, s)
	})
}

// checkStats checks the numbers of two hosts with one connection, which it uses and closes.
func checkStats(t *testing.T, mode Mode, client, server *Host, c, s *Conn) {
	t.Helper()
	talk(t, c, s)
	check := func(when string, open int) {
		t.Helper()
		for _, x := range []struct {
			host *Host
			want ModeStats
		}{
			{client, ModeStats{OpenClient: open, Client: 1, BytesRead: 8, BytesWritten: 5}},
			{server, ModeStats{OpenServer: open, Server: 1, BytesRead: 5, BytesWritten: 8}},
		} {
			st := x.host.Stats()
			if len(st.Modes) != len(modeNames) || st.Modes[mode] != x.want {
				t.Errorf("%s: Stats().Modes = %+v, want %+v for %v", when, st.Modes, x.want, mode)
			}
			done, fallbacks := uint64(1), 0
			if mode == ModeTCP {
				done, fallbacks = 0, 1
			}
			if h := st.Handshakes; h.Done != done || h.Took.Count() != done || (h.Took.Sum > 0) != (done > 0) {
				t.Errorf("%s: Stats().Handshakes = %+v, want %d", when, h, done)
			}
			if len(st.Fallbacks) != fallbacks {
				t.Errorf("%s: Stats().Fallbacks = %+v, want %d", when, st.Fallbacks, fallbacks)
			}
			checkAsShown(t, x.host, &st)
			if b, err := json.Marshal(st); err != nil {
				t.Errorf("%s: JSON: %v", when, err)
			} else {
				var back HostStats
				if err := json.Unmarshal(b, &back); err != nil {
					t.Errorf("%s: from JSON: %v", when, err)
				}
				if !back.Started.Equal(st.Started) {
					t.Errorf("%s: from JSON started %v, want %v", when, back.Started, st.Started)
				}
				if back.Started = st.Started; !reflect.DeepEqual(back, st) {
					t.Errorf("%s: from JSON %+v, want %+v", when, back, st)
				}
			}
		}
	}
	check("open", 1)
	c.Close()
	s.Close()
	smctest.Eventually(t, patience, "closed connections", func() bool {
		return client.Stats().Modes[mode].OpenClient+server.Stats().Modes[mode].OpenServer == 0
	})
	check("closed", 0)
	client.Close()
	server.Close()
	check("of hosts that have ended", 0)
}

// checkAsShown checks that numbers are those that the control socket gives to 'gosmc stats'.
func checkAsShown(t *testing.T, h *Host, got *HostStats) {
	t.Helper()
	shown := h.h.Status()
	k := &shown.Counters
	if int(k.HandshakesOK) != int(got.Handshakes.Done) || k.HandshakesFailed != got.Handshakes.Failed ||
		!slices.Equal(k.HandshakeTimes.Counts[:], got.Handshakes.Took.Counts) ||
		k.HandshakeTimes.Nanoseconds != uint64(got.Handshakes.Took.Sum) {
		t.Errorf("handshakes %+v, shown are %d, %d, %+v", got.Handshakes, k.HandshakesOK, k.HandshakesFailed, k.HandshakeTimes)
	}
	if k.Failovers != got.Failovers || k.BuffersFull != got.BuffersFull || k.DoorbellsRung != got.Doorbells ||
		k.Spins != got.WaitsSpinning || k.Sleeps != got.WaitsAsleep || k.RMBBytes != got.RMBBytes {
		t.Errorf("numbers %+v, shown are %+v", got, k)
	}
	for mode, m := range got.Modes {
		b := k.Bytes[mode.String()]
		if m.Client+m.Server != k.Connections[mode.String()] || m.Server != k.AsServer[mode.String()] ||
			m.BytesRead != b.In || m.BytesWritten != b.Out {
			t.Errorf("%v: %+v, shown are %d connections, %d as server, bytes %+v", mode, m,
				k.Connections[mode.String()], k.AsServer[mode.String()], b)
		}
	}
	links := make(map[string]int)
	for _, g := range shown.Groups {
		for _, l := range g.Links {
			links[l.State]++
		}
	}
	for state, n := range got.Links {
		if n != links[state] {
			t.Errorf("%d links are %s, shown are %d", n, state, links[state])
		}
	}
	for mode, n := range got.LinkGroups {
		if n != k.Groups[mode.String()] {
			t.Errorf("%d link groups of %v, shown are %d", n, mode, k.Groups[mode.String()])
		}
	}
	if len(got.Fallbacks) != len(k.Fallbacks) || len(got.Ends) != len(k.Ends) {
		t.Errorf("fallbacks %+v and ends %+v, shown are %+v and %+v", got.Fallbacks, got.Ends, k.Fallbacks, k.Ends)
	}
	for i, f := range got.Fallbacks {
		if s := k.Fallbacks[i]; f.Code != uint32(s.Code) || f.Client+f.Server != s.Count || f.Server != s.AsServer || f.Tag != s.Tag {
			t.Errorf("fallback %+v, shown is %+v", f, s)
		}
	}
}

// TestStatsUnused checks that Stats opens nothing, also of the default host.
func TestStatsUnused(t *testing.T) {
	smctest.CheckLeaks(t)
	h, err := NewHost(&Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	st := h.Stats()
	if st.Started.IsZero() || len(st.Modes) == 0 {
		t.Errorf("Stats() = %+v, want a time and modes", st)
	}
	for _, l := range st.Limits {
		if l.Name == "memory" && l.Used != 0 {
			t.Errorf("an unused host uses %d bytes of %s", l.Used, l.Name)
		}
	}
	var none *Host
	none.Stats() // the default host, as where a field Host is nil
}

// TestStatsFallbacks checks that fallbacks with one code are one entry.
func TestStatsFallbacks(t *testing.T) {
	var s HostStats
	for _, f := range []FallbackStats{
		{Code: 1, Client: 2}, {Code: 7, Client: 4, Text: "a"}, {Code: 7, Client: 1, Server: 8, Text: "b"}, {Code: 3, Server: 2},
	} {
		s.addFallback(f)
	}
	s.sortFallbacks()
	want := []FallbackStats{{Code: 7, Client: 5, Server: 8, Text: "a"}, {Code: 1, Client: 2}, {Code: 3, Server: 2}}
	if !reflect.DeepEqual(s.Fallbacks, want) {
		t.Errorf("fallbacks %+v, want %+v", s.Fallbacks, want)
	}
}

func TestModeText(t *testing.T) {
	for m := range modeNames {
		var got Mode
		text, _ := Mode(m).MarshalText()
		if err := got.UnmarshalText(text); err != nil || got != Mode(m) {
			t.Errorf("UnmarshalText(%s) = %v, %v, want %v", text, got, err, Mode(m))
		}
	}
	var m Mode
	for _, text := range []string{"", "smc-d", "TCP "} {
		if err := m.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("UnmarshalText(%q) = %v, want an error", text, m)
		}
	}
}

// BenchmarkStats is a host with 10,000 connections of plain TCP.
func BenchmarkStats(b *testing.B) {
	h, err := NewHost(&Config{Dir: b.TempDir(), Disabled: true})
	if err != nil {
		b.Fatal(err)
	}
	defer h.Close()
	l, err := (&ListenConfig{Host: h}).Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	for range 5000 {
		c, err := (&Dialer{Host: h}).Dial("tcp", l.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		s, err := l.Accept()
		if err != nil {
			b.Fatal(err)
		}
		defer s.Close()
	}
	b.ReportAllocs()
	for b.Loop() {
		if s := h.Stats(); s.Modes[ModeTCP].OpenClient != 5000 || s.Fallbacks[0].Code != uint32(clc.DiagDisabled) {
			b.Fatalf("%+v", s)
		}
	}
}

package pairing_test

import (
	"encoding/binary"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/pairing"
	"github.com/gosmc/smc/internal/smctest"
)

func TestMain(m *testing.M) {
	smctest.Apart()
	os.Exit(m.Run())
}

func TestMatch(t *testing.T) {
	for _, tt := range []struct {
		name string
		a, b pairing.Tokens
		want bool
	}{
		{"two ends", pairing.Tokens{Mine: 1, Theirs: 2}, pairing.Tokens{Mine: 2, Theirs: 1}, true},
		{"one end twice", pairing.Tokens{Mine: 1, Theirs: 2}, pairing.Tokens{Mine: 1, Theirs: 2}, false},
		{"the client's token repeated", pairing.Tokens{Mine: 1, Theirs: 2}, pairing.Tokens{Mine: 3, Theirs: 1}, false},
		{"the server's token repeated", pairing.Tokens{Mine: 1, Theirs: 2}, pairing.Tokens{Mine: 2, Theirs: 3}, false},
		{"no tokens", pairing.Tokens{}, pairing.Tokens{}, false},
		{"half of them", pairing.Tokens{Mine: 1}, pairing.Tokens{Theirs: 1}, false},
		{"the other half", pairing.Tokens{Theirs: 1}, pairing.Tokens{Mine: 1}, false},
	} {
		for _, order := range [][2]pairing.Tokens{{tt.a, tt.b}, {tt.b, tt.a}} {
			if got := pairing.Match(order[0], order[1]); got != tt.want {
				t.Errorf("%s: Match(%v, %v) = %v, want %v", tt.name, order[0], order[1], got, tt.want)
			}
		}
	}
}

// valueOf is a value as the programs keep it.
func valueOf(layout, state, cause byte, mine, theirs uint64) []byte {
	b := []byte{layout, state, cause, 0, 0, 0, 0, 0}
	return binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(b, mine), theirs)
}

func TestDecode(t *testing.T) {
	const notAsked, asked, listening, sent, paired, alone = 0, 1, 2, 3, 4, 5
	for _, tt := range []struct {
		name  string
		value []byte
		want  pairing.Tokens
		cause pairing.Cause
		fails bool
	}{
		{"not asked", valueOf(1, notAsked, 0, 0, 0), pairing.Tokens{}, pairing.NotAsked, false},
		{"asked", valueOf(1, asked, 0, 0, 0), pairing.Tokens{}, pairing.Pending, false},
		{"listening", valueOf(1, listening, 0, 0, 0), pairing.Tokens{}, pairing.Listening, false},
		{"refused to listen", valueOf(1, asked, 5, 0, 0), pairing.Tokens{}, pairing.TooMany, false},
		{"refused beside another", valueOf(1, asked, 8, 0, 0), pairing.Tokens{}, pairing.Mixed, false},
		{"sent", valueOf(1, sent, 0, 7, 0), pairing.Tokens{}, pairing.Pending, false},
		{"sent again", valueOf(1, sent, 9, 7, 0), pairing.Tokens{}, pairing.Pending, false},
		{"paired", valueOf(1, paired, 0, 7, 8), pairing.Tokens{Mine: 7, Theirs: 8}, pairing.Paired, false},
		{"alone", valueOf(1, alone, 11, 0, 0), pairing.Tokens{}, pairing.OtherKernel, false},
		{"alone with tokens", valueOf(1, alone, 1, 7, 8), pairing.Tokens{}, pairing.PeerSilent, false},
		{"paired without a token", valueOf(1, paired, 0, 7, 0), pairing.Tokens{}, pairing.NotAsked, true},
		{"alone without a cause", valueOf(1, alone, 0, 0, 0), pairing.Tokens{}, pairing.NotAsked, true},
		{"unknown cause", valueOf(1, alone, 12, 0, 0), pairing.Tokens{}, pairing.NotAsked, true},
		{"unknown state", valueOf(1, 6, 0, 7, 8), pairing.Tokens{}, pairing.NotAsked, true},
		{"another version", valueOf(2, paired, 0, 7, 8), pairing.Tokens{}, pairing.NotAsked, true},
		{"longer", append(valueOf(1, paired, 0, 7, 8), 0), pairing.Tokens{}, pairing.NotAsked, true},
	} {
		tokens, cause, err := pairing.Decode(tt.value)
		if tokens != tt.want || cause != tt.cause || (err != nil) != tt.fails {
			t.Errorf("%s: Decode = %v, %q, %v; want %v, %q", tt.name, tokens, cause, err, tt.want, tt.cause)
		}
		for n := range tt.value {
			if tokens, _, err := pairing.Decode(tt.value[:n]); n != pairing.ValueLen && (tokens != (pairing.Tokens{}) || err == nil) {
				t.Errorf("%s: Decode of %d bytes = %v, %v", tt.name, n, tokens, err)
			}
		}
	}
}

// TestNoService asks where nothing catches the socket options.
func TestNoService(t *testing.T) {
	for protocol, want := range map[int]error{unix.IPPROTO_TCP: pairing.ErrNoService, unix.IPPROTO_MPTCP: pairing.ErrMultipath} {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, protocol)
		if err != nil {
			t.Logf("protocol %d: %v", protocol, err)
			continue
		}
		defer unix.Close(fd)
		_, _, read := pairing.TokensOf(uintptr(fd))
		_, name := pairing.ServiceName(uintptr(fd))
		for what, err := range map[string]error{
			"Request": pairing.Request(uintptr(fd)), "Withdraw": pairing.Withdraw(uintptr(fd)), "TokensOf": read, "ServiceName": name,
		} {
			if !errors.Is(err, want) {
				t.Errorf("protocol %d: %s = %v, want %v", protocol, what, err, want)
			}
		}
	}
	if err := pairing.Request(^uintptr(0)); err == nil || errors.Is(err, pairing.ErrNoService) {
		t.Errorf("no descriptor: %v", err)
	}
}

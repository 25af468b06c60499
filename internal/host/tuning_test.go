package host

import (
	"cmp"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/handshake"
	"github.com/gosmc/smc/internal/llcflow"
	"github.com/gosmc/smc/internal/smcr"
	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/wire/llc"
)

// tuningOf are the fields of a configuration that [config.Tuning] is about.
func tuningOf(c *Config) config.Tuning {
	return config.Tuning{
		SMCRLinks: c.SMCRLinks, SMCRConns: c.SMCRConns, SMCRSpread: c.SMCRSpread,
		SMCRKeepAlive: c.SMCRKeepAlive, Spin: c.Spin, ReadBuffer: c.ReadBuffer,
	}
}

// TestTuningFromEnvironment has each value of the environment reach a host whose program does not set
// the field, and no other.
func TestTuningFromEnvironment(t *testing.T) {
	for word, value := range map[string]string{
		config.SMCRLinks: "3", config.SMCRConns: "64", config.SMCRSpread: smcr.SpreadBytes,
		config.SMCRKeepAlive: "off", config.Spin: "7us", config.ReadBuffer: "64KiB",
	} {
		t.Setenv(config.Variables[word], value)
	}
	want := config.Tuning{
		SMCRLinks: 3, SMCRConns: 64, SMCRSpread: smcr.SpreadBytes,
		SMCRKeepAlive: -1, Spin: 7 * time.Microsecond, ReadBuffer: 64 << 10,
	}
	h := newTestHost(t, Config{})
	if got := tuningOf(&h.cfg); got != want {
		t.Errorf("with the environment %+v, want %+v", got, want)
	}
	own := config.Tuning{
		SMCRLinks: 1, SMCRConns: 16, SMCRSpread: smcr.SpreadConnections,
		SMCRKeepAlive: time.Minute, Spin: time.Microsecond, ReadBuffer: 32 << 10,
	}
	h = newTestHost(t, Config{
		SMCRLinks: own.SMCRLinks, SMCRConns: own.SMCRConns, SMCRSpread: own.SMCRSpread,
		SMCRKeepAlive: own.SMCRKeepAlive, Spin: own.Spin, ReadBuffer: own.ReadBuffer,
	})
	if got := tuningOf(&h.cfg); got != own {
		t.Errorf("with fields of its own %+v, want %+v", got, own)
	}
}

// TestTuningDefaults checks the defaults that package config tells.
func TestTuningDefaults(t *testing.T) {
	h := newTestHost(t, Config{})
	keepAlive := cmp.Or(h.cfg.SMCRKeepAlive, llcflow.TestLinkInterval)
	for word, value := range map[string]any{
		config.SMCRLinks: h.cfg.SMCRLinks, config.SMCRConns: h.cfg.SMCRConns, config.SMCRSpread: h.cfg.SMCRSpread,
		config.SMCRKeepAlive: keepAlive, config.Spin: time.Duration(stream.DefaultSpin),
	} {
		got, want := fmt.Sprint(value), config.Defaults[word]
		if d, ok := value.(time.Duration); ok {
			if told, err := time.ParseDuration(want); err != nil || told != d {
				t.Errorf("the default of %s is %v, package config has %s", word, d, want)
			}
		} else if got != want {
			t.Errorf("the default of %s is %s, package config has %s", word, got, want)
		}
	}
	if h.cfg.Spin != stream.DefaultSpin {
		t.Errorf("a host spins for %v, want %v", h.cfg.Spin, stream.DefaultSpin)
	}
}

// TestTuningInvalid checks that a host and the configuration file have the same bounds.
func TestTuningInvalid(t *testing.T) {
	for _, tt := range []struct {
		word, field string
		values      map[int]bool // whether it is valid
	}{
		{config.SMCRLinks, "SMCRLinks", map[int]bool{-1: false, 1: true, llc.MaxLinks: true, llc.MaxLinks + 1: false}},
		{config.SMCRConns, "SMCRConns", map[int]bool{
			1: false, handshake.MinConnsPerGroup - 1: false, handshake.MinConnsPerGroup: true,
			handshake.MaxConnsPerGroup: true, handshake.MaxConnsPerGroup + 1: false,
		}},
		{config.ReadBuffer, "ReadBuffer", map[int]bool{
			minBuffer - 1: false, minBuffer: true, maxBuffer: true, maxBuffer + 1: false,
		}},
	} {
		for value, valid := range tt.values {
			var c Config
			reflect.ValueOf(&c).Elem().FieldByName(tt.field).SetInt(int64(value))
			h, err := New(c)
			if err == nil {
				h.Close()
			}
			if inFile := config.Check(tt.word, fmt.Sprint(value)); (err == nil) != valid || (inFile == nil) != valid {
				t.Errorf("%s %d: a host has %v, the file %v; valid: %t", tt.field, value, err, inFile, valid)
			}
		}
	}
}

// TestSMCRConns checks that a link group has no more connections than the end with the lesser number
// wants, whichever end that is.
func TestSMCRConns(t *testing.T) {
	for _, tt := range []struct{ client, server int }{{16, 0}, {0, 16}, {200, 16}} {
		r := newSMCRRig(t, func(client, server *Config) { client.SMCRConns, server.SMCRConns = tt.client, tt.server })
		var ends []conn.Conn
		for range 17 {
			c, s := r.connect()
			checkSMCR(t, c, s)
			ends = append(ends, c, s)
		}
		for _, h := range []*Host{r.client, r.server} {
			var counts []int
			for _, g := range h.Status().Groups {
				if counts = append(counts, g.Conns); g.MaxConns != 16 && g.Role == "server" {
					t.Errorf("%+v: a group of at most %d connections, want 16", tt, g.MaxConns)
				}
			}
			if len(counts) != 2 || counts[0] != 16 || counts[1] != 1 {
				t.Errorf("%+v: connections by group %v, want 16 and 1", tt, counts)
			}
		}
		for _, c := range ends {
			c.Close()
		}
		checkGone(t, r.client, r.server)
	}
}

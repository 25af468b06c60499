package smc

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/config"
)

// wordsOf are the words of the configuration file that a field of Config is about.
var wordsOf = map[string][]string{
	"Disabled": {config.SMC}, "Listen": {config.ListenPort, config.ListenAddress},
	"Connect": {config.ConnectPort, config.ConnectAddress}, "UEIDs": {config.UEID}, "SMCRPeers": {config.Peer},
	"SMCRDevices": {config.Device}, "SMCRLinks": {config.SMCRLinks}, "SMCRConns": {config.SMCRConns},
	"SMCRSpread": {config.SMCRSpread}, "SMCRKeepAlive": {config.SMCRKeepAlive}, "SMCRv1": {config.SMCRv1},
	"Spin": {config.Spin}, "ReadBuffer": {config.ReadBuffer}, "MemoryBudget": {config.Memory},
	"Users": {config.UsersWord}, "AnyUser": {config.UsersWord}, "ShortAfter": {config.ShortAfter},
}

// wordless are fields without a word, and the reason.
var wordless = map[string]string{
	"Dir":    "GOSMC_DIR: where the programs of a container or a user meet; one file for all programs cannot say it",
	"Logger": "a value of the program; GOSMC_LOG=stderr has the default logger write there",
}

// fieldless are words without a field, and the reason.
var fieldless = map[string]string{
	config.Program:      "names programs: one that sets the field knows its own",
	config.SEID:         "of the machine",
	config.PNET:         "of the machine's interfaces",
	config.RingAfter:    "of gosmc run",
	config.BetweenHosts: "of gosmc run",

	config.MachineAddress: "of the machine's networks",
}

// TestConfigWords checks that the configuration file has a word for each field of Config, that New
// reads it where the field is empty, and that each other word has a reason.
func TestConfigWords(t *testing.T) {
	used := make(map[string]bool)
	for field := range reflect.TypeFor[Config]().Fields() {
		words, reason := wordsOf[field.Name], wordless[field.Name]
		if (len(words) > 0) == (reason != "") {
			t.Errorf("Config.%s has the words %q and the reason %q for having none", field.Name, words, reason)
		}
		for _, w := range words {
			used[w] = true
			if !slices.Contains(config.Words, w) {
				t.Errorf("Config.%s has the word %s, which the file has not", field.Name, w)
			}
		}
	}
	for _, w := range config.Words {
		if used[w] == (fieldless[w] != "") {
			t.Errorf("the word %s has a field: %t; the reason for having none is %q", w, used[w], fieldless[w])
		}
		if w != config.PNET && w != config.SMC && !strings.HasPrefix(config.Variables[w], "GOSMC_") {
			t.Errorf("the word %s has no variable", w)
		}
	}
}

// TestConfigCopied checks that the host behind gets each field: one that is forgotten would be lost.
func TestConfigCopied(t *testing.T) {
	for field := range reflect.TypeFor[Config]().Fields() {
		var c Config
		set(reflect.ValueOf(&c).Elem().FieldByIndex(field.Index))
		inner := c.internal()
		if got := reflect.ValueOf(inner).FieldByName(field.Name); !got.IsValid() || got.IsZero() {
			t.Errorf("the host does not get Config.%s", field.Name)
		}
	}
}

// set gives a field some value.
func set(v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.String:
		v.SetString("x")
	case reflect.Slice:
		v.Set(reflect.ValueOf([]string{"x"}))
	case reflect.Struct:
		set(v.Field(0))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	}
}

package usage

import (
	"strings"
	"testing"
)

// Addresses may have the forms that netcat takes.
func TestJoinAddress(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"localhost", "7000"}, "localhost:7000"}, {[]string{"::1", "7000"}, "[::1]:7000"}, {[]string{"[::1]", "7000"}, "[::1]:7000"},
		{[]string{"7000"}, ":7000"}, {[]string{":7000"}, ":7000"}, {[]string{"h:1"}, "h:1"}, {[]string{"70000"}, "70000"},
	} {
		if got := JoinAddress(tt.args); got != tt.want {
			t.Errorf("JoinAddress(%q) = %q, want %q", tt.args, got, tt.want)
		}
	}
}

// TestCheckAddress has addresses that cannot be meant rejected, with what may have been meant.
func TestCheckAddress(t *testing.T) {
	for addr, want := range map[string]string{
		"localhost:7000": "", ":7000": "", "[::1]:7000": "", "localhost:http": "", "127.0.0.1:0": "",
		"localhost": "as in localhost:7000", "http://localhost:6379/": "as in localhost:6379", "https://localhost/x": "as in localhost:https",
		"::1": "brackets around an IPv6 address", "": "want HOST:PORT", "70000": "want a port from 0 to 65535",
		"localhost:70000": "want a port from 0 to 65535", "localhost:-1": "want a port from 0 to 65535", "h:99999999999999999999": "want a port from 0 to 65535",
	} {
		err := CheckAddress(addr)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("CheckAddress(%q) = %v, want %q", addr, err, want)
		}
	}
}

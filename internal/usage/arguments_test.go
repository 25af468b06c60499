package usage

import "testing"

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

package attempts

import "testing"

func TestDestination(t *testing.T) {
	for _, tt := range []struct{ network, address, want string }{
		{"tcp", "192.0.2.1:80", "192.0.2.1:80"},
		{"tcp", ":80", "127.0.0.1:80"},
		{"tcp6", ":80", "[::1]:80"},
		{"tcp", "0.0.0.0:80", "127.0.0.1:80"},
		{"tcp", "[::]:80", "[::1]:80"},
	} {
		if got, ok := Destination(tt.network, tt.address); !ok || got.String() != tt.want {
			t.Errorf("Destination(%q, %q) = %v, %t; want %s", tt.network, tt.address, got, ok, tt.want)
		}
	}
	if got, ok := Destination("tcp", "host.example:80"); ok {
		t.Errorf("the destination of a name is %v", got)
	}
}

package introduce

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// BenchmarkIntroduce measures an introduction, from the first question to the last answer, by an agent in
// the same process.
func BenchmarkIntroduce(b *testing.B) {
	device := func(c *Client, role Role, f *os.File) (*Question, error) { return c.Ask(role, f.Fd(), MaxWait) }
	either := func(c *Client, role Role, f *os.File) (*Question, error) {
		return c.AskEither(role, f.Fd(), MaxWait)
	}
	pair := func(c *Client, role Role, f *os.File) (*Question, error) {
		return c.AskPair(role, f.Fd(), MaxWait, false)
	}
	for _, tt := range []struct {
		name           string
		client, server func(c *Client, role Role, f *os.File) (*Question, error)
	}{
		{"device to device", device, device}, {"either to either", either, either},
		{"pair to pair", pair, pair}, {"either to pair", either, pair}, {"pair to either", pair, either},
	} {
		b.Run(tt.name, func(b *testing.B) {
			o := newBureau(b)
			alice, bob := o.dial(b, 1, anyone), o.dial(b, 2, anyone)
			c := o.kernel.connect(b)
			for b.Loop() {
				q, err := tt.client(alice, RoleClient, c.client)
				if err != nil {
					b.Fatal(err)
				}
				asks, err := tt.server(bob, RoleServer, c.server)
				if err != nil {
					b.Fatal(err)
				}
				mine := <-q.Answer()
				if mine.Lent {
					q.Ready()
				}
				theirs := <-asks.Answer()
				if mine.Socket < 0 || theirs.Socket < 0 {
					b.Fatalf("%+v, %+v", mine, theirs)
				}
				if mine.Lent {
					asks.Took()
					for !(<-q.Answer()).Taken {
					}
				}
				unix.Close(mine.Socket)
				unix.Close(theirs.Socket)
			}
		})
	}
}

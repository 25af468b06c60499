package link

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/internal/verbs"
)

// TestCables joins two network namespaces by IPv4 and by IPv6, moves bytes both ways through several connections, and pulls the
// cable: both links fail, and nothing else does.
func TestCables(t *testing.T) {
	cables := smctest.NewCables(t, 1)
	for _, tt := range []struct {
		name string
		addr [2]netip.Addr
	}{{"IPv6", cables.Six[0]}, {"IPv4", cables.Addr[0]}} { // IPv6 first: going down removes it
		t.Run(tt.name, func(t *testing.T) {
			watchdog(t)
			var devices [2]verbs.Device
			for i, run := range cables.Run {
				var err error
				run(func() {
					var dev *rdma.Device
					if dev, err = rdma.Open(tt.addr[i], nil); err == nil {
						devices[i] = rdma.Verbs(dev)
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				defer devices[i].Close()
			}
			s := joinSides(t, devices[0], devices[1])
			var ends []*end
			for range 3 {
				a, b := s.connect(t, settings{code: sizes(3, 3)})
				exchange(t, a, b, 2<<20)
				ends = append(ends, a, b)
			}
			cables.IP(0, "link set cable0 down")
			defer func() {
				cables.IP(0, "link set cable0 up")
				smctest.AwaitCarrier(t, cables.Run[0], "cable0")
			}()
			for i := range s {
				s[i].link.SendLLC([]byte{7}, 0)
			}
			for i := range s {
				e := s[i].poll(t)
				if broken, ok := errors.AsType[*WorkError](e.Err); e.Kind != EventFailed || !ok || broken.Status != verbs.StatusRetryExceeded {
					t.Errorf("end %d: event %+v", i, e)
				}
			}
			for _, e := range ends {
				e.Fail(s[0].link.Err())
				e.Conn.Detach()
			}
			finish(t, ends...)
			s.check(t)
		})
	}
}

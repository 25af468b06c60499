package ism

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/wire"
)

// FuzzPeering plays messages at a peering that stands: the input is cut into messages of random
// length, and some get descriptors. Whatever comes, the device goes on and loses nothing.
//
//	each message: 1 byte length, 1 byte selects descriptors and token, then the bytes
func FuzzPeering(f *testing.F) {
	for _, tt := range messageVectors[1:] {
		b := unhex(f, tt.hex)
		f.Add(append([]byte{byte(len(b)), 0}, b...))
		f.Add(append([]byte{byte(len(b)), 0x11}, b...))
		f.Add(append([]byte{byte(len(b)), 0x12}, b...))
	}
	attach := message{kind: kindAttach, size: 16 << 10}
	drop := message{kind: kindDrop}
	var both []byte
	for _, m := range []message{attach, drop, attach} {
		b := m.append(nil)
		both = append(append(both, byte(len(b)), 0x10), b...)
	}
	f.Add(both)
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, input []byte) {
		d, r := openDevice(t, Config{Dir: dir})
		s := dialScript(t, d)
		s.hello()
		p := await(t, "PeerUp", r.ups)
		dmb := mustDMB(t, p, 16<<10, nil)
		asked := make(chan struct{})
		go func() { // something for the input to answer
			if w, err := p.Attach(t.Context(), hostileToken, 16<<10); err == nil {
				w.Release(true)
			}
			close(asked)
		}()
		for len(input) >= 2 {
			n, how := min(int(input[0]), len(input)-2), input[1]
			b := append([]byte(nil), input[2:2+n]...)
			input = input[2+n:]
			if how&0x30 != 0 && len(b) >= 16 {
				token := dmb.Token()
				if how&0x20 != 0 {
					token = hostileToken
				}
				m := message{kind: kindRevoke, token: wire.Token(token)}
				copy(b[8:16], m.append(nil)[8:16])
			}
			var fds []int
			for range how & 3 {
				fds = append(fds, s.memory(16<<10))
			}
			if s.send(b, fds...) != nil {
				break
			}
		}
		d.Poll()
		unix.Shutdown(s.fd, unix.SHUT_RDWR)
		select {
		case <-r.gone:
		case <-time.After(patience):
			t.Fatal("PeerGone did not come")
		}
		<-asked
		dmb.Release(true)
		s.close()
		d.Close()
		if s := d.Stats(); s.DMBs != 0 || s.Bytes != 0 || s.Windows != 0 || s.CachedDMBs != 0 {
			t.Errorf("Stats() = %+v, want nothing left", s)
		}
	})
}

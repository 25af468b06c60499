package child

import "os"

// Pipes is how many pipes a child of [NewPiped] has: standard input, output and error.
const Pipes = 3

// NewPiped makes a child that somebody else will start, and its ends of the pipes: standard
// input, output and error. They are to be closed when it has been started.
func NewPiped(name string) (*Process, []*os.File, error) {
	var ours, theirs []*os.File
	for i := range Pipes {
		r, w, err := os.Pipe()
		if err != nil {
			for _, f := range ours {
				f.Close()
			}
			return nil, theirs, err
		}
		if i == 0 {
			r, w = w, r // the child reads its input
		}
		ours, theirs = append(ours, r), append(theirs, w)
	}
	c := newProcess(name)
	c.stdin, c.kill = ours[0], func() {}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer ours[2].Close()
		ours[2].WriteTo(c.stderr)
	}()
	go func() {
		defer ours[1].Close()
		c.follow(ours[1], func() error {
			<-ended
			return nil
		})
	}()
	return c, theirs, nil
}

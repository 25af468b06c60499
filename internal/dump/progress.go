package dump

import (
	"fmt"
	"time"

	"github.com/gosmc/smc/internal/capture"
	"github.com/gosmc/smc/internal/text"
)

// A progress shows how far files are read.
type progress struct {
	show  func(line string)
	in    capture.Progresser // nil if nothing is shown
	start time.Time
	last  time.Time
}

// startProgress shows progress if the caller wants it, and the input has some.
func (d *dumper) startProgress() *progress {
	p := &progress{show: d.Progress, start: time.Now()}
	if in, ok := d.in.(capture.Progresser); ok && p.show != nil {
		p.in = in
	}
	return p
}

func (p *progress) update() {
	if p.in == nil {
		return
	}
	now := time.Now()
	if now.Sub(p.last) < progressInterval {
		return
	}
	p.last = now
	read, size, ok := p.in.Progress()
	rate := float64(read) / max(now.Sub(p.start).Seconds(), 1e-3)
	speed := text.Bytes(int64(rate))
	if !ok {
		p.show(fmt.Sprintf("%s read, %s/s", text.Bytes(read), speed))
		return
	}
	left := time.Duration(float64(size-read) / max(rate, 1) * float64(time.Second)).Round(time.Second)
	p.show(fmt.Sprintf("%d%% of %s, %s/s, %v left", read*100/max(size, 1), text.Bytes(size), speed, left))
}

// done clears the line.
func (p *progress) done() {
	if p.show != nil {
		p.show("")
	}
}

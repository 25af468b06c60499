package doctor

import (
	"cmp"
	"context"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/run/inspect"
	"github.com/gosmc/smc/internal/run/procs"
	"github.com/gosmc/smc/internal/survey"
)

// A Program is a process that runs.
type Program struct {
	PID     int
	Command string // base name
}

// A Reach says which programs that run a change of the configuration file has reached.
type Reach struct {
	Took  []Program // the new value is in force there
	Later []Program // that keep the old value until they are started again
}

// Reached asks the programs that run, in a run directory or for "" in all, after a word was changed;
// "" stands for several words. A program looks at the file before it answers. Programs with another
// file are left out.
func Reached(ctx context.Context, dir, word string) *Reach {
	r := new(Reach)
	ours, err := filepath.Abs(config.Path()) // programs tell theirs so
	if err != nil {
		ours = config.Path()
	}
	known := make(map[int]bool)
	for _, h := range survey.Ask(ctx, dir).Hosts {
		list := []Program{{h.PID, h.Command}}
		if h.Programs != nil {
			list = nil
		}
		for _, p := range h.Programs {
			if !p.Caller { // its own supervisor has it, too
				list = append(list, Program{p.PID, p.Command})
			}
		}
		for _, p := range list {
			switch {
			case known[p.PID]:
			case h.Config != nil && h.Config.File != ours: // another file is theirs
			case follows(h.Config, word):
				r.Took = append(r.Took, p)
			default:
				r.Later = append(r.Later, p)
			}
			known[p.PID] = true
		}
	}
	for _, p := range inspect.Processes() { // without a supervisor that answers
		file := cmp.Or(procs.Variable(p.PID, config.EnvFile), config.DefaultPath)
		if dir == "" && !known[p.PID] && file == ours {
			r.Later = append(r.Later, Program{p.PID, p.Command})
		}
	}
	return r
}

// follows reports whether a program has the value of a word in the file.
func follows(c *control.StatusConfig, word string) bool {
	return c != nil && c.Error == "" && slices.Contains(strings.Fields(c.Live), word)
}

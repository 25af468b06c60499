package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rundir"
)

// Gather asks every host that has a control socket under the run directory dir for its
// Status. The result is ordered by process and name. A directory that does not exist holds
// no host and is no error. Errors are of type [*Error], one for each host that did not answer as
// it should, and one for a user whose hosts there was no time for; the other hosts are reported
// all the same.
//
// Sockets that the caller's user left behind are removed; sockets of others, and those below the
// root of another process, are passed over.
//
// The status of a host is its own word, save PID and UID, which are taken from the kernel, and Dir.
// ctx bounds the whole; each host has a few seconds at most, and so have the hosts of each user.
func Gather(ctx context.Context, dir string) ([]Status, []error) {
	return new(Allowance).Gather(ctx, dir)
}

// GatherSome is Gather for the hosts with control sockets that want chooses by their names. It is
// called once for each name, before any host is asked.
func GatherSome(ctx context.Context, dir string, want func(name string) bool) ([]Status, []error) {
	return new(Allowance).gather(ctx, dir, want)
}

// Gather is [Gather] with an allowance that several directories share.
func (a *Allowance) Gather(ctx context.Context, dir string) ([]Status, []error) {
	return a.gather(ctx, dir, func(string) bool { return true })
}

func (a *Allowance) gather(ctx context.Context, dir string, want func(name string) bool) ([]Status, []error) {
	d, err := openFolder(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, []error{&Error{Path: rundir.Path(dir, socketsDir), Err: bareError(err)}}
	}
	defer d.Close()
	names, err := d.Readdirnames(maxNames)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, []error{&Error{Path: d.Name(), Err: bareError(err)}}
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !want(name) })
	slices.Sort(names)
	g := gathering{allowance: a, dir: dir, folder: d, time: userTime}
	g.run(ctx, d.byUser(names))
	slices.SortFunc(g.list, func(a, b Status) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), strings.Compare(a.Name, b.Name))
	})
	slices.SortFunc(g.errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return g.list, g.errs
}

// A lane has the hosts that one user pays for.
type lane struct {
	payer int
	names []string
}

// byUser sorts names of sockets by the users who pay for them, in the order of these: users whom an
// administrator has made come before those that users make in their namespaces.
func (d *folder) byUser(names []string) (lanes []lane) {
	of := make(map[int]int)
	for _, name := range names {
		var st unix.Stat_t
		err := unix.Fstatat(int(d.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
			continue
		}
		payer := d.payer(st.Uid)
		i, ok := of[payer]
		if !ok {
			i, of[payer] = len(lanes), len(lanes)
			lanes = append(lanes, lane{payer: payer})
		}
		lanes[i].names = append(lanes[i].names, name)
	}
	slices.SortFunc(lanes, func(a, b lane) int { return cmp.Compare(a.payer, b.payer) })
	return lanes
}

// A gathering is one look into a folder.
type gathering struct {
	allowance *Allowance
	dir       string
	folder    *folder
	time      time.Duration // for the hosts of a user

	mu   sync.Mutex
	list []Status
	errs []error
}

// run asks the hosts of several users at a time: hosts that do not answer hold up those of their
// own user.
func (g *gathering) run(ctx context.Context, lanes []lane) {
	var wg sync.WaitGroup
	places := make(chan struct{}, maxLanes)
	for _, l := range lanes {
		places <- struct{}{} // bounded: every lane is
		wg.Go(func() {
			defer func() { <-places }()
			ctx, stop := context.WithTimeout(ctx, g.time) // rule: TestGatherSilent: g.time -> time.Hour
			defer stop()
			g.ask(ctx, l)
		})
	}
	wg.Wait()
}

// ask asks the hosts of one user, as long as ctx lasts.
func (g *gathering) ask(ctx context.Context, l lane) {
	var wg sync.WaitGroup
	tokens := make(chan struct{}, gatherConcurrency)
	deadline, bounded := ctx.Deadline()
	for i, name := range l.names {
		tokens <- struct{}{} // bounded: every question is
		// The time of a question can be over before that of the context is seen to be.
		late := ctx.Err() != nil || bounded && !time.Now().Before(deadline)
		if left := len(l.names) - i; late || i == maxSockets {
			why := "there was no time for"
			if i == maxSockets {
				why = "there are too many: not asked were"
			}
			g.fail(g.folder.Name(), fmt.Errorf("%s %d programs of user %d", why, left, l.payer))
			break
		}
		wg.Go(func() {
			defer func() { <-tokens }()
			st, err := g.askHostFor(ctx, name)
			switch {
			case err != nil:
				g.fail(filepath.Join(g.folder.Name(), name), bareError(err))
			case st != nil:
				st.Dir = g.dir
				g.mu.Lock()
				defer g.mu.Unlock()
				g.list = append(g.list, *st)
			}
		})
	}
	wg.Wait()
}

func (g *gathering) fail(path string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.errs = append(g.errs, &Error{Path: path, Err: err})
}

// askHostFor is askHost, and waits for it no longer than that can take. A host may send descriptors
// along with its answer, which the kernel throws away within our read: where that closes the last
// one of a TCP socket with SO_LINGER, or when we close a socket that has such in it, the call
// returns when the host wishes.
func (g *gathering) askHostFor(ctx context.Context, name string) (*Status, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*ioTimeout)
	type answer struct {
		st  *Status
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		defer cancel()
		st, err := g.askHost(ctx, name)
		answered <- answer{st, err}
	}()
	select {
	case a := <-answered:
		return a.st, a.err
	case <-ctx.Done():
	}
	select {
	case a := <-answered:
		return a.st, a.err
	case <-time.After(closeTime):
		return nil, os.ErrDeadlineExceeded
	}
}

// askHost asks the host behind one name of ctl. It returns nil and no error if there is no live
// host: another kind of file, a socket in the making, a host that is gone.
//
// A host that ends while it is asked hangs up, and a moment later is not there: so a host that
// hangs up is asked again.
func (g *gathering) askHost(ctx context.Context, name string) (st *Status, err error) {
	for range maxAsks {
		if st, err = g.askHostOnce(ctx, name); !hungUp(err) {
			break
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(queueRetry):
		}
	}
	return st, err
}

// hungUp reports whether an error is that the other end has closed the connection.
func hungUp(err error) bool {
	return errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE)
}

// askHostOnce is askHost for a host that does not end.
func (g *gathering) askHostOnce(ctx context.Context, name string) (*Status, error) {
	socket, st, err := g.folder.pin(name)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTSOCK):
		return nil, nil
	case err != nil:
		return nil, err
	}
	defer socket.Close()
	inTheMaking := strings.HasPrefix(name, ".")
	if inTheMaking && time.Since(time.Unix(st.Mtim.Unix())) < staleTemporary {
		return nil, nil
	}
	c, err := g.folder.dial(ctx, socket)
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		// Nobody listens, and since a socket gets its name only when it does, nobody will.
		// rule: TestElsewhereLeftAlone: !g.folder.there -> true
		if st.Uid == uint32(os.Geteuid()) && !g.folder.there {
			unix.Unlinkat(int(g.folder.Fd()), name, 0)
		}
		return nil, nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, errElsewhere):
		return nil, nil // it left while we looked, or is no host of this folder
	case err != nil:
		return nil, err
	}
	defer c.Close()
	if inTheMaking {
		return nil, nil // slow, but alive
	}
	return askStatus(ctx, c, paidReader{c, g.allowance, g.folder.payer(st.Uid)})
}

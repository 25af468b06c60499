package control

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rundir"
)

// An Error says that one host, or one run directory, could not be asked.
type Error struct {
	Path string // of the socket or directory
	Err  error  // [os.ErrPermission]: of another user, ask as root
}

func (e *Error) Error() string { return e.Path + ": " + e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// Gather asks every host that has a control socket under the run directory dir for its
// Status. The result is ordered by process and name. A directory that does not exist holds
// no host and is no error. Errors are of type [*Error], one for each host that did not answer as
// it should; the other hosts are reported all the same.
//
// Sockets that the caller's user left behind are removed; sockets of others are passed over.
//
// The status of a host is its own word, save PID and UID, which are taken from the kernel, and Dir.
// ctx bounds the whole; each host also has a few seconds at most.
func Gather(ctx context.Context, dir string) ([]Status, []error) {
	return GatherSome(ctx, dir, func(string) bool { return true })
}

// GatherSome is Gather for the hosts with control sockets that want chooses by their names. It is
// called once for each name, before any host is asked.
func GatherSome(ctx context.Context, dir string, want func(name string) bool) ([]Status, []error) {
	ctl, err := openDir(dir, false)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, []error{&Error{Path: rundir.Path(dir, socketsDir), Err: bareError(err)}}
	}
	defer ctl.Close()
	names, err := ctl.Readdirnames(maxSockets)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, []error{&Error{Path: ctl.Name(), Err: bareError(err)}}
	}

	var (
		mu     sync.Mutex
		list   []Status
		errs   []error
		wg     sync.WaitGroup
		tokens = make(chan struct{}, gatherConcurrency)
	)
	names = slices.DeleteFunc(names, func(name string) bool { return !want(name) })
	slices.Sort(names)
	for _, name := range names {
		tokens <- struct{}{} // bounded: every question is
		wg.Go(func() {
			defer func() { <-tokens }()
			st, err := askHostFor(ctx, ctl, name)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				errs = append(errs, &Error{Path: filepath.Join(ctl.Name(), name), Err: bareError(err)})
			case st != nil:
				st.Dir = dir
				list = append(list, *st)
			}
		})
	}
	wg.Wait()
	slices.SortFunc(list, func(a, b Status) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), strings.Compare(a.Name, b.Name))
	})
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return list, errs
}

// bareError strips the file name that the system package put around an error: the
// Error has a better one.
func bareError(err error) error {
	if e, ok := errors.AsType[*os.PathError](err); ok {
		return e.Err
	}
	if e, ok := errors.AsType[*net.OpError](err); ok {
		if sys, ok := errors.AsType[*os.SyscallError](e.Err); ok {
			return sys.Err
		}
		return e.Err
	}
	return err
}

// askHostFor is askHost, and waits for it no longer than that can take. A host may send descriptors
// along with its answer, which the kernel throws away within our read: where that closes the last
// one of a TCP socket with SO_LINGER, or when we close a socket that has such in it, the call
// returns when the host wishes.
func askHostFor(ctx context.Context, ctl *os.File, name string) (*Status, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*ioTimeout)
	type answer struct {
		st  *Status
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		defer cancel()
		st, err := askHost(ctx, ctl, name)
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
func askHost(ctx context.Context, ctl *os.File, name string) (st *Status, err error) {
	for range maxAsks {
		if st, err = askHostOnce(ctx, ctl, name); !hungUp(err) {
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
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE)
}

// askHostOnce is askHost for a host that does not end.
func askHostOnce(ctx context.Context, ctl *os.File, name string) (*Status, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(int(ctl.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil, nil
		}
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, nil
	}
	inTheMaking := strings.HasPrefix(name, ".")
	if inTheMaking && time.Since(time.Unix(st.Mtim.Unix())) < staleTemporary {
		return nil, nil
	}
	c, err := dialHost(ctx, ctl, name)
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		// Nobody listens, and since a socket gets its name only when it does, nobody will.
		if st.Uid == uint32(os.Geteuid()) {
			unix.Unlinkat(int(ctl.Fd()), name, 0)
		}
		return nil, nil
	case errors.Is(err, unix.ENOENT):
		return nil, nil // it left while we looked
	case err != nil:
		return nil, err
	}
	defer c.Close()
	if inTheMaking {
		return nil, nil // slow, but alive
	}
	return askStatus(ctx, c)
}

// dialHost connects to a control socket, and tries again while its accept queue is full.
func dialHost(ctx context.Context, ctl *os.File, name string) (*net.UnixConn, error) {
	var d net.Dialer
	for {
		c, err := d.DialContext(ctx, "unix", socketAddr(ctl, name).Name)
		if err == nil {
			return c.(*net.UnixConn), nil
		}
		if !errors.Is(err, unix.EAGAIN) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(queueRetry):
		}
	}
}

// askStatus sends the status request on c and reads the answer.
func askStatus(ctx context.Context, c *net.UnixConn) (*Status, error) {
	cred, err := peerCredentials(c)
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(ioTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	c.SetDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	request, err := json.Marshal(requestLine{Version: Version, Request: "status"})
	if err != nil {
		return nil, err
	}
	if _, err := c.Write(append(request, '\n')); err != nil {
		return nil, err
	}
	line, err := readLine(c)
	if err != nil {
		return nil, err
	}
	st, err := parseResponse(line)
	if err != nil {
		return nil, err
	}
	st.UID = cred.Uid
	if cred.Pid > 0 { // 0: in a process namespace that we cannot see
		st.PID = int(cred.Pid)
	}
	return st, nil
}

// readLine reads one line of at most maxResponse bytes.
func readLine(r io.Reader) ([]byte, error) {
	br := bufio.NewReaderSize(io.LimitReader(r, maxResponse), readInitial)
	line, err := br.ReadBytes('\n')
	switch {
	case err == nil:
		return line, nil
	case errors.Is(err, io.EOF) && len(line) >= maxResponse:
		return nil, fmt.Errorf("response exceeds %d bytes", maxResponse)
	case errors.Is(err, io.EOF):
		return nil, io.ErrUnexpectedEOF
	}
	return nil, err
}

// parseResponse decodes a response line. The lists in it are held to their bounds,
// because a few bytes of JSON can ask for hundreds of memory.
func parseResponse(line []byte) (*Status, error) {
	// The fields of boundedStatus and boundedCounters hide the fields with the same names in the
	// embedded structs.
	type plainStatus Status
	type plainCounters StatusCounters
	type boundedCounters struct {
		plainCounters
		Fallbacks boundedList[FallbackCount] `json:"fallbacks"`
		Ends      boundedList[EndCount]      `json:"ends"`
		CLC       boundedList[MessageCount]  `json:"clc"`
		LLC       boundedList[MessageCount]  `json:"llc"`
	}
	type boundedStatus struct {
		plainStatus
		UEIDs       boundedList[string]         `json:"ueids"`
		Limits      boundedList[StatusLimit]    `json:"limits"`
		Counters    boundedCounters             `json:"counters"`
		Listeners   boundedList[StatusListener] `json:"listeners"`
		Connections boundedList[StatusConn]     `json:"connections"`
		Groups      boundedList[StatusGroup]    `json:"link_groups"`
		Devices     boundedList[StatusDevice]   `json:"devices"`
		Programs    boundedList[StatusProgram]  `json:"programs"`
	}
	var response struct {
		Version int            `json:"version"`
		Status  *boundedStatus `json:"status"`
		Error   string         `json:"error"`
	}
	err := json.Unmarshal(line, &response)
	switch {
	case err != nil:
		return nil, fmt.Errorf("response is not understood: %w", err)
	case response.Error != "":
		return nil, fmt.Errorf("host answered: %s", response.Error)
	case response.Version != Version:
		return nil, fmt.Errorf("host speaks version %d of the control protocol, this program %d", response.Version, Version)
	case response.Status == nil:
		return nil, errors.New("response holds neither a status nor an error")
	}
	b := response.Status
	st := Status(b.plainStatus)
	st.UEIDs, st.Limits, st.Listeners, st.Connections = b.UEIDs, b.Limits, b.Listeners, b.Connections
	st.Counters = StatusCounters(b.Counters.plainCounters)
	st.Groups, st.Devices, st.Programs = b.Groups, b.Devices, b.Programs
	st.Counters.Fallbacks, st.Counters.Ends = b.Counters.Fallbacks, b.Counters.Ends
	st.Counters.CLC, st.Counters.LLC = b.Counters.CLC, b.Counters.LLC
	return &st, nil
}

// A boundedList is a list from outside: of at most MaxConns connections, MaxGroups link groups with
// maxLinks links each, and maxList entries of anything else.
type boundedList[T any] []T

// UnmarshalJSON takes an array or null, and refuses one that is too long before it makes room for it.
func (l *boundedList[T]) UnmarshalJSON(b []byte) error {
	limit := maxList
	switch any(l).(type) {
	case *boundedList[StatusConn]:
		limit = MaxConns
	case *boundedList[StatusGroup]:
		limit = MaxGroups
	case *boundedList[StatusLink]:
		limit = maxLinks
	}
	d := json.NewDecoder(bytes.NewReader(b))
	start, err := d.Token()
	if err != nil {
		return err
	}
	if start == nil { // null
		*l = nil
		return nil
	}
	if start != json.Delim('[') {
		return fmt.Errorf("want a list, got %v", start)
	}
	list := []T{}
	for d.More() {
		if len(list) == limit {
			return fmt.Errorf("list of more than %d entries", limit)
		}
		var entry T
		if err := d.Decode(&entry); err != nil {
			return err
		}
		list = append(list, entry)
	}
	*l = list
	return nil
}

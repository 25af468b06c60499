package control

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// An Error says that one host, or one run directory, could not be asked.
type Error struct {
	Path string // of the socket or directory
	Err  error  // [os.ErrPermission]: of another user, ask as root
}

func (e *Error) Error() string { return e.Path + ": " + e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

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

// askStatus sends the status request on c, and reads the answer from there by way of answer.
func askStatus(ctx context.Context, c *net.UnixConn, answer io.Reader) (*Status, error) {
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
	line, err := readLine(answer)
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
		Tallies     boundedList[StatusTally]    `json:"tallies"`
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
		return nil, fmt.Errorf("host speaks version %d of the control protocol, this program %d",
			response.Version, Version)
	case response.Status == nil:
		return nil, errors.New("response holds neither a status nor an error")
	}
	b := response.Status
	st := Status(b.plainStatus)
	st.UEIDs, st.Limits, st.Listeners, st.Connections = b.UEIDs, b.Limits, b.Listeners, b.Connections
	st.Counters = StatusCounters(b.Counters.plainCounters)
	st.Groups, st.Devices, st.Programs, st.Tallies = b.Groups, b.Devices, b.Programs, b.Tallies
	st.Counters.Fallbacks, st.Counters.Ends = b.Counters.Fallbacks, b.Counters.Ends
	st.Counters.CLC, st.Counters.LLC = b.Counters.CLC, b.Counters.LLC
	return &st, nil
}

// A boundedList is a list from outside: of at most MaxConns connections, MaxTallies tallies, MaxGroups
// link groups with maxLinks links each, and maxList entries of anything else.
type boundedList[T any] []T

// UnmarshalJSON takes an array or null, and refuses one that is too long before it makes room for it.
func (l *boundedList[T]) UnmarshalJSON(b []byte) error {
	limit := maxList
	switch any(l).(type) {
	case *boundedList[StatusConn]:
		limit = MaxConns
	case *boundedList[StatusTally]:
		limit = MaxTallies
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

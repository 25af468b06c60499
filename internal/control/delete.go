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
	"path/filepath"
	"time"
)

// A LinkDeleter is a [Host] that has link groups of several links.
type LinkDeleter interface {
	// DeleteLink begins the end of a link, in order, and does not wait for it. The error says why
	// that cannot be.
	DeleteLink(group uint32, link uint8) error
}

// A deleteRequest has the further fields of the request "delete-link".
type deleteRequest struct {
	Group uint32 `json:"link_group,omitempty"`
	Link  uint8  `json:"link,omitempty"`
}

// A doneResponse is the answer.
type doneResponse struct{}

// deleteLink answers such a request.
func (s *Server) deleteLink(d LinkDeleter, request deleteRequest) responseLine {
	if err := d.DeleteLink(request.Group, request.Link); err != nil {
		return responseLine{Error: err.Error()}
	}
	return responseLine{Done: &doneResponse{}}
}

// DeleteLink asks a host, by its run directory and the name of its control socket as in [Status],
// to end a link of one of its link groups in order. It returns when that has begun. Errors are of
// type [*Error]: the host's answer, or that it cannot be asked ([os.ErrPermission],
// [os.ErrNotExist]). ctx bounds it, and some seconds do.
func DeleteLink(ctx context.Context, dir, name string, group uint32, link uint8) error {
	if err := deleteLink(ctx, dir, name, deleteRequest{group, link}); err != nil {
		return &Error{Path: filepath.Join(dir, socketsDir, name), Err: bareError(err)}
	}
	return nil
}

func deleteLink(ctx context.Context, dir, name string, request deleteRequest) error {
	ctx, cancel := context.WithTimeout(ctx, ioTimeout)
	defer cancel()
	d, err := openFolder(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	c, err := dialHost(ctx, d, name)
	if err != nil {
		return err
	}
	defer c.Close()
	deadline, _ := ctx.Deadline()
	c.SetDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	return askDelete(c, request)
}

// askDelete asks on a control socket.
func askDelete(c net.Conn, request deleteRequest) error {
	if _, err := peerCredentials(c.(*net.UnixConn)); err != nil {
		return err
	}
	b, err := json.Marshal(requestLine{Version: Version, Request: requestDeleteLink, deleteRequest: request})
	if err != nil {
		return err
	}
	if _, err := c.Write(append(b, '\n')); err != nil {
		return err
	}
	line, err := bufio.NewReaderSize(io.LimitReader(c, maxRequest), maxRequest).ReadBytes('\n')
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	if err != nil {
		return err
	}
	var response responseLine
	switch err := json.Unmarshal(bytes.TrimSpace(line), &response); {
	case err != nil:
		return fmt.Errorf("the answer is not understood: %w", err)
	case response.Error != "":
		return errors.New(response.Error)
	case response.Done == nil: // rule: TestDeleteLink
		return errors.New("the answer is another one")
	}
	return nil
}

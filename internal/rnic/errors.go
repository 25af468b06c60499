package rnic

import "errors"

var (
	// ErrNone means that no address of this machine may be used for RDMA with the peer.
	ErrNone = errors.New("no address of this machine may be used for RDMA with the peer")

	// ErrDown means that the interface of a device is down, or has lost the device's address.
	ErrDown = errors.New("the RoCE device cannot be used")

	// ErrClosed means that the Set is closed for good.
	ErrClosed = errors.New("smc: host is closed")
)

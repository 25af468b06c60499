package program

import "syscall"

// loopback is the address of servers where no [Place] has another one.
const loopback = "127.0.0.1"

// A Place is two containers: servers run in one of them, clients in the other one.
type Place struct {
	Listen  string // the IPv4 address of servers
	Connect string // the address by which clients reach them

	// Enter calls a function on a thread in the network namespace of the servers or of the clients.
	Enter func(clients bool, f func() error) error
	// Begin has a program begin as one of a container, in the namespace of the calling thread.
	Begin func(*syscall.SysProcAttr)
}

// listen is the address that a server listens at.
func (p *Place) listen() string {
	if p == nil {
		return loopback
	}
	return p.Listen
}

// connect is the address that a client connects to.
func (p *Place) connect() string {
	if p == nil {
		return loopback
	}
	return p.Connect
}

func (p *Place) enter(clients bool, f func() error) error {
	if p == nil {
		return f()
	}
	return p.Enter(clients, f)
}

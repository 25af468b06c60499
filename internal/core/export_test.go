package core

// The tests of package core_test play the machines of this package together with those of internal/llcflow, which imports it.
// They have the same capabilities and buffers as the tests in here.
var (
	ClientCaps, ServerCaps  = clientCaps, serverCaps
	Only                    = only
	TestResources           = resources
	Words                   = words
	ClientGID, ClientNative = clientGID, clientNative
)

// NamesNewGroup reports whether the Accept says that a connection is the first contact.
func (h *Handshake) NamesNewGroup() bool { return h.accept.FirstContact }

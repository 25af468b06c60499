// Package counters counts for one host: connections, fallbacks and ends by reason, handshakes and
// messages. Each reason and message type is bounded, since peers choose them.
package counters

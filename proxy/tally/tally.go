// Package tally counts what a node has under way and has had.
//
//	var t tally.Tally                  // of a server
//	t.InFlight.Add(1); t.Spare(class)
//	numbers := t.Now()
package tally

import (
	"sync/atomic"

	"github.com/cellgate/cellgate/proxy/http2"
	"github.com/cellgate/cellgate/proxy/http3"
	"github.com/cellgate/cellgate/proxy/shed"
)

// Tally is one node's. The zero value has counted nothing.
type Tally struct {
	Connections atomic.Int64
	NoRoom      atomic.Uint64 // connections for which there was no room
	Evicted     atomic.Uint64 // and idle ones that made room
	Unshaken    atomic.Uint64 // TLS handshakes that were ended because too many were ahead of them
	InFlight    atomic.Int64  // exchanges, tunnels too
	Tunnels     atomic.Int64
	Requests    atomic.Uint64               // finished exchanges
	Faults      [http2.Codes]atomic.Uint64  // HTTP/2 connections that were ended for what the client did, by error code
	Faults3     [http3.Codes]atomic.Uint64  // and of HTTP/3, by the code's place
	spared      [shed.Classes]atomic.Uint64 // exchanges that were not taken for the node's own sake, by class
}

// Spare counts an exchange that the node does not take for its own sake.
func (t *Tally) Spare(c shed.Class) { t.spared[c].Add(1) }

// Numbers are a tally at one moment.
type Numbers struct {
	Connections, InFlight, Tunnels int64
	NoRoom, Evicted, Unshaken      uint64
	Requests                       uint64
	Faults                         [http2.Codes]uint64
	Faults3                        [http3.Codes]uint64
	Shed                           [shed.Classes]uint64
}

// Now reads the numbers, one after the other.
func (t *Tally) Now() Numbers {
	n := Numbers{Connections: t.Connections.Load(), InFlight: t.InFlight.Load(), Tunnels: t.Tunnels.Load(), NoRoom: t.NoRoom.Load(), Evicted: t.Evicted.Load(), Unshaken: t.Unshaken.Load(), Requests: t.Requests.Load()}
	for i := range n.Faults {
		n.Faults[i] = t.Faults[i].Load()
	}
	for i := range n.Faults3 {
		n.Faults3[i] = t.Faults3[i].Load()
	}
	for i := range n.Shed {
		n.Shed[i] = t.spared[i].Load()
	}
	return n
}

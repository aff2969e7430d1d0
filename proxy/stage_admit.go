package proxy

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"

	"github.com/cellgate/cellgate/proxy/websocket"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// ReadyPath is answered by the node itself on every listener, ahead of routing.
const ReadyPath = "/.well-known/cellgate/ready"

// admit takes the request in: its id, the table that serves it to its end, what it may ask of the connection.
func admit(x *Exchange) Verdict {
	x.newID()
	x.table = x.server.table.Load()
	x.Deadline = x.Start.Add(snapshot.DefaultTimeout)
	if x.Via != "" && !x.adopt() {
		x.Closing = true
		return x.refuse(reason.BadRequest)
	}
	if string(x.Request.Method()) == "CONNECT" {
		x.Closing = true
		return x.refuse(reason.ConnectRefused)
	}
	if x.Request.Upgrade {
		x.Closing = true // whatever the answer: nobody reads a request behind a handshake (CASES G9)
		if x.Tunnel = websocket.Offered(&x.Request); !x.Tunnel {
			return x.refuse(reason.UpgradeRefused)
		}
	}
	if string(x.Request.Target()) == ReadyPath {
		return x.probe()
	}
	if x.table == nil {
		return x.refuse(reason.Draining)
	}
	return Next
}

// newID draws 128 random bits; a request id only has to be unique, not secret.
func (x *Exchange) newID() {
	var raw [16]byte
	binary.LittleEndian.PutUint64(raw[:8], rand.Uint64())
	binary.LittleEndian.PutUint64(raw[8:], rand.Uint64())
	hex.Encode(x.id[:], raw[:])
}

// refuse is a stage's reply for a reason.
func (x *Exchange) refuse(why reason.Reason) Verdict {
	x.Fail(why)
	return Reply
}

// probe answers the readiness probe: 200 or 503.
func (x *Exchange) probe() Verdict {
	if m := string(x.Request.Method()); m != "GET" && m != "HEAD" {
		x.match.Allow = "GET, HEAD"
		return x.refuse(reason.MethodNotAllowed)
	}
	if !x.server.Ready() {
		return x.refuse(reason.Draining)
	}
	x.own(200, "application/json", `{"ready":true}`)
	return Reply
}

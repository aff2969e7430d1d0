package proxy

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"

	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/tracecontext"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// ReadyPath and KeysPath, of the public keys of callers' tokens, are answered by the node itself on every listener, ahead of routing.
const (
	ReadyPath = "/.well-known/cellgate/ready"
	KeysPath  = "/.well-known/cellgate/jwks.json"
)

// admit takes the request in: its id, the table that serves it to its end, what it may ask of the connection.
func admit(x *Exchange) Verdict {
	x.newID()
	x.table = x.server.table.Load()
	x.Deadline = x.Start.Add(snapshot.DefaultTimeout)
	x.from.Direct(x.Peer, x.PeerText, x.TLS)
	trusted := x.Via != "" || x.server.opts.Trusted.Has(x.Peer)
	switch {
	case x.Via != "":
		if !x.from.HandedOn(&x.Request.Head, x.id[:]) {
			x.Closing = true
			return x.refuse(reason.BadRequest)
		}
	case trusted:
		x.from.Behind(x.server.opts.Trusted, &x.Request.Head)
	}
	x.trace(trusted)
	switch extended := len(x.Request.Protocol()) > 0; {
	case extended, x.Request.Upgrade && string(x.Request.Method()) != "CONNECT":
		x.Closing = x.Closing || !extended // whatever the answer: nobody reads a request behind a handshake (CASES G9)
		if x.Tunnel = x.WebSocket.Begun(&x.Request, rand.Uint64); !x.Tunnel {
			return x.refuse(reason.UpgradeRefused)
		}
	case string(x.Request.Method()) == "CONNECT":
		x.Closing = true
		return x.refuse(reason.ConnectRefused)
	}
	if t := text(x.Request.Target()); t == ReadyPath || t == KeysPath && x.server.opts.Voucher != nil {
		return x.probe()
	}
	if x.table == nil {
		return x.refuse(reason.Draining)
	}
	return Next
}

// trace goes on with the trace of a trusted proxy, sampled or not as it says, and begins one for everybody else, of the request
// id's bits.
func (x *Exchange) trace(trusted bool) {
	x.Trace = tracecontext.New(x.id[:], rand.Uint64(), x.server.opts.Sample)
	if v, n := x.Request.Only(http1.Traceparent); n == 1 {
		x.Outside, _ = tracecontext.Parse(v)
	}
	if trusted && x.Outside.Valid() {
		x.Trace = x.Outside.Child(rand.Uint64())
	}
}

// newID draws 128 random bits; a request id only has to be unique, not secret.
func (x *Exchange) newID() {
	var raw [16]byte
	binary.LittleEndian.PutUint64(raw[:8], rand.Uint64())
	binary.LittleEndian.PutUint64(raw[8:], rand.Uint64())
	hex.Encode(x.id[:], raw[:])
	x.watch.On = raw[0]&63 == 0
}

// refuse is a stage's reply for a reason.
func (x *Exchange) refuse(why reason.Reason) Verdict {
	x.Fail(why)
	return Reply
}

// probe answers the readiness probe, 200 or 503, and gives the public keys.
func (x *Exchange) probe() Verdict {
	if m := string(x.Request.Method()); m != "GET" && m != "HEAD" {
		x.match.Allow = "GET, HEAD"
		return x.refuse(reason.MethodNotAllowed)
	}
	if x.table != nil && text(x.Request.Target()) == KeysPath {
		return x.simple(200, "Content-Type", "application/jwk-set+json", x.server.opts.Voucher.KeySet(x.table.program.IdentityKeys))
	}
	if !x.server.Ready() {
		return x.refuse(reason.Draining)
	}
	return x.simple(200, "Content-Type", "application/json", `{"ready":true}`)
}

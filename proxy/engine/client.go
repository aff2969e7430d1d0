package engine

import (
	"errors"
	"io"

	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/reason"
)

// client is the side of an exchange that faces the client: one per protocol, the same pipeline and forwarding behind all.
type client interface {
	// Read reads request body; io.EOF ends it. Errors are bodyErrors.
	io.Reader
	// whole gives the request body when it is short and complete, reading what is missing of it. ok is false for a body
	// that has to be streamed, none of which is given or taken.
	whole() (body []byte, ok bool, err error)
	// discard passes over the body as far as it is at hand, and says whether that was all of it.
	discard() bool
	// trailers are those of the request body, after io.EOF; nil when there are none.
	trailers() *http1.Head
	// interrupt makes a blocked Read return.
	interrupt()
	// gone says whether the client has left.
	gone() bool

	// hint passes on an interim answer, if the client takes it at once: no window bounds what waits. HTTP/1 clients get none: many take whatever comes first but 100 for the answer, and what
	// follows for that of their next request (RFC 8297, section 3).
	hint(status int, fields *http1.Head)
	// head begins the answer of the exchange: its status and fields. length is the body's, -1 when it is not known ahead,
	// none says that no body follows whatever length says.
	head(length int64, none bool)
	// data appends to the answer's body; what has been given may be written later.
	data(p []byte) error
	// flush writes everything given so far.
	flush() error
	// end completes the answer, with trailers or nil.
	end(trailers *http1.Head) error
	// abort ends the answer so that the client sees that it is not whole.
	abort()
}

// bodyError is a request body that could not be read, with the answer that it deserves.
type bodyError struct{ why reason.Reason }

func (e *bodyError) Error() string { return "engine: request body: " + e.why.String() }

var (
	errBodyFraming = &bodyError{reason.BadFraming}
	errBodyTimeout = &bodyError{reason.BodyTimeout}
	errBodyLarge   = &bodyError{reason.BodyTooLarge}
	errClientGone  = &bodyError{reason.ClientGone}
)

// bodyReason is the reason of an error of client.Read.
func bodyReason(err error) reason.Reason {
	var b *bodyError
	if errors.As(err, &b) {
		return b.why
	}
	return reason.ClientGone
}

package regionctl

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/cellgate/cellgate/problem"
	"github.com/cellgate/cellgate/store"
)

func fault(status int, reason, title, format string, args ...any) *Fault {
	return &Fault{Type: "about:blank", Title: title, Status: status, Reason: reason, Detail: fmt.Sprintf(format, args...)}
}

func badRequest(format string, args ...any) *Fault {
	return fault(http.StatusBadRequest, "bad_request", "The request is not understood", format, args...)
}

// words bounds what people say for the audit.
func words(what, said string) error {
	if len(said) > maxReason {
		return badRequest("the %s has more than %d bytes", what, maxReason)
	}
	return nil
}

func notFound(format string, args ...any) *Fault {
	return fault(http.StatusNotFound, "not_found", "There is no such thing", format, args...)
}

func conflict(format string, args ...any) *Fault {
	return fault(http.StatusConflict, "conflict", "The state does not permit this", format, args...)
}

// refused is the answer of a safety rule; flag is empty when nothing overrides it.
func refused(reason, flag, format string, args ...any) *Fault {
	f := fault(http.StatusConflict, reason, "A safety rule refuses this", format, args...)
	f.Refused, f.Flag = true, flag
	if flag != "" {
		f.Detail += "; to do it all the same, use " + flag
	}
	return f
}

func invalid(l problem.List) *Fault {
	l.Sort()
	f := fault(http.StatusUnprocessableEntity, "invalid_document", "The documents are not valid", "%d problems", len(l))
	f.Problems = l
	return f
}

// asFault turns any error into what the API answers.
func asFault(err error) *Fault {
	var f *Fault
	var tooBig *http.MaxBytesError
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &tooBig):
		return fault(http.StatusRequestEntityTooLarge, "body_too_large", "The request body is too large", "the request has more than %d bytes", tooBig.Limit)
	case errors.Is(err, store.ErrConflict):
		return conflict("somebody else changed it at the same time; look again and repeat")
	case errors.Is(err, store.ErrFull):
		return fault(http.StatusInsufficientStorage, "store_full", "The store is full",
			"nothing was changed; traffic, DNS and reads go on; the store makes room by itself, `regionctl status` says how full it is (%v)", err)
	case errors.Is(err, store.ErrUnavailable), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return fault(http.StatusServiceUnavailable, "store_unavailable", "The global store does not answer",
			"nothing is published or ordered while it has no quorum; traffic, DNS and reads go on; what became of a commit under way is unknown, so look before repeating (%v)", err)
	default:
		return fault(http.StatusInternalServerError, "internal", "The controller failed", "%v", err)
	}
}

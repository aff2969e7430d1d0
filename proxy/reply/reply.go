// Package reply is what the gateway itself says in an answer: fields that it adds to an upstream's, and its own answers whole.
// It allocates nothing once its buffer has grown.
//
//	r.Reset()
//	reply.Add(&r, "X-Request-Id", id)
//	r.Problem(reason.NoRoute, 404, id)
//	head = r.AppendFields(head)
package reply

import (
	"strconv"
	"time"
	"unsafe"

	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/reason"
)

// Reply is the gateway's part of one answer. The zero value is empty and ready.
type Reply struct {
	fields [maxFields]field
	n      int
	text   []byte // values of fields, and the body
	body   span
}

type span struct{ start, end int }

type field struct {
	name  string
	value span
}

// maxFields is the most that the stages of an answer add: each of them adds a fixed few.
const maxFields = 20

// Reset empties r and keeps its buffer.
func (r *Reply) Reset() { r.n, r.text, r.body = 0, r.text[:0], span{} }

// Add appends a field, whose value is copied.
func Add[V ~string | ~[]byte](r *Reply, name string, value V) {
	at := len(r.text)
	r.text = append(r.text, value...)
	r.end(name, at)
}

// AddInt appends a field whose value is a number.
func (r *Reply) AddInt(name string, n int64) {
	at := len(r.text)
	r.text = strconv.AppendInt(r.text, n, 10)
	r.end(name, at)
}

// end makes the text from at on the value of a new field.
func (r *Reply) end(name string, at int) {
	r.fields[r.n] = field{name, span{at, len(r.text)}}
	r.n++
}

// SetBody makes b the body.
func (r *Reply) SetBody(b string) {
	at := len(r.text)
	r.text = append(r.text, b...)
	r.body = span{at, len(r.text)}
}

// Body is the body of an own answer, valid until the next change of r.
func (r *Reply) Body() []byte { return r.text[r.body.start:r.body.end] }

// Problem is an own answer's problem document (RFC 9457).
func (r *Reply) Problem(why reason.Reason, status int, id string) {
	Add(r, "Content-Type", "application/problem+json")
	Add(r, "Cache-Control", "no-store")
	at := len(r.text)
	r.text = why.AppendProblem(r.text, status, id)
	r.body = span{at, len(r.text)}
}

// TrailersOnly is an own answer as gRPC and gRPC-Web want it (E4): the status in a field, no body; HTTP's is 200. A title is
// printable ASCII without '%', so it is its own percent-encoding.
func (r *Reply) TrailersOnly(why reason.Reason, contentType []byte) {
	Add(r, "Content-Type", contentType)
	r.AddInt("Grpc-Status", int64(why.GRPC()))
	Add(r, "Grpc-Message", why.Title())
}

// ComeBack says in how many seconds (RFC 9110, section 10.2.3), one at least.
func (r *Reply) ComeBack(after time.Duration) (seconds int64) {
	seconds = int64(max(1, (after+time.Second-1)/time.Second))
	r.AddInt("Retry-After", seconds)
	return seconds
}

// Limited says when to come back and what is left (draft-ietf-httpapi-ratelimit-headers).
func (r *Reply) Limited(why reason.Reason, after time.Duration) {
	seconds := r.ComeBack(after)
	at := len(r.text)
	r.text = append(r.text, '"')
	r.text = append(r.text, why.String()...)
	r.text = append(r.text, `";r=0;t=`...)
	r.text = strconv.AppendInt(r.text, seconds, 10)
	r.end("RateLimit", at)
	Add(r, "X-RateLimit-Remaining", "0")
}

// AppendFields appends the fields as lines.
func (r *Reply) AppendFields(dst []byte) []byte {
	for i := range r.fields[:r.n] {
		dst = http1.AppendLine(dst, r.fields[i].name, r.value(i))
	}
	return dst
}

// Each gives the fields one by one; the strings are valid during the call only.
func (r *Reply) Each(give func(name, value string)) {
	for i := range r.fields[:r.n] {
		v := r.value(i)
		give(r.fields[i].name, unsafe.String(unsafe.SliceData(v), len(v)))
	}
}

func (r *Reply) value(i int) []byte { return r.text[r.fields[i].value.start:r.fields[i].value.end] }

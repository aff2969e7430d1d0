package regionctl

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/cellgate/cellgate/trust"
)

// Bounds of the operators' API.
const (
	maxPublish     = 64 << 20 // bytes of a publication's body
	maxBody        = 1 << 20  // bytes of any other body
	maxPublishing  = 2        // publications compiled at once; others wait
	requestTimeout = 30 * time.Second
	publishTimeout = 100 * time.Second // of a publication or a rollback, which decode, compile and store everything
)

// call is one authenticated request to the API.
type call struct {
	*http.Request
	who    string // for the audit, such as "token:admin" or "operator/alice"
	header http.Header
}

// handler answers with a document or an error; errors become Faults.
type handler func(c *call) (any, error)

// routes is the whole API.
func (c *Controller) routes() http.Handler {
	mux := http.NewServeMux()
	for pattern, h := range map[string]handler{
		"GET /v1/status":                  c.getStatus,
		"GET /v1/cells":                   c.getCells,
		"GET /v1/cells/{id...}":           c.getCell,
		"GET /v1/config/versions":         c.knowing(c.getVersions),
		"POST /v1/config/versions":        c.postVersion,
		"GET /v1/config/versions/{n}":     c.knowing(c.getVersion),
		"POST /v1/config/versions/{verb}": c.postRollback,
		"POST /v1/config/explain":         c.postExplain,
		"GET /v1/rollouts":                c.knowing(c.getRollouts),
		"GET /v1/rollouts/{n}":            c.knowing(c.getRollout),
		"POST /v1/rollouts/{verb}":        c.postRolloutOrder,
		"GET /v1/evacuations":             c.getEvacuations,
		"POST /v1/evacuations":            c.postEvacuation,
		"POST /v1/restorations":           c.postRestoration,
		"GET /v1/denials":                 c.getDenials,
		"POST /v1/denials":                c.postDenial,
		"POST /v1/denials:remove":         c.postPermission,
		"GET /v1/keys":                    c.getKeys,
		"POST /v1/keys":                   c.knowing(c.postKey),
		"POST /v1/keys:revoke":            c.postKeyRevocation,
		"GET /v1/dns/explain":             c.getDNSExplain,
		"GET /v1/capacity/headroom":       c.getHeadroom,
		"GET /v1/audit":                   c.getAudit,
		"POST /v1/recovery":               c.postRecovery,
	} {
		mux.Handle(pattern, c.authenticated(h))
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", c.readyz)
	mux.Handle("GET /metrics", c.guarded(c.metricsHandler()))
	return faultPages(mux)
}

// knowing keeps a controller that has not read the global store yet from saying that nothing was ever published.
func (c *Controller) knowing(h handler) handler {
	return func(r *call) (any, error) {
		if !c.intent.ready() {
			return nil, starting("it has not read the global store yet; ask again, or ask another region")
		}
		return h(r)
	}
}

func starting(detail string) *Fault {
	return fault(http.StatusServiceUnavailable, "starting", "The controller has just started", "%s", detail)
}

// faultPages makes the mux's own 404 and 405 problem documents.
func faultPages(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pattern := mux.Handler(r); pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		probe := &statusOnly{header: http.Header{}}
		mux.ServeHTTP(probe, r)
		if probe.status == http.StatusMethodNotAllowed {
			w.Header()["Allow"] = probe.header["Allow"]
			writeFault(w, fault(probe.status, "method_not_allowed", "The path does not take this method", "%s %s", r.Method, r.URL.Path))
			return
		}
		writeFault(w, notFound("no such path: %s", r.URL.Path))
	})
}

type statusOnly struct {
	header http.Header
	status int
}

func (s *statusOnly) Header() http.Header         { return s.header }
func (s *statusOnly) Write(b []byte) (int, error) { return len(b), nil }
func (s *statusOnly) WriteHeader(code int)        { s.status = code }

func (c *Controller) authenticated(h handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, ok := c.caller(r)
		if !ok {
			w.Header().Set("WWW-Authenticate", `Bearer realm="cellgate"`)
			writeFault(w, fault(http.StatusUnauthorized, "unauthorized", "A valid token or operator certificate is required", ""))
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), c.patience(r))
		defer cancel()
		limit := int64(maxBody)
		if r.URL.Path == "/v1/config/versions" {
			limit = maxPublish
		}
		r.Body = http.MaxBytesReader(w, r.Body, limit)
		answer, err := h(&call{Request: r.WithContext(ctx), who: who, header: w.Header()})
		if err != nil {
			writeFault(w, asFault(err))
			return
		}
		writeJSON(w, http.StatusOK, "application/json", answer)
	})
}

// patience is how long a request may take: briefly while the global store doesn't answer, so that orders fail at once and
// clearly and still go through the moment it is back.
func (c *Controller) patience(r *http.Request) time.Duration {
	switch {
	case r.Method == http.MethodPost && !strings.HasPrefix(r.URL.Path, "/v1/config/") && !strings.HasPrefix(r.URL.Path, "/v1/rollouts/"):
		return requestTimeout // evacuations and denials bound each step themselves, and go on without the global store
	case c.globalSeen.lost.Load():
		return time.Second
	case strings.HasPrefix(r.URL.Path, "/v1/config/"):
		return publishTimeout
	}
	return requestTimeout
}

// guarded demands the same authentication of a plain handler.
func (c *Controller) guarded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, ok := c.caller(r); !ok {
			writeFault(w, fault(http.StatusUnauthorized, "unauthorized", "A valid token or operator certificate is required", ""))
			return
		}
		h.ServeHTTP(w, r)
	})
}

// caller knows operators by their certificate, which the TLS layer has verified, or by the bearer token's hash.
func (c *Controller) caller(r *http.Request) (who string, ok bool) {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		if id, err := trust.PeerIdentity(*r.TLS); err == nil {
			return string(id.Role) + "/" + string(id.ID), true
		}
	}
	kind, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(kind, "Bearer") || token == "" {
		return "", false
	}
	sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
	want, err := hex.DecodeString(strings.TrimPrefix(c.opt.AdminTokenHash, "sha256:"))
	return "token:admin", err == nil && subtle.ConstantTimeCompare(sum[:], want) == 1
}

// apiTLS serves the API certificate and verifies an operator's certificate when one is presented.
func (c *Controller) apiTLS() *tls.Config {
	verify := trust.ServerTLS(c.opt.Signer, c.opt.Roots, trust.RoleOperator, trust.RolePlanner, trust.RoleController).VerifyConnection
	return &tls.Config{
		MinVersion:             tls.VersionTLS12,
		GetCertificate:         c.opt.APICert,
		ClientAuth:             tls.RequestClientCert,
		SessionTicketsDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return nil
			}
			return verify(s)
		},
	}
}

// body decodes the request's JSON document strictly: one value, no unknown keys.
func body[T any](c *call) (T, error) {
	var v T
	if kind, _, err := mime.ParseMediaType(c.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return v, fault(http.StatusUnsupportedMediaType, "unsupported_media_type", "The body must be application/json", "got %q", c.Header.Get("Content-Type"))
	}
	dec := json.NewDecoder(c.Body)
	dec.DisallowUnknownFields()
	err := dec.Decode(&v)
	if err == nil {
		if _, more := dec.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("something follows the document")
		}
	}
	var tooBig *http.MaxBytesError
	if err != nil && !errors.As(err, &tooBig) {
		return v, badRequest("body: %v", err)
	}
	return v, err
}

// match enforces If-Match against the current entity tag, and tells the tag.
func (c *call) match(tag string) error {
	tag = `"` + tag + `"`
	c.header.Set("ETag", tag)
	want := c.Header.Get("If-Match")
	if want == "" || want == "*" {
		return nil
	}
	for _, one := range strings.Split(want, ",") {
		if strings.TrimSpace(one) == tag {
			return nil
		}
	}
	return fault(http.StatusPreconditionFailed, "precondition_failed", "It has changed since you read it", "it is at %s now", tag)
}

func writeFault(w http.ResponseWriter, f *Fault) {
	if f.Status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, f.Status, "application/problem+json", f)
}

func writeJSON(w http.ResponseWriter, status int, kind string, v any) {
	raw, err := json.Marshal(v)
	if err != nil {
		status, kind, raw = http.StatusInternalServerError, "application/problem+json", []byte(`{"title":"The controller failed","status":500,"reason":"internal"}`)
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	w.Write(append(raw, '\n'))
}

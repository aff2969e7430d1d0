package cellgate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cellgate/cellgate/internal/pause"
)

// backendConfig starts a sample backend.
type backendConfig struct {
	ID      string         `json:"id"`
	Listen  netip.AddrPort `json:"listen"`
	Control netip.AddrPort `json:"control"` // takes faults; apart from Listen, so that no route reaches it
}

// parsePercent reads "30%", "30" or "0.5%".
func parsePercent(s string) (float64, error) {
	v, err := strconv.ParseFloat(strings.TrimSuffix(s, "%"), 64)
	if err != nil {
		return 0, fmt.Errorf("--fail %q is no percentage such as 30%%", s)
	}
	return v, faults{FailPercent: v}.Validate()
}

// backend is a sample service: it answers with what it was asked.
type backend struct {
	id     string
	faults atomic.Pointer[faults]
}

func runBackend(ctx context.Context, c backendConfig, log *slog.Logger) error {
	b := newBackend(c.ID)
	return serveHTTP(ctx, log, site{c.Listen, b.service()}, site{c.Control, b.control()})
}

func newBackend(id string) *backend {
	b := &backend{id: id}
	b.faults.Store(&faults{})
	return b
}

func (b *backend) service() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", b.echo)
	mux.HandleFunc("/v1/stream", b.stream)
	mux.HandleFunc("/v1/slow", b.slow)
	mux.HandleFunc("/v1/trailers", b.trailers)
	return b.misbehaving(mux)
}

// misbehaving applies the ordered faults before every answer.
func (b *backend) misbehaving(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f := b.faults.Load()
		if f.Slow > 0 && !pause.For(r.Context(), f.Slow) {
			return
		}
		if f.FailPercent > 0 && rand.Float64()*100 < f.FailPercent {
			http.Error(w, "ordered to fail", http.StatusInternalServerError)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// echo answers with the request as it arrived; of the body it keeps 64 KiB.
func (b *backend) echo(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 64<<10))
	rest, restErr := io.Copy(io.Discard, r.Body)
	if err != nil || restErr != nil {
		http.Error(w, "the request's body ended early", http.StatusBadRequest)
		return
	}
	writeAnswer(w, map[string]any{
		"backend": b.id, "method": r.Method, "host": r.Host, "path": r.URL.Path, "query": r.URL.RawQuery,
		"headers": r.Header, "body": string(body), "body_bytes": int64(len(body)) + rest,
	})
}

func writeAnswer(w http.ResponseWriter, v any) {
	raw, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(raw)+1))
	_, _ = w.Write(append(raw, '\n')) // the client's connection is all that can fail
}

// stream sends ?count=10 lines, one each ?every=100ms.
func (b *backend) stream(w http.ResponseWriter, r *http.Request) {
	count := number(r, "count", 10, 10_000)
	every := duration(r, "every", 100*time.Millisecond)
	w.Header().Set("Content-Type", "application/x-ndjson")
	flush := http.NewResponseController(w)
	for i := range count {
		if i > 0 && !pause.For(r.Context(), every) {
			return
		}
		if _, err := fmt.Fprintf(w, "{\"backend\":%q,\"line\":%d}\n", b.id, i+1); err != nil || flush.Flush() != nil {
			return
		}
	}
}

// slow answers after ?for=1s.
func (b *backend) slow(w http.ResponseWriter, r *http.Request) {
	if pause.For(r.Context(), duration(r, "for", time.Second)) {
		b.echo(w, r)
	}
}

// trailers answers with a body and a trailer that tells its length.
func (b *backend) trailers(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Trailer", "X-Body-Bytes")
	w.Header().Set("Content-Type", "text/plain")
	n, _ := io.WriteString(w, "a body with a trailer\n")
	w.Header().Set("X-Body-Bytes", strconv.Itoa(n))
}

func number(r *http.Request, key string, fallback, most int) int {
	if v, err := strconv.Atoi(r.URL.Query().Get(key)); err == nil && v >= 0 {
		return min(v, most)
	}
	return fallback
}

func duration(r *http.Request, key string, fallback time.Duration) time.Duration {
	if v, err := time.ParseDuration(r.URL.Query().Get(key)); err == nil && v >= 0 {
		return min(v, time.Minute)
	}
	return fallback
}

// control takes the faults: GET shows them, PUT replaces them.
func (b *backend) control() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /faults", func(w http.ResponseWriter, _ *http.Request) { writeAnswer(w, b.faults.Load()) })
	mux.HandleFunc("PUT /faults", func(w http.ResponseWriter, r *http.Request) {
		var f faults
		dec := json.NewDecoder(io.LimitReader(r.Body, 4096))
		dec.DisallowUnknownFields()
		err := errors.Join(dec.Decode(&f), f.Validate())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		b.faults.Store(&f)
		writeAnswer(w, f)
	})
	return mux
}

// orderFaults tells a running backend its faults.
func orderFaults(ctx context.Context, control netip.AddrPort, f faults) error {
	raw, err := json.Marshal(f)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://"+control.String()+"/faults", strings.NewReader(string(raw)))
	if err != nil {
		return err
	}
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 1024))
		return fmt.Errorf("the backend answered %s: %s", res.Status, strings.TrimSpace(string(text)))
	}
	return nil
}

package engine_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"

	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/proxy/callers"
)

const callersDocument = `
version: v1
routes:
  - {id: token, match: {host: a.example, path_prefix: /token}, upstream: up, auth: jwt, timeout: 8s}
  - {id: key, match: {host: a.example, path_prefix: /key}, upstream: up, auth: key, timeout: 8s}
  - {id: open, match: {host: a.example, path_prefix: /open}, upstream: up, timeout: 8s}
upstreams:
  - {id: up, endpoints: ["UP"]}
policies:
  - {id: jwt, jwt: {issuer: i, audience: a, jwks: "http://127.0.0.1:1/keys"}}
  - {id: key, api_key: {}}
plans:
  - {id: p, rate_per_sec: 1000000}
consumers:
  - {id: c, plan: p, api_key_hashes: ["HASH"]}
`

// issuer is an identity provider whose keys are always at hand.
type issuer struct {
	keys *auth.Keys
	sign jose.Signer
}

func (i *issuer) Keys(string) *auth.Keys         { return i.keys }
func (i *issuer) Refetch(string) <-chan struct{} { return nil }

func newIssuer(t testing.TB) *issuer {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	doc, _ := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &k.PublicKey, KeyID: "k"}}})
	keys, _, err := auth.ParseKeys(doc)
	if err != nil {
		t.Fatal(err)
	}
	sign, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: k, KeyID: "k"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &issuer{keys, sign}
}

// token is of a length of its own for each subject.
func (i *issuer) token(t testing.TB, n int) string {
	return i.tokenOf(t, map[string]any{"sub": fmt.Sprintf("user-%d-%s", n, strings.Repeat("x", n*7))})
}

func (i *issuer) tokenOf(t testing.TB, claims map[string]any) string {
	claims["iss"], claims["aud"], claims["exp"] = "i", "a", time.Now().Add(time.Hour).Unix()
	payload, _ := json.Marshal(claims)
	jws, err := i.sign.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := jws.CompactSerialize()
	return text
}

// asked is one request of the crowd and what its answer must be.
type asked struct {
	method, path, tag, body string
	header                  [2]string
	status                  int
	hasty                   bool // leaves before the answer
}

func draw(r *mrand.Rand, id string, tokens []string) asked {
	q := asked{method: "GET", tag: id + strings.Repeat("t", r.IntN(400)), status: 200}
	tail := fmt.Sprintf("/%s/%s?q=%s", id, strings.Repeat("p", r.IntN(300)), id)
	switch n := r.IntN(20); {
	case n < 9:
		q.path, q.header = "/token"+tail, [2]string{"Authorization", "Bearer " + tokens[r.IntN(len(tokens))]}
	case n < 11:
		q.path, q.header, q.status = "/token"+tail, [2]string{"Authorization", "Bearer nobody-" + id}, 401
	case n < 14:
		q.path, q.header = "/key"+tail, [2]string{"X-API-Key", "cg_customer"}
	case n < 15:
		q.path, q.status = "/nothing"+tail, 404
	case n < 16: // refused before routing
		q.path, q.status = "/open/%2f"+tail, 400
	case n < 17:
		q.path, q.hasty = "/open"+tail, true
	default:
		q.path = "/open" + tail
	}
	if r.IntN(4) == 0 {
		q.method, q.body = "POST", id+strings.Repeat("b", r.IntN(20000))
	}
	return q
}

// send sends q and says how its answer differs from what it must be.
func (q asked) send(c *http.Client, addr string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	if q.hasty {
		ctx, cancel = context.WithTimeout(context.Background(), 2*time.Millisecond)
	}
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, q.method, "http://"+addr+q.path, strings.NewReader(q.body))
	if err != nil {
		return err
	}
	req.Host = "a.example"
	req.Header.Set("X-Tag", q.tag)
	if q.header[0] != "" {
		req.Header.Set(q.header[0], q.header[1])
	}
	res, err := c.Do(req)
	if err != nil {
		return q.unlessHasty(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	switch {
	case err != nil:
		return q.unlessHasty(err)
	case res.StatusCode != q.status:
		return fmt.Errorf("%d instead of %d: %s", res.StatusCode, q.status, body)
	case q.status != 200:
		return nil
	}
	seen := res.Header.Get("X-Request-Id") + " " + q.method + " " + q.path + " " + q.tag + " "
	if q.header[0] == "Authorization" {
		seen += q.header[1]
	}
	if want := seen + "\n" + q.body; string(body) != want {
		return fmt.Errorf("answered\n%.600q\ninstead of\n%.600q", body, want)
	}
	return nil
}

func (q asked) unlessHasty(err error) error {
	if q.hasty && errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

// A crowd on few HTTP/2 connections, beside clients of HTTP/1.1, with tokens, keys, refused and abandoned requests mixed:
// every answer is that of its own request, and every upstream request has its own caller's fields.
func TestNoRequestIsMixedUpWithAnother(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		up := handler(t, func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%s %s %s %s %s\n%s", r.Header.Get("X-Request-Id"), r.Method, r.RequestURI, r.Header.Get("X-Tag"), r.Header.Get("Authorization"), b)
		})
		idp := newIssuer(t)
		w := start(t, up, setup{silent: true, document: strings.Replace(callersDocument, "HASH", auth.HashKey("cg_customer"), 1),
			auth: callers.NewAuthenticator(callers.Sources{Keys: idp}, time.Now())})
		var tokens []string
		for n := range 40 {
			tokens = append(tokens, idp.token(t, n))
		}
		h1 := &http.Transport{MaxIdleConnsPerHost: 16}
		defer h1.CloseIdleConnections()
		crowd := []*http.Client{{Transport: h1}}
		for range 3 {
			crowd = append(crowd, w.h2c(nil))
		}
		began := time.Now()
		var sent, wrong atomic.Int64
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				r := mrand.New(mrand.NewPCG(uint64(i), 7))
				for n := 0; goesOn(began, &sent) && wrong.Load() < 5; n++ {
					q := draw(r, fmt.Sprintf("%d-%d", i, n), tokens)
					sent.Add(1)
					if err := q.send(crowd[i%len(crowd)], w.addr); err != nil {
						wrong.Add(1)
						t.Errorf("client %d, %s %s: %v", i, q.method, q.path, err)
					}
				}
			}()
		}
		wg.Wait()
		if t.Logf("%d requests", sent.Load()); sent.Load() < 100 {
			t.Errorf("only %d requests were sent", sent.Load())
		}
	})
}

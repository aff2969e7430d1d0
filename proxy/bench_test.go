package proxy_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	mathrand "math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/accesslog"
	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/proxy/callers"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/meter"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// provider has the one key set of the benchmark.
type provider struct{ keys *auth.Keys }

func (p provider) Keys(string) *auth.Keys         { return p.keys }
func (p provider) Refetch(string) <-chan struct{} { return nil }

// BenchmarkExchange is all that one request costs beside its connections: parsed, routed over 100,000 routes at random, its
// token found again among 2,000, three buckets asked, both heads rewritten, counted and logged.
func BenchmarkExchange(b *testing.B) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	log, err := accesslog.Open(b.TempDir()+"/log", nil)
	if err != nil {
		b.Fatal(err)
	}
	go func() { _ = log.Run(b.Context()) }()
	start := time.Now()
	s := proxy.New(proxy.Options{Auth: callers.NewAuthenticator(callers.Sources{Keys: provider{keysOf(b, key)}}, start), Limits: callers.NewLimiter(start),
		Recorders: []proxy.Recorder{log, meter.New()}})
	const routes = 100_000
	if err := s.Apply(largeProgram(b, routes)); err != nil {
		b.Fatal(err)
	}
	heads := requests(b, key, routes)
	answer := []byte("HTTP/1.1 200 OK\r\nServer: nginx\r\nDate: Mon, 30 Nov 2026 03:00:00 GMT\r\nContent-Type: text/plain\r\nContent-Length: 1000\r\nConnection: keep-alive\r\n\r\n")
	var all [abreast]*proxy.Exchange
	for i := range all {
		all[i] = s.Acquire()
		all[i].Peer, all[i].PeerText, all[i].Protocol = netip.MustParseAddr("192.0.2.1"), "192.0.2.1", "HTTP/1.1"
	}
	var response http1.Response
	var up, down []byte
	i := 0
	batch := func() {
		for _, x := range all {
			x.Start = time.Now()
			if _, err := x.Request.Parse(heads[i%len(heads)]); err != nil {
				b.Fatal(err)
			}
			i++
		}
		for v := proxy.Soon; v == proxy.Soon; {
			for _, x := range all {
				v = x.Step(x.Start)
			}
		}
		for _, x := range all {
			if x.Reason != reason.None {
				b.Fatal(x.Reason)
			}
			x.Endpoint, x.Attempts = 0, 1
			up = x.AppendRequest(up[:0], 0, x.Start)
			response.Restart()
			if _, err := response.Parse(answer); err != nil {
				b.Fatal(err)
			}
			x.Answered(&response)
			down = x.AppendFields(http1.AppendStatusLine(down[:0], x.Status))
			x.Finish(time.Now())
		}
	}
	for range len(heads) / abreast {
		batch() // every token is verified once
	}
	b.ReportAllocs()
	b.ResetTimer()
	for range max(1, b.N/abreast) {
		batch()
	}
}

// abreast is how many exchanges go side by side, as on a loop.
const abreast = 16

func keysOf(b *testing.B, key *ecdsa.PrivateKey) *auth.Keys {
	doc, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &key.PublicKey, KeyID: "k", Algorithm: "ES256", Use: "sig"}}})
	if err != nil {
		b.Fatal(err)
	}
	keys, _, err := auth.ParseKeys(doc)
	if err != nil {
		b.Fatal(err)
	}
	return keys
}

func largeProgram(b *testing.B, routes int) *program.Program {
	cfg := &snapshot.Config{
		Upstreams: []snapshot.Upstream{{ID: "up", Endpoints: []string{"192.0.2.2:80"}}},
		Policies:  []snapshot.Policy{{ID: "callers", JWT: &snapshot.JWT{Issuer: "https://id.example.com", Audience: "api", JWKS: "https://id.example.com/keys", ConsumerClaim: "consumer"}}},
		Plans:     []snapshot.Plan{{ID: "plan", RatePerSec: 1_000_000_000}},
	}
	for i := range 100 {
		cfg.Consumers = append(cfg.Consumers, snapshot.Consumer{ID: fmt.Sprintf("c%02d", i), Plan: "plan"})
	}
	for i := range routes {
		cfg.Routes = append(cfg.Routes, snapshot.Route{ID: fmt.Sprintf("r%06d", i), Upstream: "up", Auth: "callers",
			Limits: snapshot.Limits{Tenant: snapshot.Rate{Requests: 1_000_000_000, Per: time.Second}, User: snapshot.Rate{Requests: 1_000_000, Per: time.Second}},
			Match:  snapshot.Match{Host: fmt.Sprintf("h%d.example.com", i%1000), Path: fmt.Sprintf("/v1/s%d/items/{id}", i), Methods: []string{"GET"}}})
	}
	snap, err := snapshot.Seal(cfg, snapshot.Meta{Number: 1})
	if err != nil {
		b.Fatal(err)
	}
	p, err := program.Compile(snap, nil)
	if err != nil {
		b.Fatal(err)
	}
	return p
}

// requests are heads over all routes at random, as wrk sends them.
func requests(b *testing.B, key *ecdsa.PrivateKey, routes int) [][]byte {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "k"}}, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		b.Fatal(err)
	}
	var tokens []string
	for i := range 2000 {
		claims := fmt.Sprintf(`{"iss":"https://id.example.com","aud":"api","sub":"user-%d","consumer":"c%02d","exp":%d}`, i, i%100, time.Now().Add(time.Hour).Unix())
		signed, err := signer.Sign([]byte(claims))
		if err != nil {
			b.Fatal(err)
		}
		token, err := signed.CompactSerialize()
		if err != nil {
			b.Fatal(err)
		}
		tokens = append(tokens, token)
	}
	var heads [][]byte
	for n, i := range mathrand.New(mathrand.NewPCG(1, 2)).Perm(routes) {
		heads = append(heads, fmt.Appendf(nil, "GET /v1/s%d/items/%d HTTP/1.1\r\nHost: h%d.example.com\r\nAuthorization: Bearer %s\r\n\r\n", i, n, i%1000, tokens[n%len(tokens)]))
	}
	return heads
}

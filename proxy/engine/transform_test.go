package engine_test

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

const transformDocument = `
version: v1
routes:
  - {id: plain, match: {host: a.example, path: /plain}, upstream: up}
  - {id: prefix, match: {host: a.example, path_prefix: /v1}, upstream: up, policies: [edit, inner]}
  - {id: item, match: {host: a.example, path: "/item/{id}"}, upstream: up, policies: [template]}
  - {id: bad, match: {host: a.example, path: /bad}, upstream: up, policies: [status]}
  - {id: dead, match: {host: a.example, path: /dead}, upstream: dead, policies: [edit]}
upstreams:
  - {id: up, endpoints: ["UP"]}
  - {id: dead, endpoints: ["127.46.0.9:1"]}
policies:
  - id: edit
    transform:
      request: {remove: [x-secret, authorization], rename: {x-old: x-new}, set: {x-mode: edited}, add: {x-more: "1"}}
      response: {remove: [x-inside, x-sum], rename: {x-from: x-to}, set: {strict-transport-security: max-age=1}, keep: [server]}
  - {id: inner, transform: {request: {path_prefix: /inner, set: {x-more: "2"}}}}
  - {id: template, transform: {request: {path: "/things/{id}/show"}}}
  - {id: status, transform: {response: {status: {502: 503}}}}
`

// J1 on every engine and protocol: fields, paths and statuses are changed by the route's policies in their order, both ways, while
// bodies and trailers stream; what tells of the inside is hidden.
func TestTransformsHoldOnEveryEngineAndProtocol(t *testing.T) {
	t.Parallel()
	t.Run("upstream over HTTP/1.1", func(t *testing.T) { transforms(t, handler, transformDocument) })
	t.Run("upstream over HTTP/2", func(t *testing.T) {
		transforms(t, func(t testing.TB, h http.HandlerFunc) string { return handler2(t, nil, h) }, over2(transformDocument))
	})
}

func transforms(t *testing.T, handler func(testing.TB, http.HandlerFunc) string, document string) {
	up := func() (string, chan string) {
		seen := make(chan string, 20)
		return handler(t, func(w http.ResponseWriter, r *http.Request) {
			h := r.Header
			_, _ = io.Copy(io.Discard, r.Body)
			seen <- fmt.Sprintf("%s secret=%v auth=%v old=%v new=%v mode=%v more=%v", r.RequestURI, slices.Concat(h["X-Secret"], h["X_secret"], r.Trailer["X-Secret"]), h["Authorization"],
				slices.Concat(h["X-Old"], h["X_old"]), h["X-New"], slices.Concat(h["X-Mode"], h["X_mode"]), h["X-More"])
			w.Header()["Date"] = nil
			for k, v := range map[string]string{"Server": "inside/1.0", "X-Powered-By": "engine", "X-Inside": "10.0.0.1", "X-From": "v", "Strict-Transport-Security": "no", "Trailer": "X-Sum, X-Kept"} {
				w.Header().Set(k, v)
			}
			if r.URL.Path == "/bad" {
				w.WriteHeader(502)
			}
			_, _ = w.Write([]byte("body"))
			w.(http.Flusher).Flush()
			w.Header().Set("X-Sum", "secret")
			w.Header().Set("X-Kept", "kept")
		}), seen
	}
	for name, ask := range ways(t, up, setup{document: document, auth: onlyIn{}, silent: true}) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			holds := func(target string, wants ...string) {
				t.Helper()
				got := strings.ToLower(ask(sample{method: "POST", target: target, body: "hello", trailers: []string{"x-secret", "t"},
					fields: []string{"X-Secret", "s", "X_Secret", "u", "Authorization", "Bearer in", "X-Old", "o", "X_old", "u", "X-Mode", "m", "X_Mode", "u", "X-More", "0", "X-Caller", "root", "TE", "trailers", "Trailer", "X-Secret"}}))
				for _, want := range wants {
					want, not := strings.CutPrefix(want, "!")
					if strings.Contains(got, want) == not {
						t.Errorf("%s: %q is wrong in\n%s", target, want, got)
					}
				}
			}
			holds("/plain?a=b", "200 ", "upstream: /plain?a=b secret=[s u t] auth=[bearer in] old=[o u] new=[] mode=[m u] more=[0]", `"body"`, "x-inside: 10.0.0.1", "!server", "!powered", "x-kept: kept", "x-sum: secret")
			holds("/v1/x/../y?a=b", "200 ", "upstream: /inner/y?a=b secret=[] auth=[] old=[] new=[o] mode=[edited] more=[2]", `"body"`,
				"!x-inside", "x-to: v", "!x-from", "server: inside/1.0", "!powered", "strict-transport-security: max-age=1", "!no\"", "x-kept: kept", "!x-sum: secret")
			holds("/item/7%2c", "200 ", "upstream: /things/7%2c/show secret=[s u t]")
			holds("/bad", "503 ", `"body"`, "!cellgate")
			holds("/dead", "503 ", "connect_failed", "!strict-transport")
		})
	}
}

package engine_test

import (
	"net/http"
	"strings"
	"testing"
)

const corsDocument = `
version: v1
routes:
  - {id: open, match: {host: a.example, path: /open, methods: [GET, PUT]}, upstream: up, policies: [web]}
  - {id: closed, match: {host: a.example, path: /closed}, upstream: up, auth: jwt, policies: [web]}
  - {id: limited, match: {host: a.example, path: /limited}, upstream: up, policies: [web], limits: {tenant: 1/hour}}
  - {id: dead, match: {host: a.example, path: /dead}, upstream: dead, policies: [web]}
  - {id: all, match: {host: a.example, path: /all}, upstream: up, policies: [everyone]}
  - {id: own, match: {host: a.example, path: /own}, upstream: up}
upstreams:
  - {id: up, endpoints: ["UP"]}
  - {id: dead, endpoints: ["127.46.0.9:1"]}
policies:
  - {id: jwt, jwt: {issuer: "https://i.example", audience: a, jwks: "https://i.example/keys"}}
  - {id: web, cors: {origins: ["https://app.test"], headers: [authorization], expose: [x-total], credentials: true, max_age: 10m}}
  - {id: everyone, cors: {origins: ["*"]}}
`

// J1 on every engine and protocol: preflights are answered ahead of authentication and never forwarded, by the policy of the route
// that the request behind them would take; what scripts may read is the policy's word, never the upstream's.
func TestCORSHoldsOnEveryEngineAndProtocol(t *testing.T) {
	t.Parallel()
	up := func() (string, chan string) {
		seen := make(chan string, 20)
		return handler(t, func(w http.ResponseWriter, r *http.Request) {
			seen <- "asked " + r.Method
			w.Header()["Date"] = nil
			w.Header().Set("Access-Control-Allow-Origin", "https://lax.test")
			w.Header().Set("Access-Control-Allow-Private-Network", "true")
			w.Header().Set("Vary", "Accept-Encoding")
			if r.URL.Path == "/closed" {
				w.WriteHeader(500)
			}
		}), seen
	}
	for name, ask := range ways(t, up, setup{document: corsDocument, auth: onlyIn{}, silent: true}) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			holds := func(method, target string, fields []string, wants ...string) {
				t.Helper()
				got := strings.ToLower(ask(sample{method: method, target: target, fields: fields}))
				for _, want := range wants {
					want, not := strings.CutPrefix(want, "!")
					if strings.Contains(got, want) == not {
						t.Errorf("%s %s %v: %q is wrong in\n%s", method, target, fields, want, got)
					}
				}
			}
			app, evil := []string{"Origin", "https://app.test"}, []string{"Origin", "https://app.test.evil"}
			for _, target := range []string{"/open", "/closed", "/limited", "/limited", "/dead"} {
				holds("OPTIONS", target, append(app, "Access-Control-Request-Method", "PUT", "Access-Control-Request-Headers", "authorization"), "204 ", "!asked",
					"access-control-allow-origin: https://app.test", "access-control-allow-credentials: true", "access-control-allow-methods: put",
					"access-control-allow-headers: authorization", "access-control-max-age: 600", "vary: origin, access-control-request-method")
			}
			holds("OPTIONS", "/open", append(app, "Access-Control-Request-Method", "DELETE"), "405 ", "!asked", "!access-control-allow")
			holds("OPTIONS", "/open", append(app, "Access-Control-Request-Method", "PUT", "Access-Control-Request-Headers", "x-other"), "403 ", "cors_refused", "!asked", "!access-control-allow-methods")
			holds("OPTIONS", "/closed", append(evil, "Access-Control-Request-Method", "PUT"), "403 ", "cors_refused", "!asked", "!access-control-allow", "vary: origin")
			holds("OPTIONS", "/all", append(evil, "Access-Control-Request-Method", "PUT"), "204 ", "!asked", "access-control-allow-origin: *")
			holds("OPTIONS", "/own", append(app, "Access-Control-Request-Method", "PUT"), "200 ", "asked options", "access-control-allow-origin: https://lax.test")
			holds("OPTIONS", "/all", app, "200 ", "asked options")

			holds("GET", "/open", app, "200 ", "asked", "access-control-allow-origin: https://app.test", "access-control-expose-headers: x-total", "vary: accept-encoding|origin", "!lax.test", "!private-network")
			holds("GET", "/open", evil, "200 ", "asked", "!access-control", "vary: accept-encoding|origin")
			holds("GET", "/open", nil, "200 ", "asked", "!access-control", "vary: accept-encoding|origin")
			holds("GET", "/all", nil, "200 ", "access-control-allow-origin: *", "!vary: origin")
			holds("GET", "/closed", app, "401 ", "!asked", "access-control-allow-origin: https://app.test", "vary: origin")
			holds("GET", "/closed", append(app, "Authorization", "Bearer in"), "500 ", "asked", "access-control-allow-origin: https://app.test")
			holds("GET", "/dead", app, "503 ", "access-control-allow-origin: https://app.test")
			holds("GET", "/limited", app, "200 ", "access-control-allow-origin: https://app.test")
			holds("GET", "/limited", app, "429 ", "access-control-allow-origin: https://app.test")
		})
	}
}

// What follows the head of a 204 is the next answer: a preflight, which browsers send ahead of requests on the same connection.
func TestAnAnswerWithoutABodyEndsWithItsHead(t *testing.T) {
	t.Parallel()
	eachSecure(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, echo), setup{document: corsDocument, auth: onlyIn{}})
		const h = " HTTP/1.1\r\nHost: a.example\r\n"
		c := w.dial().send("OPTIONS /open" + h + "Origin: https://app.test\r\nAccess-Control-Request-Method: PUT\r\n\r\n" + "OPTIONS *" + h + "\r\n" + get("/open"))
		for _, want := range []int{204, 204, 200} {
			res, _, err := c.answer("GET")
			if err != nil || res.StatusCode != want || want == 204 && res.TransferEncoding != nil {
				t.Fatalf("%v, %v, want %d", res, err, want)
			}
		}
	})
}

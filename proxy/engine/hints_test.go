package engine_test

import (
	"fmt"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"
)

// Interim answers are passed on to clients over HTTP/2 and HTTP/3, edited as answers are; over HTTP/1.1, where many take them for the
// answer, they are not (RFC 8297, section 3).
func TestEarlyHintsArePassedOnWhereClientsKnowThem(t *testing.T) {
	t.Parallel()
	document := strings.Replace(transformDocument, "[edit, inner]", "[edit]", 1)
	hinted := func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		for i := range 2 {
			for k, v := range map[string]string{"Link": fmt.Sprintf("</%d.css>; rel=preload", i), "Server": "inside/1.0", "X-Inside": "10.0.0.1", "X-From": "v"} {
				h.Set(k, v)
			}
			w.WriteHeader(103)
		}
		clear(h)
		w.WriteHeader(102)
		w.Header().Set("X-Last", "1")
		_, _ = w.Write([]byte("ok"))
	}
	for name, s := range map[string]setup{"1.1": {document: document, auth: onlyIn{}}, "2": {document: over2(document), auth: onlyIn{}}} {
		t.Run("upstream over HTTP/"+name, func(t *testing.T) {
			up := func(t *testing.T) string {
				if name == "2" {
					return handler2(t, nil, hinted)
				}
				return handler(t, hinted)
			}
			eachClient(t, up, s, func(t *testing.T, c *http.Client, base string) {
				var got []string
				ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
					got = append(got, fmt.Sprint(code, lines(http.Header(h), "Date")))
					return nil
				}})
				req, _ := http.NewRequestWithContext(ctx, "GET", base+"/v1", nil)
				res, err := c.Do(req)
				if body := read(t, res, err); res.StatusCode != 200 || body != "ok" || res.Header.Get("X-Last") != "1" || res.Header.Get("Link") != "" {
					t.Fatalf("%d %q %v", res.StatusCode, body, res.Header)
				}
				want := "[103 [link: </0.css>; rel=preload server: inside/1.0] 103 [link: </1.css>; rel=preload server: inside/1.0] 102 []]"
				if res.ProtoMajor == 1 {
					want = "[]"
				}
				if fmt.Sprint(got) != want {
					t.Fatalf("%v\nwant %v", got, want)
				}
			})
		})
	}
}

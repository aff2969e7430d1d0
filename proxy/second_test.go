package proxy

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/proxy/program/programtest"
	"github.com/cellgate/cellgate/reason"
)

// byAudience lets in whoever is asked for under the audience of the first document, with a token.
type byAudience struct{ asked int }

func (*byAudience) Foresee(*Credentials) {}

func (*byAudience) Aim([]Claim) {}

func (a *byAudience) Authenticate(c *Credentials, id *Identity, _ time.Time) (reason.Reason, <-chan struct{}) {
	a.asked++
	if len(c.Authorization) == 0 {
		return reason.TokenMissing, nil
	}
	if c.Policy.JWT == nil || c.Policy.JWT.Audience != "a" {
		return reason.TokenInvalid, nil
	}
	*id = Identity{User: "u"}
	return reason.None, nil
}

func (a *byAudience) Take([]Claim, int, time.Time) (int, <-chan struct{}) { return -1, nil }

func TestWhatIsRefusedNowAndWasLetThroughBeforeIsCounted(t *testing.T) {
	const open, closed = "path: /open}", "path: /closed}"
	for name, c := range map[string]struct {
		change  []string // of the document
		request string
		want    map[string]uint64
	}{
		"a path is misspelt":                 {[]string{open, "path: /opem}"}, get("/open"), map[string]uint64{"open": 1}},
		"a method is gone":                   {[]string{open, "path: /open, methods: [POST]}"}, get("/open"), map[string]uint64{"open": 1}},
		"the route is gone by name":          {[]string{"  - {id: open, match: {host: a.example, path: /open}, upstream: up}\n", ""}, get("/open"), nil},
		"nobody asked before either":         {[]string{open, "path: /opem}"}, get("/nothing"), nil},
		"with a token it was let in":         {[]string{closed, "path: /clossed}"}, get("/closed", "Authorization: Bearer x"), map[string]uint64{"closed": 1}},
		"without a token it was not":         {[]string{closed, "path: /clossed}"}, get("/closed"), nil},
		"the policy wants somebody else":     {[]string{"audience: a,", "audience: b,"}, get("/closed", "Authorization: Bearer x"), map[string]uint64{"closed": 1}},
		"it refused this one before as well": {[]string{"audience: a,", "audience: b,"}, get("/closed"), nil},
		"the policy is the same":             {[]string{open, "path: /opem}"}, get("/closed"), nil},
		"a rule is new":                      {[]string{closed + ", upstream: up, auth: jwt", closed + ", upstream: up, auth: jwt, policies: [admins]"}, get("/closed", "Authorization: Bearer x"), map[string]uint64{"closed": 1}},
		"a route became a protected one":     {[]string{open + ", upstream: up", open + ", upstream: up, auth: jwt"}, get("/open"), map[string]uint64{"open": 1}},
	} {
		a := &byAudience{}
		s := New(Options{Auth: a, Limits: a})
		if err := s.Apply(programtest.Compile(t, 1, document)); err != nil {
			t.Fatal(err)
		}
		changed := strings.Replace(document, c.change[0], c.change[1], 1)
		if changed == document {
			t.Fatalf("%s: nothing changed", name)
		}
		if err := s.Apply(programtest.Compile(t, 2, changed)); err != nil {
			t.Fatal(err)
		}
		exchangeOf(t, s, c.request).Run(time.Now())
		if got := s.Refused(); !maps.Equal(got, c.want) {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestASecondOpinionIsBoundedAndForgotten(t *testing.T) {
	a := &byAudience{}
	s := New(Options{Auth: a, Limits: a})
	before, after := programtest.Compile(t, 1, document), programtest.Compile(t, 2, strings.Replace(document, "path: /open}", "path: /opem}", 1))
	for _, p := range []*program.Program{before, after, after} { // the last swap is of the share alone
		if err := s.Apply(p); err != nil {
			t.Fatal(err)
		}
	}
	for range program.MaxAsked + 10 {
		x := exchangeOf(t, s, get("/open"))
		x.Run(time.Now())
		s.Release(x)
	}
	if n := s.Refused()["open"]; n != program.MaxAsked {
		t.Errorf("%d requests were put to the program before", n)
	}
	s.forget(time.Now().Add(program.OpinionLasts - time.Minute))
	if s.Refused() == nil {
		t.Error("it was forgotten too early")
	}
	if s.forget(time.Now().Add(program.OpinionLasts + time.Minute)); s.Refused() != nil || s.Program() != after {
		t.Error("it was not forgotten")
	}
}

package auth

import (
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

func TestAnswersOfProvidersAreJudgedStrictly(t *testing.T) {
	p := snapshot.Introspection{Issuer: "i", Audience: "a", Scopes: []string{"orders"}, ConsumerClaim: "client_id"}
	good := `"active":true,"iss":"i","aud":["a","b"],"sub":"alice","client_id":"acme","scope":"orders x","jti":"j","token_type":"Bearer"`
	for name, c := range map[string]struct {
		answer string
		want   reason.Reason
		none   bool // it is no answer at all
	}{
		"active":                  {`{` + good + `}`, reason.None, false},
		"without an issuer":       {`{"active":true,"aud":"a","sub":"alice","client_id":"acme","scope":"orders"}`, reason.None, false},
		"inactive":                {`{"active":false}`, reason.TokenInvalid, false},
		"inactive, whatever else": {`{"active":false,"sub":"alice","aud":"a","scope":"orders"}`, reason.TokenInvalid, false},
		"another issuer":          {`{` + strings.Replace(good, `"i"`, `"j"`, 1) + `}`, reason.TokenInvalid, false},
		"another audience":        {`{` + strings.Replace(good, `"a",`, ``, 1) + `}`, reason.TokenInvalid, false},
		"no audience":             {`{"active":true,"sub":"alice","client_id":"acme","scope":"orders"}`, reason.TokenInvalid, false},
		"a refresh token":         {`{` + strings.Replace(good, `Bearer`, `refresh_token`, 1) + `}`, reason.TokenInvalid, false},
		"needs a proof":           {`{` + strings.Replace(good, `Bearer`, `DPoP`, 1) + `}`, reason.TokenInvalid, false},
		"bound to a key":          {`{` + good + `,"cnf":{"jkt":"x"}}`, reason.TokenInvalid, false},
		"bound to a certificate":  {`{` + good + `,"cnf":{"x5t#S256":"` + thumb + `"}}`, reason.None, false},
		"bearer in small letters": {`{` + strings.Replace(good, `Bearer`, `bearer`, 1) + `}`, reason.None, false},
		"without its consumer":    {`{` + strings.Replace(good, `client_id`, `client`, 1) + `}`, reason.TokenInvalid, false},
		"without its scope":       {`{` + strings.Replace(good, `orders`, `reads`, 1) + `}`, reason.ScopeMissing, false},
		"expired":                 {`{` + good + `,"exp":1799999999}`, reason.TokenExpired, false},
		"expires now":             {`{` + good + `,"exp":1800000000}`, reason.TokenExpired, false},
		"expires in a second":     {`{` + good + `,"exp":1800000001}`, reason.None, false},
		"not yet":                 {`{` + good + `,"nbf":1800000031}`, reason.TokenExpired, false},
		"members that are null":   {`{"active":true,"iss":null,"aud":"a","sub":null,"client_id":"acme","scope":"orders","exp":null,"nbf":null,"token_type":null,"cnf":null,"jti":null}`, reason.None, false},
		"an audience of null":     {`{` + strings.Replace(good, `["a","b"]`, `null`, 1) + `}`, reason.TokenInvalid, false},
		"active as null":          {`{"active":null}`, reason.None, true},
		"active in words":         {`{"active":"true"}`, reason.None, true},
		"active as a number":      {`{"active":1}`, reason.None, true},
		"active twice":            {`{"active":false,` + good + `}`, reason.None, true},
		"active elsewhere":        {`{"Active":true}`, reason.None, true},
		"nothing":                 {`{}`, reason.None, true},
		"a list":                  {`[{` + good + `}]`, reason.None, true},
		"something behind":        {`{` + good + `}{}`, reason.None, true},
		"torn":                    {`{` + good, reason.None, true},
		"no JSON":                 {`active`, reason.None, true},
		"a subject that is none":  {`{` + strings.Replace(good, `"alice"`, `7`, 1) + `}`, reason.None, true},
		"an end that is none":     {`{` + good + `,"exp":"tomorrow"}`, reason.None, true},
	} {
		r, err := NewIntrospector(p).Judge([]byte(c.answer), now)
		if (err != nil) != c.none || r.Reason != c.want || (r.Identity != nil) != (!c.none && (c.want == reason.None || c.want == reason.ScopeMissing)) {
			t.Errorf("%s: %+v %v", name, r, err)
		}
	}
	r, _ := NewIntrospector(p).Judge([]byte(`{`+good+`,"exp":1800000060}`), now)
	if id := r.Identity; id.Subject != "alice" || id.Consumer != "acme" || id.Issuer != "i" || id.TokenID != "j" || len(id.Scopes) != 2 || !id.Until.Equal(now.Add(time.Minute)) {
		t.Errorf("%+v", id)
	}
	unbound := p
	unbound.IgnoreCnf = true
	if r, err := NewIntrospector(unbound).Judge([]byte(`{`+good+`,"cnf":{}}`), now); err != nil || r.Reason != reason.None {
		t.Errorf("bound, and nobody minds: %+v %v", r, err)
	}
	same, other := p, p
	other.Audience = "b"
	if NewIntrospector(p).Print() != NewIntrospector(same).Print() || NewIntrospector(p).Print() == NewIntrospector(other).Print() {
		t.Error("prints are not the policies'")
	}
}

func TestOnlyWhatCanBeATokenIsAskedAbout(t *testing.T) {
	for token, want := range map[string]bool{
		"abcXYZ019-._~+/==": true, strings.Repeat("a", MaxToken): true,
		"": false, strings.Repeat("a", MaxToken+1): false, "a b": false, "a&b": false, "a%20": false, "é": false, "a\x00": false, "a,b": false,
	} {
		if Opaque([]byte(token)) != want {
			t.Errorf("%.40q: not %v", token, want)
		}
	}
}

func FuzzJudgeLetsNobodyInWhoIsNotActive(f *testing.F) {
	f.Add([]byte(`{"active":true,"sub":"a"}`))
	f.Add([]byte(`{"active":false,"active":true}`))
	v := NewIntrospector(snapshot.Introspection{})
	f.Fuzz(func(t *testing.T, answer []byte) {
		r, err := v.Judge(answer, now)
		if r.Identity == nil {
			return
		}
		if m, bad := object(answer); err != nil || bad != nil || m["active"] != any(true) {
			t.Fatalf("%q lets somebody in", answer)
		}
	})
}

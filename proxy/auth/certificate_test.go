package auth

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/internal/testpki"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

func certificates(t testing.TB, ca string, names ...snapshot.CertificateName) *Certificates {
	t.Helper()
	v, err := NewCertificates(snapshot.MTLS{CA: ca, Names: names})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// shows is what a client with this pair has shown.
func shows(t testing.TB, pair *tls.Certificate) *Shown {
	t.Helper()
	var chain []*x509.Certificate
	for _, der := range pair.Certificate {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		chain = append(chain, c)
	}
	return NewShown("", chain)
}

// altNames makes the extension of alternative names, whatever is in them (RFC 5280, section 4.2.1.6): tag 2 is DNS, 6 a URI.
func altNames(t testing.TB, tag int, all ...string) []pkix.Extension {
	t.Helper()
	var raws []asn1.RawValue
	for _, n := range all {
		raws = append(raws, asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: tag, Bytes: []byte(n)})
	}
	der, err := asn1.Marshal(raws)
	if err != nil {
		t.Fatal(err)
	}
	return []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Value: der}}
}

func TestCertificatesComeToAnIdentityOrAReason(t *testing.T) {
	ca, other := testpki.New(t, "Partners"), testpki.New(t, "Partners")
	v := certificates(t, ca.PEM,
		snapshot.CertificateName{SPIFFE: "spiffe://a.example/orders", Consumer: "acme"}, snapshot.CertificateName{SPIFFE: "spiffe://a.example/*", Consumer: "others"},
		snapshot.CertificateName{SPIFFE: "spiffe://a.example/team/*"}, snapshot.CertificateName{DNS: "orders.a.example", Consumer: "acme"},
		snapshot.CertificateName{DNS: "*.b.example", Consumer: "b"}, snapshot.CertificateName{CommonName: "Old Client", Consumer: "old"})
	many := func(n int) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprintf("n%d.b.example", i))
		}
		return all
	}
	now := time.Now()
	for what, c := range map[string]struct {
		by   *testpki.Authority
		leaf testpki.Leaf
		want reason.Reason
		name string
		of   string
	}{
		"a SPIFFE id":                     {ca, testpki.Leaf{URIs: []string{"spiffe://a.example/orders"}}, reason.None, "spiffe://a.example/orders", "acme"},
		"one below":                       {ca, testpki.Leaf{URIs: []string{"spiffe://a.example/x/y"}}, reason.None, "spiffe://a.example/x/y", "others"},
		"the longest pattern":             {ca, testpki.Leaf{URIs: []string{"spiffe://a.example/team/y"}}, reason.None, "spiffe://a.example/team/y", ""},
		"the pattern's own id":            {ca, testpki.Leaf{URIs: []string{"spiffe://a.example/team"}}, reason.None, "spiffe://a.example/team", "others"},
		"the domain itself":               {ca, testpki.Leaf{URIs: []string{"spiffe://a.example"}}, reason.CertificateInvalid, "", ""},
		"a longer domain":                 {ca, testpki.Leaf{URIs: []string{"spiffe://a.example.evil/orders"}}, reason.CertificateInvalid, "", ""},
		"the pattern as a name":           {ca, testpki.Leaf{URIs: []string{"spiffe://a.example/*"}}, reason.CertificateInvalid, "", ""},
		"dots in a path":                  {ca, testpki.Leaf{URIs: []string{"spiffe://a.example/team/../orders"}}, reason.CertificateInvalid, "", ""},
		"two URIs":                        {ca, testpki.Leaf{URIs: []string{"spiffe://a.example/orders", "https://a.example/"}}, reason.CertificateInvalid, "", ""},
		"a DNS name":                      {ca, testpki.Leaf{DNS: []string{"ORDERS.a.example"}}, reason.None, "orders.a.example", "acme"},
		"one label":                       {ca, testpki.Leaf{DNS: []string{"x.b.example"}}, reason.None, "x.b.example", "b"},
		"two labels":                      {ca, testpki.Leaf{DNS: []string{"x.y.b.example"}}, reason.CertificateInvalid, "", ""},
		"a wildcard as a name":            {ca, testpki.Leaf{DNS: []string{"*.b.example"}}, reason.CertificateInvalid, "", ""},
		"NUL in a name":                   {ca, testpki.Leaf{Extra: altNames(t, 2, "orders.a.example\x00.evil")}, reason.CertificateInvalid, "", ""},
		"NUL before the pattern":          {ca, testpki.Leaf{Extra: altNames(t, 2, "x\x00y.b.example")}, reason.CertificateInvalid, "", ""},
		"a name among unknown ones":       {ca, testpki.Leaf{DNS: []string{"z.example", "orders.a.example"}}, reason.None, "orders.a.example", "acme"},
		"names of two consumers":          {ca, testpki.Leaf{DNS: []string{"x.b.example", "orders.a.example"}}, reason.CertificateInvalid, "", ""},
		"id and name of one consumer":     {ca, testpki.Leaf{URIs: []string{"spiffe://a.example/orders"}, DNS: []string{"orders.a.example"}}, reason.None, "spiffe://a.example/orders", "acme"},
		"a common name":                   {ca, testpki.Leaf{Name: "Old Client"}, reason.None, "Old Client", "old"},
		"a common name that is a DNS one": {ca, testpki.Leaf{Name: "orders.a.example"}, reason.CertificateInvalid, "", ""},
		"a longer common name":            {ca, testpki.Leaf{Name: "Old Client\x00"}, reason.CertificateInvalid, "", ""},
		"no name":                         {ca, testpki.Leaf{}, reason.CertificateInvalid, "", ""},
		"another authority of that name":  {other, testpki.Leaf{DNS: []string{"orders.a.example"}}, reason.CertificateInvalid, "", ""},
		"an authority below, with chain":  {ca.Under(t, "Below"), testpki.Leaf{DNS: []string{"orders.a.example"}}, reason.None, "orders.a.example", "acme"},
		"for servers":                     {ca, testpki.Leaf{DNS: []string{"orders.a.example"}, Server: true}, reason.CertificateInvalid, "", ""},
		"for both":                        {ca, testpki.Leaf{DNS: []string{"orders.a.example"}, Both: true}, reason.None, "orders.a.example", "acme"},
		"over":                            {ca, testpki.Leaf{DNS: []string{"orders.a.example"}, Until: now.Add(-time.Minute)}, reason.CertificateExpired, "", ""},
		"not yet":                         {ca, testpki.Leaf{DNS: []string{"orders.a.example"}, From: now.Add(time.Minute)}, reason.CertificateExpired, "", ""},
		"a hundred names":                 {ca, testpki.Leaf{DNS: many(100)}, reason.None, "n0.b.example", "b"},
		"ten thousand names":              {ca, testpki.Leaf{DNS: many(10_000)}, reason.CertificateInvalid, "", ""},
		"an oversized name":               {ca, testpki.Leaf{Extra: altNames(t, 2, strings.Repeat("x", 10_000)+".b.example")}, reason.CertificateInvalid, "", ""},
	} {
		s := shows(t, c.by.Issue(t, c.leaf))
		for range 2 { // also when it is known
			r, _ := v.Judge(s, nil, now)
			if r.Reason != c.want || (r.Identity == nil) != (c.name == "") {
				t.Errorf("%s: %v %+v", what, r.Reason, r.Identity)
			} else if id := r.Identity; id != nil && (id.Subject != c.name || id.Consumer != c.of || id.Issuer != "CN=Partners" || len(id.TokenID) != 71) {
				t.Errorf("%s: %+v", what, id)
			}
		}
	}
	for _, none := range []*Shown{nil, NewShown("", nil)} {
		if r, _ := v.Judge(none, nil, now); r.Reason != reason.CertificateMissing {
			t.Errorf("nothing: %v", r.Reason)
		}
	}
}

func TestACertificateIsVerifiedOnceAConnectionUntilItsTime(t *testing.T) {
	ca := testpki.New(t, "Partners")
	now := time.Now()
	s := shows(t, ca.Issue(t, testpki.Leaf{DNS: []string{"a.example"}, From: now.Add(time.Minute), Until: now.Add(time.Hour)}))
	name := snapshot.CertificateName{DNS: "a.example"}
	v := certificates(t, ca.PEM, name)
	judged := func(v *Certificates, after time.Duration, want reason.Reason, known bool) {
		t.Helper()
		if r, was := v.Judge(s, nil, now.Add(after)); r.Reason != want || was != known {
			t.Errorf("after %s: %v, known %v", after, r.Reason, was)
		}
	}
	judged(v, 0, reason.CertificateExpired, false)
	judged(v, 0, reason.CertificateExpired, true)
	judged(v, 2*time.Minute, reason.None, false)
	judged(certificates(t, ca.PEM, name), 3*time.Minute, reason.None, true) // the same policy of another program
	if n := testing.AllocsPerRun(100, func() { v.Judge(s, nil, now.Add(5*time.Minute)) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	next := certificates(t, testpki.New(t, "Others").PEM, name)
	judged(next, 4*time.Minute, reason.CertificateInvalid, false)
	judged(next, 4*time.Minute, reason.CertificateInvalid, true)
	judged(v, 4*time.Minute, reason.None, true)
	judged(v, 2*time.Hour, reason.CertificateExpired, false)
	for i := range 50 {
		certificates(t, ca.PEM, snapshot.CertificateName{DNS: fmt.Sprintf("n%d.example", i)}).Judge(s, nil, now)
	}
	if n := len(*s.known.Load()); n > knownVerdicts {
		t.Errorf("%d verdicts are kept", n)
	}
}

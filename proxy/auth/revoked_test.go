package auth

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/internal/testpki"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

func revocations(t testing.TB, text string) *Revocations {
	t.Helper()
	r, err := ParseRevocations([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestCertificatesAreHeldToTheListsOfTheirIssuers(t *testing.T) {
	now := time.Now()
	root, other := testpki.New(t, "Partners"), testpki.New(t, "Partners") // of one name, with other keys
	below := root.Under(t, "Team")
	leaf := testpki.Leaf{DNS: []string{"a.example"}}
	direct, another, deep := root.Issue(t, leaf), root.Issue(t, leaf), below.Issue(t, leaf)
	team := &tls.Certificate{Leaf: below.Cert}
	soon, past := now.Add(time.Hour), now.Add(-time.Hour)
	rootList, teamList := root.Revoke(t, soon, nil, another), below.Revoke(t, soon, nil)
	for what, c := range map[string]struct {
		shows *tls.Certificate
		files []string
		want  reason.Reason
		lax   reason.Reason
	}{
		"not listed":                           {direct, []string{rootList}, reason.None, reason.None},
		"listed":                               {another, []string{rootList}, reason.CertificateRevoked, reason.CertificateRevoked},
		"listed in a list that is over":        {another, []string{root.Revoke(t, past, nil, another)}, reason.CertificateRevoked, reason.CertificateRevoked},
		"listed in one of two":                 {another, []string{root.Revoke(t, soon, nil), rootList}, reason.CertificateRevoked, reason.CertificateRevoked},
		"no list":                              {direct, []string{teamList}, reason.AuthUnavailable, reason.None},
		"a list that is over":                  {direct, []string{root.Revoke(t, past, nil)}, reason.AuthUnavailable, reason.None},
		"a list to come":                       {direct, []string{root.Revoke(t, now.Add(72*time.Hour), nil)}, reason.AuthUnavailable, reason.None},
		"one that is over beside a later one":  {direct, []string{root.Revoke(t, past, nil) + rootList}, reason.None, reason.None},
		"a list of another key":                {direct, []string{other.Revoke(t, soon, nil, direct)}, reason.AuthUnavailable, reason.None},
		"below an authority, both have lists":  {deep, []string{rootList, teamList}, reason.None, reason.None},
		"below an authority without a list":    {deep, []string{rootList}, reason.AuthUnavailable, reason.None},
		"below an authority that is listed":    {deep, []string{root.Revoke(t, soon, nil, team), teamList}, reason.CertificateRevoked, reason.CertificateRevoked},
		"listed below, and nobody lists above": {deep, []string{below.Revoke(t, soon, nil, deep)}, reason.CertificateRevoked, reason.CertificateRevoked},
	} {
		var files []*Revocations
		for _, text := range c.files {
			files = append(files, revocations(t, text))
		}
		for lax, want := range map[bool]reason.Reason{false: c.want, true: c.lax} {
			v, err := NewCertificates(snapshot.MTLS{CA: root.PEM, Names: []snapshot.CertificateName{{DNS: "a.example"}}, CRLFiles: []string{"f"}, AcceptWithoutCRL: lax})
			if err != nil {
				t.Fatal(err)
			}
			if r, _ := v.Judge(shows(t, c.shows), files, now); r.Reason != want || (r.Identity == nil) != (want != reason.None) {
				t.Errorf("%s, accepted without one %v: %v", what, lax, r.Reason)
			}
		}
	}
	// An authority that is trusted itself is held to the list of the one above it, if that is trusted too, and needs none.
	v, err := NewCertificates(snapshot.MTLS{CA: root.PEM + below.PEM, Names: []snapshot.CertificateName{{DNS: "a.example"}}, CRLFiles: []string{"f"}})
	if err != nil {
		t.Fatal(err)
	}
	for list, want := range map[string]reason.Reason{teamList: reason.None, teamList + root.Revoke(t, soon, nil, team): reason.CertificateRevoked} {
		if r, _ := v.Judge(shows(t, deep), []*Revocations{revocations(t, list)}, now); r.Reason != want {
			t.Errorf("an authority that is trusted itself: %v, not %v", r.Reason, want)
		}
	}
}

func TestAVerdictStandsUntilAListChangesOrEnds(t *testing.T) {
	ca, now := testpki.New(t, "Partners"), time.Now()
	pair := ca.Issue(t, testpki.Leaf{DNS: []string{"a.example"}})
	v, err := NewCertificates(snapshot.MTLS{CA: ca.PEM, Names: []snapshot.CertificateName{{DNS: "a.example"}}, CRLFiles: []string{"f"}})
	if err != nil {
		t.Fatal(err)
	}
	s, lists := shows(t, pair), []*Revocations{revocations(t, ca.Revoke(t, now.Add(30*time.Minute), nil))}
	judged := func(after time.Duration, want reason.Reason, known bool) {
		t.Helper()
		if r, was := v.Judge(s, lists, now.Add(after)); r.Reason != want || was != known {
			t.Errorf("after %s: %v, known %v", after, r.Reason, was)
		}
	}
	judged(0, reason.None, false)
	judged(20*time.Minute, reason.None, true)
	if n := testing.AllocsPerRun(100, func() { v.Judge(s, lists, now) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	judged(40*time.Minute, reason.AuthUnavailable, false)
	lists = []*Revocations{revocations(t, ca.Revoke(t, now.Add(time.Hour), nil, pair))}
	judged(20*time.Minute, reason.CertificateRevoked, false)
	judged(20*time.Minute, reason.CertificateRevoked, true)
}

func TestListsThatCannotBeHeldToWholeAreRefused(t *testing.T) {
	ca, soon := testpki.New(t, "Partners"), time.Now().Add(time.Hour)
	one := ca.Issue(t, testpki.Leaf{})
	critical := []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 28}, Critical: true, Value: []byte{0x30, 0}}}
	good := ca.Revoke(t, soon, nil, one)
	for what, text := range map[string]string{
		"nothing":              "",
		"words":                "s3cret",
		"PEM of something":     ca.PEM,
		"a list and something": good + ca.PEM,
		"too many":             strings.Repeat(good, 33),
		"a list and a part":    good + good[:len(good)-40],
		"a damaged one first":  strings.Replace(good, "CRL-----\nM", "CRL-----\n*", 1) + good,
		"torn":                 "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n",
		"a part of them":       ca.Revoke(t, soon, func(l *x509.RevocationList) { l.ExtraExtensions = critical }, one),
		"somebody else's":      ca.Revoke(t, soon, func(l *x509.RevocationList) { l.RevokedCertificateEntries[0].ExtraExtensions = critical }, one),
	} {
		if _, err := ParseRevocations([]byte(text)); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if r := revocations(t, "# a comment\n"+strings.Repeat(good, 32)); len(r.lists) != 32 || !r.Ends().Equal(soon.UTC().Truncate(time.Second)) {
		t.Errorf("%d lists until %s", len(r.lists), r.Ends())
	}
}

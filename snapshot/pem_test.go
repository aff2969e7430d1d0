package snapshot

import (
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"

	"github.com/cellgate/cellgate/internal/testpki"
)

const pemBlock = "-----BEGIN X-----\nAAAA\n-----END X-----\n"

func TestATextCountsWholeOrNotAtAll(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, "words": 0, pemBlock: 1, "# one\n" + pemBlock + "and\n" + pemBlock: 2, strings.TrimSuffix(pemBlock, "\n"): 1,
	} {
		if all, err := PEMBlocks([]byte(text)); err != nil || len(all) != want {
			t.Errorf("%q: %d, %v", text, len(all), err)
		}
	}
	for i := len("-----BEGIN "); i < len(pemBlock)-1; i++ { // cut off anywhere, behind another or ahead of one
		for _, text := range []string{pemBlock + pemBlock[:i], pemBlock[:i] + "\n" + pemBlock} {
			if all, err := PEMBlocks([]byte(text)); err == nil {
				t.Errorf("%q: %d blocks", text, len(all))
			}
		}
	}
	if all, err := PEMBlocks([]byte(strings.Replace(pemBlock, "AAAA", "AA*A", 1) + pemBlock)); err == nil {
		t.Errorf("damaged: %d blocks", len(all))
	}
}

// A node refuses a version whose pair doesn't fit, so its author hears of it.
func TestAClientCertificateNeedsItsOwnKey(t *testing.T) {
	ca := testpki.New(t, "Partners")
	text := func(kind string, der []byte, err error) string {
		if err != nil {
			t.Fatal(err)
		}
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	one, other := ca.Issue(t, testpki.Leaf{}), ca.Issue(t, testpki.Leaf{})
	cert := text("CERTIFICATE", one.Certificate[0], nil)
	own, err := x509.MarshalPKCS8PrivateKey(one.PrivateKey)
	key := text("PRIVATE KEY", own, err)
	own, err = x509.MarshalPKCS8PrivateKey(other.PrivateKey)
	foreign := text("PRIVATE KEY", own, err)
	for what, c := range map[string]struct {
		text string
		ok   bool
	}{
		"a pair":               {cert + key, true},
		"with its authority":   {cert + ca.PEM + key, true},
		"the key first":        {key + cert, true},
		"another's key":        {cert + foreign, false},
		"the authority first":  {ca.PEM + cert + key, false},
		"no key":               {cert, false},
		"no certificate":       {key, false},
		"a key that was cut":   {cert + key[:len(key)-40], false},
		"a key of other bytes": {cert + text("PRIVATE KEY", []byte("x"), nil), false},
	} {
		if validPair(c.text) != c.ok {
			t.Errorf("%s is taken: %v", what, !c.ok)
		}
	}
}

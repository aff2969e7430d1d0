package auth

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	jose "github.com/go-jose/go-jose/v4"
)

// TestWycheproofSignaturesAreJudgedRight runs the JWS vectors of C2SP/wycheproof. The vectors' payloads are no claims, so
// the stages around them are run: form, header, key, signature. Stricter than the vectors: nothing symmetric is accepted,
// and a key that names an algorithm verifies no other (the vectors derived from RFC 7520).
func TestWycheproofSignaturesAreJudgedRight(t *testing.T) {
	file := vectors()
	raw, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		t.Logf("the vectors are not there (%s): nothing was compared", file)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		TestGroups []struct {
			Comment string
			Public  json.RawMessage
			Tests   []struct {
				TcID    int
				Comment string
				JWS     string
				Result  string
			}
		}
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	valid, invalid, stricter := 0, 0, 0
	for _, g := range doc.TestGroups {
		keys, _, _ := ParseKeys([]byte(`{"keys":[` + string(g.Public) + `]}`))
		for _, c := range g.Tests {
			ok := keys != nil && acceptsSignature(keys, c.JWS)
			switch {
			case ok && c.Result == "valid":
				valid++
			case ok:
				t.Errorf("%s %d (%s): accepted", g.Comment, c.TcID, c.Comment)
			case c.Result == "valid" && g.Public != nil && !strings.HasPrefix(g.Comment, "rfc7520"):
				t.Errorf("%s %d (%s): refused", g.Comment, c.TcID, c.Comment)
			case c.Result == "valid":
				stricter++
			default:
				invalid++
			}
		}
	}
	if valid == 0 || invalid == 0 {
		t.Error("the file has no vectors")
	}
	t.Logf("%d accepted, %d refused, %d refused that the vectors permit", valid, invalid, stricter)
}

func acceptsSignature(keys *Keys, token string) bool {
	v := &Verifier{algs: allowed()}
	head, _, ok := split(token)
	if !ok {
		return false
	}
	kid, alg, ok := v.header(head)
	if !ok {
		return false
	}
	k, _ := keys.find(kid, jose.SignatureAlgorithm(alg))
	return k != nil && signed(token, alg, k.public)
}

// vectors is the file beside the repository, wherever the repository lies.
func vectors() string {
	const name = "data/wycheproof/json_web_signature_half.json"
	dir, _ := filepath.Abs(".")
	for ; ; dir = filepath.Dir(dir) {
		file := filepath.Join(dir, "shared", name)
		if _, err := os.Stat(file); err == nil || dir == filepath.Dir(dir) {
			return file
		}
	}
}

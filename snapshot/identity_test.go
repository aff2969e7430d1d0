package snapshot

import (
	"strings"
	"testing"
	"time"
)

func TestEveryRuleOfIdentityTokensNamesItsFault(t *testing.T) {
	with := func(upstreams, keys string) string {
		return "upstreams: [" + upstreams + "]\nidentity_keys: [" + keys + "]\n"
	}
	up := func(id, token string) string {
		return "{id: " + id + ", endpoints: ['10.0.0.1:80'], identity_token: " + token + "}"
	}
	const key = "{id: k, file: f}"
	for text, want := range map[string]string{
		with(up("u", "{}"), ""):                                         "upstreams[0].identity_token: has nobody to sign it",
		with(up("u", "yes"), key):                                       "upstreams[0].identity_token: must be a mapping",
		with(up("u", "{aud: x}"), key):                                  "upstreams[0].identity_token.aud: unknown key",
		with(up("u", "{audience: v}")+", "+up("v", "{}"), key):          `upstreams[1].identity_token.audience: "v" is that of upstream "u" too`,
		with("", "{id: k}"):                                             "identity_keys[0].file: is missing",
		with("", "{file: f}"):                                           "identity_keys[0].id: is missing",
		with("", "{id: k, file: ../f}"):                                 `identity_keys[0].file: "../f" is not the name of a file`,
		with("", "{id: k, file: acme/f}"):                               `identity_keys[0].file: "acme/f" is a tenant's`,
		with("", "{id: k, file: f, key: secret}"):                       "identity_keys[0].key: unknown key",
		with("", "{id: k, file: f, sign_from: soon}"):                   `identity_keys[0].sign_from: "soon" is not a time`,
		with("", "{id: k, file: f, sign_from: '1969-01-01T00:00:00Z'}"): "is not a time",
		with("", key+", "+key):                                          `identity_keys[1].id: "k" is used twice`,
	} {
		if _, problems := decodeText(text); !strings.Contains(strings.Join(problems, "\n"), want) {
			t.Errorf("%s\ngot  %v\nwant %s", text, problems, want)
		}
	}
	var many []string
	for i := range 17 {
		many = append(many, "{id: k"+string(rune('a'+i))+", file: f}")
	}
	if _, problems := decodeText(with("", strings.Join(many, ", "))); len(problems) != 1 || !strings.Contains(problems[0], "identity_keys[16]: is one key too many") {
		t.Error(problems)
	}
}

func TestTheKeyThatHasBegunLastSigns(t *testing.T) {
	at := func(hours int) time.Time { return time.Unix(1e9, 0).Add(time.Duration(hours) * time.Hour) }
	first, second, third := IdentityKey{ID: "c"}, IdentityKey{ID: "a", SignFrom: at(1)}, IdentityKey{ID: "b", SignFrom: at(2)}
	for _, keys := range [][]IdentityKey{{second, third, first}, {first, second, third}, {third, second, first}} {
		for hours, want := range map[int]string{0: "c", 1: "a", 2: "b", 99: "b"} {
			if k := Signing(keys, at(hours)); k.ID != want {
				t.Errorf("after %d h: %s, not %s", hours, k.ID, want)
			}
		}
	}
	for _, keys := range [][]IdentityKey{{second, third}, {third, second}} {
		if k := Signing(keys, at(0)); k.ID != "a" {
			t.Errorf("before any has begun: %s", k.ID)
		}
	}
	if Signing(nil, at(0)) != nil {
		t.Error("a key out of nothing")
	}
}

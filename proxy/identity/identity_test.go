package identity

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/cellgate/cellgate/proxy/auth"
)

func TestFieldsTellWhatIsKnownAndNothingElse(t *testing.T) {
	facts := &auth.Identity{ClientID: "web", Scopes: []string{"read", "write"}}
	for name, c := range map[string]struct {
		told Told
		want string
	}{
		"a user":             {Told{User: "alice", Consumer: "acme", Issuer: "https://id", Facts: facts}, "X-Caller: alice|X-Caller-User: alice|X-Caller-Issuer: https://id|X-Caller-Consumer: acme|X-Caller-Client: web|X-Caller-Scopes: read write|"},
		"a key":              {Told{Consumer: "acme"}, "X-Caller: acme|X-Caller-Consumer: acme|"},
		"line ends":          {Told{User: "a\r\nX-Caller: root", Facts: &auth.Identity{Scopes: []string{"x\ny", "ok"}}}, "X-Caller: a%0D%0AX-Caller: root|X-Caller-User: a%0D%0AX-Caller: root|X-Caller-Scopes: x%0Ay ok|"},
		"blanks at its ends": {Told{User: " the root "}, "X-Caller: %20the root%20|X-Caller-User: %20the root%20|"},
		"beyond ASCII":       {Told{User: "ünal"}, "X-Caller: %C3%BCnal|X-Caller-User: %C3%BCnal|"},
		"what looks like it": {Told{User: "%C3%BCnal"}, "X-Caller: %25C3%25BCnal|X-Caller-User: %25C3%25BCnal|"},
		"no text":            {Told{Consumer: "a\xff\x7f"}, "X-Caller: a%FF%7F|X-Caller-Consumer: a%FF%7F|"},
	} {
		if got := strings.ReplaceAll(string(c.told.AppendFields(nil)), "\r\n", "|"); got != c.want || !c.told.Known() {
			t.Errorf("%s: %s", name, got)
		}
	}
	if (Told{Issuer: "i", Facts: facts}).Known() {
		t.Error("nobody is known")
	}
}

func TestFieldsAllocateNothing(t *testing.T) {
	told := Told{User: "alice", Consumer: "acme", Issuer: "i", Facts: &auth.Identity{ClientID: "web", Scopes: []string{"read", "write"}}}
	room := make([]byte, 0, 512)
	if n := testing.AllocsPerRun(100, func() { room = told.AppendFields(room[:0]) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestANetworkOfOneCallerIsOneCaller(t *testing.T) {
	for addr, want := range map[string]string{"2001:db8::1": "2001:db8::/64", "2001:db8:0:0:ffff::2": "2001:db8::/64", "192.0.2.1": "192.0.2.1"} {
		if got := Address(netip.MustParseAddr(addr), addr); got != want {
			t.Errorf("%s is %s", addr, got)
		}
	}
}

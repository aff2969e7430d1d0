package listen

import (
	"crypto/tls"
	"encoding/base64"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// secretsIn writes secrets, each of one byte over and over, and says where.
func secretsIn(t *testing.T, file string, of ...byte) string {
	t.Helper()
	var text strings.Builder
	for _, b := range of {
		text.WriteString(base64.StdEncoding.EncodeToString([]byte(strings.Repeat(string(rune(b)), 32))) + "\n")
	}
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// session is that of some handshake.
func session(t *testing.T) (some *tls.SessionState) {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "c"), filepath.Join(dir, "k"), 1)
	c, err := LoadCertificate(filepath.Join(dir, "c"), filepath.Join(dir, "k"))
	if err != nil {
		t.Fatal(err)
	}
	cfg := c.Config()
	cfg.WrapSession = func(cs tls.ConnectionState, s *tls.SessionState) ([]byte, error) {
		some = s
		return cfg.EncryptTicket(cs, s)
	}
	ours, theirs := net.Pipe()
	go func() {
		client := tls.Client(theirs, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12, ClientSessionCache: tls.NewLRUClientSessionCache(1)}) // a pipe has no room for what 1.3 says at once
		_, _ = io.ReadAll(client)
	}()
	server := tls.Server(ours, cfg)
	if err := server.Handshake(); err != nil || some == nil {
		t.Fatal(err)
	}
	server.Close()
	return some
}

// F2: what one node of a cell has sealed another one opens, for an epoch more than it is sealed with; no other cell and no other
// listener does.
func TestTicketsAreGoodInTheirCellForADay(t *testing.T) {
	dir, some, start := t.TempDir(), session(t), time.Unix(1_800_000_000, 0).Truncate(ticketEpoch)
	file := secretsIn(t, filepath.Join(dir, "one"), 'a')
	node := func(file, cell, purpose string, at time.Time) *tls.Config {
		t.Helper()
		n, err := LoadTickets(file, cell)
		if err != nil {
			t.Fatal(err)
		}
		cfg := &tls.Config{}
		n.Keep(cfg, purpose)
		if _, err := n.Reload(at); err != nil {
			t.Fatal(err)
		}
		return cfg
	}
	ticket, err := node(file, "eu/a", "https", start).EncryptTicket(tls.ConnectionState{}, some)
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		by   *tls.Config
		want bool
	}{
		"another node":                      {node(file, "eu/a", "https", start), true},
		"at the end of the next epoch":      {node(file, "eu/a", "https", start.Add(2*ticketEpoch-time.Second)), true},
		"an epoch later":                    {node(file, "eu/a", "https", start.Add(2*ticketEpoch)), false},
		"a clock that is behind":            {node(file, "eu/a", "https", start.Add(-time.Second)), true},
		"a clock that is an epoch behind":   {node(file, "eu/a", "https", start.Add(-ticketEpoch-time.Second)), false},
		"another cell":                      {node(file, "eu/b", "https", start), false},
		"another listener":                  {node(file, "eu/a", "https quic", start), false},
		"another secret":                    {node(secretsIn(t, filepath.Join(dir, "two"), 'b'), "eu/a", "https", start), false},
		"a secret that goes":                {node(secretsIn(t, filepath.Join(dir, "both"), 'b', 'a'), "eu/a", "https", start), true},
		"a process that shares with nobody": {&tls.Config{}, false},
	} {
		if s, err := c.by.DecryptTicket(ticket, tls.ConnectionState{}); err != nil || (s != nil) != c.want {
			t.Errorf("%s: opened %v, %v", what, s != nil, err)
		}
	}
}

func TestSecretsOfTicketsAreReadAgainAndNotTold(t *testing.T) {
	file, some, now := filepath.Join(t.TempDir(), "secrets"), session(t), time.Now()
	if _, err := LoadTickets(file, ""); err == nil {
		t.Error("a file that isn't there is taken")
	}
	n, err := LoadTickets(secretsIn(t, file, 'a'), "")
	if err != nil {
		t.Fatal(err)
	}
	seals, opens := &tls.Config{}, &tls.Config{}
	n.Keep(seals, "https")
	good := base64.StdEncoding.EncodeToString(make([]byte, 32))
	for _, bad := range []string{"", "\n", "s3cret", good + "\n\n", "A" + good, good[:40], strings.Repeat(good+"\n", maxSecrets+1), good + " s3cret"} {
		if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if changed, err := n.Reload(now); changed || err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: %v %v", bad, changed, err)
		}
	}
	other, err := LoadTickets(secretsIn(t, file, 'a'), "")
	if err != nil {
		t.Fatal(err)
	}
	other.Keep(opens, "https")
	ticket, _ := seals.EncryptTicket(tls.ConnectionState{}, some)
	if s, _ := opens.DecryptTicket(ticket, tls.ConnectionState{}); s == nil {
		t.Error("bad files have changed the keys in use")
	}
	if changed, err := n.Reload(now); changed || err != nil {
		t.Errorf("what is the same: %v %v", changed, err)
	}
	secretsIn(t, file, 'b')
	if changed, err := n.Reload(now); !changed || err != nil {
		t.Errorf("what is new: %v %v", changed, err)
	}
	ticket, _ = seals.EncryptTicket(tls.ConnectionState{}, some)
	if s, _ := opens.DecryptTicket(ticket, tls.ConnectionState{}); s != nil {
		t.Error("who has the old file alone opens new tickets")
	}
}

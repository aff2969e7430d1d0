package contract

import (
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/cellgate/cellgate/test/harness"
)

// F2: a client goes on with its TLS session at another node of the cell, over both versions, and at no node of another.
func TestNodesOfACellShareTLSSessions(t *testing.T) {
	doc := harness.WriteFile(t, "doc.yaml", proxyDocument(backend(t), "/v1/orders/{id}"))
	cert, key := edgeFiles(t)
	ours := harness.WriteFile(t, "ours", base64.StdEncoding.EncodeToString([]byte(strings.Repeat("o", 32)))+"\n")
	theirs := harness.WriteFile(t, "theirs", base64.StdEncoding.EncodeToString([]byte(strings.Repeat("t", 32)))+"\n")
	node := func(secrets string) string {
		addr := harness.FreeAddr(t)
		d := harness.Start(t, "proxy", "serve", "--document", doc, "--https", addr, "--cert", cert, "--key", key, "--ticket-secrets", secrets)
		d.WaitHTTP("https://"+addr+"/.well-known/cellgate/ready", 200)
		return addr
	}
	first, second, other := node(ours), node(ours), node(theirs)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		client := &tls.Config{InsecureSkipVerify: true, ServerName: "edge.example", MaxVersion: version, ClientSessionCache: tls.NewLRUClientSessionCache(1)}
		for i, step := range []struct {
			addr    string
			resumes bool
		}{{first, false}, {second, true}, {first, true}, {other, false}, {first, false}, {second, true}} {
			if got := resumed(t, step.addr, client); got != step.resumes {
				t.Errorf("TLS %x, connection %d: resumed %v", version, i, got)
			}
		}
	}
	for says, args := range map[string][]string{
		"needs --https":      {"--http", harness.FreeAddr(t), "--ticket-secrets", ours},
		"1 to 4 lines, each": {"--https", harness.FreeAddr(t), "--cert", cert, "--key", key, "--ticket-secrets", doc},
	} {
		if r := run(t, append([]string{"proxy", "serve", "--document", doc}, args...)...); r.Code == 0 || !strings.Contains(r.Stderr, says) {
			t.Errorf("%v: exit %d, %s", args, r.Code, r.Stderr)
		}
	}
}

// resumed asks once over a new connection, and says whether that went on with a session.
func resumed(t *testing.T, addr string, client *tls.Config) bool {
	t.Helper()
	c, err := tls.Dial("tcp", addr, client)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "GET /.well-known/cellgate/ready HTTP/1.1\r\nHost: edge.example\r\nConnection: close\r\n\r\n")
	if _, err := io.ReadAll(c); err != nil { // tickets come ahead of the answer
		t.Fatal(err)
	}
	return c.ConnectionState().DidResume
}

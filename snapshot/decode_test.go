package snapshot

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

func testdata(t testing.TB, name string) File {
	t.Helper()
	raw, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return File{Name: name, Data: raw}
}

func decodeText(text string) (*Config, []string) {
	cfg, problems := Decode([]File{{"doc.yaml", []byte(text)}}, Allow{})
	var lines []string
	for _, p := range problems {
		lines = append(lines, p.String())
	}
	return cfg, lines
}

func checksum(t interface {
	Helper()
	Fatal(...any)
}, cfg *Config) Digest {
	t.Helper()
	s, err := Seal(cfg, Meta{Number: 1, Created: time.Unix(0, 0)})
	if err != nil {
		t.Fatal(err)
	}
	return s.Manifest.Checksum
}

func TestSpellingsOfOneMeaningHaveOneChecksum(t *testing.T) {
	var sums []Digest
	for _, name := range []string{"design.yaml", "design-flat.yaml"} {
		cfg, problems := Decode([]File{testdata(t, name)}, Allow{})
		if len(problems) > 0 {
			t.Fatalf("%s:\n%v", name, problems)
		}
		sums = append(sums, checksum(t, cfg))
	}
	if sums[0] != sums[1] {
		t.Fatalf("checksums differ: %v", sums)
	}
}

func TestTenFaultsAreAllNamedWithTheirLines(t *testing.T) {
	_, problems := Decode([]File{testdata(t, "ten-faults.yaml")}, Allow{})
	want := []string{
		`ten-faults.yaml:5: routes[0].upstream: there is no upstream "missing-upstream"`,
		`ten-faults.yaml:11: routes[1].timeout: 0 would let no request pass`,
		`ten-faults.yaml:15: routes[2].colour: unknown key`,
		`ten-faults.yaml:20: routes[3].retry.attempts: 3 is not a number of 0 to 2`,
		`ten-faults.yaml:22: routes[4].match.path_prefix: takes every path of the host`,
		`ten-faults.yaml:28: routes[6]: route "six-b" takes the same requests as route "six-a" at ten-faults.yaml:24; they belong to team-b and team-a`,
		`ten-faults.yaml:35: routes[7].auth: there is no policy "missing-policy"`,
		`ten-faults.yaml:41: upstreams[1].endpoints[0]: 169.254.169.254:80 is a link-local`,
		`ten-faults.yaml:43: upstreams[2].endpoints[0]: 127.0.0.1:80 is a loopback address`,
		`ten-faults.yaml:49: policies[0].jwt.jwks: "http://id.example.com/keys" must be https`,
	}
	for i := range max(len(want), len(problems)) {
		if i >= len(want) || i >= len(problems) || !strings.HasPrefix(problems[i].String(), want[i]) {
			t.Fatalf("problem %d differs; got:\n%v", i, problems)
		}
	}
}

func TestLargeDocumentsAreCutWithoutChangingTheirMeaning(t *testing.T) {
	text := manyRoutes(2000, 50)
	whole, problems := Decode([]File{{"a", []byte(text)}}, Allow{})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	d := newDecoder(Allow{})
	d.name = "a"
	d.whole([]byte(text))
	d.references()
	d.conflicts()
	byTree, problems := d.finish()
	if len(problems) > 0 || len(byTree.Routes) != 2000 || checksum(t, whole) != checksum(t, byTree) {
		t.Fatalf("%d routes, %v", len(byTree.Routes), problems)
	}
	chunks, ok := split([]byte(text), chunkBytes)
	if !ok || len(chunks) < 5 {
		t.Fatalf("not cut: %d chunks, %v", len(chunks), ok)
	}
}

// manyRoutes is a document of n flow-style routes over some hosts.
func manyRoutes(n, hosts int) string {
	var b strings.Builder
	b.WriteString("version: v1\nroutes:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - {id: route-%06d, match: {host: host-%04d.example.com, path: \"/v1/service-%d/items/{id}\", methods: [GET, POST]}, upstream: up-%02d, timeout: 800ms, retry: {attempts: 1, conditions: [connect-failure]}, limits: {tenant: 1000/second}, owner: team-%02d}\n", i, i%hosts, i/hosts, i%50, i%40)
	}
	b.WriteString("upstreams:\n")
	for i := range 50 {
		fmt.Fprintf(&b, "  - {id: up-%02d, endpoints: [\"10.0.0.%d:8080\"]}\n", i, i+1)
	}
	return b.String()
}

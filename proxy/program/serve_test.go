package program

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/cellgate/cellgate/snapshot"
)

// largeDocument is about 20 MB of flow-style YAML: n routes as authors write them.
func largeDocument(n int) []byte {
	var b strings.Builder
	b.WriteString("version: v1\nroutes:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - {id: route-%06d, match: {host: host-%04d.example.com, path: \"/v1/service-%d/items/{id}\", methods: [GET, POST]}, "+
			"upstream: up-%02d, timeout: 800ms, retry: {attempts: 1, conditions: [connect-failure]}, limits: {tenant: 1000/second}, owner: team-%02d}\n",
			i, i%2000, i/2000, i%50, i%40)
	}
	b.WriteString("upstreams:\n")
	for i := range 50 {
		fmt.Fprintf(&b, "  - {id: up-%02d, endpoints: [\"10.0.0.%d:8080\"]}\n", i, i+1)
	}
	return []byte(b.String())
}

// BenchmarkServe100k is what a node that serves a document does before it binds its ports: 15 s on one core, 1 GiB.
func BenchmarkServe100k(b *testing.B) {
	data := largeDocument(100_000)
	b.SetBytes(int64(len(data)))
	defer cpu(b)()
	for b.Loop() {
		serve(b, data)
	}
}

func serve(t testing.TB, data []byte) *Program {
	cfg, problems := Validate([]snapshot.File{{Name: "large.yaml", Data: data}}, snapshot.Allow{})
	if len(problems) > 0 {
		t.Fatal(problems[0])
	}
	s, err := snapshot.Seal(cfg, snapshot.Meta{Number: 1})
	if err != nil {
		t.Fatal(err)
	}
	p, err := Compile(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The time is BenchmarkServe100k's to show: it means nothing on a machine that is busy with other tests.
func TestALargeDocumentIsServedInBoundedMemory(t *testing.T) {
	p := serve(t, largeDocument(20_000))
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if p.Routes() != 20_000 || m.Sys > 1<<29 {
		t.Fatalf("%d routes with %d MB", p.Routes(), m.Sys>>20)
	}
}

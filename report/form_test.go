package report

import (
	"bytes"
	"flag"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func node() Node {
	return Node{
		ID: "eu-west/a/1", Boot: "5f0c", Seq: 7, Window: time.Second, Ready: true,
		Snapshot: Snapshot{Known: 42, Stored: 42, Served: 41, Checksum: "ab", Source: SourcePush, Nack: "checksum differs", Since: time.Unix(1790000000, 0).UTC()},
		Counts:   Counts{Requests: 10, Gateway: 1, Upstream: 2, Auth: 3, NoRoute: 4, Limited: 5, Shed: 6},
		Latency:  Sketch{Buckets: []uint32{0, 1, 2}}, Added: Sketch{Buckets: []uint32{3}},
		Connections: 8, InFlight: 9, CPU: time.Millisecond, RSS: 1 << 20,
	}
}

// full is a report with everything that was added to the form since.
func full() Node {
	n := node()
	n.Services = []Stratum{{ID: "orders", Counts: Counts{Requests: 9, Auth: 4}, Cold: 2, Warm: Span{From: 80, Buckets: []uint32{1, 0, 6}}, Heavy: &Counts{Requests: 3, Auth: 3}}}
	n.Hosts = []Stratum{{ID: "api.acme.example", Counts: Counts{Requests: 10, NoRoute: 1}}, {ID: Other, Counts: Counts{Requests: 3, NoRoute: 3}}}
	return n
}

func probes() []Probe {
	return []Probe{{From: "eu-west", Cell: "us-east/a", Node: "us-east/a/1", OK: false, Why: "connection refused", Latency: time.Millisecond}}
}

func TestSentFormsStayReadable(t *testing.T) {
	n, err := EncodeNode(node())
	if err != nil {
		t.Fatal(err)
	}
	p, err := EncodeProbes(probes())
	if err != nil {
		t.Fatal(err)
	}
	strata, err := EncodeNode(full())
	if err != nil {
		t.Fatal(err)
	}
	for file, now := range map[string][]byte{"testdata/node.v1.json": n, "testdata/node.v1.strata.json": strata, "testdata/probes.v1.json": p} {
		if *update {
			if err := os.WriteFile(file, now, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		golden, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(golden, now) {
			t.Errorf("%s: the form changed without a new number:\n%s\n%s", file, golden, now)
		}
	}
	want := node()
	want.Form = Form
	got, err := DecodeNode(n)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("node came back as %+v, %v", got, err)
	}
	want = full()
	want.Form = Form
	if got, err := DecodeNode(strata); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("strata came back as %+v, %v", got, err)
	}
	if back, err := DecodeProbes(p); err != nil || back[0].Why != "connection refused" {
		t.Errorf("probes came back as %+v, %v", back, err)
	}
}

func TestAForeignFormIsRefused(t *testing.T) {
	for _, in := range []string{``, `{}`, `{"form":2,"id":"a/b/1"}`, `{"form":1}`, `[]`, `{"form":1,"id":"x","latency":{"b":[-1]}}`,
		`{"form":1,"id":"x","services":[{"id":""}]}`, `{"form":1,"id":"x","hosts":[` + strings.Repeat(`{"id":"a"},`, MaxStrata) + `{"id":"a"}]}`} {
		if _, err := DecodeNode([]byte(in)); err == nil {
			t.Errorf("%s was read", in)
		}
	}
	for _, in := range []string{``, `{}`, `[{"form":9,"cell":"a/b"}]`, `[{"form":1}]`} {
		if _, err := DecodeProbes([]byte(in)); err == nil {
			t.Errorf("%s was read", in)
		}
	}
}

func FuzzDecode(f *testing.F) {
	n, _ := EncodeNode(node())
	p, _ := EncodeProbes(probes())
	strata, _ := EncodeNode(full())
	f.Add(n)
	f.Add(strata)
	f.Add(p)
	f.Fuzz(func(t *testing.T, in []byte) {
		if n, err := DecodeNode(in); err == nil {
			n.Latency.Merge(n.Added)
			n.Latency.Quantile(0.99)
			for _, s := range n.Services {
				s.Warm.Merge(Span{From: 3, Buckets: []uint32{1}})
				s.Warm.Above(100)
			}
			if _, err := EncodeNode(n); err != nil {
				t.Errorf("what was read can't be written: %v", err)
			}
		}
		if ps, err := DecodeProbes(in); err == nil {
			EncodeProbes(ps)
		}
	})
}

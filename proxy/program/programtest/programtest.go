// Package programtest makes snapshots and programs of documents, for tests.
package programtest

import (
	"testing"
	"time"

	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/snapshot"
)

// Seal makes the snapshot with this number of a document, which may name loopback addresses; a faulty one ends the test.
func Seal(t testing.TB, number uint64, document string) *snapshot.Snapshot {
	t.Helper()
	cfg, problems := snapshot.Decode([]snapshot.File{{Name: "doc.yaml", Data: []byte(document)}}, snapshot.Loopback())
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	s, err := snapshot.Seal(cfg, snapshot.Meta{Number: number, Created: time.Unix(1e9, 0), Author: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Compile makes the program of it.
func Compile(t testing.TB, number uint64, document string) *program.Program {
	t.Helper()
	p, err := program.Compile(Seal(t, number, document), nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

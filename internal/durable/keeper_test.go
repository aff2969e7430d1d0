package durable

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestWhatADiskDidNotTakeIsWrittenOnceItCan(t *testing.T) {
	type kept struct {
		Form int `json:"form"`
		N    int `json:"n"`
	}
	path := filepath.Join(t.TempDir(), "kept.json")
	failed, done, now := 0, 0, time.Unix(1000, 0)
	k := Keeper{Path: path, Failed: func(error) { failed++ }, Done: func() { done++ }}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	k.Put(kept{1, 1}, now)
	must(os.Remove(path))
	must(os.MkdirAll(filepath.Join(path, "in the way"), 0o700))
	k.Put(kept{1, 2}, now)
	k.Put(kept{1, 3}, now)
	for s := range 12 {
		k.Retry(now.Add(time.Duration(s) * time.Second))
	}
	if failed != 2 || done != 0 {
		t.Fatalf("failed %d, done %d", failed, done)
	}
	must(os.RemoveAll(path))
	for s := 12; s < 40; s++ {
		k.Retry(now.Add(time.Duration(s) * time.Second))
	}
	var got kept
	if found, err := ReadForm(path, 1, &got); !found || err != nil || got.N != 3 || done != 1 || failed != 2 {
		t.Fatalf("%+v, %v, done %d, failed %d", got, err, done, failed)
	}
	must(os.Remove(path))
	k.Retry(now.Add(time.Hour))
	if _, err := os.Stat(path); err == nil {
		t.Error("written again although nothing waited")
	}
}

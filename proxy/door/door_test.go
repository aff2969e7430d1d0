package door

import "testing"

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func TestWhoWaitsHearsOfEveryChangeAndOfNothingElse(t *testing.T) {
	var d Door
	if !d.Open() || d.Leaving() || d.Draining() {
		t.Fatal("a new door isn't open")
	}
	first := d.Changed()
	if d.Reconnect(false); closed(first) || d.Changed() != first {
		t.Fatal("no change was announced")
	}
	if d.Reconnect(true); !closed(first) || !d.Leaving() || !d.Open() || d.Draining() {
		t.Fatal("clients that are asked to leave")
	}
	second := d.Changed()
	if d.Drain(); !closed(second) || !d.Draining() || d.Open() {
		t.Fatal("a drain")
	}
	third := d.Changed()
	if d.Drain(); closed(third) {
		t.Fatal("a second drain was announced")
	}
	if d.Succeed(); !d.Open() {
		t.Fatal("a node with a successor takes nobody")
	}
	if d.Reconnect(false); !closed(third) || !d.Leaving() {
		t.Fatal("a drain ends with a reconnect")
	}
}

package tracecontext

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cellgate/cellgate/proxy/http1"
)

const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestTraceparentsAreReadAsTheStandardSays(t *testing.T) {
	for value, want := range map[string]string{
		good:                                 good,
		good[:53] + "00":                     good[:53] + "00",
		good[:53] + "ff":                     good[:53] + "03",
		"01" + good[2:]:                      good,
		"cc" + good[2:] + "-what-will-be":    good,
		"":                                   "",
		good[:54]:                            "",
		good + "0":                           "",
		good + "-more":                       "",
		"01" + good[2:] + "x":                "",
		"ff" + good[2:]:                      "",
		"0g" + good[2:]:                      "",
		"00_" + good[3:]:                     "",
		strings.ToUpper(good):                "",
		strings.Replace(good, "af", "aF", 1): "",
		"00-00000000000000000000000000000000-b7ad6b7169203331-01": "",
		"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01": "",
		" " + good: "",
	} {
		c, ok := Parse([]byte(value))
		got := ""
		if ok {
			got = string(c.AppendParent(nil))
		}
		if got != want || !ok && c != (Context{}) {
			t.Errorf("%q came to %q, not %q", value, got, want)
		}
	}
}

func TestWhatIsWrittenIsReadAndChildrenKeepTheirTrace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id")
		c := New([]byte(hex.EncodeToString(id)), rapid.Uint64().Draw(t, "span"), 0)
		child := c.Child(rapid.Uint64().Draw(t, "child"))
		for _, c := range []Context{c, child} {
			if got, ok := Parse(c.AppendParent(nil)); !ok || got != c {
				t.Fatalf("%x came back as %x, %v", c, got, ok)
			}
		}
		if child.Trace != c.Trace || child.Flags != c.Flags {
			t.Fatal("a child left its trace")
		}
		if !bytes.Equal(c.Trace[:], id) && !bytes.Equal(id, make([]byte, 16)) {
			t.Fatalf("%x is the trace of %x", c.Trace, id)
		}
	})
	if c := New([]byte("no hex"), 0, 0); !c.Valid() || c.Sampled() {
		t.Error("a trace of zeros")
	}
}

func TestTheStateGoesWithItsOwnTraceAlone(t *testing.T) {
	from, _ := Parse([]byte(good))
	child := from.Child(1)
	for fields, want := range map[string]string{
		"":                                       "",
		"Tracestate: a=1\r\n":                    "a=1",
		"Tracestate: a=1\r\nTRACESTATE: b=2\r\n": "a=1,b=2",
		"Tracestate: a=1\r\nTracestate: a=2\r\n": "",
		"Tracestate: a\r\n":                      "",
		"Tracestate: ,\r\n":                      "",
	} {
		var r http1.Request
		if _, err := r.Parse([]byte("GET / HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n")); err != nil {
			t.Fatal(err)
		}
		line := "Traceparent: " + string(child.AppendParent(nil)) + "\r\n"
		if want != "" {
			line += "Tracestate: " + want + "\r\n"
		}
		if got := string(child.AppendLines([]byte("x\r\n"), from, &r.Head)); got != "x\r\n"+line {
			t.Errorf("%q: %q", fields, got)
		}
		other := New([]byte("00000000000000000000000000000007"), 1, 0)
		if got := string(other.AppendLines(nil, from, &r.Head)); strings.Contains(got, "Tracestate") || strings.Contains(got, "0af76519") {
			t.Errorf("%q: %q", fields, got)
		}
		if kept := string(r.AppendFields(nil)); kept != "" {
			t.Errorf("the client's own fields pass: %q", kept)
		}
	}
}

func TestTracestatesAreReadAsTheStandardSays(t *testing.T) {
	many := ""
	for i := range 40 {
		many += fmt.Sprintf("k%d=v,", i)
	}
	for _, c := range []struct {
		lines []string
		want  string
		ok    bool
	}{
		{nil, "", true},
		{[]string{"congo=t61rcWkgMzE", "rojo=00f067aa0ba902b7"}, "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7", true},
		{[]string{" a=1 ,, \t b@c=2,"}, "a=1,b@c=2", true},
		{[]string{"a=x y"}, "a=x y", true},
		{[]string{"a=1", "a=2"}, "", false},
		{[]string{"a=1,ab=2,b=3"}, "a=1,ab=2,b=3", true},
		{[]string{"A=1"}, "", false},
		{[]string{"_a=1"}, "", false},
		{[]string{"a"}, "", false},
		{[]string{"a="}, "", false},
		{[]string{"a=b=c"}, "", false},
		{[]string{"a=\x7f"}, "", false},
		{[]string{"a=é"}, "", false},
		{[]string{strings.Repeat("k", 257) + "=1"}, "", false},
		{[]string{"a=" + strings.Repeat("v", 257)}, "", false},
		{[]string{"a=" + strings.Repeat("v", 250), "b=" + strings.Repeat("v", 250), "c=" + strings.Repeat("v", 10), "d=1"},
			"a=" + strings.Repeat("v", 250) + ",b=" + strings.Repeat("v", 250) + ",d=1", true},
		{[]string{many}, strings.TrimSuffix(many[:strings.Index(many, "k32=")], ","), true},
	} {
		var got []byte
		ok := true
		for _, l := range c.lines {
			if got, ok = AppendState(got, []byte(l)); !ok {
				break
			}
		}
		if ok != c.ok || ok && string(got) != c.want {
			t.Errorf("%q came to %q, %v", c.lines, got, ok)
		}
	}
}

func TestAttemptsHaveSpansOfTheirOwn(t *testing.T) {
	c, _ := Parse([]byte(good))
	seen := map[[8]byte]bool{}
	for n := range uint8(200) {
		a := c.Attempt(n)
		if !a.Valid() || a.Trace != c.Trace || a.Flags != c.Flags || seen[a.Span] || (a == c) != (n == 0) || a != c.Attempt(n) {
			t.Fatalf("attempt %d is %x", n, a)
		}
		seen[a.Span] = true
	}
}

func TestAShareOfTracesIsTakenByTheirRandomBits(t *testing.T) {
	random, taken := rand.New(rand.NewPCG(1, 2)), 0
	for range 100_000 {
		var c Context
		binary.BigEndian.PutUint64(c.Trace[8:], random.Uint64())
		small, large := RatioOf(0.01).Takes(c), RatioOf(0.02).Takes(c)
		if small {
			taken++
		}
		if small && !large || RatioOf(0).Takes(c) || Ratio(0).Takes(c) || !RatioOf(1).Takes(c) {
			t.Fatalf("%x: %v of 1%%, %v of 2%%", c.Trace, small, large)
		}
	}
	if taken < 850 || taken > 1150 {
		t.Errorf("%d of 100,000 are 1%%", taken)
	}
}

func TestNothingAllocates(t *testing.T) {
	room := make([]byte, 0, 1024)
	parent, state := []byte(good), []byte("congo=t61rcWkgMzE,rojo=00f067aa0ba902b7")
	if n := testing.AllocsPerRun(100, func() {
		c, ok := Parse(parent)
		out, fine := AppendState(room, state)
		if out = c.Child(7).AppendParent(out); !ok || !fine || len(out) != len(state)+Length {
			t.Fatal("unread")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzWhatPassesIsSafeInAFieldLine(f *testing.F) {
	f.Add([]byte(good), []byte("a=1,b=2"))
	f.Add([]byte("ff-"), []byte("a=1\r\nx: y"))
	f.Fuzz(func(t *testing.T, parent, state []byte) {
		if c, ok := Parse(parent); ok && (!c.Valid() || len(c.AppendParent(nil)) != Length) {
			t.Fatalf("%q is taken", parent)
		}
		out, ok := AppendState(nil, state)
		if !ok {
			return
		}
		if again, ok := AppendState(nil, out); !ok || !bytes.Equal(again, out) || len(out) > maxState || bytes.ContainsAny(out, "\r\n\x00") {
			t.Fatalf("%q came to %q", state, out)
		}
	})
}

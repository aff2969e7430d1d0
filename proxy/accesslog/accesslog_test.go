package accesslog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/reason"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func typical() *proxy.Record {
	return &proxy.Record{
		Start: time.Unix(1_800_000_000, 123e6), Total: 1234567, Upstream: time.Millisecond, RequestID: "018f6a52-7d3c-7b1e-9e57-2f5be9a1c001",
		Peer: netip.MustParseAddr("203.0.113.217"), Protocol: "HTTP/2.0", TLS: true, Method: "GET", Host: "api.example.com",
		Path: "/v1/orders/7654321", Status: 429, Reason: reason.RateConsumer, Snapshot: 42, Tenant: "acme", Route: "orders-read", Owner: "team-orders",
		UpstreamID: "orders-read", Endpoint: "10.0.0.7:8080", Attempts: 1, User: "auth0|0123456789abcdef01234567", Consumer: "acme-mobile", BytesIn: 1 << 20, BytesOut: 1 << 20,
	}
}

func TestALineIsOneJSONObjectOfAtMost500Bytes(t *testing.T) {
	line := new(scratch).write(typical())
	var m map[string]any
	if err := json.Unmarshal(line, &m); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	if len(line) > 500 || m["ms"] != 1.235 || m["reason"] != "rate_consumer" || m["time"] != "2027-01-15T08:00:00.123Z" {
		t.Errorf("%d bytes: %s", len(line), line)
	}
	tunnel := typical()
	tunnel.Status, tunnel.Reason, tunnel.Open = 101, reason.None, 90*time.Second
	if line := new(scratch).write(tunnel); !bytes.Contains(line, []byte(`"status":101,`)) || !bytes.Contains(line, []byte(`"ms":1.235,"open_ms":90000.000,`)) || len(line) > 500 {
		t.Errorf("%d bytes: %s", len(line), line)
	}
	empty := new(scratch).write(&proxy.Record{})
	if err := json.Unmarshal(empty, &m); err != nil {
		t.Errorf("%s: %v", empty, err)
	}
}

func FuzzNoClientCanBreakOrForgeALine(f *testing.F) {
	f.Add("/a\"}\n{\"x\":\"", "GET", "h\xff\u2028")
	f.Fuzz(func(t *testing.T, path, method, host string) {
		r := typical()
		r.Path, r.Method, r.Host = path, method, host
		line := new(scratch).write(r)
		if bytes.Count(line, []byte("\n")) != 1 || !utf8.Valid(line) || len(line) > 2500 {
			t.Fatalf("%q", line)
		}
		dec := json.NewDecoder(bytes.NewReader(line))
		var m map[string]any
		if err := dec.Decode(&m); err != nil || m["status"] != 429.0 {
			t.Fatalf("%q: %v", line, err)
		}
	})
}

func run(t *testing.T, l *Log, do func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- l.Run(ctx) }()
	do()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestARotatedFileIsReopenedAndNothingIsLost(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	if err := os.WriteFile(path, []byte("before\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	run(t, l, func() {
		l.Record(typical())
		if err := os.Rename(path, path+".1"); err != nil {
			t.Fatal(err)
		}
		l.Reopen()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			if _, err := os.Stat(path); err == nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("not reopened")
			}
		}
		l.Record(typical())
	})
	old, _ := os.ReadFile(path + ".1")
	now, _ := os.ReadFile(path)
	if !strings.HasPrefix(string(old), "before\n") || bytes.Count(old, []byte("\n")) != 2 || bytes.Count(now, []byte("\n")) != 1 {
		t.Errorf("old %q, new %q", old, now)
	}
	if _, err := Open(filepath.Join(path, "below"), nil); err == nil {
		t.Error("opened below a file")
	}
}

// stuck is a file that blocks or fails.
type stuck struct {
	wait chan struct{}
	err  error
	io.Writer
}

func (s *stuck) Write(b []byte) (int, error) {
	<-s.wait
	if s.err != nil {
		return 0, s.err
	}
	return s.Writer.Write(b)
}

func TestAStuckFileDropsAndCountsAndNeverBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		l := newLog("-", nil)
		file := &stuck{wait: make(chan struct{}), Writer: &out}
		l.out = file
		const n = 40_000
		run(t, l, func() {
			l.Record(typical())
			time.Sleep(time.Second)
			for range n {
				l.Record(typical())
			}
			if l.Dropped() == 0 || l.Lines()+l.Dropped() != n+1 {
				t.Errorf("%d accepted, %d dropped", l.Lines(), l.Dropped())
			}
			if len(l.waiting) > buffer {
				t.Errorf("%d bytes wait", len(l.waiting))
			}
			close(file.wait)
			time.Sleep(time.Second)
		})
		if got := uint64(bytes.Count(out.Bytes(), []byte("\n"))); got != l.Lines() {
			t.Errorf("%d lines written of %d", got, l.Lines())
		}
	})
}

func TestLinesLostToAFailingFileAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog("-", nil)
		l.out = &stuck{wait: closed(), err: errors.New("no space left on device")}
		run(t, l, func() {
			for range 7 {
				l.Record(typical())
			}
			time.Sleep(time.Second)
		})
		if l.Dropped() != 7 {
			t.Errorf("%d dropped", l.Dropped())
		}
	})
}

func closed() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func TestRecordDoesNotAllocate(t *testing.T) {
	l := newLog("-", nil)
	l.waiting = make([]byte, 0, buffer)
	r := typical()
	if n := testing.AllocsPerRun(1000, func() { l.Record(r) }); n > allocsAllowed {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkRecord(b *testing.B) {
	r, s := typical(), new(scratch)
	b.ReportAllocs()
	for b.Loop() {
		s.write(r)
	}
}

func TestEveryByteThatDoesNotStandForItselfIsFoundWhereverItIs(t *testing.T) {
	const all = `abcdefgh!#[]~ 0zABC`
	for at := range len(all) {
		for c := range 256 {
			s := all[:at] + string([]byte{byte(c)}) + all[at:]
			want := at
			if c >= 0x20 && c < 0x7f && c != '"' && c != '\\' {
				want = len(s)
			}
			if got := harmless(s); got != want {
				t.Fatalf("%q: %d, not %d", s, got, want)
			}
		}
	}
}

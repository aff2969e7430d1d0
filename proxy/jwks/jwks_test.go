package jwks

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	jose "github.com/go-jose/go-jose/v4"
	"go.uber.org/goleak"

	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/snapshot"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const theURL = "https://id.example.com/keys"

func document(kids ...string) []byte {
	var set jose.JSONWebKeySet
	for _, kid := range kids {
		k, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: &k.PublicKey, KeyID: kid})
	}
	doc, _ := json.Marshal(set)
	return doc
}

// fake is a provider: what it answers is set by the test, how often it was asked is counted.
type fake struct {
	mu    sync.Mutex
	say   answer
	count int
}

type answer struct {
	doc  []byte
	err  error
	slow time.Duration
}

// says makes a provider that answers so.
func says(a answer) *fake { return &fake{say: a} }

// now changes the answer and counts anew.
func (f *fake) now(a answer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.say, f.count = a, 0
}

func (f *fake) asked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count
}

func (f *fake) fetch(ctx context.Context, _ string) ([]byte, error) {
	f.mu.Lock()
	f.count++
	a := f.say
	f.mu.Unlock()
	select {
	case <-time.After(a.slow):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return a.doc, a.err
}

// bubble runs a pool with one provider in virtual time.
func bubble(t *testing.T, f *fake, dir string, do func(p *Pool)) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Options{Dir: dir, Fetch: f.fetch})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Run(ctx) }()
		p.Want([]string{theURL})
		synctest.Wait()
		do(p)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestAMillionRandomKidsCauseOneFetchAMinute(t *testing.T) {
	f := says(answer{doc: document("a")})
	bubble(t, f, "", func(p *Pool) {
		before, start := f.asked(), time.Now()
		for range 1_000_000 / 1000 {
			for range 1000 {
				p.Refetch(theURL)
			}
			time.Sleep(180 * time.Millisecond)
		}
		minutes := int(time.Since(start)/time.Minute) + 1
		if n := f.asked() - before; n > minutes {
			t.Errorf("%d fetches in %d minutes", n, minutes)
		}
	})
}

func TestUnknownKidWaitsForTheOneSharedFetch(t *testing.T) {
	f := says(answer{doc: document("a")})
	bubble(t, f, "", func(p *Pool) {
		time.Sleep(2 * time.Minute)
		f.now(answer{doc: document("a", "b"), slow: 200 * time.Millisecond})
		start := time.Now()
		first, second := p.Refetch(theURL), p.Refetch(theURL)
		if first == nil || first != second {
			t.Fatal("no shared wait")
		}
		<-first
		if took := time.Since(start); took != 200*time.Millisecond || f.asked() != 1 || p.Keys(theURL).Len() != 2 {
			t.Errorf("after %v: %d fetches, %d keys", took, f.asked(), p.Keys(theURL).Len())
		}
		if p.Refetch(theURL) != nil {
			t.Error("a second fetch within the minute")
		}
	})
}

func TestNobodyWaitsLongerThanHalfASecondAndFailuresAreCached(t *testing.T) {
	f := says(answer{doc: document("a")})
	bubble(t, f, "", func(p *Pool) {
		time.Sleep(2 * time.Minute)
		f.now(answer{err: errors.New("down"), slow: time.Hour})
		start := time.Now()
		<-p.Refetch(theURL)
		if took := time.Since(start); took != Wait {
			t.Errorf("waited %v", took)
		}
		if p.Refetch(theURL) != nil {
			t.Error("a fetch that hangs is waited for again")
		}
		time.Sleep(timeout)
		if p.Refetch(theURL) != nil {
			t.Error("a failure is not cached")
		}
		if p.Keys(theURL).Len() != 1 {
			t.Error("the last good keys are lost")
		}
	})
}

func TestKeysAreRefreshedEveryTenMinutesAndTheLastGoodOnesKept(t *testing.T) {
	f := says(answer{doc: document("a")})
	bubble(t, f, "", func(p *Pool) {
		good := p.Keys(theURL)
		time.Sleep(time.Hour)
		if n := f.asked(); n < 6 || n > 7 {
			t.Errorf("%d fetches in an hour", n)
		}
		if p.Keys(theURL) != good {
			t.Error("the same keys are a new set")
		}
		for _, bad := range []answer{{err: errors.New("down")}, {doc: []byte("<html>")}, {doc: []byte(`{"keys":[]}`)}} {
			f.now(bad)
			time.Sleep(time.Hour)
			if p.Keys(theURL) != good {
				t.Errorf("%s %v replaced good keys", bad.doc, bad.err)
			}
			if n := f.asked(); n < 20 || n > 90 {
				t.Errorf("%d fetches in an hour of failures", n)
			}
		}
		f.now(answer{doc: document("b")})
		time.Sleep(2 * time.Minute)
		if p.Keys(theURL) == good {
			t.Error("a provider that came back is not noticed")
		}
	})
}

func TestKeysSurviveARestartWithoutTheProvider(t *testing.T) {
	dir := t.TempDir()
	bubble(t, says(answer{doc: document("a")}), dir, func(*Pool) {})
	bubble(t, says(answer{err: errors.New("down")}), dir, func(p *Pool) {
		if k := p.Keys(theURL); k == nil || k.Len() != 1 {
			t.Fatal("no keys after a restart")
		}
	})
	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	for _, f := range files {
		_ = os.WriteFile(f, []byte(`{"form":1,"url":"`+theURL+`","document":{"keys":`), 0o600)
	}
	bubble(t, says(answer{err: errors.New("down")}), dir, func(p *Pool) {
		if p.Keys(theURL) != nil {
			t.Error("keys from a torn file")
		}
	})
}

func TestKeysThatCouldNotBeStoredAreStoredLater(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "full")
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	bubble(t, says(answer{doc: document("a")}), dir, func(*Pool) {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * Keep)
	})
	bubble(t, says(answer{err: errors.New("down")}), dir, func(p *Pool) {
		if p.Keys(theURL) == nil {
			t.Error("no keys after a restart")
		}
	})
}

func TestAKeyThatIsNewerThanTheStoredOnesIsFetchedAtOnce(t *testing.T) {
	dir := t.TempDir()
	bubble(t, says(answer{doc: document("a")}), dir, func(*Pool) {})
	f := says(answer{doc: document("a", "b"), slow: 100 * time.Millisecond})
	bubble(t, f, dir, func(p *Pool) {
		start := time.Now()
		<-p.Refetch(theURL)
		if took := time.Since(start); took != 100*time.Millisecond || p.Keys(theURL).Len() != 2 {
			t.Errorf("after %v: %d keys", took, p.Keys(theURL).Len())
		}
		if p.Refetch(theURL) != nil || f.asked() != 1 {
			t.Errorf("%d fetches, or one more within the minute", f.asked())
		}
	})
}

func TestProvidersThatNobodyWantsAreForgotten(t *testing.T) {
	f := says(answer{doc: document("a")})
	bubble(t, f, "", func(p *Pool) {
		same := p.Keys(theURL)
		for range 2000 {
			p.Want([]string{theURL, theURL, "https://other.example.com/"})
			p.Want([]string{theURL})
		}
		if p.Keys(theURL) != same || p.Keys("https://other.example.com/") != nil {
			t.Error("what stays is not what was")
		}
		p.Want(nil)
		synctest.Wait()
		before := f.asked()
		time.Sleep(time.Hour)
		if f.asked() != before || p.Keys(theURL) != nil || p.Refetch(theURL) != nil {
			t.Error("a provider that is not wanted is still fetched")
		}
	})
}

func TestFetcherKeepsToTheHostTheSchemeTheSizeAndPermittedAddresses(t *testing.T) {
	good := document("a")
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(good) }))
	defer other.Close()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/good":
			_, _ = w.Write(good)
		case "/same":
			http.Redirect(w, r, "/good", http.StatusFound)
		case "/other":
			http.Redirect(w, r, other.URL, http.StatusFound)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/large":
			_, _ = w.Write([]byte(strings.Repeat(" ", auth.MaxKeySet+1)))
		default:
			w.WriteHeader(http.StatusBadGateway)
		}
	}))
	defer srv.Close()
	loop := Fetcher(snapshot.Loopback())
	for path, want := range map[string]bool{"/good": true, "/same": true, "/other": false, "/loop": false, "/large": false, "/down": false} {
		if _, err := loop(t.Context(), srv.URL+path); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
	plainOnly := Fetcher(snapshot.Allow{PlainURLs: true, Upstreams: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	for name, err := range map[string]error{
		"loopback":          second(plainOnly(t.Context(), srv.URL+"/good")),
		"plain elsewhere":   second(loop(t.Context(), "http://10.255.255.1/keys")),
		"plain not allowed": second(Fetcher(snapshot.Allow{})(t.Context(), srv.URL+"/good")),
		"metadata":          second(loop(t.Context(), "https://169.254.169.254/")),
		"file":              second(loop(t.Context(), "file:///etc/passwd")),
	} {
		if err == nil || strings.Contains(err.Error(), "timeout") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second(_ []byte, err error) error { return err }

func TestKeysDoesNotAllocate(t *testing.T) {
	p := New(Options{})
	p.Want([]string{theURL})
	if n := testing.AllocsPerRun(100, func() { p.Keys(theURL) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

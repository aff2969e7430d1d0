package callers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cellgate/cellgate/apikey"
	"github.com/cellgate/cellgate/denylist"
	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/ask"
	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// region is a controller that knows some keys.
type region struct {
	mu    sync.Mutex
	gone  bool // not attached
	mute  bool // attached, and gives no answer
	owner map[string]string
	asked int
}

func (r *region) Connected() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.gone
}

func (r *region) FindKey(_ context.Context, hashes []string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	if r.mute {
		return "", errors.New("no answer")
	}
	for _, h := range hashes {
		if c := r.owner[h]; c != "" {
			return c, nil
		}
	}
	return "", nil
}

func (r *region) questions() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked
}

// keyed is a node before a region that knows one key of acme.
type keyed struct {
	t   testing.TB
	a   *Authenticator
	p   *program.Program
	at  *region
	now time.Time
}

func newKeyed(t testing.TB, owner map[string]string) *keyed {
	services := ask.New(ask.Options{})
	t.Cleanup(services.Close)
	w := &keyed{t: t, a: NewAuthenticator(Sources{Services: services}, start), p: theProgram(t), at: &region{owner: owner}, now: time.Now()}
	w.a.AskRegion(w.at)
	return w
}

func newKey() string {
	key, _ := apikey.New(rand.Reader)
	return key
}

func (w *keyed) comes(key string) (reason.Reason, proxy.Identity) {
	w.t.Helper()
	var id proxy.Identity
	c := &proxy.Credentials{Program: w.p, Policy: &w.p.Policies[2], Tenant: "t", APIKey: []byte(key), Peer: netip.MustParseAddr("127.0.0.1")}
	why, wait := w.a.Authenticate(c, &id, w.now)
	if wait != nil {
		<-wait
		if why, wait = w.a.Authenticate(c, &id, w.now); wait != nil {
			w.t.Fatal("an exchange waits twice")
		}
	}
	return why, id
}

// holds says what one request comes to, and after how many questions.
func (w *keyed) holds(what, key string, want reason.Reason, asks int) {
	w.t.Helper()
	before := w.at.questions()
	why, id := w.comes(key)
	if n := w.at.questions() - before; why != want || n != asks || (id.Consumer == "acme") != (why == reason.None) {
		w.t.Errorf("%s: %v for %q after %d questions, want %v after %d", what, why, id.Consumer, n, want, asks)
	}
}

func listOf(at time.Time, consumer string, keys ...string) *apikey.List {
	l := &apikey.List{Form: apikey.Form, At: at, Consumers: []apikey.Consumer{{ID: consumer}}}
	for i, key := range keys {
		l.Consumers[0].Hashes = append(l.Consumers[0].Hashes, apikey.Algorithm(i%int(apikey.Algorithms)).Of([]byte(key)).String())
	}
	return l
}

func TestAnIssuedKeyIsLookedUpUntilItIsPushed(t *testing.T) {
	pushed, half, fresh := newKey(), newKey(), newKey()
	w := newKeyed(t, map[string]string{apikey.SHA512_256.Of([]byte(fresh)).String(): "acme"})
	if err := w.a.Issue(listOf(w.now, "acme", pushed, half)); err != nil {
		t.Fatal(err)
	}
	w.holds("pushed", pushed, reason.None, 0)
	w.holds("pushed, by the other algorithm", half, reason.None, 0)
	w.holds("not pushed yet", fresh, reason.None, 1)
	w.holds("known now", fresh, reason.None, 0)
	w.now = w.now.Add(59 * time.Second)
	w.holds("known for a minute", fresh, reason.None, 0)
	w.now = w.now.Add(2 * time.Second)
	w.holds("and no longer", fresh, reason.None, 1)

	none := newKey()
	w.holds("nobody's", none, reason.KeyInvalid, 1)
	w.holds("still nobody's", none, reason.KeyInvalid, 0)
	w.now = w.now.Add(11 * time.Second)
	w.holds("asked about again", none, reason.KeyInvalid, 1)
	for _, bad := range []string{"cg_wrong", none[:len(none)-1] + "!", none + "0"} {
		w.holds("a slip", bad, reason.KeyInvalid, 0)
	}
	if err := w.a.Issue(&apikey.List{Consumers: []apikey.Consumer{{ID: "a", Hashes: []string{"x"}}}}); err == nil {
		t.Error("a list with a bad hash is taken")
	}
	w.holds("pushed as before", pushed, reason.None, 0)
}

func TestAKeyOfAConsumerThatTheVersionDoesNotHaveIsInvalid(t *testing.T) {
	pushed, fresh := newKey(), newKey()
	w := newKeyed(t, map[string]string{apikey.SHA256.Of([]byte(fresh)).String(): "gone"})
	if err := w.a.Issue(listOf(w.now, "gone", pushed)); err != nil {
		t.Fatal(err)
	}
	w.holds("pushed", pushed, reason.KeyInvalid, 0)
	w.holds("looked up", fresh, reason.KeyInvalid, 1)
}

func TestWithoutAControllerUnknownKeysAre503AndOthersAreJudged(t *testing.T) {
	known, fresh := newKey(), newKey()
	w := newKeyed(t, map[string]string{apikey.SHA256.Of([]byte(fresh)).String(): "acme"})
	if err := w.a.Issue(listOf(w.now, "acme", known)); err != nil {
		t.Fatal(err)
	}
	w.at.gone = true
	w.holds("not attached", fresh, reason.AuthUnavailable, 0)
	w.at.gone, w.at.mute = false, true
	w.holds("no answer", fresh, reason.AuthUnavailable, 1)
	w.holds("no answer is remembered", fresh, reason.AuthUnavailable, 1)
	w.holds("a known key", known, reason.None, 0)
	w.holds("a document's key", "cg_acme", reason.None, 0)
	w.holds("a slip", "cg_wrong", reason.KeyInvalid, 0)
	w.at.mute = false
	w.holds("back", fresh, reason.None, 1)
	w.a.AskRegion(nil)
	w.holds("a node that serves a document alone", newKey(), reason.KeyInvalid, 0)
}

func TestADenialAndARevocationEndWhatWasLookedUp(t *testing.T) {
	fresh := newKey()
	hash := apikey.SHA256.Of([]byte(fresh)).String()
	w := newKeyed(t, map[string]string{hash: "acme"})
	w.holds("not pushed yet", fresh, reason.None, 1)
	w.a.Deny(denylist.Compile([]denylist.Entry{{Kind: denylist.Key, ID: hash}}))
	w.holds("denied", fresh, reason.Denied, 0)
	w.a.Deny(nil)
	w.holds("permitted", fresh, reason.None, 1)
	w.a.Deny(denylist.Compile([]denylist.Entry{{Kind: denylist.User, ID: "mallory"}}))
	w.holds("a push of denials", fresh, reason.None, 1)
	w.at.owner = nil
	if err := w.a.Issue(&apikey.List{Form: apikey.Form, At: w.now}); err != nil {
		t.Fatal(err)
	}
	w.holds("revoked", fresh, reason.KeyInvalid, 1)

	// An answer that was under way during the push is not kept.
	key := newKey()
	w.at.owner = map[string]string{apikey.SHA256.Of([]byte(key)).String(): "acme"}
	turn := w.a.issued.turn.Load()
	w.a.issued.forget()
	w.a.issued.keep([32]byte{1}, "acme", turn, w.now.UnixNano())
	if v, _ := w.a.issued.found.Get([32]byte{1}, w.now.UnixNano()); v != nil {
		t.Error("an answer from before the push is kept")
	}
}

// A flood of made-up keys whose checks are right costs ten questions a second, no memory, and nobody who is known.
func TestAFloodOfMadeUpKeysAsksTenTimesASecond(t *testing.T) {
	good := newKey()
	w := newKeyed(t, map[string]string{apikey.SHA256.Of([]byte(good)).String(): "acme"})
	w.holds("good", good, reason.None, 1)
	flood := make([]string, 1000)
	for i := range flood {
		flood[i] = newKey()
	}
	began, before, heap := time.Now(), w.at.questions(), heapNow()
	var id proxy.Identity
	const n = 20_000
	for i := range n {
		c := &proxy.Credentials{Program: w.p, Policy: &w.p.Policies[2], Tenant: fmt.Sprint(i / len(flood)), APIKey: []byte(flood[i%len(flood)])}
		if why, wait := w.a.Authenticate(c, &id, w.now); wait == nil && why != reason.KeyInvalid {
			t.Fatalf("made up, and beyond what may be asked: %v", why)
		}
	}
	most := 10 + int(10*time.Since(began).Seconds())
	if asked := w.at.questions() - before; asked > most {
		t.Errorf("%d questions for %d keys, at most %d", asked, n, most)
	}
	if grown := heapNow() - heap; grown > 1<<20 {
		t.Errorf("%d bytes more after %d keys", grown, n)
	}
	w.holds("good as ever", good, reason.None, 0)
}

func heapNow() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestKnownKeysDontAllocate(t *testing.T) {
	pushed, fresh, none := newKey(), newKey(), newKey()
	w := newKeyed(t, map[string]string{apikey.SHA256.Of([]byte(fresh)).String(): "acme"})
	if err := w.a.Issue(listOf(w.now, "acme", pushed)); err != nil {
		t.Fatal(err)
	}
	for what, key := range map[string]string{"pushed": pushed, "looked up": fresh, "nobody's": none, "a slip": "cg_wrong", "a document's": "cg_acme"} {
		w.comes(key)
		var id proxy.Identity
		c := &proxy.Credentials{Program: w.p, Policy: &w.p.Policies[2], Tenant: "t", APIKey: []byte(key)}
		if n := testing.AllocsPerRun(100, func() { w.a.Authenticate(c, &id, w.now) }); n > 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
}

// 20,000 consumers with two keys each fit in 20 MB (G3), whether documents or operators gave them.
func TestKeysOfManyConsumersAreSmall(t *testing.T) {
	w := newKeyed(t, nil)
	before := heapNow()
	list, written := &apikey.List{Form: apikey.Form, At: w.now}, []snapshot.Consumer{}
	for i := range 20_000 {
		id := fmt.Sprintf("consumer-%05d", i)
		hashes := []string{apikey.SHA256.Of([]byte(id)).String(), apikey.SHA256.Of([]byte(id + "b")).String()}
		list.Consumers = append(list.Consumers, apikey.Consumer{ID: id, Hashes: hashes})
		written = append(written, snapshot.Consumer{ID: id, APIKeyHashes: []string{apikey.SHA256.Of([]byte(id + "c")).String()}})
	}
	if err := w.a.Issue(list); err != nil {
		t.Fatal(err)
	}
	table, err := auth.NewKeyTable(written)
	if err != nil {
		t.Fatal(err)
	}
	list, written = nil, nil
	grown := heapNow() - before
	t.Logf("%d KiB", grown>>10)
	if grown > 20e6 {
		t.Errorf("%d bytes", grown)
	}
	runtime.KeepAlive(table)
	runtime.KeepAlive(w)
}

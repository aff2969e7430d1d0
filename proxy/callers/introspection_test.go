package callers

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cellgate/cellgate/denylist"
	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/ask"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/proxy/secrets"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// opaqueWorld is a node before one provider.
type opaqueWorld struct {
	t     *testing.T
	a     *Authenticator
	p     *program.Program
	says  atomic.Pointer[string]
	asked atomic.Int64
	now   time.Time
}

const down = "down"

func newOpaqueWorld(t *testing.T, p snapshot.Introspection) *opaqueWorld {
	w := &opaqueWorld{t: t, now: time.Now()}
	srv := httptest.NewServer(http.HandlerFunc(func(to http.ResponseWriter, _ *http.Request) {
		w.asked.Add(1)
		if *w.says.Load() == down {
			to.WriteHeader(500)
			return
		}
		to.Header().Set("Content-Type", "application/json")
		fmt.Fprint(to, *w.says.Load())
	}))
	services := ask.New(ask.Options{Allow: snapshot.Loopback()})
	t.Cleanup(func() { services.Close(); srv.Close() })
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "s"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.URL, p.ClientID, p.ClientSecretFile, p.Timeout, p.PerSecond = srv.URL, "gw", "s", 10*time.Second, 1000
	policies := []snapshot.Policy{{ID: "opaque", Introspection: &p}}
	store := secrets.New(dir, slog.New(slog.DiscardHandler))
	if err := store.Want(Needs(policies)); err != nil {
		t.Fatal(err)
	}
	identity, err := program.CompileIdentity(policies, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.p = &program.Program{Policies: policies, Identity: identity}
	w.a = NewAuthenticator(Sources{Services: services, Secrets: store}, start)
	return w
}

// comes is one request: it waits when it is told to, once.
func (w *opaqueWorld) comes(tenant, token string) (reason.Reason, proxy.Identity, *proxy.Credentials) {
	w.t.Helper()
	var id proxy.Identity
	c := &proxy.Credentials{Program: w.p, Policy: &w.p.Policies[0], Tenant: tenant, Authorization: []byte("Bearer " + token)}
	why, wait := w.a.Authenticate(c, &id, w.now)
	if wait != nil {
		<-wait
		if why, wait = w.a.Authenticate(c, &id, w.now); wait != nil {
			w.t.Fatal("an exchange waits twice")
		}
	}
	return why, id, c
}

// holds says what one request comes to, and after how many questions.
func (w *opaqueWorld) holds(what, token, says string, want reason.Reason, asks int64) {
	w.t.Helper()
	w.says.Store(&says)
	before := w.asked.Load()
	if why, _, _ := w.comes("t", token); why != want || w.asked.Load()-before != asks {
		w.t.Errorf("%s: %v after %d questions, want %v after %d", what, why, w.asked.Load()-before, want, asks)
	}
}

const active, inactive = `{"active":true,"sub":"alice","iss":"i","jti":"j"}`, `{"active":false}`

func TestWhatAProviderSaidHoldsForItsTime(t *testing.T) {
	w := newOpaqueWorld(t, snapshot.Introspection{})
	w.holds("unknown", "a", active, reason.None, 1)
	w.holds("known", "a", inactive, reason.None, 0)
	w.holds("refused", "b", inactive, reason.TokenInvalid, 1)
	w.holds("still refused", "b", active, reason.TokenInvalid, 0)
	w.now = w.now.Add(6 * time.Second)
	w.holds("refused long ago", "b", active, reason.None, 1)
	w.now = w.now.Add(40 * time.Second)
	w.holds("known long ago", "a", inactive, reason.TokenInvalid, 1)
	if _, id, _ := w.comes("t", "b"); id.User != "" {
		t.Errorf("a refused caller is %+v", id)
	}
}

func TestProvidersAreAskedAnewWhenTheClockIsSetBack(t *testing.T) {
	w := newOpaqueWorld(t, snapshot.Introspection{})
	w.holds("unknown", "a", active, reason.None, 1)
	w.holds("refused", "b", inactive, reason.TokenInvalid, 1)
	w.now = w.now.Add(-time.Hour)
	w.holds("revoked since", "a", inactive, reason.TokenInvalid, 1)
	w.holds("active since", "b", active, reason.None, 1)
}

func TestNothingHoldsBeyondTheTokensEnd(t *testing.T) {
	w := newOpaqueWorld(t, snapshot.Introspection{StaleOK: 5 * time.Minute})
	ends := w.now.Add(10 * time.Second)
	w.holds("unknown", "a", fmt.Sprintf(`{"active":true,"sub":"alice","exp":%d}`, ends.Unix()), reason.None, 1)
	w.now = time.Unix(ends.Unix(), 0)
	w.holds("ended, and the provider is gone", "a", down, reason.AuthUnavailable, 1)
}

func TestASecretThatANewerProgramTakesForSomethingElseIsNone(t *testing.T) {
	w := newOpaqueWorld(t, snapshot.Introspection{})
	if err := w.a.secrets.Want(other("s")); err != nil {
		t.Fatal(err)
	}
	w.holds("unknown", "a", active, reason.AuthUnavailable, 0)
}

// Providers say "never" in years that nanoseconds don't reach; such a token is known for as long as others are.
func TestATokenThatNeverEndsIsKnown(t *testing.T) {
	w := newOpaqueWorld(t, snapshot.Introspection{})
	w.holds("unknown", "a", `{"active":true,"sub":"alice","exp":253402300799}`, reason.None, 1)
	w.holds("known", "a", inactive, reason.None, 0)
}

func TestAProviderThatIsGoneLetsNobodyInWhoIsNotKnown(t *testing.T) {
	w := newOpaqueWorld(t, snapshot.Introspection{})
	w.holds("unknown", "a", down, reason.AuthUnavailable, 1)
	w.holds("torn", "a", `{"active":tr`, reason.AuthUnavailable, 1)
	w.holds("back", "a", active, reason.None, 1)
	w.now = w.now.Add(31 * time.Second)
	w.holds("known long ago", "a", down, reason.AuthUnavailable, 1)
}

func TestStaleAnswersHoldWhereDeclaredUntilTheProviderSaysOtherwise(t *testing.T) {
	w := newOpaqueWorld(t, snapshot.Introspection{StaleOK: time.Minute})
	w.holds("unknown", "a", active, reason.None, 1)
	w.now = w.now.Add(31 * time.Second)
	w.holds("stale, provider gone", "a", down, reason.None, 1)
	w.holds("stale, provider back", "a", inactive, reason.TokenInvalid, 1)
	w.now = w.now.Add(6 * time.Second)
	w.holds("never stale again", "a", down, reason.AuthUnavailable, 1)
	w.holds("unknown", "b", active, reason.None, 1)
	w.now = w.now.Add(91 * time.Second)
	w.holds("too stale", "b", down, reason.AuthUnavailable, 1)
}

func TestTenantsShareNoAnswer(t *testing.T) {
	w := newOpaqueWorld(t, snapshot.Introspection{})
	w.holds("unknown", "a", active, reason.None, 1)
	if w.comes("other", "a"); w.asked.Load() != 2 {
		t.Error("one tenant's answer is another's")
	}
}

func TestADenialShutsOutWhoIsKnownAndWhoIsInside(t *testing.T) {
	w := newOpaqueWorld(t, snapshot.Introspection{})
	w.holds("unknown", "a", active, reason.None, 1)
	_, _, inside := w.comes("t", "a")
	for _, e := range []denylist.Entry{{Kind: denylist.User, ID: "alice", Issuer: "i"}, {Kind: denylist.Token, ID: "j"}} {
		w.a.Deny(denylist.Compile([]denylist.Entry{e}))
		w.holds("denied", "a", active, reason.Denied, 1)
		w.holds("denied and known", "a", active, reason.Denied, 0)
		var id proxy.Identity
		if why, wait := w.a.Authenticate(inside, &id, w.now); why != reason.Denied || wait != nil {
			t.Errorf("who is inside: %v", why)
		}
	}
	w.a.Deny(nil)
	w.holds("permitted again", "a", active, reason.None, 0)
}

func TestAnAnswerIsRenewedBeforeItsTimeIsOver(t *testing.T) {
	w := newOpaqueWorld(t, snapshot.Introspection{})
	w.holds("unknown", "a", active, reason.None, 1)
	w.now = w.now.Add(25 * time.Second)
	s := active
	w.says.Store(&s)
	if why, _, c := w.comes("t", "a"); why != reason.None || c.Asked != nil {
		t.Fatalf("%v, waited %v", why, c.Asked != nil)
	}
	for end := time.Now().Add(20 * time.Second); w.asked.Load() != 2; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d questions", w.asked.Load())
		}
	}
}

// A flood of made-up tokens leaves the table of those who are right, and the memory, as they are.
func TestAFloodOfMadeUpTokensPushesNobodyOut(t *testing.T) {
	w := newOpaqueWorld(t, snapshot.Introspection{})
	w.holds("good", "good", active, reason.None, 1)
	s := inactive
	w.says.Store(&s)
	before, refused := w.asked.Load(), 0
	for n := range 3000 {
		why, _, _ := w.comes("t", fmt.Sprint("made-up-", n))
		if why == reason.AuthUnavailable {
			refused++
		} else if why != reason.TokenInvalid {
			t.Fatalf("%v", why)
		}
	}
	if n := w.asked.Load() - before; n+int64(refused) != 3000 {
		t.Errorf("%d questions and %d not asked of 3000", n, refused)
	}
	w.holds("good as ever", "good", inactive, reason.None, 0)
}

func TestAKnownOpaqueTokenCostsNoAllocation(t *testing.T) {
	w := newOpaqueWorld(t, snapshot.Introspection{})
	token := strings.Repeat("t", 300)
	w.holds("unknown", token, active, reason.None, 1)
	c := &proxy.Credentials{Program: w.p, Policy: &w.p.Policies[0], Tenant: "t", Authorization: []byte("Bearer " + token)}
	var id proxy.Identity
	if n := testing.AllocsPerRun(1000, func() {
		c.Caller = nil
		if why, _ := w.a.Authenticate(c, &id, w.now); why != reason.None {
			t.Fatal(why)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

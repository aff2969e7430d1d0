package drill

import (
	"net/http"
	"testing"
	"time"

	"github.com/cellgate/cellgate/internal/load"
	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

func TestATokenOfTheNewKeyIsGoodByItsKeySetAlone(t *testing.T) {
	key, set, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	_, other, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	token, err := sign(key, map[string]any{"iss": "https://id", "aud": "api", "sub": "u", "consumer": "c", "exp": now.Add(time.Hour).Unix()})
	if err != nil {
		t.Fatal(err)
	}
	v := auth.NewVerifier(snapshot.JWT{Issuer: "https://id", Audience: "api"})
	for _, c := range []struct {
		set  []byte
		good bool
	}{{set, true}, {other, false}} {
		keys, skipped, err := auth.ParseKeys(c.set)
		if err != nil || len(skipped) > 0 {
			t.Fatal(err, skipped)
		}
		if r := v.Verify(token, keys, now); (r.Reason == reason.Reason(0)) != c.good {
			t.Errorf("%+v, good is %v", r, c.good)
		}
	}
	var claims map[string]any
	if err := claimsOf(token, &claims); err != nil || claims["consumer"] != "c" {
		t.Errorf("%v %v", claims, err)
	}
	cfg := &snapshot.Config{Plans: []snapshot.Plan{{ID: "p", RatePerSec: 7}}, Consumers: []snapshot.Consumer{{ID: "c", Plan: "p"}}}
	if rate, err := limitOf(cfg, token); rate != 7 || err != nil {
		t.Errorf("%d %v", rate, err)
	}
	for _, wrong := range []string{"", "a.b", "a.!.c", "a.e30.c"} {
		if _, err := limitOf(cfg, wrong); err == nil {
			t.Errorf("%q has a limit", wrong)
		}
	}
}

func TestTheStandInAnswersAsAnAgentAndCutsWhoWaitsAtItsEnd(t *testing.T) {
	const at = "127.34.4.1:18500"
	a, err := startAgent(at, "orders", []string{"10.0.0.1:80", "[fd00::1]:81"})
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.Get("http://" + at + "/v1/health/service/orders")
	if err != nil || res.Header.Get("X-Consul-Index") != "1" {
		t.Fatal(res, err)
	}
	res.Body.Close()
	cut := make(chan error, 1)
	go func() {
		res, err := http.Get("http://" + at + "/v1/health/service/orders?index=1&wait=60s")
		if err == nil {
			res.Body.Close()
		}
		cut <- err
	}()
	for a.asked.Load() < 2 {
		time.Sleep(time.Millisecond)
	}
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	if err := <-cut; err == nil {
		t.Error("who waited was answered")
	}
	if _, err := startAgent(at, "orders", []string{"no address"}); err == nil {
		t.Error("an endpoint without a port is served")
	}
}

func TestTheLastFailureIsWaitedFor(t *testing.T) {
	from := time.Now().Add(-time.Minute)
	all := []load.Request{{Start: from.Add(time.Second), Status: 503}, {Start: from.Add(3 * time.Second), Status: 503, Took: time.Second}, {Start: from.Add(9 * time.Second), Status: 200}}
	if d := lastFailure(t.Context(), func() []load.Request { return all }, from); d != 4*time.Second {
		t.Errorf("the last one was after %v", d)
	}
}

package upstream

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

var errServFail = errors.New("SERVFAIL")

// resolver gives the answers in turn, the last one for ever; nil is a failure.
func resolver(answers ...[]netip.Addr) (lookup lookupFunc, asked *int) {
	asked = new(int)
	return func(context.Context, string, string) ([]netip.Addr, error) {
		a := answers[min(*asked, len(answers)-1)]
		*asked++
		if a == nil {
			return nil, errServFail
		}
		return a, nil
	}, asked
}

func addr(s string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(s)} }

// G71: names are resolved again, and the last answer is kept when the resolver fails.
func TestNamesAreResolvedAgainAndSurviveTheResolver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lookup, asked := resolver(addr("10.0.0.1"), nil, addr("::ffff:10.0.0.2"), []netip.Addr{})
		n := newNames(Options{Lookup: lookup})
		p, err := parsePlace("orders.example:80")
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []string{"10.0.0.1:80", "10.0.0.1:80", "10.0.0.1:80", "10.0.0.2:80", "10.0.0.2:80", "10.0.0.2:80"} {
			a, err := p.address(t.Context(), n, time.Now())
			if err != nil || a.String() != want {
				t.Fatalf("step %d: %v %v, want %s", i, a, err, want)
			}
			synctest.Wait()
			time.Sleep(nameTTL)
		}
		if *asked != 6 {
			t.Errorf("asked %d times in six periods", *asked)
		}
	})
}

func TestOnlyANameThatWasNeverResolvedIsWaitedForAndAskedForOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		n := newNames(Options{Lookup: func(ctx context.Context, _, _ string) ([]netip.Addr, error) {
			asked++
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(2 * time.Second):
				return addr("10.0.0.1"), nil
			}
		}})
		start := time.Now()
		results := make(chan error)
		for range 10 {
			go func() {
				_, err := n.address(t.Context(), "slow.example", time.Now())
				results <- err
			}()
		}
		hurried, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := n.address(hurried, "slow.example", time.Now()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("who has no time to wait: %v", err)
		}
		for range 10 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(start); took != 2*time.Second || asked != 1 {
			t.Errorf("ten wanted a new name: %d look-ups, %v", asked, took)
		}
		time.Sleep(nameTTL)
		at := time.Now()
		if _, err := n.address(t.Context(), "slow.example", at); err != nil || !time.Now().Equal(at) {
			t.Errorf("a known name was waited for: %v, %v", time.Since(at), err)
		}
		time.Sleep(nameTimeout)
	})
}

func TestANameWithoutAddressIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lookup, _ := resolver([]netip.Addr{})
		if _, err := newNames(Options{Lookup: lookup}).address(t.Context(), "none.example", time.Now()); !errors.Is(err, errNoAddress) {
			t.Fatal(err)
		}
	})
}

func TestANodeStartsWithTheAddressesOfBeforeWhileAllDNSIsDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "names.json")
		lookup, _ := resolver([]netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")})
		before := newNames(Options{Lookup: lookup, NamesFile: file})
		if _, err := before.address(t.Context(), "orders.example", time.Now()); err != nil {
			t.Fatal(err)
		}
		before.save()
		dead, _ := resolver(nil)
		after := newNames(Options{Lookup: dead, NamesFile: file})
		seen := map[string]bool{}
		for range 4 {
			a, err := after.address(t.Context(), "orders.example", time.Now())
			if err != nil {
				t.Fatal(err)
			}
			seen[a.String()] = true
			synctest.Wait()
		}
		if len(seen) != 2 {
			t.Errorf("of two addresses only %v", seen)
		}
		if _, err := after.address(t.Context(), "new.example", time.Now()); !errors.Is(err, errNoAddress) {
			t.Errorf("a name that nobody ever resolved: %v", err)
		}
		if err := os.WriteFile(file, []byte(`{"form":1,"names":{"orders.example":["10.0.0.1","x"]}}`), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := newNames(Options{Lookup: dead, NamesFile: file}).address(t.Context(), "orders.example", time.Now()); !errors.Is(err, errNoAddress) {
			t.Errorf("a damaged file was believed: %v", err)
		}
	})
}

func TestRememberedNamesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lookup, _ := resolver(addr("10.0.0.1"))
		n := newNames(Options{Lookup: lookup})
		for i := range maxNames + 10 {
			if _, err := n.address(t.Context(), fmt.Sprintf("n%d.example", i), time.Now()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		if _, gone := n.known["n0.example"]; len(n.known) != maxNames || gone {
			t.Errorf("%d names, the oldest among them: %v", len(n.known), gone)
		}
	})
}

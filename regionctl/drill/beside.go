package drill

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cellgate/cellgate/internal/load"
	"github.com/cellgate/cellgate/internal/pause"
	"github.com/cellgate/cellgate/snapshot"
)

// beside is traffic on public routes of other upstreams than the load's: those who should notice nothing.
type beside struct {
	s        *session
	requests func() []load.Request
	before   time.Duration // p99
}

// others starts traffic beside the load and measures it undisturbed.
func (s *session) others(ctx context.Context) (*beside, error) {
	upstream, _, err := s.upstreamOf(ctx)
	if err != nil {
		return nil, err
	}
	cfg, err := s.config(ctx)
	if err != nil {
		return nil, err
	}
	path, err := public(cfg, s.at.Host, upstream)
	if err != nil {
		return nil, err
	}
	b := &beside{s: s, requests: s.load(0.5, path, "")}
	if !pause.For(ctx, measured) {
		return nil, ctx.Err()
	}
	b.before = load.Sum(b.requests()).P99
	return b, nil
}

// figures are what those beside have seen in between.
func (b *beside) figures(from, to time.Time) {
	during := between(b.requests(), from, to)
	b.s.say("p99 of other routes: %v before, %v meanwhile", b.before, load.Sum(during).P99)
	b.s.figure(most("p99 of other upstreams' routes (limit: 3 times that before, or 75 ms)", "ms", ms(slowFactor*max(b.before, calm)), ms(load.Sum(during).P99)))
	b.s.figure(most("requests failed on other upstreams' routes", "", 0, float64(failed(b.requests(), func(load.Request) bool { return true }))))
}

// Bounds of the drill of dead backends: a route whose upstream is dead says so, and one whose upstream is back is served. The breaker's
// 30 s and its return lie between.
const (
	saidWithin   = time.Second
	backEndAgain = 60 * time.Second
	timeout      = 5 * time.Second // of the drills' own clients and servers
)

func deadBackend(ctx context.Context, s *session) error {
	upstream, _, err := s.upstreamOf(ctx)
	if err != nil {
		return err
	}
	processes, err := s.world.Processes(ctx)
	if err != nil {
		return err
	}
	var all []string
	for name := range processes {
		if strings.HasPrefix(name, "backend/"+upstream+"-") {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	if len(all) < 2 {
		return fmt.Errorf("the upstream %s has %d backends: one of them can't be spared", upstream, len(all))
	}
	others, err := s.others(ctx)
	if err != nil {
		return err
	}
	requests, err := s.begin(ctx)
	if err != nil {
		return err
	}
	s.result.Target = upstream
	s.later("the backends of "+upstream+" are started again", func(ctx context.Context) error { return s.world.Order(ctx, Start, all...) })
	s.say("killing %s", all[0])
	killed := time.Now()
	if err := s.down(ctx, all[:1]); err != nil || !pause.For(ctx, measured) {
		return orBroken(ctx, err)
	}
	s.say("killing all backends of %s", upstream)
	dead := time.Now()
	if err := s.down(ctx, all); err != nil || !pause.For(ctx, measured) {
		return orBroken(ctx, err)
	}
	restored := time.Now()
	said := load.Sum(between(requests(), dead.Add(time.Second), restored)).P99
	if err := s.undo(ctx); err != nil {
		return err
	}
	again := lastFailure(ctx, requests, restored)
	s.figure(most("requests failed with one backend dead, but those in flight at its death", "", 0, float64(failed(requests(), func(q load.Request) bool { return q.End().Before(dead) && !inFlight(q, killed) }))))
	s.figure(most("with all dead, p99 of the answers that say so", "ms", ms(saidWithin), ms(said)))
	others.figures(killed, restored)
	s.figure(most("DNS answers changed", "", 0, float64(s.watch.changed(killed, restored))))
	s.figure(most("the last request that failed after their return", "s", backEndAgain.Seconds(), again.Seconds()))
	return ctx.Err()
}

// lastFailure waits until no request has failed for a while, and says how long after the moment the last one did.
func lastFailure(ctx context.Context, requests func() []load.Request, from time.Time) time.Duration {
	const calmFor = 5 * time.Second
	for {
		last := from
		for _, q := range requests() {
			if q.Failed() && q.End().After(last) {
				last = q.End()
			}
		}
		if time.Since(last) > calmFor || time.Since(from) > 2*backEndAgain || !pause.For(ctx, time.Second) {
			return last.Sub(from)
		}
	}
}

// down kills processes at once, and keeps them down.
func (s *session) down(ctx context.Context, names []string) error {
	if err := s.world.Order(ctx, Kill, names...); err != nil {
		return err
	}
	return s.world.Order(ctx, Stop, names...)
}

// limitOf is the rate of the plan of the consumer that a token names.
func limitOf(cfg *snapshot.Config, token string) (rate uint64, err error) {
	var claims struct {
		Consumer string `json:"consumer"`
	}
	if err := claimsOf(token, &claims); err != nil {
		return 0, err
	}
	for _, c := range cfg.Consumers {
		for _, p := range cfg.Plans {
			if c.ID == claims.Consumer && c.Plan == p.ID && p.RatePerSec > 0 {
				return p.RatePerSec, nil
			}
		}
	}
	return 0, fmt.Errorf("the published document has no plan with a rate for the consumer %q of the world's limited token", claims.Consumer)
}

// hotFactor is how many times the drill's rate one consumer asks.
const hotFactor = 1

func hotKey(ctx context.Context, s *session) error {
	if s.at.Limited == "" {
		return fmt.Errorf("the world names no token of a consumer with a low limit")
	}
	cfg, err := s.config(ctx)
	if err != nil {
		return err
	}
	rate, err := limitOf(cfg, s.at.Limited)
	if err != nil {
		return err
	}
	others, err := s.others(ctx)
	if err != nil {
		return err
	}
	requests, err := s.begin(ctx)
	if err != nil {
		return err
	}
	s.say("one consumer with a limit of %d/s asks %.0f times a second", rate, hotFactor*s.o.Rate)
	hot := time.Now()
	flood := s.load(hotFactor, s.at.Path, s.at.Limited)
	if !pause.For(ctx, measured) {
		return ctx.Err()
	}
	cold, asked := time.Now(), flood()
	admitted, odd := 0, 0
	for _, q := range asked {
		switch q.Status {
		case 200:
			admitted++
		case 429:
		default:
			odd++
		}
	}
	// Promise 1 of a limit (docs/config.md): rate times time, a burst, which is at least 20, and an overdraft of one request a node.
	may := float64(rate)*cold.Sub(hot).Seconds() + float64(max(20, rate/5)) + float64(len(s.at.nodes()))
	s.figure(least("requests of the hot consumer", "", hotFactor*s.o.Rate*measured.Seconds()/4, float64(len(asked))))
	s.figure(most("of them admitted (limit: rate · time + burst + overdraft)", "", may, float64(admitted)))
	s.figure(least("of them admitted (limit: half of rate · time)", "", float64(rate)*cold.Sub(hot).Seconds()/2, float64(admitted)))
	s.figure(most("of them answered by anything but 200 and 429", "", 0, float64(odd)))
	s.figure(most("requests of others failed on the same route", "", 0, float64(failed(requests(), func(load.Request) bool { return true }))))
	others.figures(hot, cold)
	return nil
}

package drill

import (
	"context"
	"errors"
	"time"

	"github.com/cellgate/cellgate/internal/load"
	"github.com/cellgate/cellgate/internal/pause"
	"github.com/cellgate/cellgate/snapshot"
)

const (
	slowBy = time.Second
	// calm is a p99 below which a factor says nothing: a busy machine alone gives it.
	calm       = 25 * time.Millisecond
	slowFactor = 3
	measured   = 8 * time.Second
)

func slowUpstream(ctx context.Context, s *session) error {
	upstream, route, err := s.upstreamOf(ctx)
	if err != nil {
		return err
	}
	cfg, err := s.config(ctx)
	if err != nil {
		return err
	}
	path, err := public(cfg, s.at.Host, upstream)
	if err != nil {
		return err
	}
	others := s.load(0.5, path, "")
	requests, err := s.begin(ctx)
	if err != nil {
		return err
	}
	if !pause.For(ctx, measured-warmUp) {
		return ctx.Err()
	}
	s.result.Target = upstream
	before := load.Sum(others()).P99
	s.later("the backends of "+upstream+" are good again", func(ctx context.Context) error { return s.world.Slow(ctx, upstream, 0) })
	s.say("the backends of %s wait %v before each answer", upstream, slowBy)
	slowed := time.Now()
	if err := s.world.Slow(ctx, upstream, slowBy); err != nil {
		return err
	}
	if !pause.For(ctx, measured) {
		return ctx.Err()
	}
	during := load.Sum(since(others(), slowed))
	changed := s.watch.changed(slowed, time.Now())
	if err := s.undo(ctx); err != nil {
		return err
	}
	if !pause.For(ctx, slowBy+time.Second) {
		return ctx.Err()
	}
	good := time.Now()
	if !pause.For(ctx, measured/2) {
		return ctx.Err()
	}
	all := requests()
	of := since(all, slowed)
	s.say("p99 of the other routes: %v before, %v meanwhile; median of %s: %v meanwhile, %v after", before, during.P99, route, load.Sum(between(of, slowed, good.Add(-slowBy))).P50, load.Sum(since(requests(), good)).P50)
	s.figure(most("p99 of other upstreams' routes (limit: 3 times that before, or 75 ms)", "ms", ms(slowFactor*max(before, calm)), ms(during.P99)))
	s.figure(most("requests failed on other upstreams' routes", "", 0, float64(failed(others(), func(load.Request) bool { return true }))))
	s.figure(most("requests failed on the slow upstream's route", "", 0, float64(failed(all, func(load.Request) bool { return true }))))
	s.figure(most("DNS answers changed", "", 0, float64(changed)))
	s.figure(most("median of the slow upstream's route once it is good again", "ms", ms(slowBy/2), ms(load.Sum(since(requests(), good)).P50)))
	return nil
}

func between(all []load.Request, from, to time.Time) []load.Request {
	var out []load.Request
	for _, q := range all {
		if q.Start.After(from) && q.Start.Before(to) {
			out = append(out, q)
		}
	}
	return out
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// public is a path on the host that a public route of another upstream takes.
func public(cfg *snapshot.Config, host, not string) (string, error) {
	for _, r := range cfg.Routes {
		if r.Match.Host == host && r.Auth == "" && r.Upstream != "" && r.Upstream != not && plain(r) {
			return concrete(r.Match), nil
		}
	}
	return "", errors.New("the published document has no public route of another upstream on the same host to compare with")
}

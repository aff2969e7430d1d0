package drill

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/internal/load"
	"github.com/cellgate/cellgate/internal/pause"
	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/regionctl"
	"github.com/cellgate/cellgate/snapshot"
)

const (
	rollBackWithin = 60 * time.Second
	deniedWithin   = 2 * time.Second
	permitWithin   = 5 * time.Second
	// nowhere takes no connection: the discard port (RFC 863), which nothing on a machine of today serves.
	nowhere = "127.0.0.1:9"
)

// config is the document that the world runs, decoded.
func (s *session) config(ctx context.Context) (*snapshot.Config, error) {
	doc, err := s.world.Document(ctx)
	if err != nil {
		return nil, err
	}
	cfg, faults := snapshot.Decode([]snapshot.File{{Name: "published", Data: []byte(doc.Document)}}, snapshot.Loopback())
	if err := faults.Err(); err != nil {
		return nil, fmt.Errorf("the published document: %w", err)
	}
	return cfg, nil
}

// upstreamOf is the upstream that takes the load, and the route.
func (s *session) upstreamOf(ctx context.Context) (upstream, route string, err error) {
	e, err := s.world.Explain(ctx, "https://"+s.at.Host+s.at.Path)
	if err != nil {
		return "", "", err
	}
	if len(e.Upstreams) == 0 {
		return "", "", fmt.Errorf("no route of the published document takes %s%s", s.at.Host, s.at.Path)
	}
	return e.Upstreams[0].Upstream, e.Route, nil
}

// broken is the published document with the upstream of the load sent to where nobody answers.
func (s *session) broken(ctx context.Context) (string, error) {
	cfg, err := s.config(ctx)
	if err != nil {
		return "", err
	}
	upstream, _, err := s.upstreamOf(ctx)
	if err != nil {
		return "", err
	}
	for i := range cfg.Upstreams {
		if u := &cfg.Upstreams[i]; u.ID == upstream {
			u.Endpoints, u.Discovery = []string{nowhere}, snapshot.Discovery{}
		}
	}
	raw, err := snapshot.Format(cfg)
	return string(raw), err
}

func badConfig(ctx context.Context, s *session) error {
	doc, err := s.broken(ctx)
	if err != nil {
		return err
	}
	before, err := s.world.Document(ctx)
	if err != nil {
		return err
	}
	requests, err := s.begin(ctx)
	if err != nil {
		return err
	}
	var bad uint64
	s.later("the bad version is gone", func(ctx context.Context) error { return s.takeBack(ctx, bad, before.Number) })
	pub, err := s.world.Publish(ctx, regionctl.PublishRequest{
		Files: []regionctl.PublishFile{{Name: "drill.yaml", Data: doc}}, Confirm: true, AllowUpstreams: []string{"127.0.0.0/8"},
		Message: "drill bad-config: to be rolled back by itself",
	})
	if err != nil {
		return err
	}
	bad = pub.Version
	s.say("published version %d, which fails every request of a route", bad)
	published := time.Now()
	seen, err := s.follow(ctx, bad, published)
	if err != nil {
		return err
	}
	took := time.Since(published)
	s.say("version %d is %s after %.1f s: %s", bad, seen.state, took.Seconds(), seen.why)
	s.judgeRollback(ctx, seen, requests(), before, took)
	return nil
}

// sightings are what was seen of a version: which nodes served it, and which of them its rollout had named as canary.
type sightings struct {
	mu         sync.Mutex // of served
	served     map[cells.NodeID]bool
	canaries   map[cells.NodeID]bool
	state, why string
	ended      bool
}

// follow asks every node what it serves, many times a second, until the version has come to its end.
func (s *session) follow(ctx context.Context, bad uint64, from time.Time) (*sightings, error) {
	seen := &sightings{served: map[cells.NodeID]bool{}, canaries: map[cells.NodeID]bool{}}
	for time.Since(from) < rollBackWithin+30*time.Second {
		s.everyNode(func(n Node) {
			if s.served(ctx, n) == bad {
				seen.mu.Lock()
				defer seen.mu.Unlock()
				seen.served[n.ID] = true
			}
		})
		if r, err := s.world.Rollout(ctx, bad); err == nil {
			seen.note(r, s.at.nodes())
		}
		if seen.ended {
			return seen, nil
		}
		if !pause.For(ctx, 150*time.Millisecond) {
			return seen, ctx.Err()
		}
	}
	return seen, nil
}

func (x *sightings) note(r regionctl.RolloutStatus, nodes []Node) {
	if r.State != x.state {
		x.state, x.why = r.State, r.Why
	}
	x.ended = slices.Contains([]string{"rolled_back", "live", "aborted", "superseded"}, r.State)
	for _, line := range append(slices.Clone(r.History), r.Ring) {
		if _, ring, ok := strings.Cut(line, "canary node ["); ok || strings.HasPrefix(line, "canary node [") {
			named, _, _ := strings.Cut(ring, "]")
			for _, n := range nodes {
				if slices.Contains(strings.Fields(named), string(n.ID)) {
					x.canaries[n.ID] = true
				}
			}
		}
	}
}

func (s *session) judgeRollback(ctx context.Context, seen *sightings, all []load.Request, before regionctl.VersionDocument, took time.Duration) {
	outside := 0
	canaryCells := map[cells.CellID]bool{}
	for id := range seen.served {
		if !seen.canaries[id] {
			outside++
		}
	}
	for id := range seen.canaries {
		canaryCells[id.Cell()] = true
	}
	elsewhere := failed(all, func(q load.Request) bool {
		i := slices.IndexFunc(s.at.cells(), func(c Cell) bool { return c.Address == q.Cell })
		return i < 0 || !canaryCells[s.at.cells()[i].ID]
	})
	lost := failed(all, func(load.Request) bool { return true })
	if seen.state != "rolled_back" {
		took = max(took, rollBackWithin+time.Second)
	}
	differ := 1.0
	if now, err := s.world.Document(ctx); err == nil && now.Checksum == before.Checksum && now.Number > before.Number {
		differ = 0
	}
	s.figure(least("canary nodes that served the bad version", "", 1, float64(len(seen.served)-outside)))
	s.figure(most("nodes outside the canary ring that served it", "", 0, float64(outside)))
	s.figure(most("rolled back by itself after", "s", rollBackWithin.Seconds(), took.Seconds()))
	s.figure(most("requests failed elsewhere than at the canary's cell", "", 0, float64(elsewhere)))
	s.figure(most("requests failed, of all (limit: a cell's share)", "%", 100/float64(len(s.at.cells())), 100*float64(lost)/float64(max(1, len(all)))))
	s.figure(most("contents differ from those before", "", 0, differ))
}

// takeBack ends what is left of a bad version: nothing to do when it was rolled back by itself.
func (s *session) takeBack(ctx context.Context, bad, before uint64) error {
	if bad == 0 {
		return nil
	}
	const why = "taken back by the drill that published it"
	r, err := s.world.Rollout(ctx, bad)
	switch {
	case err != nil:
		return err
	case r.State == "rolled_back" || r.State == "aborted" || r.State == "superseded" || r.State == "rolling_back":
		return nil
	case r.State == "live":
		return s.world.Rollback(ctx, before, why)
	}
	return s.world.Abort(ctx, why)
}

// keyed is a route that the API key opens: a public host and path of it.
func keyed(cfg *snapshot.Config, key string) (host, path string, err error) {
	if key == "" {
		return "", "", errors.New("the world names no API key that could leak (a file api-key in its directory)")
	}
	if !slices.ContainsFunc(cfg.Consumers, func(c snapshot.Consumer) bool { return slices.Contains(c.APIKeyHashes, auth.HashKey(key)) }) {
		return "", "", errors.New("the world's API key belongs to no consumer of the published document")
	}
	for _, r := range cfg.Routes {
		i := slices.IndexFunc(cfg.Policies, func(p snapshot.Policy) bool { return p.ID == r.Auth && p.APIKey != nil })
		if i >= 0 && plain(r) {
			return r.Match.Host, concrete(r.Match), nil
		}
	}
	return "", "", errors.New("no route of the published document takes API keys on one host, for GET and without further conditions")
}

// plain says that a GET of a path on the route's host is enough to reach it.
func plain(r snapshot.Route) bool {
	m := r.Match
	return m.Host != "" && !strings.HasPrefix(m.Host, "*") && len(m.Headers) == 0 && len(m.Query) == 0 &&
		(len(m.Methods) == 0 || slices.Contains(m.Methods, "GET"))
}

// concrete is a path that the match takes: parameters become 7, a prefix is followed by 7.
func concrete(m snapshot.Match) string {
	if m.Path == "" {
		return strings.TrimSuffix(m.PathPrefix, "/") + "/7"
	}
	parts := strings.Split(m.Path, "/")
	for i, p := range parts {
		if strings.HasPrefix(p, "{") {
			parts[i] = "7"
		}
	}
	return strings.Join(parts, "/")
}

func leakedKey(ctx context.Context, s *session) error {
	cfg, err := s.config(ctx)
	if err != nil {
		return err
	}
	host, path, err := keyed(cfg, s.at.APIKey)
	if err != nil {
		return err
	}
	answers := func(want int) func(Node) bool {
		return func(n Node) bool { return s.ask(ctx, n, host, path, "X-API-Key", s.at.APIKey) == want }
	}
	requests, err := s.begin(ctx)
	if err != nil {
		return err
	}
	if n := s.countNodes(answers(200)); n != len(s.at.nodes()) {
		return fmt.Errorf("the key is good at %d of %d nodes to begin with", n, len(s.at.nodes()))
	}
	denial := regionctl.DenyRequest{Kind: "key", ID: auth.HashKey(s.at.APIKey), Reason: "drill leaked-key", For: "10m"}
	s.later("the key is permitted again", func(ctx context.Context) error { return s.world.Permit(ctx, denial) })
	s.say("denying the key")
	denied := time.Now()
	if err := s.world.Deny(ctx, denial); err != nil {
		return err
	}
	refused := s.untilEverywhere(ctx, denied, 10*deniedWithin, answers(401))
	s.say("refused at every node after %.2f s", refused.Seconds())
	slipped := 0
	for range 8 {
		slipped += len(s.at.nodes()) - s.countNodes(answers(401))
		if !pause.For(ctx, 250*time.Millisecond) {
			return ctx.Err()
		}
	}
	permitted := time.Now()
	if err := s.undo(ctx); err != nil {
		return err
	}
	again := s.untilEverywhere(ctx, permitted, 4*permitWithin, answers(200))
	s.figure(most("refused at every node after", "s", deniedWithin.Seconds(), refused.Seconds()))
	s.figure(most("requests with the key let in after that", "", 0, float64(slipped)))
	s.figure(most("requests of others failed", "", 0, float64(failed(requests(), func(load.Request) bool { return true }))))
	s.figure(most("served again everywhere after the denial is taken back", "s", permitWithin.Seconds(), again.Seconds()))
	return ctx.Err()
}

// untilEverywhere is how long it takes until every node has satisfied is at least once.
func (s *session) untilEverywhere(ctx context.Context, from time.Time, within time.Duration, is func(Node) bool) time.Duration {
	var mu sync.Mutex
	last := from
	s.everyNode(func(n Node) {
		for !is(n) && time.Since(from) < within && pause.For(ctx, 40*time.Millisecond) {
		}
		mu.Lock()
		defer mu.Unlock()
		last = time.Now()
	})
	return last.Sub(from)
}

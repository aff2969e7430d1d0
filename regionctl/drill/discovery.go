package drill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/cellgate/cellgate/internal/load"
	"github.com/cellgate/cellgate/internal/pause"
	"github.com/cellgate/cellgate/regionctl"
	"github.com/cellgate/cellgate/snapshot"
)

// liveWithin is how long the rollout of a good version may take.
const liveWithin = 2 * time.Minute

// lostDiscovery stands in for a Consul agent itself, where the proxies look for one, and has the endpoints of the load's upstream
// asked for there.
func lostDiscovery(ctx context.Context, s *session) error {
	doc, upstream, endpoints, err := s.discovered(ctx)
	if err != nil {
		return err
	}
	before, err := s.world.Document(ctx)
	if err != nil {
		return err
	}
	node, _, err := s.victim()
	if err != nil {
		return err
	}
	s.result.Target = upstream
	agent, err := startAgent(s.at.Consul, upstream, endpoints)
	if err != nil {
		return fmt.Errorf("a stand-in for a Consul agent: %w", err)
	}
	s.later("no agent stands in", func(context.Context) error { return agent.close() })
	requests, err := s.begin(ctx)
	if err != nil {
		return err
	}
	var version uint64
	s.later("the version before is back", func(ctx context.Context) error { return s.takeBack(ctx, version, before.Number) })
	pub, err := s.world.Publish(ctx, regionctl.PublishRequest{
		Files: []regionctl.PublishFile{{Name: "drill.yaml", Data: doc}}, Confirm: true, AllowUpstreams: []string{"127.0.0.0/8"},
		Message: "drill discovery: endpoints of " + upstream + " from Consul",
	})
	if err != nil {
		return err
	}
	version = pub.Version
	s.say("published version %d, whose upstream %s is found in Consul", version, upstream)
	if err := s.live(ctx, version); err != nil || !pause.For(ctx, warmUp) {
		return orBroken(ctx, err)
	}
	asked := agent.asked.Load()
	s.say("the agent dies")
	lost := time.Now()
	if err := agent.close(); err != nil || !pause.For(ctx, outage/2) {
		return orBroken(ctx, err)
	}
	killed, _, err := s.killNode(ctx, node)
	if err != nil {
		return err
	}
	good := s.accepts(ctx, node, killed)
	if !pause.For(ctx, outage/2) {
		return ctx.Err()
	}
	s.figure(least("questions that the agent was asked", "", float64(len(s.at.nodes())), float64(asked)))
	s.figure(most("requests failed but those in flight at the killed proxy", "", 0, float64(failed(requests(), func(q load.Request) bool { return !inFlight(q, killed) }))))
	s.figure(most("proxy killed meanwhile serves the upstream after", "s", serveWithin.Seconds(), good.Seconds()))
	s.figure(most("DNS answers changed", "", 0, float64(s.watch.changed(lost, time.Now()))))
	return ctx.Err()
}

// discovered is the published document with the endpoints of the load's upstream left to Consul.
func (s *session) discovered(ctx context.Context) (doc, upstream string, endpoints []string, err error) {
	if s.at.Consul == "" {
		return "", "", nil, errors.New("the world doesn't say where its proxies look for a Consul agent")
	}
	cfg, err := s.config(ctx)
	if err != nil {
		return "", "", nil, err
	}
	if upstream, _, err = s.upstreamOf(ctx); err != nil {
		return "", "", nil, err
	}
	for i := range cfg.Upstreams {
		if u := &cfg.Upstreams[i]; u.ID == upstream {
			endpoints = u.Endpoints
			u.Endpoints, u.Where, u.Discovery = nil, nil, snapshot.Discovery{Consul: upstream}
		}
	}
	if len(endpoints) == 0 {
		return "", "", nil, fmt.Errorf("the upstream %s lists no endpoints", upstream)
	}
	raw, err := snapshot.Format(cfg)
	return string(raw), upstream, endpoints, err
}

// live waits until a version is served everywhere.
func (s *session) live(ctx context.Context, version uint64) error {
	for began := time.Now(); time.Since(began) < liveWithin; {
		r, err := s.world.Rollout(ctx, version)
		if err == nil && r.State == "live" {
			return nil
		}
		if err == nil && (r.State == "rolled_back" || r.State == "aborted") {
			return fmt.Errorf("version %d is %s: %s", version, r.State, r.Why)
		}
		if !pause.For(ctx, 250*time.Millisecond) {
			return ctx.Err()
		}
	}
	return fmt.Errorf("version %d is not live after %v", version, liveWithin)
}

// agent answers as a Consul agent for one service whose instances all pass, without ever changing.
type agent struct {
	server *http.Server
	asked  atomic.Int64
}

func startAgent(at, service string, endpoints []string) (*agent, error) {
	var all []any
	for _, e := range endpoints {
		host, text, err := net.SplitHostPort(e)
		port, odd := strconv.Atoi(text)
		if err := errors.Join(err, odd); err != nil {
			return nil, err
		}
		all = append(all, map[string]any{"Service": map[string]any{"Service": service, "Address": host, "Port": port}})
	}
	raw, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", at)
	if err != nil {
		return nil, err
	}
	a := &agent{}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/health/service/"+service, func(w http.ResponseWriter, r *http.Request) {
		a.asked.Add(1)
		if wait, err := time.ParseDuration(r.FormValue("wait")); err == nil && r.FormValue("index") != "" && !pause.For(r.Context(), min(wait, time.Minute)) {
			return
		}
		w.Header().Set("X-Consul-Index", "1")
		w.Header().Set("X-Consul-Knownleader", "true")
		w.Header().Set("X-Consul-Lastcontact", "0")
		_, _ = w.Write(raw) // the proxy's connection is all that can fail
	})
	a.server = &http.Server{Handler: mux, ReadHeaderTimeout: timeout}
	go func() { _ = a.server.Serve(l) }() // until it is closed
	return a, nil
}

// close cuts all who wait; more than once is fine.
func (a *agent) close() error { return a.server.Close() }

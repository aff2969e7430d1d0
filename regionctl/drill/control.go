package drill

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cellgate/cellgate/internal/load"
	"github.com/cellgate/cellgate/internal/pause"
	"github.com/cellgate/cellgate/regionctl"
)

type statusCell = regionctl.CellStatus

// outage is how long the control plane or the identity provider stays away.
const outage = 12 * time.Second

func controlPlane(ctx context.Context, s *session) error {
	requests, err := s.begin(ctx)
	if err != nil {
		return err
	}
	node, _, err := s.victim()
	if err != nil {
		return err
	}
	s.result.Target = ""
	witness := s.at.nodes()[len(s.at.nodes())-1]
	versions := s.versions(ctx)
	s.say("stopping every regionctl and every etcd")
	stopped := time.Now()
	if err := s.stopFor(ctx, "the control plane", "regionctl/*", "etcd/*"); err != nil {
		return err
	}
	if !pause.For(ctx, outage/2) {
		return ctx.Err()
	}
	killed, back, err := s.killNode(ctx, node)
	if err != nil || !pause.For(ctx, outage/2) {
		return orBroken(ctx, err)
	}
	age, down := s.age(ctx, witness), time.Since(stopped)
	unanswered := 0
	for _, x := range s.watch.all() {
		if x.at.After(stopped) {
			unanswered += len(s.at.DNS)*len(s.clients()) - len(x.told)
		}
	}
	if err := s.undo(ctx); err != nil {
		return err
	}
	_, missing := s.whole(ctx)
	older := 0
	for node, v := range s.versions(ctx) {
		if v < versions[node] {
			older++
		}
	}
	all := requests()
	s.figure(most("requests failed but those in flight at the killed proxy", "", 0, float64(failed(all, func(q load.Request) bool { return !inFlight(q, killed) }))))
	s.figure(most("proxy killed meanwhile serves from its disk after", "s", serveWithin.Seconds(), back.Seconds()))
	s.figure(least("configuration's age at the end, which must tell the outage", "s", (down - 3*time.Second).Seconds(), age))
	s.figure(most("DNS answers changed", "", 0, float64(s.watch.changed(stopped, time.Now()))))
	s.figure(most("DNS questions unanswered", "", 0, float64(unanswered)))
	s.figure(most("nodes that went back to an older version", "", 0, float64(older)))
	if len(missing) > 0 {
		s.say("not whole: %s", strings.Join(missing, "; "))
	}
	return nil
}

func orBroken(ctx context.Context, err error) error {
	if err == nil {
		err = ctx.Err()
	}
	return err
}

// versions is what every node says it serves.
func (s *session) versions(ctx context.Context) map[string]uint64 {
	out := map[string]uint64{}
	for _, n := range s.at.nodes() {
		out[string(n.ID)] = s.served(ctx, n)
	}
	return out
}

// age is the age of a node's configuration in seconds; 0 when it doesn't say.
func (s *session) age(ctx context.Context, n Node) float64 {
	age, _ := s.metric(ctx, n, "cellgate_proxy_config_age_seconds")
	return age
}

// metric reads a metric without labels of a node.
func (s *session) metric(ctx context.Context, n Node, name string) (value float64, ok bool) {
	body, _ := s.admin(ctx, n, "/metrics")
	for line := range strings.Lines(string(body)) {
		if text, found := strings.CutPrefix(line, name+" "); found {
			v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			return v, err == nil
		}
	}
	return 0, false
}

// Bounds of the quota store's drill: nodes know that it is gone, and settle with it again, in time. A node attaches to its
// own region's controller again after 15 s at most.
const (
	aloneWithin   = 2 * time.Second
	settledWithin = 20 * time.Second
)

func quotaStore(ctx context.Context, s *session) error {
	lost := func(want float64) func(Node) bool {
		return func(n Node) bool {
			v, ok := s.metric(ctx, n, "cellgate_proxy_quota_lost")
			return ok && v == want
		}
	}
	requests, err := s.begin(ctx)
	if err != nil {
		return err
	}
	if n := s.countNodes(lost(0)); n != len(s.at.nodes()) {
		return fmt.Errorf("%d of %d nodes settle their limits with the quota service to begin with", n, len(s.at.nodes()))
	}
	s.say("stopping every regionctl, and with them every bucket")
	stopped := time.Now()
	if err := s.stopFor(ctx, "the quota service", "regionctl/*"); err != nil {
		return err
	}
	alone := s.untilEverywhere(ctx, time.Now(), 10*aloneWithin, lost(1))
	if !pause.For(ctx, outage-time.Since(stopped)) {
		return ctx.Err()
	}
	if err := s.undo(ctx); err != nil {
		return err
	}
	settled := s.untilEverywhere(ctx, time.Now(), 2*settledWithin, lost(0))
	s.figure(most("requests failed of callers below their limits", "", 0, float64(failed(requests(), func(load.Request) bool { return true }))))
	s.figure(most("every node keeps limits by its own part after", "s", aloneWithin.Seconds(), alone.Seconds()))
	s.figure(most("every node settles them with its region again after", "s", settledWithin.Seconds(), settled.Seconds()))
	return ctx.Err()
}

func identityProvider(ctx context.Context, s *session) error {
	requests, err := s.begin(ctx)
	if err != nil {
		return err
	}
	node, _, err := s.victim()
	if err != nil {
		return err
	}
	s.result.Target = ""
	forged, err := forge(s.at.Customer)
	if err != nil {
		return err
	}
	s.say("stopping the identity provider")
	if err := s.stopFor(ctx, "the identity provider", "idp/*"); err != nil {
		return err
	}
	killed, _, err := s.killNode(ctx, node)
	if err != nil {
		return err
	}
	good := s.accepts(ctx, node, killed)
	wrong := 0
	for until := time.Now().Add(outage / 2); time.Now().Before(until); {
		wrong += s.countNodes(func(n Node) bool {
			return s.ask(ctx, n, s.at.Host, s.at.Path, "Authorization", "Bearer "+forged) != 401
		})
		if !pause.For(ctx, 500*time.Millisecond) {
			return ctx.Err()
		}
	}
	all := requests()
	s.figure(most("requests failed but those in flight at the killed proxy", "", 0, float64(failed(all, func(q load.Request) bool { return !inFlight(q, killed) }))))
	s.figure(most("proxy killed meanwhile accepts good tokens after", "s", serveWithin.Seconds(), good.Seconds()))
	s.figure(most("made-up tokens not refused with 401", "", 0, float64(wrong)))
	return nil
}

// accepts waits until the node itself answers the sample request of a good token.
func (s *session) accepts(ctx context.Context, n Node, from time.Time) time.Duration {
	for s.ask(ctx, n, s.at.Host, s.at.Path, "Authorization", "Bearer "+s.at.Customer) != 200 {
		if time.Since(from) > 10*serveWithin || !pause.For(ctx, 30*time.Millisecond) {
			break
		}
	}
	return time.Since(from)
}

func (s *session) countNodes(is func(Node) bool) int {
	var n atomic.Int64
	s.everyNode(func(node Node) {
		if is(node) {
			n.Add(1)
		}
	})
	return int(n.Load())
}

// forge is a token that says the same with a signature that is not its issuer's.
func forge(token string) (string, error) {
	dot := strings.LastIndexByte(token, '.')
	if dot < 0 || len(token)-dot < 20 {
		return "", fmt.Errorf("the world's customer token is no JWT")
	}
	raw := []byte(token)
	at := dot + 10
	if raw[at] == 'A' {
		raw[at] = 'B'
	} else {
		raw[at] = 'A'
	}
	return string(raw), nil
}

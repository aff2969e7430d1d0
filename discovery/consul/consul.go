// Package consul follows the endpoints of an upstream in a Consul catalogue, by blocking queries to the local agent
// (https://developer.hashicorp.com/consul/api-docs/features/blocking).
//
//	c := consul.New(consul.Options{Address: "127.0.0.1:8500", Log: log})
//	c.Follow(ctx, "orders", found) // found is called with every complete set of passing instances that differs
package consul

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/cellgate/cellgate/snapshot"
)

// Bounds of what is followed.
const (
	maxEndpoints = 500
	maxAnswer    = 16 << 20 // bytes
	// maxWaiting questions wait at the agent at once, which by default serves 200 connections of one address. What else is
	// followed is asked for once in pollEvery.
	maxWaiting = 64
	pollEvery  = 10 * time.Second
	// wait is how long the agent may keep a question, less or more a tenth. It adds up to a sixteenth itself.
	wait      = time.Minute
	patience  = 10 * time.Second // beyond wait, before the agent counts as lost
	least     = time.Second      // from one question to the next, and after the first failure
	mostRetry = 10               // times least, after many failures
	// hold is how long "there is none" has to be the answer before it is believed.
	hold = 30 * time.Second
	// mostStale is how old the answer of a server that is not the leader may be.
	mostStale = 10 * time.Second
)

// Options are what a catalogue is made of. What the zero values leave open the environment says, as for Consul's own tools
// (CONSUL_HTTP_ADDR, CONSUL_HTTP_TOKEN_FILE, CONSUL_HTTP_TOKEN, CONSUL_CACERT, …), or else Consul's defaults.
type Options struct {
	// Address of the agent: host:port, or a URL with http, https or unix.
	Address string
	// TokenFile holds the ACL token. It is read for every question, so that a token may be changed.
	TokenFile string
	Log       *slog.Logger // nil = none

	wait, least, hold time.Duration // of tests; 0 = the constants
	waiting           int           // of tests; 0 = maxWaiting
}

// Catalogue follows services at one agent.
type Catalogue struct {
	opts   Options
	places chan struct{} // taken by questions that wait at the agent

	mu     sync.Mutex
	client *api.Client // nil until it could be made
	file   string      // of the token
}

// New makes a catalogue. Nothing is asked yet, and nothing is read: a fault of the options shows as a failure to follow.
func New(o Options) *Catalogue {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	or := func(d *time.Duration, def time.Duration) {
		if *d == 0 {
			*d = def
		}
	}
	or(&o.wait, wait)
	or(&o.least, least)
	or(&o.hold, hold)
	if o.waiting == 0 {
		o.waiting = maxWaiting
	}
	return &Catalogue{opts: o, places: make(chan struct{}, o.waiting)}
}

// Why an answer is no complete set.
var (
	errNoLeader = errors.New("consul: no server leads, so nobody vouches for the answer")
	errFiltered = errors.New("consul: the token may not read all instances")
	errNowhere  = errors.New("consul: there are instances, and none has an IP address and a port")
)

// Follow calls found with every complete set of endpoints that differs from the one before, until ctx ends. As long as the agent
// or its servers fail it calls nobody: an error is no empty set.
func (c *Catalogue) Follow(ctx context.Context, service string, found func([]snapshot.Endpoint)) {
	var last []snapshot.Endpoint
	strange := 0 // instances that were passed over
	var noneSince time.Time
	told, failing := false, false
	retry, index := c.opts.least, uint64(0)
	for ctx.Err() == nil {
		asked := time.Now()
		all, passed, next, pause, err := c.ask(ctx, service, index)
		if ctx.Err() != nil {
			return
		}
		now := time.Now()
		if bad := err != nil; bad != failing {
			failing = bad
			c.opts.Log.Warn("endpoints of an upstream in Consul", "service", service, "failing", bad, "error", err)
		}
		if err != nil {
			index, noneSince = 0, time.Time{}
			sleep(ctx, jitter(retry))
			retry = min(2*retry, mostRetry*c.opts.least)
			continue
		}
		index, retry = following(index, next), c.opts.least
		if passed != strange && passed > 0 {
			c.opts.Log.Warn("instances without an IP address and a port are passed over", "service", service, "instances", passed)
		}
		strange = passed
		believed := len(all) > 0
		switch {
		case believed:
			noneSince = time.Time{}
		case noneSince.IsZero():
			noneSince = now
		default:
			believed = now.Sub(noneSince) >= c.opts.hold
		}
		if believed && (!told || !slices.Equal(all, last)) {
			last, told = all, true
			found(c.used(service, all))
		}
		if !believed {
			index = 0 // asked anew until it is: an agent that has just begun may know nothing yet
		}
		sleep(ctx, max(pause, jitter(c.opts.least)-now.Sub(asked)))
	}
}

// following is the index to wait behind: one that has gone back says that the servers' state was made anew, and 0 is no index,
// which would be answered at once over and over.
func following(had, got uint64) uint64 {
	if got < had {
		return 0
	}
	return got
}

func jitter(d time.Duration) time.Duration { return d - d/10 + rand.N(d/5+1) }

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// ask asks once. Passed are the instances that are at no address; the pause is what is to pass before the next time.
func (c *Catalogue) ask(ctx context.Context, service string, index uint64) (all []snapshot.Endpoint, passed int, next uint64, pause time.Duration, err error) {
	client, token, err := c.dial()
	if err != nil {
		return nil, 0, 0, 0, err
	}
	q := &api.QueryOptions{AllowStale: true, Token: token}
	select {
	case c.places <- struct{}{}:
		defer func() { <-c.places }()
		q.WaitIndex, q.WaitTime = index, jitter(c.opts.wait)
	default:
		pause = jitter(pollEvery)
	}
	entries, meta, err := health(ctx, client, service, q)
	if err == nil && (!meta.KnownLeader || meta.LastContact > mostStale) {
		// The server that answered may have lost the others: the leader is asked, who has to be there for that.
		entries, meta, err = health(ctx, client, service, &api.QueryOptions{Token: token})
		if err == nil && !meta.KnownLeader {
			err = errNoLeader
		}
	}
	if err == nil && meta.ResultsFilteredByACLs {
		err = errFiltered
	}
	if err != nil {
		return nil, 0, 0, 0, err
	}
	if all, passed = endpoints(entries); len(all) == 0 && passed > 0 {
		return nil, 0, 0, 0, errNowhere
	}
	return all, passed, meta.LastIndex, pause, nil
}

func health(ctx context.Context, client *api.Client, service string, q *api.QueryOptions) ([]*api.ServiceEntry, *api.QueryMeta, error) {
	ctx, cancel := context.WithTimeout(ctx, q.WaitTime+q.WaitTime/16+patience)
	defer cancel()
	entries, meta, err := client.Health().Service(service, "", true, q.WithContext(ctx))
	if err != nil {
		return nil, nil, fmt.Errorf("consul: %s", clip(err.Error()))
	}
	return entries, meta, nil
}

// clip bounds what an agent may have written into a log.
func clip(s string) string {
	const most = 300
	if len(s) > most {
		s = s[:most] + "…"
	}
	return s
}

// endpoints are those of the passing instances, sorted, and how many have none. An instance without an address of its own is at its
// node's.
func endpoints(entries []*api.ServiceEntry) (all []snapshot.Endpoint, passed int) {
	for _, e := range entries {
		if e == nil || e.Service == nil || e.Service.Port < 1 || e.Service.Port > 65535 {
			passed++
			continue
		}
		host := e.Service.Address
		if host == "" && e.Node != nil {
			host = e.Node.Address
		}
		if a, err := netip.ParseAddr(host); err != nil {
			passed++ // names are the DNS's
			continue
		} else {
			host = a.Unmap().String()
		}
		all = append(all, snapshot.Endpoint{Address: net.JoinHostPort(host, strconv.Itoa(e.Service.Port)), Locality: locality(e)})
	}
	slices.SortFunc(all, func(a, b snapshot.Endpoint) int { return strings.Compare(a.Address, b.Address) })
	return slices.CompactFunc(all, func(a, b snapshot.Endpoint) bool { return a.Address == b.Address }), passed
}

// used are the endpoints of a set that are followed.
func (c *Catalogue) used(service string, all []snapshot.Endpoint) []snapshot.Endpoint {
	if len(all) > maxEndpoints {
		c.opts.Log.Warn("a service has too many endpoints; the rest is passed over", "service", service, "endpoints", len(all), "used", maxEndpoints)
		all = all[:maxEndpoints]
	}
	return slices.Clone(all)
}

// locality is what the instance says of itself in its meta (region, zone), its locality, or what its node says.
func locality(e *api.ServiceEntry) (l snapshot.Locality) {
	say := func(region, zone string) {
		if l == (snapshot.Locality{}) && len(region) <= 128 && len(zone) <= 128 {
			l = snapshot.Locality{Region: region, Zone: zone}
		}
	}
	say(e.Service.Meta["region"], e.Service.Meta["zone"])
	if at := e.Service.Locality; at != nil {
		say(at.Region, at.Zone)
	}
	if e.Node != nil {
		say(e.Node.Meta["region"], e.Node.Meta["zone"])
		if at := e.Node.Locality; at != nil {
			say(at.Region, at.Zone)
		}
	}
	return l
}

// dial gives the client and the token of now.
func (c *Catalogue) dial() (*api.Client, string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.client == nil {
		cfg := api.DefaultConfig()
		c.file = cfg.TokenFile
		if c.opts.TokenFile != "" {
			c.file = c.opts.TokenFile
		}
		client, err := newClient(cfg, c.opts.Address)
		if err != nil {
			return nil, "", fmt.Errorf("consul: %w", err)
		}
		c.client = client
	}
	if c.file == "" {
		return c.client, "", nil // the environment's, which the client knows
	}
	raw, err := os.ReadFile(c.file)
	if err != nil {
		return nil, "", fmt.Errorf("consul: token: %w", err)
	}
	return c.client, strings.TrimSpace(string(raw)), nil
}

package snapshot

import (
	"cmp"
	"time"
)

// Never is the duration of what a document switches off.
const Never time.Duration = -1

// DefaultSlowStart is how long an endpoint gets less than its part that is new, or in again.
const DefaultSlowStart = 10 * time.Second

// Locality is where an endpoint, or a node, is. What is empty is not known.
type Locality struct {
	Region string `json:"region,omitempty"`
	Zone   string `json:"zone,omitempty"`
}

// Hashing is what the balance "hash" goes by.
type Hashing struct {
	// On is "client", "consumer", "header:name" or "cookie:name".
	On string `json:"on,omitempty"`
	// Bound is the most that one endpoint gets, in percent of the mean; 0 = 125.
	Bound int `json:"bound,omitempty"`
}

// What Hashing.On begins or is.
const (
	HashClient   = "client"
	HashConsumer = "consumer"
	HashHeader   = "header:"
	HashCookie   = "cookie:"
)

// Outlier are the rules by which failing endpoints are taken out for a time (I3); zero values mean DefaultOutlier's.
type Outlier struct {
	Off         bool          `json:"off,omitempty"`
	Consecutive int           `json:"consecutive,omitempty"`
	Rate        int           `json:"rate,omitempty"`  // percent
	Calls       int           `json:"calls,omitempty"` // that a rate needs
	For         time.Duration `json:"for,omitempty"`
	Most        int           `json:"most,omitempty"` // percent of the endpoints
}

var defaultOutlier = Outlier{Consecutive: 5, Rate: 50, Calls: 20, For: 30 * time.Second, Most: 50}

// DefaultOutlier are the rules of an upstream that declares none.
func DefaultOutlier() Outlier { return defaultOutlier }

// OrDefault fills in what is not declared.
func (o Outlier) OrDefault() Outlier {
	d := defaultOutlier
	return Outlier{o.Off, cmp.Or(o.Consecutive, d.Consecutive), cmp.Or(o.Rate, d.Rate), cmp.Or(o.Calls, d.Calls), cmp.Or(o.For, d.For), cmp.Or(o.Most, d.Most)}
}

// Health are active probes of every endpoint (I3); the zero value is none. Zero values beside a path mean DefaultHealth's.
type Health struct {
	Path     string        `json:"path,omitempty"`
	Host     string        `json:"host,omitempty"` // of the request; empty = the endpoint
	Interval time.Duration `json:"interval,omitempty"`
	Timeout  time.Duration `json:"timeout,omitempty"`
	Down     int           `json:"down,omitempty"` // failures in a row that take an endpoint out
	Up       int           `json:"up,omitempty"`   // successes in a row that bring it back
}

var defaultHealth = Health{Interval: 5 * time.Second, Timeout: time.Second, Down: 3, Up: 2}

// DefaultHealth is what a probe does that says no more than its path.
func DefaultHealth() Health { return defaultHealth }

// OrDefault fills in what is not declared.
func (h Health) OrDefault() Health {
	d := defaultHealth
	return Health{h.Path, h.Host, cmp.Or(h.Interval, d.Interval), cmp.Or(h.Timeout, d.Timeout), cmp.Or(h.Down, d.Down), cmp.Or(h.Up, d.Up)}
}

// Breaker are the rules of the breakers, one a zone of the upstream and node (I9); zero values mean DefaultBreaker's.
type Breaker struct {
	Off      bool          `json:"off,omitempty"`
	Failures int           `json:"failures,omitempty"` // percent; more than that opens
	Calls    int           `json:"calls,omitempty"`    // that it needs
	Window   time.Duration `json:"window,omitempty"`
	For      time.Duration `json:"for,omitempty"`
	Probes   int           `json:"probes,omitempty"`
	Restore  time.Duration `json:"restore,omitempty"`
}

var defaultBreaker = Breaker{Failures: 50, Calls: 20, Window: 10 * time.Second, For: 30 * time.Second, Probes: 3, Restore: 10 * time.Second}

// DefaultBreaker are the rules of an upstream that declares none.
func DefaultBreaker() Breaker { return defaultBreaker }

// OrDefault fills in what is not declared.
func (b Breaker) OrDefault() Breaker {
	d := defaultBreaker
	return Breaker{b.Off, cmp.Or(b.Failures, d.Failures), cmp.Or(b.Calls, d.Calls), cmp.Or(b.Window, d.Window), cmp.Or(b.For, d.For), cmp.Or(b.Probes, d.Probes), cmp.Or(b.Restore, d.Restore)}
}

// Concurrency is how many exchanges may be under way at an upstream, a node (I10).
type Concurrency struct {
	Most     int  `json:"most,omitempty"` // 0 = the places of the pool and its queue
	Adaptive bool `json:"adaptive,omitempty"`
	Least    int  `json:"least,omitempty"` // with Adaptive; 0 = DefaultLeast
}

// DefaultLeast is what an adaptive bound never goes below that declares nothing else.
const DefaultLeast = 5

// Endpoint is an address as discovery tells it, host:port, and where it is.
type Endpoint struct {
	Address string `json:"address"`
	Locality
}

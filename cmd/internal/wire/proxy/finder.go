package proxy

import (
	"context"
	"log/slog"

	"github.com/cellgate/cellgate/discovery/consul"
	"github.com/cellgate/cellgate/discovery/dns"
	"github.com/cellgate/cellgate/snapshot"
)

// finder asks whatever an upstream names as its discovery.
type finder struct {
	dns    *dns.Resolver
	consul *consul.Catalogue
}

func newFinder(log *slog.Logger, agent consul.Options) *finder {
	agent.Log = log
	return &finder{dns.New(dns.Options{Log: log}), consul.New(agent)}
}

// Follow implements upstream.Finder.
func (f *finder) Follow(ctx context.Context, d snapshot.Discovery, found func([]snapshot.Endpoint)) {
	switch {
	case d.DNS != "":
		f.dns.Follow(ctx, d.DNS, found)
	case d.Consul != "":
		f.consul.Follow(ctx, d.Consul, found)
	}
}

package proxy

import (
	"context"
	"crypto/tls"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/proxy/agent"
	"github.com/cellgate/cellgate/proxy/engine"
	"github.com/cellgate/cellgate/proxy/peer"
	"github.com/cellgate/cellgate/trust"
)

// The protocols of the peer listener (ALPN): the node protocol over h2, requests of other cells' clients over HTTP/1.1.
const (
	alpnCopies  = "h2"
	alpnForward = "http/1.1"
)

// cellCopies are where the node looks with an empty disk: its peers, then the object store.
func (n *worldNode) cellCopies() (all []agent.Copy) {
	if len(n.boot.Peers) > 0 {
		c := &peer.Cell{TLS: trust.ClientTLS(n.signer, n.roots, trust.RoleProxy), Log: n.log}
		for _, p := range n.boot.Peers {
			c.Peers = append(c.Peers, p.String())
		}
		all = append(all, c)
	}
	if n.boot.ObjectStore != "" {
		all = append(all, &peer.Store{Prefix: n.boot.ObjectStore, Region: n.boot.ID.Region()})
	}
	return all
}

// bindPeer adds the listener for the other proxies of the world, if the node has an address for it.
func (n *worldNode) bindPeer(ctx context.Context, to []engine.Listener) ([]engine.Listener, error) {
	n.copies = peer.NewService(n.boot.Cell, n.agent)
	if !n.boot.Peer.IsValid() {
		return to, nil
	}
	l, err := n.one(ctx, "peer", n.boot.Peer.String())
	if err != nil {
		return nil, err
	}
	cfg := trust.ServerTLS(n.signer, n.roots, trust.RoleProxy)
	cfg.NextProtos = []string{alpnCopies, alpnForward}
	return append(to, engine.Listener{
		Listener: l, TLS: cfg, Via: n.viaPeer, Other: map[string]func(*tls.Conn){alpnCopies: n.copies.Take},
	}), nil
}

// viaPeer names the proxy at the other end of a verified connection.
func (n *worldNode) viaPeer(state tls.ConnectionState) (string, error) {
	id, err := trust.PeerIdentity(state)
	if err != nil {
		return "", err
	}
	if id.World != n.boot.World || id.Role != trust.RoleProxy {
		return "", fmt.Errorf("%s is no proxy of the world %s", id, n.boot.World)
	}
	return string(id.ID), nil
}

// toCell connects to proxies of the cell and to no other.
func (n *worldNode) toCell(cell cells.CellID) *tls.Config {
	cfg := trust.ClientTLSTo(n.signer, n.roots, trust.RoleProxy, func(id trust.Identity) bool {
		return id.World == n.boot.World && id.ID.Cell() == cell
	})
	cfg.NextProtos = []string{alpnForward}
	return cfg
}

// metrics are those of every node and those of forwarding.
func (n *worldNode) metrics() prometheus.Gatherer {
	r := n.registry(n.origin)
	r.MustRegister(n.tail)
	return r
}

package peer

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/snapshot"
)

// Store is an object store with the cell's copy, read over plain GETs: PREFIX/targets/<region> is the signed target,
// PREFIX/blobs/<digest> a manifest or shard. Whoever can write there can withhold, not forge.
type Store struct {
	Prefix string // https, or http where signatures and digests are trust enough
	Region cells.RegionID
	TLS    *tls.Config // nil = the system's roots
}

const storeLimit = 30 * time.Second // of one object

// get reads one object of at most limit bytes. Redirects are not followed: the prefix is the operator's word.
func (s *Store) get(ctx context.Context, client *http.Client, name string, limit int64) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(s.Prefix, "/")+name, nil)
	if err != nil {
		return nil, fmt.Errorf("peer: object store: %w", err)
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("peer: object store: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("peer: object store: %s answers %d", name, res.StatusCode)
	}
	raw, err := io.ReadAll(io.LimitReader(res.Body, limit+1))
	if err != nil {
		return nil, fmt.Errorf("peer: object store: %s: %w", name, err)
	}
	if int64(len(raw)) > limit {
		return nil, fmt.Errorf("peer: object store: %s has more than %d bytes", name, limit)
	}
	return raw, nil
}

// client is made for one look and left without connections.
func (s *Store) client() (client *http.Client, done func()) {
	t := &http.Transport{TLSClientConfig: s.TLS, Proxy: nil, MaxIdleConns: 4}
	return &http.Client{Transport: t, Timeout: storeLimit, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, t.CloseIdleConnections
}

// Ask gives the region's target if the store has one; it has no denylists.
func (s *Store) Ask(ctx context.Context) (targets, denylists [][]byte) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	client, done := s.client()
	defer done()
	raw, err := s.get(ctx, client, "/targets/"+string(s.Region), maxOffer)
	if err != nil {
		return nil, nil
	}
	return [][]byte{raw}, nil
}

// Fetch gets all blobs, verified by digest.
func (s *Store) Fetch(ctx context.Context, digests []string) (map[string][]byte, error) {
	client, done := s.client()
	defer done()
	found, total := make(map[string][]byte, len(digests)), 0
	for _, d := range digests {
		raw, err := s.get(ctx, client, "/blobs/"+d, nodeapi.MaxBlob)
		if err != nil {
			return nil, err
		}
		if string(snapshot.Sum(raw)) != d {
			return nil, fmt.Errorf("peer: object store: blob %s has another content", d)
		}
		if total += len(raw); total > nodeapi.MaxFetch {
			return nil, fmt.Errorf("peer: object store: the blobs have more than %d bytes", nodeapi.MaxFetch)
		}
		found[d] = raw
	}
	return found, nil
}

package snapshot

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"
)

// Meta is what a publication adds to its content.
type Meta struct {
	Number     uint64
	Created    time.Time
	Author     string
	Message    string
	Previous   uint64
	RollbackOf uint64
}

// HostPrefix starts the keys of the shards that hold routes: "host/00" … "host/ff" by hash of the route's host.
const HostPrefix = "host/"

// The keys of the shards that hold the shared lists, as JSON.
const (
	KeyConsumers = "shared/consumers"
	KeyPlans     = "shared/plans"
	KeyPolicies  = "shared/policies"
	KeySamples   = "shared/samples"
	KeyTenants   = "shared/tenants"
	KeyUpstreams = "shared/upstreams"

	KeyIdentityKeys = "shared/identity_keys"
)

var errVerify = errors.New("snapshot: does not verify")

// Sum is the digest of a blob.
func Sum(blob []byte) Digest {
	sum := sha256.Sum256(blob)
	return Digest(hex.EncodeToString(sum[:]))
}

// Seal cuts a valid Config into content-addressed shards. Equal Configs give equal shards and checksums.
func Seal(cfg *Config, meta Meta) (*Snapshot, error) {
	s := &Snapshot{Blobs: map[Digest][]byte{}}
	s.Manifest = Manifest{
		Form: Form, MinReader: cfg.minReader(), Number: meta.Number, Created: meta.Created.UTC(), Author: meta.Author, Message: meta.Message,
		Previous: meta.Previous, RollbackOf: meta.RollbackOf,
	}
	hosts := s.sealRoutes(cfg.Routes)
	for _, list := range sharedLists(cfg) {
		if err := s.sealShared(list.key, list.list, list.n); err != nil {
			return nil, err
		}
	}
	s.Manifest.Counts = Counts{
		Routes: len(cfg.Routes), Upstreams: len(cfg.Upstreams), Policies: len(cfg.Policies),
		Consumers: len(cfg.Consumers), Tenants: len(cfg.Tenants), Hosts: hosts,
	}
	slices.SortFunc(s.Manifest.Shards, func(a, b Shard) int { return cmp.Compare(a.Key, b.Key) })
	s.Manifest.Checksum = s.Manifest.contentSum()
	return s, nil
}

type sharedList struct {
	key  string
	list any // pointer to the list in the Config
	n    int
}

func sharedLists(cfg *Config) []sharedList {
	return []sharedList{
		{KeyConsumers, &cfg.Consumers, len(cfg.Consumers)},
		{KeyIdentityKeys, &cfg.IdentityKeys, len(cfg.IdentityKeys)},
		{KeyPlans, &cfg.Plans, len(cfg.Plans)},
		{KeyPolicies, &cfg.Policies, len(cfg.Policies)},
		{KeySamples, &cfg.Samples, len(cfg.Samples)},
		{KeyTenants, &cfg.Tenants, len(cfg.Tenants)},
		{KeyUpstreams, &cfg.Upstreams, len(cfg.Upstreams)},
	}
}

// sealRoutes cuts the routes by host, keeping their order, and counts the hosts.
func (s *Snapshot) sealRoutes(routes []Route) (hosts int) {
	var buckets [256][]Route
	seen := map[string]struct{}{}
	for _, r := range routes {
		seen[r.Match.Host] = struct{}{}
		b := bucket(r.Match.Host)
		buckets[b] = append(buckets[b], r)
	}
	for b, in := range buckets {
		if len(in) > 0 {
			s.add(fmt.Sprintf("%s%02x", HostPrefix, b), EncodeRoutes(in))
			buckets[b] = nil
		}
	}
	return len(seen)
}

func bucket(host string) uint8 {
	h := fnv.New32a()
	h.Write([]byte(host))
	sum := h.Sum32()
	return uint8(sum ^ sum>>8 ^ sum>>16 ^ sum>>24)
}

func (s *Snapshot) sealShared(key string, list any, n int) error {
	if n == 0 {
		return nil
	}
	raw, err := json.Marshal(list)
	if err != nil {
		return fmt.Errorf("snapshot: seal %s: %w", key, err)
	}
	s.add(key, raw)
	return nil
}

func (s *Snapshot) add(key string, blob []byte) {
	d := Sum(blob)
	s.Blobs[d] = blob
	s.Manifest.Shards = append(s.Manifest.Shards, Shard{Key: key, Digest: d, Bytes: len(blob)})
}

// contentSum covers form, keys and digests in order; nothing of the publication.
func (m *Manifest) contentSum() Digest {
	var b bytes.Buffer
	fmt.Fprintf(&b, "cellgate snapshot %d\n", m.Form)
	for _, s := range m.Shards {
		fmt.Fprintf(&b, "%s %s\n", s.Key, s.Digest)
	}
	return Sum(b.Bytes())
}

// Verify checks that the manifest is one we can read, its shards are in order, every blob is there and is what its digest
// says, and the checksum is that of the content.
func (s *Snapshot) Verify() error {
	if err := s.Manifest.Verify(); err != nil {
		return err
	}
	for _, shard := range s.Manifest.Shards {
		if _, err := s.Blob(shard); err != nil {
			return err
		}
	}
	return nil
}

// Verify checks the manifest by itself: form, order of shards, checksum.
func (m *Manifest) Verify() error {
	if m.MinReader > Reader {
		return fmt.Errorf("%w: it needs a reader of form %d, this one knows %d", errVerify, m.MinReader, Reader)
	}
	for i, shard := range m.Shards {
		if i > 0 && m.Shards[i-1].Key >= shard.Key {
			return fmt.Errorf("%w: shards are out of order at %q", errVerify, shard.Key)
		}
	}
	if sum := m.contentSum(); sum != m.Checksum {
		return fmt.Errorf("%w: checksum is %s, content has %s", errVerify, m.Checksum, sum)
	}
	return nil
}

// Blob is the verified content of one shard.
func (s *Snapshot) Blob(shard Shard) ([]byte, error) {
	blob, ok := s.Blobs[shard.Digest]
	if !ok {
		return nil, fmt.Errorf("%w: shard %s is missing", errVerify, shard.Key)
	}
	if len(blob) != shard.Bytes || Sum(blob) != shard.Digest {
		return nil, fmt.Errorf("%w: shard %s is damaged", errVerify, shard.Key)
	}
	return blob, nil
}

// Open verifies the snapshot and gives back the Config that was sealed.
func Open(s *Snapshot) (*Config, error) {
	if err := s.Verify(); err != nil {
		return nil, err
	}
	cfg, err := OpenShared(s)
	if err != nil {
		return nil, err
	}
	for _, shard := range s.Manifest.Shards {
		if !strings.HasPrefix(shard.Key, HostPrefix) {
			continue
		}
		err := ReadRoutes(s.Blobs[shard.Digest], func(r *Route, _ string) error {
			cfg.Routes = append(cfg.Routes, r.clone())
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", shard.Key, err)
		}
	}
	slices.SortFunc(cfg.Routes, func(a, b Route) int { return cmp.Compare(a.ID, b.ID) })
	return cfg, nil
}

// OpenShared reads the shared lists alone, verifying their blobs; Routes stays empty. Shards of unknown keys are ignored.
func OpenShared(s *Snapshot) (*Config, error) {
	cfg := &Config{}
	lists := sharedLists(cfg)
	for _, shard := range s.Manifest.Shards {
		i := slices.IndexFunc(lists, func(l sharedList) bool { return l.key == shard.Key })
		if i < 0 {
			continue
		}
		blob, err := s.Blob(shard)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(blob, lists[i].list); err != nil {
			return nil, fmt.Errorf("snapshot: %s: %w", shard.Key, err)
		}
	}
	return cfg, nil
}

// EncodeManifest is the stored and sent form of a manifest, JSON.
func EncodeManifest(m *Manifest) ([]byte, error) {
	raw, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("snapshot: encode manifest: %w", err)
	}
	return raw, nil
}

// DecodeManifest reads and verifies a manifest. Unknown fields of a newer writer are ignored; its MinReader decides.
func DecodeManifest(raw []byte) (*Manifest, error) {
	var m Manifest
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, fmt.Errorf("snapshot: decode manifest: %w", err)
	}
	if err := m.Verify(); err != nil {
		return nil, err
	}
	return &m, nil
}

package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// MaxBlob bounds one blob, in bytes.
const MaxBlob = 64 << 20

const (
	chunkBytes = 256 << 10
	// perCommit chunks go into one commit, safely below MaxCommit.
	perCommit = 3
	blobForm  = 1
)

// ErrCorrupt says that stored bytes are not what their digest promises.
var ErrCorrupt = errors.New("store: a stored blob is damaged")

// Blobs keeps large immutable values by the hex SHA-256 of their content, in chunks.
//
// A blob is put before whatever refers to it, so for a while nothing does. How Sweep tells such a blob from a forgotten one:
// a sweep begins by changing a key, its mark. Who publishes reads the mark first, puts every blob and commits the reference
// under the condition that the mark is as it was; while a sweep is under way, blobs that are there already are written
// anew (Write). So what was put before the mark is referred to when the sweep reads the references, or never will be; what is
// put after it is younger than the mark, and a sweep leaves that alone.
//
// Invariant: a blob with a head has all of its chunks; a Put that was interrupted leaves chunks without a head, which
// the next Put of the same content finishes, or a sweep deletes.
type Blobs struct{ store Store }

// NewBlobs keeps blobs in s.
func NewBlobs(s Store) *Blobs { return &Blobs{store: s} }

type blobHead struct {
	Form   int `json:"form"`
	Bytes  int `json:"bytes"`
	Chunks int `json:"chunks"`
}

// Put stores the blob under the conditions. Content that is there already costs one read. After an error it may be repeated.
func (b *Blobs) Put(ctx context.Context, blob []byte, conds ...Cond) (digest string, err error) {
	digest = DigestOf(blob)
	if _, err := b.store.Get(ctx, keyBlob(digest)); err == nil {
		return digest, nil
	} else if !errors.Is(err, ErrNotFound) {
		return "", fmt.Errorf("store: blob %s: %w", digest, err)
	}
	return b.Write(ctx, blob, conds...)
}

// DigestOf is the name that content has among blobs: its hex SHA-256.
func DigestOf(blob []byte) string {
	sum := sha256.Sum256(blob)
	return hex.EncodeToString(sum[:])
}

// Write is Put that writes the blob also when it is there.
func (b *Blobs) Write(ctx context.Context, blob []byte, conds ...Cond) (digest string, err error) {
	if len(blob) > MaxBlob {
		return "", fmt.Errorf("%w: a blob of %d bytes", ErrTooLarge, len(blob))
	}
	digest = DigestOf(blob)
	n := 0
	var ops []Op
	for rest := blob; len(rest) > 0; n++ {
		size := min(len(rest), chunkBytes)
		ops = append(ops, Put(keyChunk(digest, n), rest[:size]))
		rest = rest[size:]
		if len(ops) == perCommit {
			if _, err := b.store.Commit(ctx, conds, ops); err != nil {
				return "", fmt.Errorf("store: blob %s: %w", digest, err)
			}
			ops = nil
		}
	}
	head, err := json.Marshal(blobHead{Form: blobForm, Bytes: len(blob), Chunks: n})
	if err != nil {
		return "", fmt.Errorf("store: blob %s: %w", digest, err)
	}
	if _, err := b.store.Commit(ctx, conds, append(ops, Put(keyBlob(digest), head))); err != nil {
		return "", fmt.Errorf("store: blob %s: %w", digest, err)
	}
	return digest, nil
}

// Get returns the blob, verified, or ErrNotFound or ErrCorrupt.
func (b *Blobs) Get(ctx context.Context, digest string) ([]byte, error) {
	if raw, err := hex.DecodeString(digest); err != nil || len(raw) != sha256.Size || hex.EncodeToString(raw) != digest {
		return nil, fmt.Errorf("%w: %.80q is no digest", ErrNotFound, digest)
	}
	e, err := b.store.Get(ctx, keyBlob(digest))
	if err != nil {
		return nil, fmt.Errorf("store: blob %s: %w", digest, err)
	}
	var head blobHead
	if err := json.Unmarshal(e.Value, &head); err != nil || head.Form < 1 || head.Form > blobForm || head.Bytes < 0 || head.Bytes > MaxBlob {
		return nil, fmt.Errorf("%w: head of %s: %.80q", ErrCorrupt, digest, e.Value)
	}
	chunks, _, err := b.store.List(ctx, keyChunks(digest))
	if err != nil {
		return nil, fmt.Errorf("store: blob %s: %w", digest, err)
	}
	var blob bytes.Buffer
	for _, c := range chunks {
		blob.Write(c.Value)
	}
	if DigestOf(blob.Bytes()) != digest {
		return nil, fmt.Errorf("%w: %s has %d of %d chunks, %d of %d bytes", ErrCorrupt, digest, len(chunks), head.Chunks, blob.Len(), head.Bytes)
	}
	return blob.Bytes(), nil
}

// List gives the digests of all whole blobs.
func (b *Blobs) List(ctx context.Context) ([]string, error) {
	heads, _, err := b.store.Keys(ctx, prefixBlobs)
	if err != nil {
		return nil, fmt.Errorf("store: blobs: %w", err)
	}
	digests := make([]string, len(heads))
	for i, h := range heads {
		digests[i] = h.Key[len(prefixBlobs):]
	}
	return digests, nil
}

// Delete removes a blob that nobody puts meanwhile, under the conditions. An absent one is no error.
func (b *Blobs) Delete(ctx context.Context, digest string, conds ...Cond) error {
	chunks, rev, err := b.store.Keys(ctx, keyChunks(digest))
	if err != nil {
		return fmt.Errorf("store: blob %s: %w", digest, err)
	}
	head, err := b.store.Get(ctx, keyBlob(digest))
	if err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("store: blob %s: %w", digest, err)
	}
	if err == nil {
		chunks = append([]Entry{head}, chunks...)
	}
	return b.drop(ctx, digest, chunks, rev+1, conds)
}

// Sweep deletes the blobs, and the chunks without a head, that were last written before mark and that needed doesn't hold.
// It goes by the protocol of Blobs: mark is the revision at which the sweep's mark was set, needed was read after that, and
// conds hold no longer than nobody else sweeps. It ends with ErrConflict when they don't.
func (b *Blobs) Sweep(ctx context.Context, mark Revision, needed map[string]bool, conds ...Cond) (deleted int, err error) {
	heads, _, err := b.store.Keys(ctx, prefixBlobs)
	if err != nil {
		return 0, fmt.Errorf("store: sweep: %w", err)
	}
	chunks, _, err := b.store.Keys(ctx, prefixChunks)
	if err != nil {
		return 0, fmt.Errorf("store: sweep: %w", err)
	}
	parts := map[string][]Entry{} // the head, if there is one, before its chunks
	for _, e := range heads {
		digest := e.Key[len(prefixBlobs):]
		parts[digest] = append(parts[digest], e)
	}
	for _, e := range chunks {
		digest, _, _ := strings.Cut(e.Key[len(prefixChunks):], "/")
		parts[digest] = append(parts[digest], e)
	}
	for _, digest := range slices.Sorted(maps.Keys(parts)) {
		if needed[digest] {
			continue
		}
		err := b.drop(ctx, digest, parts[digest], mark, conds)
		if errors.Is(err, ErrConflict) { // it was put anew, or the conditions hold no more
			if _, err := b.store.Commit(ctx, conds, nil); err != nil {
				return deleted, fmt.Errorf("store: sweep: %w", err)
			}
			continue
		}
		if err != nil {
			return deleted, err
		}
		deleted++
	}
	return deleted, nil
}

// drop deletes a blob's parts unless one of them is not older than mark or has been put anew: its head first, so that what
// is interrupted leaves no head without chunks.
func (b *Blobs) drop(ctx context.Context, digest string, parts []Entry, mark Revision, conds []Cond) error {
	for _, e := range parts {
		if e.Modified >= mark {
			return fmt.Errorf("store: blob %s: %w", digest, ErrConflict)
		}
	}
	for part := range slices.Chunk(parts, MaxOps-len(conds)) {
		own, ops := slices.Clone(conds), make([]Op, len(part))
		for i, e := range part {
			own, ops[i] = append(own, Unchanged(e)), Delete(e.Key)
		}
		if _, err := b.store.Commit(ctx, own, ops); err != nil {
			return fmt.Errorf("store: blob %s: %w", digest, err)
		}
	}
	return nil
}

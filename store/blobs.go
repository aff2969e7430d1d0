package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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
// Invariant: a blob with a head has all of its chunks; a Put that was interrupted leaves chunks without a head, which
// the next Put of the same content finishes.
type Blobs struct{ store Store }

// NewBlobs keeps blobs in s.
func NewBlobs(s Store) *Blobs { return &Blobs{store: s} }

type blobHead struct {
	Form   int `json:"form"`
	Bytes  int `json:"bytes"`
	Chunks int `json:"chunks"`
}

// Put stores the blob. Content that is there already costs one read. After an error it may be repeated.
func (b *Blobs) Put(ctx context.Context, blob []byte) (digest string, err error) {
	if len(blob) > MaxBlob {
		return "", fmt.Errorf("%w: a blob of %d bytes", ErrTooLarge, len(blob))
	}
	sum := sha256.Sum256(blob)
	digest = hex.EncodeToString(sum[:])
	if _, err := b.store.Get(ctx, keyBlob(digest)); err == nil {
		return digest, nil
	} else if !errors.Is(err, ErrNotFound) {
		return "", fmt.Errorf("store: blob %s: %w", digest, err)
	}
	n := 0
	var ops []Op
	for rest := blob; len(rest) > 0; n++ {
		size := min(len(rest), chunkBytes)
		ops = append(ops, Put(keyChunk(digest, n), rest[:size]))
		rest = rest[size:]
		if len(ops) == perCommit {
			if _, err := b.store.Commit(ctx, nil, ops); err != nil {
				return "", fmt.Errorf("store: blob %s: %w", digest, err)
			}
			ops = nil
		}
	}
	head, err := json.Marshal(blobHead{Form: blobForm, Bytes: len(blob), Chunks: n})
	if err != nil {
		return "", fmt.Errorf("store: blob %s: %w", digest, err)
	}
	if _, err := b.store.Commit(ctx, nil, append(ops, Put(keyBlob(digest), head))); err != nil {
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
	sum := sha256.Sum256(blob.Bytes())
	if hex.EncodeToString(sum[:]) != digest {
		return nil, fmt.Errorf("%w: %s has %d of %d chunks, %d of %d bytes", ErrCorrupt, digest, len(chunks), head.Chunks, blob.Len(), head.Bytes)
	}
	return blob.Bytes(), nil
}

// List gives the digests of all whole blobs.
func (b *Blobs) List(ctx context.Context) ([]string, error) {
	heads, _, err := b.store.List(ctx, prefixBlobs)
	if err != nil {
		return nil, fmt.Errorf("store: blobs: %w", err)
	}
	digests := make([]string, len(heads))
	for i, h := range heads {
		digests[i] = h.Key[len(prefixBlobs):]
	}
	return digests, nil
}

// Delete removes a blob under the conditions, head first, so that what is interrupted leaves no head without chunks.
// An absent one is no error.
func (b *Blobs) Delete(ctx context.Context, digest string, conds ...Cond) error {
	if _, err := b.store.Commit(ctx, conds, []Op{Delete(keyBlob(digest))}); err != nil {
		return fmt.Errorf("store: blob %s: %w", digest, err)
	}
	chunks, _, err := b.store.List(ctx, keyChunks(digest))
	if err != nil {
		return fmt.Errorf("store: blob %s: %w", digest, err)
	}
	for part := range slices.Chunk(chunks, MaxOps-len(conds)) {
		ops := make([]Op, len(part))
		for i, c := range part {
			ops[i] = Delete(c.Key)
		}
		if _, err := b.store.Commit(ctx, conds, ops); err != nil {
			return fmt.Errorf("store: blob %s: %w", digest, err)
		}
	}
	return nil
}

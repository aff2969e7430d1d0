package regionctl

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/cellgate/cellgate/store"
)

// blobChunk is how much of a blob one key holds, in bytes.
const blobChunk = 256 << 10

// blobs keeps content-addressed values in chunks of a store. The key of the digest is written last: a blob that is found
// is whole.
type blobs struct{ s store.Store }

// Put stores the blob unless it is there.
func (b blobs) Put(ctx context.Context, blob []byte) (string, error) {
	h := sha256.Sum256(blob)
	digest := hex.EncodeToString(h[:])
	if _, err := b.s.Get(ctx, keyBlob(digest)); err == nil {
		return digest, nil
	} else if !isAbsent(err) {
		return "", err
	}
	n := 0
	for rest := blob; len(rest) > 0; n++ {
		chunk := rest[:min(len(rest), blobChunk)]
		if _, err := b.s.Commit(ctx, nil, []store.Op{store.Put(keyBlobChunk(digest, n), chunk)}); err != nil {
			return "", err
		}
		rest = rest[len(chunk):]
	}
	_, err := b.s.Commit(ctx, nil, []store.Op{store.Put(keyBlob(digest), []byte(strconv.Itoa(n)))})
	return digest, err
}

// Get gives a whole, verified blob or an error.
func (b blobs) Get(ctx context.Context, digest string) ([]byte, error) {
	e, err := b.s.Get(ctx, keyBlob(digest))
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(string(e.Value))
	if err != nil {
		return nil, fmt.Errorf("regionctl: blob %.16s: %w", digest, err)
	}
	var out []byte
	for i := range n {
		c, err := b.s.Get(ctx, keyBlobChunk(digest, i))
		if err != nil {
			return nil, err
		}
		out = append(out, c.Value...)
	}
	if h := sha256.Sum256(out); hex.EncodeToString(h[:]) != digest {
		return nil, fmt.Errorf("regionctl: blob %.16s is damaged", digest)
	}
	return out, nil
}

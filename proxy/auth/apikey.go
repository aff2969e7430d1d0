package auth

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/cellgate/cellgate/snapshot"
)

// KeyPrefix is what every API key starts with.
const KeyPrefix = "cg_"

const maxAPIKey = 256

// KeyTable finds the consumer of an API key. It holds hashes only, 36 bytes a key, free of pointers. It is immutable.
type KeyTable struct {
	prefix []uint64 // first 8 bytes of the hash, sorted; the index of what follows
	hashes [][sha256.Size]byte
	owner  []int32
}

// NewKeyTable takes the hashes of the consumers in their order; a malformed hash, or one that two consumers claim, is an error.
func NewKeyTable(consumers []snapshot.Consumer) (*KeyTable, error) {
	type row struct {
		hash  [sha256.Size]byte
		owner int32
	}
	var rows []row
	for i, c := range consumers {
		for _, text := range c.APIKeyHashes {
			h, err := parseHash(text)
			if err != nil {
				return nil, fmt.Errorf("auth: consumer %q: %w", c.ID, err)
			}
			rows = append(rows, row{h, int32(i)})
		}
	}
	slices.SortFunc(rows, func(a, b row) int { return strings.Compare(string(a.hash[:]), string(b.hash[:])) })
	t := &KeyTable{}
	for i, r := range rows {
		if i > 0 && rows[i-1].hash == r.hash {
			if rows[i-1].owner != r.owner {
				return nil, fmt.Errorf("auth: consumers %q and %q have the same API key", consumers[rows[i-1].owner].ID, consumers[r.owner].ID)
			}
			continue
		}
		t.prefix = append(t.prefix, binary.BigEndian.Uint64(r.hash[:]))
		t.hashes = append(t.hashes, r.hash)
		t.owner = append(t.owner, r.owner)
	}
	return t, nil
}

func parseHash(text string) (h [sha256.Size]byte, err error) {
	digits, ok := strings.CutPrefix(text, "sha256:")
	if n, err := hex.Decode(h[:], []byte(digits[:min(len(digits), 2*sha256.Size)])); !ok || err != nil || n != len(h) || len(digits) != 2*n {
		return h, fmt.Errorf("%.80q is not sha256: and 64 hexadecimal digits", text)
	}
	return h, nil
}

// HashKey is the stored form of an API key.
func HashKey(key string) string {
	h := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(h[:])
}

// Find gives the index of the consumer that the key belongs to. What it takes depends on the key's hash alone, and that only
// by its first 8 bytes; the hash itself is compared in constant time. It doesn't allocate.
func (t *KeyTable) Find(key []byte) (consumer int, ok bool) {
	if len(key) > maxAPIKey || !bytes.HasPrefix(key, []byte(KeyPrefix)) {
		return 0, false
	}
	h := sha256.Sum256(key)
	first := binary.BigEndian.Uint64(h[:])
	i, _ := slices.BinarySearch(t.prefix, first)
	for ; i < len(t.prefix) && t.prefix[i] == first; i++ {
		if subtle.ConstantTimeCompare(t.hashes[i][:], h[:]) == 1 {
			return int(t.owner[i]), true
		}
	}
	return 0, false
}

package auth

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cellgate/cellgate/apikey"
	"github.com/cellgate/cellgate/snapshot"
)

const maxAPIKey = 256

// KeyTable finds the owner of an API key. It holds hashes only, 44 bytes a key, free of pointers. It is immutable.
type KeyTable struct{ by [apikey.Algorithms]keyRows }

// keyRows are the keys that are hashed by one algorithm.
type keyRows struct {
	prefix []uint64 // first 8 bytes of the hash, sorted; the index of what follows
	hashes [][sha256.Size]byte
	owner  []int32
}

// NewKeyTable takes the hashes of the consumers in their order; a malformed hash, or one that two consumers claim, is an error.
func NewKeyTable(consumers []snapshot.Consumer) (*KeyTable, error) {
	t := &KeyTable{}
	err := t.fill(len(consumers), func(i int) (string, []string) { return consumers[i].ID, consumers[i].APIKeyHashes })
	return t, err
}

// NewIssuedTable is the table of issued keys; an owner is the index of the list's consumer.
func NewIssuedTable(l *apikey.List) (*KeyTable, error) {
	t := &KeyTable{}
	err := t.fill(len(l.Consumers), func(i int) (string, []string) { return l.Consumers[i].ID, l.Consumers[i].Hashes })
	return t, err
}

func (t *KeyTable) fill(consumers int, get func(i int) (id string, hashes []string)) error {
	type row struct {
		apikey.Hash
		owner int32
	}
	var rows []row
	for i := range consumers {
		id, hashes := get(i)
		for _, text := range hashes {
			h, err := apikey.Parse(text)
			if err != nil {
				return fmt.Errorf("auth: consumer %q: %w", id, err)
			}
			rows = append(rows, row{h, int32(i)})
		}
	}
	slices.SortFunc(rows, func(a, b row) int { return bytes.Compare(a.Sum[:], b.Sum[:]) })
	for i, r := range rows {
		if i > 0 && rows[i-1].Hash == r.Hash {
			if rows[i-1].owner != r.owner {
				one, _ := get(int(rows[i-1].owner))
				other, _ := get(int(r.owner))
				return fmt.Errorf("auth: consumers %q and %q have the same API key", one, other)
			}
			continue
		}
		by := &t.by[r.By]
		by.prefix = append(by.prefix, binary.BigEndian.Uint64(r.Sum[:]))
		by.hashes = append(by.hashes, r.Sum)
		by.owner = append(by.owner, r.owner)
	}
	return nil
}

// HashKey is the stored form of an API key.
func HashKey(key string) string { return apikey.SHA256.Of([]byte(key)).String() }

// Find gives the owner's index. What it takes depends on the key's hash alone, and that only by its first 8 bytes; the hash
// itself is compared in constant time. It doesn't allocate.
func (t *KeyTable) Find(key []byte) (owner int, ok bool) {
	if len(key) > maxAPIKey || !bytes.HasPrefix(key, []byte(apikey.Prefix)) {
		return 0, false
	}
	for by := range apikey.Algorithms {
		if rows := &t.by[by]; len(rows.prefix) > 0 {
			if owner, ok := rows.find(by.Of(key)); ok {
				return owner, true
			}
		}
	}
	return 0, false
}

func (r *keyRows) find(h apikey.Hash) (owner int, ok bool) {
	first := binary.BigEndian.Uint64(h.Sum[:])
	i, _ := slices.BinarySearch(r.prefix, first)
	for ; i < len(r.prefix) && r.prefix[i] == first; i++ {
		if subtle.ConstantTimeCompare(r.hashes[i][:], h.Sum[:]) == 1 {
			return int(r.owner[i]), true
		}
	}
	return 0, false
}

// Package apikey is what API keys are made of, how they are remembered, and what controllers tell their nodes of them.
//
//	key, id := apikey.New(random)      // shown once; id is public
//	apikey.Well(key)                   // false: no key of ours, nobody need be asked
//	h := apikey.SHA256.Of(key)         // what is stored: h.String() is "sha256:…"
//	list, err := apikey.Decode(raw)    // every issued key's hash, as controllers sign it
package apikey

import (
	"bytes"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
)

// Prefix is what every API key starts with.
const Prefix = "cg_"

// The form of a key that New makes: cg_<id>_<secret><check>. Id and secret are random; check is the CRC-32C of all before it.
// It tells slips and guesses from keys without asking anybody; it proves nothing.
const (
	alphabet  = "0123456789abcdefghjkmnpqrstvwxyz" // 5 bits each; nothing that is read as another
	idLen     = 10
	secretLen = 32 // 160 bits
	checkLen  = 7
	checkAt   = len(Prefix) + idLen + 1 + secretLen
	keyLen    = checkAt + checkLen
)

// New makes a key of 32 × 5 random bits, and gives its public id. Random must not fail.
func New(random io.Reader) (key, id string) {
	raw := make([]byte, idLen+secretLen)
	if _, err := io.ReadFull(random, raw); err != nil {
		panic(fmt.Sprintf("apikey: no randomness: %v", err))
	}
	for i, b := range raw {
		raw[i] = alphabet[b&31]
	}
	id = string(raw[:idLen])
	key = Prefix + id + "_" + string(raw[idLen:])
	check := checkOf([]byte(key))
	return key + string(check[:]), id
}

// Well says whether the key has the form of New and its check is right. It doesn't allocate.
func Well(key []byte) bool {
	if len(key) != keyLen || !bytes.HasPrefix(key, []byte(Prefix)) || key[len(Prefix)+idLen] != '_' {
		return false
	}
	check := checkOf(key[:checkAt])
	return bytes.Equal(key[checkAt:], check[:])
}

func checkOf(head []byte) (check [checkLen]byte) {
	sum := crc32.Checksum(head, crc32.MakeTable(crc32.Castagnoli))
	for i := range check {
		check[i] = alphabet[sum&31]
		sum >>= 5
	}
	return check
}

// Algorithm is how a key is hashed. Keys are random, so that one pass of a fast hash is enough.
type Algorithm uint8

// The algorithms, which may stand beside each other, so that one can be left.
const (
	SHA256     Algorithm = iota
	SHA512_256           // FIPS 180-4, section 5.3.6.2
	Algorithms           // how many there are
)

func tags() [Algorithms]string { return [...]string{"sha256:", "sha512-256:"} }

// Hash is a key as it is remembered.
type Hash struct {
	By  Algorithm
	Sum [sha256.Size]byte
}

// Of is the hash of a key. It doesn't allocate.
func (a Algorithm) Of(key []byte) Hash {
	if a == SHA512_256 {
		return Hash{a, sha512.Sum512_256(key)}
	}
	return Hash{a, sha256.Sum256(key)}
}

// String is the tagged form, as sha256: and 64 hexadecimal digits.
func (h Hash) String() string { return tags()[h.By] + hex.EncodeToString(h.Sum[:]) }

// Parse reads the tagged form; digits may be in any case.
func Parse(text string) (h Hash, err error) {
	for by, tag := range tags() {
		digits, ok := strings.CutPrefix(text, tag)
		if !ok || len(digits) != 2*len(h.Sum) {
			continue
		}
		if _, err := hex.Decode(h.Sum[:], []byte(digits)); err == nil {
			h.By = Algorithm(by)
			return h, nil
		}
	}
	return Hash{}, fmt.Errorf("%.80q is not %s and %d hexadecimal digits", text, strings.Join(tagList(), " or "), 2*len(h.Sum))
}

func tagList() []string {
	t := tags()
	return t[:]
}

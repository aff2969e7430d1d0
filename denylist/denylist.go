// Package denylist is the list of callers and routes that operators have shut out: users, token ids, API keys and routes.
// It is kept by every region for itself and needs neither leader nor publication; places that exchange what they know end
// with the same list.
//
//	all := denylist.Unite(ours, theirs)
//	set := denylist.Compile(denylist.Live(all, now))
//	set.User(issuer, subject)
package denylist

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cellgate/cellgate/cells"
)

// Kind is what an entry shuts out.
type Kind string

// The kinds of entries.
const (
	User  Kind = "user"  // ID is a token's subject, of Issuer or of any
	Token Kind = "token" // ID is a token's jti, of Issuer or of any
	Key   Kind = "key"   // ID is "sha256:" and at least 16 hexadecimal digits of an API key's hash
	Route Kind = "route" // ID is a route's id
)

// Bounds of a list.
const (
	MaxEntries = 10_000 // that deny; beyond it an addition is refused
	maxRemoved = 10_000 // removals that are remembered; beyond it the oldest are forgotten, so a denial may come back
	maxID      = 256    // bytes of an id or issuer
	maxWords   = 200    // bytes of a reason
)

// Entry is one operator's word about one caller or route. It is a stored and sent form: see Form.
type Entry struct {
	Kind   Kind   `json:"kind"`
	ID     string `json:"id"`
	Issuer string `json:"issuer,omitempty"` // of users and tokens; empty = any
	// Region is where it holds; empty = everywhere.
	Region  cells.RegionID `json:"region,omitempty"`
	Reason  string         `json:"reason"`
	By      string         `json:"by"`
	At      time.Time      `json:"at"`
	Expires time.Time      `json:"expires"`
	// Removed says that the denial was taken back. It is remembered as long as the denial would have held.
	Removed bool `json:"removed,omitempty"`
}

// Name tells entries apart, whatever bytes an issuer gives as subjects.
func (e Entry) Name() string {
	parts := []string{string(e.Kind), string(e.Region), e.Issuer, e.ID}
	if strings.ContainsAny(e.Issuer+e.ID, "\x00\x01") {
		plain := strings.NewReplacer("\x00", "\x010", "\x01", "\x011")
		parts[2], parts[3] = plain.Replace(e.Issuer), plain.Replace(e.ID)
	}
	return strings.Join(parts, "\x00")
}

// Check says what is wrong with the entry.
func (e Entry) Check() error {
	switch {
	case e.Kind != User && e.Kind != Token && e.Kind != Key && e.Kind != Route:
		return fmt.Errorf("denylist: %.40q is neither user, token, key nor route", e.Kind)
	case e.ID == "" || len(e.ID) > maxID || len(e.Issuer) > maxID:
		return fmt.Errorf("denylist: an id has 1…%d bytes", maxID)
	case e.Issuer != "" && e.Kind != User && e.Kind != Token:
		return errors.New("denylist: only users and tokens have an issuer")
	case len(e.Reason) > maxWords || len(e.By) > maxWords:
		return fmt.Errorf("denylist: a reason has at most %d bytes", maxWords)
	case e.Kind == Key:
		_, err := keyBytes(e.ID)
		return err
	}
	return nil
}

// keyBytes are the first bytes of a hash that the id of a key gives.
func keyBytes(id string) ([]byte, error) {
	digits, ok := strings.CutPrefix(id, "sha256:")
	raw, err := hex.DecodeString(digits)
	if !ok || err != nil || len(raw) < 8 || len(raw) > sha256.Size {
		return nil, fmt.Errorf("denylist: a key is named by sha256: and 16 to 64 hexadecimal digits of its hash, not %.80q", id)
	}
	return raw, nil
}

// Unite merges lists: of what is said of one caller, the latest word counts. It is commutative, associative and idempotent.
func Unite(lists ...[]Entry) []Entry {
	known := map[string]Entry{}
	for _, list := range lists {
		for _, e := range list {
			if old, ok := known[e.Name()]; !ok || later(e, old) > 0 {
				known[e.Name()] = e
			}
		}
	}
	out := make([]Entry, 0, len(known))
	for _, e := range known {
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b Entry) int { return strings.Compare(a.Name(), b.Name()) })
	return out
}

// later orders two words about the same; of two at one moment the denial counts.
func later(a, b Entry) int {
	denies := func(e Entry) int {
		if e.Removed {
			return 0
		}
		return 1
	}
	return cmp.Or(a.At.Compare(b.At), cmp.Compare(denies(a), denies(b)), a.Expires.Compare(b.Expires), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.By, b.By))
}

// Current drops what has expired by now, and what is beyond the bounds: the oldest removals, and the oldest
// denials when regions took in too many without knowing of one another's.
func Current(entries []Entry, now time.Time) []Entry {
	removed, live := 0, 0
	newest := slices.Clone(entries)
	slices.SortStableFunc(newest, func(a, b Entry) int { return b.At.Compare(a.At) })
	keep := make(map[string]bool, len(entries))
	for _, e := range newest {
		switch {
		case !now.Before(e.Expires):
		case e.Removed && removed < maxRemoved:
			removed++
			keep[e.Name()] = true
		case !e.Removed && live < MaxEntries:
			live++
			keep[e.Name()] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(entries), func(e Entry) bool { return !keep[e.Name()] })
}

// Live are the entries that deny at now.
func Live(entries []Entry, now time.Time) []Entry {
	return slices.DeleteFunc(slices.Clone(entries), func(e Entry) bool { return e.Removed || !now.Before(e.Expires) })
}

// In are the entries that hold in the region.
func In(entries []Entry, region cells.RegionID) []Entry {
	return slices.DeleteFunc(slices.Clone(entries), func(e Entry) bool { return e.Region != "" && e.Region != region })
}

// Form is the version of the sent form of List.
const Form = 1

// List is what a controller signs for the nodes of a region, or says to another controller. A beat carries no entries: it
// says that at At the list with the digest was still the whole of it.
type List struct {
	Form    int            `json:"form"`
	Region  cells.RegionID `json:"region,omitempty"`
	At      time.Time      `json:"at"`
	Digest  string         `json:"digest"`
	Beat    bool           `json:"beat,omitempty"`
	Entries []Entry        `json:"entries,omitempty"`
}

// NewList is the list of the entries, which Unite has put in order.
func NewList(region cells.RegionID, entries []Entry, at time.Time) List {
	return List{Form: Form, Region: region, At: at, Digest: Digest(entries), Entries: entries}
}

// NewBeat is the heartbeat of the list.
func (l List) NewBeat(at time.Time) List {
	return List{Form: Form, Region: l.Region, At: at, Digest: l.Digest, Beat: true}
}

// Digest tells two lists apart.
func Digest(entries []Entry) string {
	raw, err := json.Marshal(entries)
	if err != nil {
		raw = nil // strings and times always encode
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

// Decode reads the sent form. A list with an entry that is not understood is refused whole.
func Decode(raw []byte) (List, error) {
	var l List
	if err := json.Unmarshal(raw, &l); err != nil {
		return List{}, fmt.Errorf("denylist: %w", err)
	}
	if l.Form < 1 || l.Form > Form {
		return List{}, fmt.Errorf("denylist: form %d is not readable here", l.Form)
	}
	if len(l.Entries) > MaxEntries+maxRemoved {
		return List{}, fmt.Errorf("denylist: %d entries, at most %d", len(l.Entries), MaxEntries+maxRemoved)
	}
	for _, e := range l.Entries {
		if err := e.Check(); err != nil {
			return List{}, err
		}
	}
	return l, nil
}

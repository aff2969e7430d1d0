package apikey

import (
	"encoding/json"
	"fmt"
	"time"
)

// The bounds of issued keys.
const (
	// PerConsumer is how many keys of a consumer are live at once: an old one and the one that takes its place.
	PerConsumer = 2
	// MaxKeys is how many are issued in a world.
	MaxKeys = 50_000
)

// Form is the version of the sent form of List.
const Form = 1

// List is every issued key, as a controller signs it for its nodes. Of two lists the one of the later change counts.
type List struct {
	Form      int        `json:"form"`
	At        time.Time  `json:"at"` // of the last change
	Consumers []Consumer `json:"consumers"`
}

// Consumer has the tagged hashes of the keys that were issued to it.
type Consumer struct {
	ID     string   `json:"id"`
	Hashes []string `json:"hashes"`
}

// Number orders lists: it grows with every change.
func (l *List) Number() uint64 { return uint64(max(0, l.At.UnixNano())) }

// Decode reads the sent form. A list that is not understood whole is refused: a key too many or too few is worse than an old list.
func Decode(raw []byte) (*List, error) {
	l := &List{}
	if err := json.Unmarshal(raw, l); err != nil {
		return nil, fmt.Errorf("apikey: %w", err)
	}
	if l.Form < 1 || l.Form > Form {
		return nil, fmt.Errorf("apikey: a list of form %d is not readable here", l.Form)
	}
	keys := 0
	for _, c := range l.Consumers {
		if keys += len(c.Hashes); c.ID == "" || keys > MaxKeys {
			return nil, fmt.Errorf("apikey: a list of more than %d keys, or of a consumer without an id", MaxKeys)
		}
		for _, h := range c.Hashes {
			if _, err := Parse(h); err != nil {
				return nil, fmt.Errorf("apikey: consumer %q: %w", c.ID, err)
			}
		}
	}
	return l, nil
}

package snapshot

import (
	"encoding/json"
	"time"
)

// Form is the version of the stored form of manifests and shards.
const Form = 1

// Reader is the highest form that this reader knows. What older ones would pass over in silence asks for it in MinReader, though
// it is written in Form; what doesn't use it is read by all.
const Reader = 13

// Digest is the lower-case hex SHA-256 of a stored blob or of a whole configuration.
type Digest string

// Manifest names everything a snapshot consists of. It is small; the shards carry the content.
type Manifest struct {
	Form int `json:"form"`
	// Number is strictly increasing over the life of the world and never reused.
	Number uint64 `json:"number"`
	// Checksum covers the content alone (the ordered shard digests), so a rollback has the checksum of what it restores.
	Checksum Digest    `json:"checksum"`
	Created  time.Time `json:"created"`
	Author   string    `json:"author"`
	Message  string    `json:"message,omitempty"`
	Previous uint64    `json:"previous"`
	// RollbackOf is the number whose content this one repeats; 0 for an ordinary publication.
	RollbackOf uint64 `json:"rollback_of,omitempty"`
	// MinReader is the lowest snapshot form that a reader must know.
	MinReader int     `json:"min_reader"`
	Shards    []Shard `json:"shards"`
	Counts    Counts  `json:"counts"`
}

// Shard refers to one content-addressed blob: all routes of some hosts, or one of the shared lists.
type Shard struct {
	// Key says what the shard holds: "host/<bucket>" or "shared/<list>".
	Key    string `json:"key"`
	Digest Digest `json:"digest"`
	Bytes  int    `json:"bytes"`
}

// MadeAt reads when an encoded manifest says it was created; zero when it says nothing readable. Nothing else of it is checked.
func MadeAt(encoded []byte) time.Time {
	var m struct {
		Created time.Time `json:"created"`
	}
	if json.Unmarshal(encoded, &m) != nil {
		return time.Time{}
	}
	return m.Created
}

// Counts are what the shrink guard (B6) and people look at.
type Counts struct {
	Routes    int `json:"routes"`
	Upstreams int `json:"upstreams"`
	Policies  int `json:"policies"`
	Consumers int `json:"consumers"`
	Tenants   int `json:"tenants"`
	Hosts     int `json:"hosts"`
}

// Snapshot is a manifest with the blobs it names, complete.
type Snapshot struct {
	Manifest Manifest
	Blobs    map[Digest][]byte
}

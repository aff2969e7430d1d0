package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/cellgate/cellgate/internal/durable"
	"github.com/cellgate/cellgate/snapshot"
	"github.com/cellgate/cellgate/trust"
)

// shelf is the node's own copy of what it serves: shards and signed manifests by digest, and one small state file that
// says which of them matter. Only the agent's loop writes it.
//
//	state.json          newest pointers, replaced as a whole
//	manifests/<digest>  signed manifests
//	shards/<digest>     blobs; one that several snapshots share lies here once
//	overrides.json      the newest signed lists of evacuations
//	target              the signed target that is served, for peers with an empty disk
//	denylist.json       the newest signed denylists; its own loop writes it
//	keys.json           the newest signed list of issued API keys; its own loop writes it
//
// Order of writing: blobs, manifest, directories, then state.json; so state.json never names what isn't there.
type shelf struct {
	dir   string
	state state
}

const stateForm = 1

// state is the stored form of state.json.
type state struct {
	Form   int    `json:"form"`
	Epoch  uint64 `json:"epoch"` // (Epoch, Number) of the highest target that was applied
	Number uint64 `json:"number"`
	Share  int    `json:"share"`
	// Head is the highest version number that a target told of.
	Head uint64 `json:"head,omitempty"`
	// Trial is the snapshot that has not yet served for long enough to be good.
	Trial *trial `json:"trial,omitempty"`
	// Good are the last good snapshots, newest first, at most keep.
	Good []slot `json:"good"`
	// Poisoned is the manifest that crashed the node twice; it isn't tried again.
	Poisoned snapshot.Digest `json:"poisoned,omitempty"`
}

// slot is one stored snapshot. Accepted is when its signature was verified: the signer's certificate may end before the
// snapshot is of no more use.
type slot struct {
	Version  uint64          `json:"version"`
	Manifest snapshot.Digest `json:"manifest"`
	Accepted time.Time       `json:"accepted"`
	Checksum snapshot.Digest `json:"checksum,omitempty"` // of the contents
}

// same says whether both have the same contents, be it under two numbers.
func (s slot) same(o slot) bool {
	return s.Manifest == o.Manifest || s.Checksum != "" && s.Checksum == o.Checksum
}

type trial struct {
	slot
	// Crashes counts exits between activation and being good; Running is true unless the last exit was an orderly one.
	Crashes int  `json:"crashes"`
	Running bool `json:"running"`
}

const (
	keep      = 3 // last good snapshots on disk
	maxTrials = 2 // crashes that condemn a candidate
)

var digestForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// openShelf makes the directories and reads the state. A damaged state file is reported and replaced by what the
// manifests that lie there allow: the snapshots are checked in any case before they are served.
func openShelf(dir string) (*shelf, error) {
	s := &shelf{dir: dir, state: state{Form: stateForm}}
	for _, sub := range []string{"manifests", "shards"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, fmt.Errorf("agent: data directory: %w", err)
		}
	}
	stored := s.state
	found, err := durable.ReadForm(s.path("state.json"), stateForm, &stored)
	if err != nil {
		return s, fmt.Errorf("agent: state file: %w", err)
	}
	if found {
		s.state = stored
	}
	return s, nil
}

// clearLeftovers removes files that a killed process had not finished. On a disk that can't be written it changes nothing.
func (s *shelf) clearLeftovers() {
	for _, d := range []string{".", "manifests", "shards"} {
		_ = durable.Clear(s.path(d))
	}
}

func (s *shelf) path(parts ...string) string {
	return filepath.Join(append([]string{s.dir}, parts...)...)
}

// save writes the state; on an error the former one stays on disk and in memory.
func (s *shelf) save(next state) error {
	if err := durable.WriteForm(s.path("state.json"), next); err != nil {
		return err
	}
	s.state = next
	return nil
}

// slots are the snapshots to try at boot, best first: the candidate, then the good ones.
func (s *shelf) slots() []slot {
	var all []slot
	if s.state.Trial != nil {
		all = append(all, s.state.Trial.slot)
	}
	return append(all, s.state.Good...)
}

// strays are the manifests on disk when the state file is lost. Their order is for the caller to find.
func (s *shelf) strays(now time.Time) []slot {
	entries, err := os.ReadDir(s.path("manifests"))
	if err != nil {
		return nil
	}
	var all []slot
	for _, e := range entries {
		if digestForm.MatchString(e.Name()) {
			all = append(all, slot{Manifest: snapshot.Digest(e.Name()), Accepted: now})
		}
	}
	return all
}

// blob reads a file by digest and proves it; ok is false when it is missing or damaged, which to its reader is the same.
func (s *shelf) blob(room string, digest snapshot.Digest) (data []byte, err error) {
	if !digestForm.MatchString(string(digest)) {
		return nil, fmt.Errorf("agent: %.80q is not a digest", digest)
	}
	data, err = durable.Read(s.path(room, string(digest)))
	if err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	if snapshot.Sum(data) != digest {
		return nil, fmt.Errorf("agent: %s/%s is damaged", room, digest)
	}
	return data, nil
}

// put stores blobs; those that lie there already are the caller's business.
func (s *shelf) put(room string, blobs map[snapshot.Digest][]byte) error {
	files := make(map[string][]byte, len(blobs))
	for digest, data := range blobs {
		if !digestForm.MatchString(string(digest)) || snapshot.Sum(data) != digest {
			return fmt.Errorf("agent: %s/%.80s is not what its digest says", room, digest)
		}
		files[string(digest)] = data
	}
	return durable.WriteAll(s.path(room), files)
}

// manifest reads a stored manifest without asking who signed it, for what is no decision about serving.
func (s *shelf) manifest(one slot) (*snapshot.Manifest, error) {
	envelope, err := s.blob("manifests", one.Manifest)
	if err != nil {
		return nil, err
	}
	payload, err := trust.Payload(trust.KindManifest, envelope)
	if err != nil {
		return nil, err
	}
	return snapshot.DecodeManifest(payload)
}

// sweepAfter sweeps when the change made something superfluous.
func (s *shelf) sweepAfter(before state) {
	if before.Trial != nil || len(before.Good) != len(s.state.Good) {
		s.sweep()
	}
}

// newest is the highest version that the state names.
func (st state) newest() (version uint64) {
	if st.Trial != nil {
		version = st.Trial.Version
	}
	for _, g := range st.Good {
		version = max(version, g.Version)
	}
	return version
}

// sweep removes what no kept snapshot names. What can't be read or removed stays for the next sweep.
func (s *shelf) sweep() {
	manifests, shards := map[string]bool{}, map[string]bool{}
	for _, one := range s.slots() {
		manifests[string(one.Manifest)] = true
		m, err := s.manifest(one)
		if err != nil {
			return // without its list, nobody knows which shards it needs
		}
		for _, shard := range m.Shards {
			shards[string(shard.Digest)] = true
		}
	}
	s.clear("manifests", manifests)
	s.clear("shards", shards)
}

func (s *shelf) clear(room string, needed map[string]bool) {
	entries, err := os.ReadDir(s.path(room))
	if err != nil {
		return
	}
	for _, e := range entries {
		if !needed[e.Name()] {
			_ = os.Remove(s.path(room, e.Name()))
		}
	}
}

// accept gives the state after the slot was taken into service as a candidate. What was on trial before and served until
// now counts as good only if it had been promoted. Contents are listed once, and need no trial under a new number: a rollback
// that met with crashes would leave the node with what was rolled back.
func (st state) accept(one slot, epoch, number uint64, share int) state {
	st.Epoch, st.Number, st.Share = epoch, number, share
	st.Good = slices.Clone(st.Good)
	if i := slices.IndexFunc(st.Good, one.same); i >= 0 {
		if st.Good[i].Manifest == one.Manifest {
			one = st.Good[i]
		}
		st.Good = slices.Insert(slices.Delete(st.Good, i, i+1), 0, one)
		st.Trial = nil
		return st
	}
	st.Trial = &trial{slot: one, Running: true}
	return st
}

// promote gives the state after the candidate has proved good.
func (st state) promote() state {
	if st.Trial == nil {
		return st
	}
	st.Good = slices.Insert(slices.Clone(st.Good), 0, st.Trial.slot)
	if len(st.Good) > keep {
		st.Good = st.Good[:keep]
	}
	st.Trial = nil
	return st
}

// boot gives the state at the start of the process: if the candidate was running and nobody stopped it, it has crashed.
// One that has crashed maxTrials times gives way to the last good snapshot, if there is one.
func (st state) boot() state {
	if st.Trial == nil {
		return st
	}
	t := *st.Trial
	if t.Running {
		t.Crashes++
	}
	t.Running = true
	st.Trial = &t
	if t.Crashes >= maxTrials && len(st.Good) > 0 {
		st.Poisoned, st.Trial = t.Manifest, nil
	}
	return st
}

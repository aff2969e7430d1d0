package quota

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cellgate/cellgate/internal/pause"
	"github.com/cellgate/cellgate/quota"
	"github.com/cellgate/cellgate/store"
)

const (
	form = 1
	// storeEvery is how often marks are stored, storeAtOnce how many parts at most each time: 32 writes a second however
	// many quotas are spent.
	storeEvery  = 250 * time.Millisecond
	storeAtOnce = 8
	// reserved is the part of a quota that a mark is ahead of what is spent, so that one quota is stored at most so many
	// times a day.
	reserved = 256
)

// days are the marks of a part's daily quotas. A mark is stored ahead of what is spent: a controller that starts anew goes
// on from the mark, so that nothing is given out twice and little is lost.
type days struct {
	loaded bool
	date   int64
	marks  map[quota.Key]*mark
	// stored is the store's value at the start, of the day it says.
	stored map[quota.Key]uint64
	dirty  bool
	last   store.Revision
}

type mark struct {
	used uint64
	mark uint64 // to be stored
}

// reserve is how far a mark is ahead: what a second may spend, at least a small part of the quota.
func (b *bucket) reserve(t quota.Terms) uint64 {
	return min(max(b.limit.Day/reserved, uint64(b.Rush(t)), 1), b.limit.Day)
}

// resume is where the day's quota stands that no bucket knows yet.
func (d *days) resume(k quota.Key, today int64) (day int64, used uint64) {
	if d.date != today {
		return today, 0
	}
	return today, d.stored[k]
}

// note keeps the mark ahead of what is spent.
func (d *days) note(k quota.Key, today int64, used, ahead uint64) {
	if d.date != today {
		d.date, d.marks, d.stored, d.dirty = today, map[quota.Key]*mark{}, nil, true
	}
	m := d.marks[k]
	if m == nil {
		if d.marks == nil {
			d.marks = map[quota.Key]*mark{}
		}
		m = &mark{mark: d.stored[k]}
		d.marks[k] = m
	}
	m.used = used
	if used+ahead/2 >= m.mark {
		m.mark, d.dirty = used+ahead, true
	}
}

// exact takes back what the marks are ahead.
func (d *days) exact() {
	for _, m := range d.marks {
		if m.mark != m.used {
			m.mark, d.dirty = m.used, true
		}
	}
}

// record is the stored form of a part.
type record struct {
	Form int               `json:"form"`
	Day  int64             `json:"day"`  // days since 1970, UTC
	Used map[string]uint64 `json:"used"` // by key, in hex
}

func (d *days) encode() ([]byte, error) {
	r := record{Form: form, Day: d.date, Used: map[string]uint64{}}
	for k, n := range d.stored {
		r.Used[hex.EncodeToString(k[:])] = n
	}
	for k, m := range d.marks {
		r.Used[hex.EncodeToString(k[:])] = m.mark
	}
	return json.Marshal(r)
}

func decode(raw []byte) (day int64, used map[quota.Key]uint64, err error) {
	var r record
	if err := json.Unmarshal(raw, &r); err != nil {
		return 0, nil, fmt.Errorf("quota: stored quotas: %w", err)
	}
	if r.Form != form {
		return 0, nil, fmt.Errorf("quota: stored quotas of form %d", r.Form)
	}
	used = map[quota.Key]uint64{}
	for name, n := range r.Used {
		var k quota.Key
		if raw, err := hex.DecodeString(name); err != nil || copy(k[:], raw) != len(k) || len(raw) != len(k) {
			return 0, nil, fmt.Errorf("quota: stored quotas name %.40q", name)
		}
		used[k] = n
	}
	return r.Day, used, nil
}

// Keep stores what is spent of daily quotas, until ctx ends; then it stores exactly what is. Until the store has told what
// was spent before, no daily quota is granted. Trouble is told once when it comes and once when it goes.
func (s *Service) Keep(ctx context.Context, in store.Store, trouble func(error)) error {
	var last error
	tell := func(err error) {
		if (err == nil) != (last == nil) && ctx.Err() == nil {
			trouble(err)
		}
		last = err
	}
	for pause.For(ctx, storeEvery) {
		if err := s.load(ctx, in); err != nil {
			tell(err)
			continue
		}
		tell(s.flush(ctx, in, storeAtOnce))
	}
	for i := range s.parts {
		s.parts[i].Lock()
		s.parts[i].days.exact()
		s.parts[i].Unlock()
	}
	last3, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	if err := s.flush(last3, in, parts); err != nil {
		trouble(err)
	}
	return nil
}

// load reads the parts that are not known yet.
func (s *Service) load(ctx context.Context, in store.Store) error {
	for i := range s.parts {
		p := &s.parts[i]
		p.Lock()
		known := p.days.loaded
		p.Unlock()
		if known {
			continue
		}
		short, cancel := context.WithTimeout(ctx, 2*time.Second)
		e, err := in.Get(short, store.KeyQuotas(i))
		cancel()
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		d := days{loaded: true, last: e.Modified}
		if err == nil {
			if d.date, d.stored, err = decode(e.Value); err != nil {
				return err
			}
		}
		if d.date > s.day.Load() {
			s.day.Store(quota.Day(s.opt.Now(), d.date))
		}
		p.Lock()
		p.days = d
		p.Unlock()
	}
	return nil
}

// flush stores up to most of the parts whose marks have moved, each in its turn.
func (s *Service) flush(ctx context.Context, in store.Store, most int) error {
	for range s.parts {
		i := s.next % parts
		s.next++
		raw, last, err := s.parts[i].unstored()
		if raw == nil && err == nil {
			continue
		}
		if err == nil {
			last, err = commit(ctx, in, store.KeyQuotas(i), last, raw)
		}
		s.parts[i].settle(last, err)
		if err != nil {
			return err
		}
		if most--; most == 0 {
			break
		}
	}
	return nil
}

// unstored is what has to be stored of a part, and the revision that it replaces; nil = nothing.
func (p *part) unstored() ([]byte, store.Revision, error) {
	p.Lock()
	defer p.Unlock()
	if !p.days.dirty || !p.days.loaded {
		return nil, 0, nil
	}
	p.days.dirty = false
	raw, err := p.days.encode()
	return raw, p.days.last, err
}

func (p *part) settle(at store.Revision, err error) {
	p.Lock()
	defer p.Unlock()
	p.days.last = at
	p.days.dirty = p.days.dirty || err != nil
}

// commit replaces what was stored at revision last. After a conflict, which an earlier commit makes that was thought lost,
// the next one replaces what is there.
func commit(ctx context.Context, in store.Store, key string, last store.Revision, raw []byte) (store.Revision, error) {
	short, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	at, err := in.Commit(short, []store.Cond{{Key: key, Modified: last}}, []store.Op{store.Put(key, raw)})
	if err == nil {
		return at, nil
	}
	if errors.Is(err, store.ErrConflict) {
		if e, failed := in.Get(short, key); failed == nil {
			last = e.Modified
		}
	}
	return last, fmt.Errorf("quota: store %s: %w", key, err)
}

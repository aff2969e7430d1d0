package regionctl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/cellgate/cellgate/globalrouter/steer"
	"github.com/cellgate/cellgate/regionctl/fleet"
	"github.com/cellgate/cellgate/store"
	"github.com/cellgate/cellgate/trust"
)

// referenceForm is the version of planRecord and steeringRecord. Form 1 had the value itself in the record's place.
const referenceForm = 2

// planRecord stands for a signed plan, which outgrows one value of a store: at 4,000 localities and 200 cells it has megabytes.
type planRecord struct {
	Form   int    `json:"form"`
	Epoch  uint64 `json:"epoch"`
	Number uint64 `json:"number"`
	Head   uint64 `json:"head,omitempty"` // of the plan
	Blob   string `json:"blob"`           // the envelope, packed
	Bytes  int    `json:"bytes"`          // of the envelope
}

// steeringRecord stands for the leader's steer.State. Its plan is nearly always the published one, so it is not stored twice.
type steeringRecord struct {
	Form  int    `json:"form"`
	Blob  string `json:"blob"`  // the state, packed
	Bytes int    `json:"bytes"` // of the state
	// Plan is the state's Plan; nil = it has none yet.
	Plan *planRecord `json:"plan,omitempty"`
}

// packers are idle; one is a few megabytes.
var packers = sync.Pool{New: func() any {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		panic(fmt.Sprintf("regionctl: zstd: %v", err)) // never with these options
	}
	return enc
}}

func pack(value []byte) []byte {
	enc := packers.Get().(*zstd.Encoder)
	defer packers.Put(enc)
	return enc.EncodeAll(value, nil)
}

// unpack gives the value of n bytes.
func unpack(packed []byte, n int) ([]byte, error) {
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(store.MaxBlob))
	if err != nil {
		return nil, fmt.Errorf("regionctl: unpack: %w", err)
	}
	defer dec.Close()
	value, err := dec.DecodeAll(packed, nil)
	if err == nil && len(value) != n {
		err = fmt.Errorf("%d bytes, not %d", len(value), n)
	}
	if err != nil {
		return nil, fmt.Errorf("regionctl: unpack: %w", err)
	}
	return value, nil
}

// openPlan is a stored plan, verified and decoded. It is shared: nobody changes it.
type openPlan struct {
	planRecord
	packed   []byte
	envelope []byte
	plan     *steer.Plan
}

func (p *openPlan) mail() fleet.Mail {
	return fleet.Mail{Kind: fleet.KindPlan, Epoch: p.Epoch, Number: p.Number, Envelope: p.envelope, Until: trust.Until(p.envelope)}
}

// plans are those that were opened last, so that none is fetched, verified and decoded twice. It is safe for concurrent use.
type plans struct {
	mu     sync.Mutex
	opened []*openPlan
}

// maxOpen plans are remembered: the published one, and the region's copy of the one before.
const maxOpen = 2

func (p *plans) get(blob string) *openPlan {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range p.opened {
		if o.Blob == blob {
			return o
		}
	}
	return nil
}

func (p *plans) put(o *openPlan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opened = slices.DeleteFunc(p.opened, func(q *openPlan) bool { return q.Blob == o.Blob })
	p.opened = append(p.opened, o)
	if len(p.opened) > maxOpen {
		p.opened = p.opened[1:]
	}
}

// newest is the plan that comes after all others that were opened, or nil.
func (p *plans) newest() *steer.Plan {
	p.mu.Lock()
	defer p.mu.Unlock()
	var best *steer.Plan
	for _, o := range p.opened {
		if o.plan.Newer(best) {
			best = o.plan
		}
	}
	return best
}

// plan is the newest plan that this controller knows to be published. Never change it.
func (c *Controller) plan() (*steer.Plan, bool) {
	p := c.plans.newest()
	return p, p != nil
}

// planReference reads a stored plan's record; inline is the envelope itself, in a value of form 1.
func planReference(value []byte) (rec planRecord, inline []byte, err error) {
	if _, err := trust.Payload(trust.KindPlan, value); err == nil {
		return rec, value, nil
	}
	if err := json.Unmarshal(value, &rec); err != nil || rec.Form != referenceForm || rec.Blob == "" {
		return rec, nil, fmt.Errorf("regionctl: a stored plan is not readable here: %.80q", value)
	}
	return rec, nil, nil
}

// planSeen is what a stored plan says of the store that it comes from, without opening it.
func planSeen(value []byte) (epoch, head uint64, err error) {
	rec, inline, err := planReference(value)
	if err == nil && inline != nil {
		var raw []byte
		if raw, err = trust.Payload(trust.KindPlan, inline); err == nil {
			err = json.Unmarshal(raw, &rec) // it has the same words for them
		}
	}
	return rec.Epoch, rec.Head, err
}

// fetchPatience bounds the fetch of one plan or state.
const fetchPatience = 10 * time.Second

// openStored opens what a key of either store says the plan is.
func (c *Controller) openStored(ctx context.Context, value []byte, from ...*store.Blobs) (*openPlan, error) {
	rec, inline, err := planReference(value)
	if err != nil {
		return nil, err
	}
	if inline == nil {
		return c.openReferred(ctx, rec, from...)
	}
	packed := pack(inline)
	rec = planRecord{Form: referenceForm, Blob: store.DigestOf(packed), Bytes: len(inline)}
	if o := c.plans.get(rec.Blob); o != nil {
		return o, nil
	}
	return c.verifyPlan(rec, packed, inline)
}

// openReferred opens the plan of a record, from the first of the stores that has it.
func (c *Controller) openReferred(ctx context.Context, rec planRecord, from ...*store.Blobs) (*openPlan, error) {
	if o := c.plans.get(rec.Blob); o != nil {
		return o, nil
	}
	packed, err := fetch(ctx, rec.Blob, from...)
	if err != nil {
		return nil, fmt.Errorf("regionctl: plan (%d, %d): %w", rec.Epoch, rec.Number, err)
	}
	envelope, err := unpack(packed, rec.Bytes)
	if err != nil {
		return nil, fmt.Errorf("plan (%d, %d): %w", rec.Epoch, rec.Number, err)
	}
	return c.verifyPlan(rec, packed, envelope)
}

func fetch(ctx context.Context, blob string, from ...*store.Blobs) ([]byte, error) {
	var errs []error
	for _, blobs := range from {
		short, cancel := context.WithTimeout(ctx, fetchPatience)
		b, err := blobs.Get(short, blob)
		cancel()
		if err == nil {
			return b, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func (c *Controller) verifyPlan(rec planRecord, packed, envelope []byte) (*openPlan, error) {
	raw, _, err := c.opt.Roots.Verify(trust.KindPlan, envelope, c.opt.Now(), trust.RoleController)
	if err != nil {
		return nil, err
	}
	p, err := steer.DecodePlan(raw)
	if err != nil {
		return nil, err
	}
	rec.Epoch, rec.Number, rec.Head = p.Epoch, p.Number, p.Head
	o := &openPlan{planRecord: rec, packed: packed, envelope: envelope, plan: p}
	c.plans.put(o)
	return o, nil
}

// copyPlan makes the region's copy that of the published plan, unless the copy is newer: the blob first, then the record.
func (c *Controller) copyPlan(ctx context.Context) error {
	e, ok := c.intent.get(store.KeyPlan)
	have, copied := c.copied.get(store.KeyCopyPlan)
	if !ok || copied && bytes.Equal(have.Value, e.Value) {
		return nil
	}
	p, err := c.openStored(ctx, e.Value, c.globalBlobs, c.regionalBlobs)
	if err != nil {
		return err
	}
	var old *openPlan
	if copied {
		old, err = c.openStored(ctx, have.Value, c.regionalBlobs)
		switch {
		case err != nil: // not readable: it gives way
		case p.plan.WentBack(old.plan):
			return errors.New("regionctl: the plan knows fewer versions than the region's copy: the global store went back")
		case old.plan.Newer(p.plan) || old.Blob == p.Blob:
			return nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, fetchPatience)
	defer cancel()
	mark := c.copied.mark(store.KeyCopySweep)
	if _, err := mark.put(ctx, c.regionalBlobs, p.packed); err != nil {
		return err
	}
	rev, err := c.opt.Regional.Commit(ctx, []store.Cond{{Key: store.KeyCopyPlan, Modified: have.Modified}, mark.Cond}, []store.Op{store.Put(store.KeyCopyPlan, encode(p.planRecord))})
	if err != nil {
		return err
	}
	c.copied.see(ctx, rev)
	if old != nil && old.Blob != p.Blob {
		c.forget(ctx, c.regionalBlobs, old.Blob)
	}
	return nil
}

// forget deletes a blob that nothing refers to any more; what it can't delete a sweep will.
func (c *Controller) forget(ctx context.Context, blobs *store.Blobs, blob string, conds ...store.Cond) {
	if err := blobs.Delete(ctx, blob, conds...); err != nil {
		c.log.Debug("a superseded blob waits for the sweep", "blob", blob, "err", err)
	}
}

// openSteering opens the state that a value of KeySteering stands for.
func (c *Controller) openSteering(ctx context.Context, value []byte) (s steer.State, rec steeringRecord, plan *openPlan, err error) {
	if err := json.Unmarshal(value, &rec); err != nil {
		return s, rec, nil, fmt.Errorf("regionctl: the stored steering state is not readable: %w", err)
	}
	raw := value
	switch rec.Form {
	case 0, 1: // 0: no step has been taken yet
		rec = steeringRecord{}
	case referenceForm:
		packed, err := fetch(ctx, rec.Blob, c.globalBlobs)
		if err != nil {
			return s, rec, nil, fmt.Errorf("regionctl: the stored steering state: %w", err)
		}
		if raw, err = unpack(packed, rec.Bytes); err != nil {
			return s, rec, nil, err
		}
	default:
		return s, rec, nil, fmt.Errorf("regionctl: a steering state of form %d is not readable here", rec.Form)
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return s, rec, nil, fmt.Errorf("regionctl: the stored steering state is not readable: %w", err)
	}
	if rec.Plan != nil {
		if plan, err = c.openReferred(ctx, *rec.Plan, c.globalBlobs); err != nil {
			return s, rec, nil, err
		}
		s.Plan = *plan.plan
	}
	return s, rec, plan, nil
}

// readSteering is the state that is stored now; the zero value when there is none.
func (c *Controller) readSteering(ctx context.Context) (s steer.State, err error) {
	for range maxContest {
		e, err := c.opt.Global.Get(ctx, store.KeySteering)
		if isAbsent(err) {
			return steer.State{}, nil
		}
		if err != nil {
			return s, fmt.Errorf("regionctl: read the steering state: %w", err)
		}
		if s, _, _, err = c.openSteering(ctx, e.Value); !isAbsent(err) { // absent: another one came in between
			return s, err
		}
	}
	return s, err
}

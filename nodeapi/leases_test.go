package nodeapi

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/cellgate/cellgate/quota"
)

// grantor is the other end of a stream of leases: a bucket a key, or silence.
type grantor struct {
	grpc.ClientStream
	ControllerClient
	ctx    context.Context
	silent atomic.Bool
	asks   atomic.Int64 // messages
	out    chan *LeaseGrants
	bucket map[string]*quota.Bucket
	began  time.Time
}

func newGrantor() *grantor {
	return &grantor{out: make(chan *LeaseGrants, 100), bucket: map[string]*quota.Bucket{}, began: time.Now().Add(-time.Minute)}
}

func (g *grantor) Leases(ctx context.Context, _ ...grpc.CallOption) (grpc.BidiStreamingClient[LeaseAsks, LeaseGrants], error) {
	g.ctx = ctx
	return g, nil
}

func (g *grantor) Send(m *LeaseAsks) error {
	if len(m.Asks) > 0 {
		g.asks.Add(1)
	}
	items, err := m.Items()
	if err != nil || g.silent.Load() {
		return err
	}
	var grants []quota.Grant
	for _, i := range items {
		b := g.bucket[string(i.Key[:])]
		if b == nil {
			b = &quota.Bucket{}
			g.bucket[string(i.Key[:])] = b
		}
		grants = append(grants, b.Grant(time.Since(g.began).Nanoseconds(), 0, i.Limit, i.Ask, quota.OfNodes(), 0))
	}
	go func() {
		time.Sleep(time.Millisecond)
		g.out <- GrantsTo(m.Seq, grants)
	}()
	return nil
}

func (g *grantor) Recv() (*LeaseGrants, error) {
	select {
	case m := <-g.out:
		return m, nil
	case <-g.ctx.Done():
		return nil, g.ctx.Err()
	}
}

// holder is a table of leases in a bubble.
type holder struct {
	*Leases[int, quota.Lease, *quota.Lease]
	began time.Time
}

func newHolder() *holder {
	h := &holder{began: time.Now().Add(-time.Hour)}
	h.Leases = NewLeases[int, quota.Lease](quota.OfNodes(), 1000, func() int64 { return time.Since(h.began).Nanoseconds() })
	return h
}

// take is one request of a key, which waits if it must.
func (h *holder) take(k int) (admitted bool) {
	for waits := 0; ; waits++ {
		s := h.Table.Shard(uint64(k))
		now := h.clock()
		s.Lock()
		e := s.Find(k)
		if e == nil {
			e = s.Add(k, quota.Name(string(rune('a'+k))), now)
			e.Value.Limit = quota.Limit{Rate: 1000, Burst: 200, Strict: true}
		}
		v := e.Value.Take(now, h.Lost(now), 1, waits)
		if s.Used(e) {
			h.Wake()
		}
		if v != quota.Wait {
			s.Unlock()
			return v == quota.Admit
		}
		s.Press(e)
		wait := e.Wait(now)
		s.Unlock()
		h.Press()
		<-wait
	}
}

func TestLeasesOfManyKeysCostOneMessageAnInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		h, g := newHolder(), newGrantor()
		go h.Watch(ctx)
		ended := make(chan error, 1)
		go func() { ended <- h.Serve(ctx, g) }()
		time.Sleep(50 * time.Millisecond)
		refused := 0
		for range 500 { // 2 s
			for k := range 5 {
				if !h.take(k) {
					refused++
				}
			}
			time.Sleep(4 * time.Millisecond)
		}
		if refused > 0 {
			t.Errorf("%d of 2500 requests refused", refused)
		}
		if n := g.asks.Load(); n < 15 || n > 20+5*8 { // the interval's, and what was saved up for the start
			t.Errorf("%d messages in 2 s", n)
		}
		if st := h.Stats(); st.Lost || st.Lag != time.Millisecond || st.Keys != 5 || st.Messages != g.asks.Load() {
			t.Errorf("%+v", st)
		}
		time.Sleep(5 * time.Second)
		before := g.asks.Load()
		time.Sleep(time.Minute)
		if n := g.asks.Load() - before; n > 0 {
			t.Errorf("%d messages in a minute without a request", n)
		}
		cancel()
		<-ended
		if h.Lost(h.clock()) == 0 {
			t.Error("not lost without a stream")
		}
	})
}

func TestAGrantorThatDoesNotAnswerIsLostAndItsStreamEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		h, g := newHolder(), newGrantor()
		go h.Watch(ctx)
		ended := make(chan error, 1)
		go func() { ended <- h.Serve(ctx, g) }()
		time.Sleep(50 * time.Millisecond)
		if !h.take(1) {
			t.Fatal("refused")
		}
		g.silent.Store(true)
		began := time.Now()
		for h.Lost(h.clock()) == 0 {
			h.take(1)
			time.Sleep(5 * time.Millisecond)
		}
		if past := time.Since(began); past > 400*time.Millisecond {
			t.Errorf("lost after %v", past)
		}
		for {
			select {
			case err := <-ended:
				if past := time.Since(began); err == nil || past < 2*time.Second || past > 4*time.Second {
					t.Errorf("the stream ended after %v: %v", past, err)
				}
				return
			default:
				asked := time.Now()
				h.take(1)
				if past := time.Since(asked); past > 25*time.Millisecond {
					t.Fatalf("a request waited %v", past)
				}
				time.Sleep(5 * time.Millisecond)
			}
		}
	})
}

func TestAsksThatCantBeAreRefused(t *testing.T) {
	good := func() *LeaseAsk {
		return &LeaseAsk{Key: make([]byte, 16), Rate: 1, Burst: 1, Tries: 1, Elapsed: 1, Want: 1}
	}
	if items, err := (&LeaseAsks{Asks: []*LeaseAsk{good()}}).Items(); err != nil || len(items) != 1 {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*LeaseAsk){
		"short key": func(a *LeaseAsk) { a.Key = a.Key[:15] }, "long key": func(a *LeaseAsk) { a.Key = make([]byte, 17) },
		"no rate": func(a *LeaseAsk) { a.Rate = 0 }, "scope": func(a *LeaseAsk) { a.Scope = 256 }, "debt": func(a *LeaseAsk) { a.Debt = -1 },
		"want": func(a *LeaseAsk) { a.Want = 1 << 62 }, "day": func(a *LeaseAsk) { a.Day = 1 << 63 },
	} {
		a := good()
		spoil(a)
		if _, err := (&LeaseAsks{Asks: []*LeaseAsk{a}}).Items(); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if _, err := (&LeaseAsks{Asks: make([]*LeaseAsk, MaxAsks+1)}).Items(); err == nil {
		t.Error("too many: taken")
	}
	if g := grantsOf(GrantsTo(1, []quota.Grant{{Tokens: 3}, {Tokens: -1}})); !g[0].Valid() || g[0].Tokens != 3 || g[1].Valid() {
		t.Errorf("%+v", g)
	}
}

package engine

import (
	"errors"
	"os"
	"sync/atomic"
	"time"

	"github.com/cellgate/cellgate/proxy/record"
	"github.com/cellgate/cellgate/proxy/relay"
	"github.com/cellgate/cellgate/proxy/retry"
	"github.com/cellgate/cellgate/proxy/upstream"
	"github.com/cellgate/cellgate/reason"
)

// rivalLook is how soon either of two attempts notices what has become of the other.
const rivalLook = 2 * time.Millisecond

// rival is the second attempt of a hedged exchange (I8). It runs beside the first and has all that it needs, so that nobody
// waits for it: who is told to leave tidies up and ends by itself. The exchange is none of its business.
type rival struct {
	pool     *upstream.Pool
	endpoint int
	first    string // the endpoint that it was to go to
	out      []byte
	head     bool
	began    time.Time
	deadline time.Time
	left     atomic.Bool
	done     chan struct{} // closed at the end; what follows is the rival's until then
	way      way
	over     connWay
	on       streamWay
	good     bool // its way has the head of a good answer
}

// challenge begins a rival if the answer is late and the budget allows it.
func (f *forwarding) challenge(now time.Time, deadline time.Time) {
	f.hedgeAt = time.Time{}
	i, ok := relay.Rival(f.x, now)
	if !ok {
		return
	}
	r := &rival{pool: f.x.Pool, endpoint: i, first: f.x.Pool.Name(i), head: f.x.Head(), began: now, deadline: deadline, done: make(chan struct{})}
	if f.x.Pool.Multiplexed() {
		r.out = relay.AppendRequest(nil, f.x, 0, now)
	} else {
		r.out = f.x.AppendRequest(nil, 0, now)
	}
	f.rival = r
	f.x.Attempts++
	f.x.Pool.Hedges.Sent.Add(1)
	go f.rival.run()
}

func (r *rival) run() {
	defer close(r.done)
	if err := r.open(); err != nil {
		if errors.Is(err, upstream.ErrPoolFull) || errors.Is(err, upstream.ErrNoTime) {
			r.pool.Cancel(r.endpoint)
		} else {
			r.end(false)
		}
		return
	}
	if r.left.Load() { // while it waited in the pool's queue
		r.pool.Cancel(r.endpoint)
		r.way.release(r.pool, true, time.Now())
		return
	}
	switch good, lost := r.ask(); {
	case good && !r.left.Load():
		r.good = true
		return
	case lost || r.left.Load():
		r.pool.Cancel(r.endpoint)
	default:
		r.end(false)
	}
	r.way.release(r.pool, false, time.Now())
}

// open gets a way, over HTTP/1 perhaps to another endpoint.
func (r *rival) open() (err error) {
	if r.pool.Multiplexed() {
		r.way = &r.on
		r.on.Stream, err = r.pool.Open(r.endpoint, r.began, r.deadline)
		return err
	}
	r.way = &r.over
	if r.over.Conn, err = r.pool.Acquire(r.endpoint, false, r.began, r.deadline); err == nil && r.over.Endpoint != r.endpoint {
		r.pool.Cancel(r.endpoint)
		r.endpoint = r.over.Endpoint
		r.pool.Set.Begin(r.endpoint)
	}
	return err
}

func (r *rival) send() (err error) {
	r.way.ArmWrite(r.deadline)
	if r.way == &r.on {
		return r.on.Send(r.out, r.head, 0)
	}
	r.way.ArmRead(time.Now(), rivalLook, r.deadline)
	if _, err = r.over.Send(r.out); errors.Is(err, os.ErrDeadlineExceeded) {
		return nil // of the answer that it has waited for
	}
	return err
}

// ask sends the request and waits for the head. good is one that wins; lost says that nobody waits any more.
func (r *rival) ask() (good, lost bool) {
	if r.send() != nil {
		return false, false
	}
	for interims := 0; ; {
		now := time.Now()
		if r.left.Load() {
			return false, true
		}
		if !now.Before(r.deadline) {
			return false, false
		}
		r.way.ArmRead(now, rivalLook, r.deadline)
		switch err := r.way.ReadHead(); {
		case err == nil && r.way.answer().Status >= 200:
			return r.way.answer().Status < 500, false
		case err == nil:
			if interims++; interims > relay.MaxInterims || r.way.answer().Status == 101 {
				return false, false
			}
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return false, false
		}
	}
}

func (r *rival) end(ok bool) {
	now := time.Now()
	r.pool.End(r.endpoint, ok, now.Sub(r.began), now)
}

// leave tells a rival that it has lost. One that was done already is tidied up after.
func (f *forwarding) leave() {
	r := f.rival
	f.rivalEnds(retry.Fatal, time.Now())
	r.left.Store(true)
	go func() {
		<-r.done
		if r.good {
			r.pool.Cancel(r.endpoint)
			r.way.release(r.pool, false, time.Now())
		}
	}()
}

// overtaken says whether the rival has a good answer.
func (f *forwarding) overtaken() bool {
	select {
	case <-f.rival.done:
	default:
		return false
	}
	if !f.rival.good { // it has lost by itself
		f.rivalEnds(retry.Reset, time.Now())
		return false
	}
	return true
}

// rivalEnds keeps for the record that there was a rival which has not won.
func (f *forwarding) rivalEnds(as retry.Result, now time.Time) {
	r := f.rival
	f.rival = nil
	f.x.Trail.EndRival(record.Attempt{Result: as, Endpoint: r.first, Start: r.began, Took: now.Sub(r.began)})
}

// takeOver goes on with the rival's way. What the first attempt came to says something about its endpoint only if it failed:
// Fatal is one that was given up.
func (f *forwarding) takeOver(result retry.Result, now time.Time) {
	r := f.rival
	f.rival = nil
	pool, first := f.x.Pool, record.Attempt{Result: result, Endpoint: f.x.Pool.Name(f.x.Endpoint), Start: f.took, Took: now.Sub(f.took)}
	if result == retry.Fatal {
		pool.Cancel(f.x.Endpoint)
	} else {
		pool.End(f.x.Endpoint, false, first.Took, now)
	}
	if result == retry.Answered {
		first.Status = uint16(f.way.answer().Status)
	}
	f.x.Trail.End(first)
	f.x.Trail.TakeOver()
	pool.Hedges.Tail().Observe(now.Sub(f.took), now)
	f.x.Waited += r.began.Sub(f.took)
	if f.way != nil {
		f.release(false)
	}
	if f.way = &f.over; r.way == &r.on {
		f.on, f.way = r.on, &f.on
	} else {
		f.over = r.over
	}
	f.x.Endpoint, f.took, f.observed = r.endpoint, r.began, true
	pool.Hedges.Won.Add(1)
}

// against settles what the first attempt came to while its rival runs: a good answer wins, anything else waits for the rival's.
func (f *forwarding) against(result retry.Result, why reason.Reason, deadline time.Time) (retry.Result, reason.Reason) {
	if result == retry.Fatal || result == retry.Answered && f.way.answer().Status < 500 {
		f.leave()
		return result, why
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	for look := time.NewTicker(relay.LookAfter); ; {
		select {
		case <-f.rival.done:
			look.Stop()
			if f.overtaken() {
				f.takeOver(result, time.Now())
				return retry.Answered, reason.None
			}
			return result, why
		case <-timer.C:
		case <-look.C:
			if !f.cl.gone() {
				continue
			}
			result, why = retry.Fatal, reason.ClientGone
		}
		look.Stop()
		f.leave()
		return result, why
	}
}

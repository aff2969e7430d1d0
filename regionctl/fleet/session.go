package fleet

import (
	"context"
	"sync"
	"time"

	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/trust"
)

// ackPatience is how long a target may stay unanswered before the newest one is sent all the same.
const ackPatience = 10 * time.Second

// session is one attached process. It remembers what it was sent and reads the board for what is newer.
type session struct {
	id    trust.Identity
	board *Board
	kinds []Kind
	wake  chan struct{}
	// epoch is the highest that the process knew when it attached.
	epoch uint64

	mu          sync.Mutex
	sent        [kinds]uint64 // stamp of the last message sent of each kind
	outstanding Mail          // the target not yet acknowledged; no Envelope = none
	since       time.Time
}

// interests is the least that a role needs.
func interests(role trust.Role) []Kind {
	switch role {
	case trust.RoleProxy:
		return []Kind{KindTarget, KindOverrides, KindDenylist, KindDenyBeat, KindKeys, KindTopology, KindPlan}
	case trust.RoleRouter:
		return []Kind{KindPlan, KindTopology, KindOverrides, KindVerdicts}
	case trust.RoleProber:
		return []Kind{KindTopology}
	default:
		return nil
	}
}

func newSession(id trust.Identity, hello *nodeapi.Hello, board *Board) *session {
	s := &session{id: id, board: board, kinds: interests(id.Role), epoch: max(hello.TargetEpoch, hello.PlanEpoch)}
	s.skip(KindTarget, hello.TargetEpoch, hello.TargetNumber)
	s.skip(KindPlan, hello.PlanEpoch, hello.PlanNumber)
	s.skip(KindKeys, 0, hello.KeysNumber)
	return s
}

// skip marks what the process already has as sent.
func (s *session) skip(kind Kind, epoch, number uint64) {
	if m, ok := s.board.read(kind, s.id.ID.Region()); ok && m.Epoch == epoch && m.Number == number {
		s.sent[kind] = m.stamp
	}
}

// due lists the messages to send now and marks them as sent.
func (s *session) due(now time.Time) []Mail {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Mail
	for _, kind := range s.kinds {
		if kind == KindPlan && s.id.Role == trust.RoleProxy && !s.board.needsPlan(s.id.ID.Cell()) {
			s.sent[kind] = 0
			continue
		}
		m, ok := s.board.read(kind, s.id.ID.Region())
		if !ok || m.stamp == s.sent[kind] {
			continue
		}
		if kind == KindTarget {
			if s.outstanding.Envelope != nil && now.Sub(s.since) < ackPatience {
				continue
			}
			s.outstanding, s.since = m, now
		}
		s.sent[kind] = m.stamp
		out = append(out, m)
	}
	return out
}

// answered notes an ACK or NACK, which makes room for the next target.
func (s *session) answered(a *nodeapi.Ack) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.outstanding.Epoch == a.Epoch && s.outstanding.Number == a.Number {
		s.outstanding = Mail{}
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

// send delivers what is due until ctx ends.
func (s *session) send(ctx context.Context, now func() time.Time, send func(*nodeapi.Down) error) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		for _, m := range s.due(now()) {
			if err := send(m.down()); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-tick.C:
		}
	}
}

package fleet

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/quota"
	"github.com/cellgate/cellgate/report"
	"github.com/cellgate/cellgate/trust"
)

// Bounds of one server.
const (
	maxSessions = 10_000
	maxDigests  = 100_000 // of one Fetch
	maxFetches  = 8       // at once; others wait their turn
)

// Blobs gives a stored blob by digest.
type Blobs func(ctx context.Context, digest string) ([]byte, error)

// Config of a Server; every field is needed.
type Config struct {
	World    string // trust domain of the peers
	Region   cells.RegionID
	Board    *Board
	Evidence *Evidence
	Blobs    Blobs
	// Leader says whether this controller leads the world now.
	Leader func() bool
	// Identify reads the caller's identity from its verified certificate.
	Identify func(ctx context.Context) (trust.Identity, error)
	Now      func() time.Time
	Log      *slog.Logger
	// Seen is what this controller knows to have been published, for its peers; nil tells nothing.
	Seen func() []byte
	// Quota settles leases; nil refuses them.
	Quota Quota
	// FindKey says whose the issued API key is that has one of the hashes; nil refuses questions.
	FindKey func(hashes []string) (consumer string, err error)
	// Orders takes what another region's controller ordered without the global store; nil refuses it.
	Orders func(ctx context.Context, from trust.Identity, orders *nodeapi.RegionalOrders) (*nodeapi.OrdersReply, error)
}

// Quota grants the leases of limits that many nodes keep together; regionctl/quota does.
type Quota interface {
	ToNode(cell cells.CellID, items []quota.Item) []quota.Grant
	ToRegion(items []quota.Item) []quota.Grant
}

// Server answers the node protocol. The role in the peer's certificate decides what it gets; a message never does.
type Server struct {
	nodeapi.UnimplementedControllerServer
	Config
	fetches  chan struct{}
	stop     chan struct{}
	once     sync.Once
	settling atomic.Int64 // streams of leases

	mu       sync.Mutex
	sessions map[trust.Identity]*running
}

type running struct {
	*session
	cancel context.CancelFunc
}

// NewServer makes the service.
func NewServer(c Config) *Server {
	return &Server{Config: c, fetches: make(chan struct{}, maxFetches), stop: make(chan struct{}), sessions: map[trust.Identity]*running{}}
}

// Register adds the service to a gRPC server.
func (s *Server) Register(srv *grpc.Server) { nodeapi.RegisterControllerServer(srv, s) }

// Close ends every stream, so that the processes attach elsewhere.
func (s *Server) Close() { s.once.Do(func() { close(s.stop) }) }

// Attached lists who is attached now.
func (s *Server) Attached() []trust.Identity {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := make([]trust.Identity, 0, len(s.sessions))
	for id := range s.sessions {
		ids = append(ids, id)
	}
	return ids
}

// Epoch is the highest epoch that any attached process knew when it attached, as far as it is at most limit.
func (s *Server) Epoch(limit uint64) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	most := uint64(0)
	for _, r := range s.sessions {
		if r.epoch <= limit {
			most = max(most, r.epoch)
		}
	}
	return most
}

// caller is the peer's identity if it has one of the roles.
func (s *Server) caller(ctx context.Context, roles ...trust.Role) (trust.Identity, error) {
	id, err := s.Identify(ctx)
	if err != nil {
		return id, status.Error(codes.Unauthenticated, err.Error())
	}
	if id.World != s.World {
		return id, status.Errorf(codes.PermissionDenied, "%s is not of the world %s", id, s.World)
	}
	for _, r := range roles {
		if id.Role == r {
			return id, nil
		}
	}
	return id, status.Errorf(codes.PermissionDenied, "role %s may not ask this", id.Role)
}

// Attach serves one process for as long as its stream lasts. A second stream of the same process ends the first.
func (s *Server) Attach(stream nodeapi.Controller_AttachServer) error {
	id, err := s.caller(stream.Context(), trust.RoleProxy, trust.RoleRouter, trust.RoleProber)
	if err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	hello := first.GetHello()
	if hello == nil {
		return status.Error(codes.InvalidArgument, "the first message must be a hello")
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	ses := newSession(id, hello, s.Board)
	wake, unwatch := s.Board.watch()
	defer unwatch()
	ses.wake = wake
	r := &running{session: ses, cancel: cancel}
	if err := s.admit(r); err != nil {
		return err
	}
	defer s.dismiss(r)
	return s.converse(ctx, cancel, stream, ses)
}

func (s *Server) converse(ctx context.Context, cancel context.CancelFunc, stream nodeapi.Controller_AttachServer, ses *session) error {
	errs := make(chan error, 2)
	go func() { errs <- ses.send(ctx, s.Now, stream.Send) }()
	go func() { errs <- s.listen(stream, ses) }()
	select {
	case err := <-errs:
		cancel()
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	case <-ctx.Done():
		return status.Error(codes.Aborted, "another stream of this process took over")
	case <-s.stop:
		return status.Error(codes.Unavailable, "the controller is stopping")
	}
}

func (s *Server) admit(r *running) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.sessions[r.id]
	if old == nil && len(s.sessions) >= maxSessions {
		return status.Error(codes.ResourceExhausted, "too many streams")
	}
	if old != nil {
		old.cancel()
	}
	s.sessions[r.id] = r
	s.Log.Info("attached", "process", r.id.String())
	return nil
}

func (s *Server) dismiss(r *running) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions[r.id] == r {
		delete(s.sessions, r.id)
		s.Log.Info("detached", "process", r.id.String())
	}
}

// listen takes what the process sends until its stream ends or it says something impossible.
func (s *Server) listen(stream nodeapi.Controller_AttachServer, ses *session) error {
	for {
		up, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := s.hear(ses, up); err != nil {
			s.Log.Warn("refused a message", "process", ses.id.String(), "err", err)
			return status.Error(codes.InvalidArgument, err.Error())
		}
	}
}

func (s *Server) hear(ses *session, up *nodeapi.Up) error {
	switch m := up.Message.(type) {
	case *nodeapi.Up_Report:
		return s.hearReport(ses.id, m.Report)
	case *nodeapi.Up_Probes:
		return s.hearProbes(ses.id, m.Probes)
	case *nodeapi.Up_Ack:
		ses.answered(m.Ack)
		if m.Ack.Nack != "" {
			s.Log.Warn("target refused by node", "node", string(ses.id.ID), "version", m.Ack.Version, "why", m.Ack.Nack)
		}
	}
	return nil // a hello in mid-stream or a kind of a newer node changes nothing
}

func (s *Server) hearReport(id trust.Identity, raw []byte) error {
	n, err := report.DecodeNode(raw)
	if err != nil {
		return err
	}
	if id.Role != trust.RoleProxy || n.ID != id.ID {
		return errors.New("a report speaks of its own sender only")
	}
	s.Evidence.Hear(n, raw)
	return nil
}

func (s *Server) hearProbes(id trust.Identity, raw []byte) error {
	ps, err := report.DecodeProbes(raw)
	if err != nil {
		return err
	}
	if id.Role != trust.RoleProber || len(ps) > MaxProbes {
		return errors.New("probes come from probers, and a bounded number of them")
	}
	for _, p := range ps {
		if p.From != id.ID.Region() {
			return errors.New("a prober speaks for its own region only")
		}
	}
	if len(ps) > 0 {
		s.Evidence.HearProbes(id.ID.Region(), ps, raw)
	}
	return nil
}

// Poll gives what Attach would send now.
func (s *Server) Poll(ctx context.Context, hello *nodeapi.Hello) (*nodeapi.PollReply, error) {
	id, err := s.caller(ctx, trust.RoleProxy, trust.RoleRouter, trust.RoleProber)
	if err != nil {
		return nil, err
	}
	reply := &nodeapi.PollReply{}
	for _, m := range newSession(id, hello, s.Board).due(s.Now()) {
		reply.Messages = append(reply.Messages, m.down())
	}
	return reply, nil
}

// Fetch streams blobs one after the other; a missing one ends the stream with NotFound.
func (s *Server) Fetch(req *nodeapi.FetchRequest, stream nodeapi.Controller_FetchServer) error {
	if len(req.Digests) == 0 {
		return nil // a client's proof that we live: it must neither wait for fetches nor depend on the role
	}
	ctx := stream.Context()
	if _, err := s.caller(ctx, trust.RoleProxy, trust.RoleController); err != nil {
		return err
	}
	if len(req.Digests) > maxDigests {
		return status.Errorf(codes.InvalidArgument, "at most %d digests at once", maxDigests)
	}
	select {
	case s.fetches <- struct{}{}:
		defer func() { <-s.fetches }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for _, d := range req.Digests {
		if err := s.sendBlob(ctx, d, stream.Send); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) sendBlob(ctx context.Context, digest string, send func(*nodeapi.Chunk) error) error {
	blob, err := s.Blobs(ctx, digest)
	if err != nil {
		return status.Errorf(codes.NotFound, "blob %.16s: %v", digest, err)
	}
	return nodeapi.SendBlob(send, digest, blob)
}

// maxHashes bounds the hashes of one question.
const maxHashes = 8

// FindKey says whose an issued API key is.
func (s *Server) FindKey(ctx context.Context, q *nodeapi.KeyQuestion) (*nodeapi.KeyAnswer, error) {
	if _, err := s.caller(ctx, trust.RoleProxy); err != nil {
		return nil, err
	}
	if s.Config.FindKey == nil {
		return nil, status.Error(codes.Unimplemented, "no keys are issued here")
	}
	if len(q.Hashes) > maxHashes {
		return nil, status.Errorf(codes.InvalidArgument, "at most %d hashes at once", maxHashes)
	}
	consumer, err := s.Config.FindKey(q.Hashes)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return &nodeapi.KeyAnswer{Consumer: consumer}, nil
}

// Orders takes what was ordered in another region.
func (s *Server) Orders(ctx context.Context, orders *nodeapi.RegionalOrders) (*nodeapi.OrdersReply, error) {
	id, err := s.caller(ctx, trust.RoleController)
	if err != nil {
		return nil, err
	}
	if s.Config.Orders == nil {
		return nil, status.Error(codes.Unimplemented, "orders are not taken here")
	}
	return s.Config.Orders(ctx, id, orders)
}

// Rollups streams what this controller heard, once a second, to a controller of another region.
func (s *Server) Rollups(_ *nodeapi.RollupsRequest, stream nodeapi.Controller_RollupsServer) error {
	if _, err := s.caller(stream.Context(), trust.RoleController); err != nil {
		return err
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	sent := map[cells.RegionID]time.Time{}
	var told []byte
	for {
		r := s.Evidence.rollup(sent)
		r.Leader = s.Leader()
		if s.Seen != nil {
			if seen := s.Seen(); !bytes.Equal(seen, told) {
				r.Seen, told = seen, seen
			}
		}
		if err := stream.Send(r); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-stream.Context().Done():
			return nil
		case <-s.stop:
			return status.Error(codes.Unavailable, "the controller is stopping")
		}
	}
}

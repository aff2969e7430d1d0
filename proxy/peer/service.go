// Package peer is what the proxies of a world are to each other, over mutual TLS with the role proxy: a node with an
// empty disk gets what its cell serves (Service, Cell, Store), and a node of an evacuated cell hands on the requests that
// still come (the engine takes those connections; see Listener).
package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/trust"
)

// Bounds of a Service. A peer beyond them is refused and asks another one.
const (
	maxFetches = 4
	maxDigests = 100_000 // of one Fetch
	maxConns   = 64
	maxStreams = 8 // of one connection

	// A peer that hangs, stops reading or reads byte by byte holds its place for no longer than a look takes.
	maxAge   = 45 * time.Second
	maxGrace = 15 * time.Second // for a Fetch under way
	maxIdle  = 3 * time.Second
	maxStart = 3 * time.Second // from the handshake to the first frame
)

// Shelf is what a node has to give.
type Shelf interface {
	// Target is the signed target that the node serves; nil while there is none.
	Target() []byte
	// Denylists are signed denylists that say whom the node denies, the last first.
	Denylists() [][]byte
	// Blob is a stored manifest or shard, proved by its digest.
	Blob(digest string) ([]byte, error)
}

// Service gives the node's copy of the configuration to the peers of its own cell, in the words of the node protocol:
// Poll gives the signed target and denylists, Fetch manifests and shards. It takes connections whose handshake is done.
type Service struct {
	nodeapi.UnimplementedControllerServer
	cell    cells.CellID
	shelf   Shelf
	fetches chan struct{}
	server  *grpc.Server
	conns   chan net.Conn
	done    chan struct{}
	once    sync.Once
	held    chan struct{} // a token per connection
}

// NewService makes the service of a node of the cell.
func NewService(cell cells.CellID, shelf Shelf) *Service {
	s := &Service{
		cell: cell, shelf: shelf, fetches: make(chan struct{}, maxFetches), held: make(chan struct{}, maxConns),
		conns: make(chan net.Conn), done: make(chan struct{}),
	}
	s.server = grpc.NewServer(grpc.Creds(established{}), grpc.MaxConcurrentStreams(maxStreams), grpc.MaxRecvMsgSize(maxDigests*80),
		grpc.ConnectionTimeout(maxStart),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: maxAge, MaxConnectionAgeGrace: maxGrace, MaxConnectionIdle: maxIdle}))
	nodeapi.RegisterControllerServer(s.server, s)
	return s
}

// Run serves until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		s.once.Do(func() { close(s.done) })
		s.server.Stop()
	})
	defer stop()
	if err := s.server.Serve(queue{s}); err != nil && ctx.Err() == nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

// Take serves one connection to its end. Whoever may not have the copy takes nobody's place.
func (s *Service) Take(c *tls.Conn) {
	id, err := trust.PeerIdentity(c.ConnectionState())
	if err != nil || !s.may(id) {
		return
	}
	select {
	case s.held <- struct{}{}:
		defer func() { <-s.held }()
	default:
		return
	}
	t := &taken{Conn: c, ended: make(chan struct{})}
	select {
	case s.conns <- t:
		<-t.ended
	case <-s.done:
	}
}

// taken is a connection that says when it was closed.
type taken struct {
	*tls.Conn
	once  sync.Once
	ended chan struct{}
}

func (t *taken) Close() error {
	t.once.Do(func() { close(t.ended) })
	return t.Conn.Close()
}

// queue is the listener that the gRPC server accepts from.
type queue struct{ s *Service }

func (q queue) Accept() (net.Conn, error) {
	select {
	case c := <-q.s.conns:
		return c, nil
	case <-q.s.done:
		return nil, net.ErrClosed
	}
}

func (q queue) Close() error {
	q.s.once.Do(func() { close(q.s.done) })
	return nil
}

func (q queue) Addr() net.Addr { return &net.TCPAddr{} }

// established are the credentials of connections that have made their handshake.
type established struct{}

func (established) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if _, ok := c.(*taken); !ok {
		return nil, nil, errors.New("peer: not a connection of the peer listener")
	}
	return c, caller{credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}, nil
}

func (established) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("peer: a server's credentials")
}
func (established) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}
func (e established) Clone() credentials.TransportCredentials { return e }
func (established) OverrideServerName(string) error           { return nil }

// caller is a peer that Take has let in.
type caller struct{ credentials.CommonAuthInfo }

func (caller) AuthType() string { return "tls" }

// may says whether somebody may have the cell's configuration: a node gets only its own cell's data.
func (s *Service) may(id trust.Identity) bool {
	return id.Role == trust.RoleProxy && id.ID.Cell() == s.cell
}

// maxDenylists bounds the denylists of one answer, in bytes; the peers have what is beyond.
const maxDenylists = maxOffer / 2

// Poll gives the signed target that the node serves, if there is one, and the denylists that it keeps.
func (s *Service) Poll(_ context.Context, _ *nodeapi.Hello) (*nodeapi.PollReply, error) {
	reply := &nodeapi.PollReply{}
	if t := s.shelf.Target(); t != nil {
		reply.Messages = []*nodeapi.Down{{Message: &nodeapi.Down_Target{Target: &nodeapi.Signed{Envelope: t}}}}
	}
	size := 0
	for _, l := range s.shelf.Denylists() {
		if size += len(l); size > maxDenylists {
			break
		}
		reply.Messages = append(reply.Messages, &nodeapi.Down{Message: &nodeapi.Down_Denylist{Denylist: &nodeapi.Signed{Envelope: l}}})
	}
	return reply, nil
}

// Fetch streams blobs one after the other; a missing one ends the stream with NotFound.
func (s *Service) Fetch(req *nodeapi.FetchRequest, stream nodeapi.Controller_FetchServer) error {
	ctx := stream.Context()
	if len(req.Digests) > maxDigests {
		return status.Errorf(codes.InvalidArgument, "at most %d digests at once", maxDigests)
	}
	if len(req.Digests) == 0 {
		return nil // a proof that we live
	}
	select {
	case s.fetches <- struct{}{}:
		defer func() { <-s.fetches }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for _, d := range req.Digests {
		blob, err := s.shelf.Blob(d)
		if err != nil {
			return status.Errorf(codes.NotFound, "blob %.64q is not here", d)
		}
		if err := nodeapi.SendBlob(stream.Send, d, blob); err != nil {
			return err
		}
	}
	return nil
}

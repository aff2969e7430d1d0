// Package redis grants leases of limits out of buckets that lie in a Redis server, for worlds whose limits one controller's memory
// doesn't carry, or that several controllers share. One Lua script settles a whole message.
//
//	r, err := redis.New("redis://10.0.0.5:6379/2", readPassword)
//	err = leases.Serve(ctx, r) // nodeapi.Leases: the region's own leases from it
//
// The server's clock is the only one. A server that has lost its memory begins with half-full buckets, as a controller does; one that
// answers an error, or nothing, is a grantor that is lost.
package redis

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/quota"
)

//go:embed grant.lua
var script string

// prefix is of all keys. Its braces keep them in one slot of a Redis Cluster, whose scripts need that.
const prefix = "{cellgate}:limit:"

// outstanding is how many messages may wait for their answers.
const outstanding = 64

// Server is a Redis server as a grantor.
type Server struct {
	at at
	id string // of the script
	// instant is for tests, in µs; nil = the server's clock.
	instant func() int64
}

// New takes a URL: redis or rediss (TLS) of [user@]host[:port][/database], without a password in it. Password is asked for at each
// connection; nil = none.
func New(url string, password func() (string, error)) (*Server, error) {
	to, err := parse(url, password)
	if err != nil {
		return nil, err
	}
	sum := sha1.Sum([]byte(script)) // as EVALSHA names it
	return &Server{at: to, id: hex.EncodeToString(sum[:])}, nil
}

// Leases implements nodeapi.Grantor: a stream is a connection.
func (s *Server) Leases(ctx context.Context, _ ...grpc.CallOption) (grpc.BidiStreamingClient[nodeapi.LeaseAsks, nodeapi.LeaseGrants], error) {
	c, err := dial(ctx, s.at)
	if err != nil {
		return nil, err
	}
	if _, err := c.call("SCRIPT", "LOAD", script); err != nil {
		c.close()
		return nil, fmt.Errorf("redis: %w", err)
	}
	out := &conversation{ctx: ctx, server: s, conn: c, sent: make(chan sent, outstanding)}
	out.stop = context.AfterFunc(ctx, c.close)
	return out, nil
}

// sent is a message whose answer is due.
type sent struct {
	seq  uint64
	asks int
}

// conversation is what goes over one connection. Messages are answered in their order.
type conversation struct {
	ctx    context.Context
	server *Server
	conn   *conn
	sent   chan sent
	stop   func() bool

	mu sync.Mutex // of writes
}

// Send asks the script. A message without asks is a question whether the server is there.
func (s *conversation) Send(m *nodeapi.LeaseAsks) error {
	items, err := m.Items()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case s.sent <- sent{m.Seq, len(items)}:
	default:
		return errors.New("redis: too many messages without an answer")
	}
	if len(items) == 0 {
		return s.conn.send("PING")
	}
	return s.conn.send(s.server.command(items)...)
}

// command settles items.
func (s *Server) command(items []quota.Item) []string {
	now := int64(0)
	if s.instant != nil {
		now = s.instant()
	}
	args := append(make([]string, 0, 6+10*len(items)), "EVALSHA", s.id, strconv.Itoa(1+len(items)), prefix+"born")
	for i := range items {
		args = append(args, prefix+hex.EncodeToString(items[i].Key[:]))
	}
	whole := func(n int64) string { return strconv.FormatInt(n, 10) }
	real := func(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }
	args = append(args, whole(quota.OfRegions().Interval/1000), whole(now))
	for i := range items {
		l, a, strict := &items[i].Limit, &items[i].Ask, "0"
		if l.Strict {
			strict = "1"
		}
		args = append(args, real(l.Rate), real(l.Burst), strict, whole(a.Tries), whole(a.Elapsed/1000), whole(a.Want), whole(a.Back), whole(a.Debt), real(rand.Float64()))
	}
	return args
}

// Recv reads the answer to the oldest message that has none.
func (s *conversation) Recv() (*nodeapi.LeaseGrants, error) {
	var of sent
	select {
	case of = <-s.sent:
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	case <-s.conn.broken:
		return nil, io.ErrUnexpectedEOF
	}
	r, err := s.conn.reply()
	if err != nil {
		s.conn.close()
		return nil, fmt.Errorf("redis: %w", err)
	}
	if of.asks == 0 {
		return nodeapi.GrantsTo(of.seq, nil), nil
	}
	if len(r.list) != of.asks {
		s.conn.close()
		return nil, fmt.Errorf("redis: %d answers to %d asks", len(r.list), of.asks)
	}
	grants := make([]quota.Grant, of.asks)
	for i := range grants {
		if grants[i], err = grantOf(r.list[i]); err != nil {
			s.conn.close()
			return nil, err
		}
	}
	return nodeapi.GrantsTo(of.seq, grants), nil
}

// grantOf reads what the script says of one Ask.
func grantOf(text string) (g quota.Grant, err error) {
	f := strings.Fields(text)
	if len(f) != 5 {
		return g, fmt.Errorf("redis: a grant of %d fields", len(f))
	}
	var errs [4]error
	g.Tokens, errs[0] = strconv.ParseInt(f[0], 10, 64)
	g.Share, errs[1] = strconv.ParseFloat(f[1], 64)
	g.Calm = f[2] == "1"
	g.Credit, errs[2] = strconv.ParseInt(f[3], 10, 64)
	g.Pause, errs[3] = strconv.ParseInt(f[4], 10, 64)
	if err := errors.Join(errs[:]...); err != nil || !g.Valid() {
		return quota.Grant{}, fmt.Errorf("redis: no grant: %.60q", text)
	}
	return g, nil
}

// What gRPC's streams have beside, of which a connection has nothing.

func (s *conversation) Header() (metadata.MD, error) { return nil, nil }
func (s *conversation) Trailer() metadata.MD         { return nil }
func (s *conversation) CloseSend() error             { return nil }
func (s *conversation) Context() context.Context     { return s.ctx }
func (s *conversation) SendMsg(any) error            { return errors.ErrUnsupported }
func (s *conversation) RecvMsg(any) error            { return errors.ErrUnsupported }

// patience is how long a connection, or a command of its beginning, may take.
const patience = 2 * time.Second

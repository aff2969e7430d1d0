package fleet

import (
	"errors"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/quota"
	"github.com/cellgate/cellgate/trust"
)

// Leases settles quotas with a proxy of this region, or with another region's controller, as long as its stream lasts.
func (s *Server) Leases(stream nodeapi.Controller_LeasesServer) error {
	id, err := s.caller(stream.Context(), trust.RoleProxy, trust.RoleController)
	if err != nil {
		return err
	}
	if s.Quota == nil {
		return status.Error(codes.Unimplemented, "leases are not granted here")
	}
	settle := s.Quota.ToRegion
	if id.Role == trust.RoleProxy {
		if id.ID.Region() != s.Region {
			return status.Errorf(codes.FailedPrecondition, "%s is not of region %s", id.ID, s.Region)
		}
		settle = func(items []quota.Item) []quota.Grant { return s.Quota.ToNode(id.ID.Cell(), items) }
	}
	if s.settling.Add(1) > maxSessions {
		s.settling.Add(-1)
		return status.Error(codes.ResourceExhausted, "too many streams")
	}
	defer s.settling.Add(-1)
	done := make(chan error, 1)
	go func() { done <- answerAsks(stream, settle) }()
	select {
	case err := <-done:
		return err
	case <-s.stop:
		return status.Error(codes.Unavailable, "the controller is stopping")
	}
}

func answerAsks(stream nodeapi.Controller_LeasesServer, settle func([]quota.Item) []quota.Grant) error {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		items, err := m.Items()
		if err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		if err := stream.Send(nodeapi.GrantsTo(m.Seq, settle(items))); err != nil {
			return err
		}
	}
}

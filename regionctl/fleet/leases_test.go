package fleet

import (
	"context"
	"io"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/quota"
	"github.com/cellgate/cellgate/trust"
)

// books remembers who asked.
type books struct{ asked []string }

func (b *books) ToNode(cell cells.CellID, items []quota.Item) []quota.Grant {
	b.asked = append(b.asked, string(cell))
	return make([]quota.Grant, len(items))
}

func (b *books) ToRegion(items []quota.Item) []quota.Grant {
	b.asked = append(b.asked, "region")
	return make([]quota.Grant, len(items))
}

// askStream brings messages and takes the answers.
type askStream struct {
	grpc.ServerStream
	ctx context.Context
	in  []*nodeapi.LeaseAsks
	out []*nodeapi.LeaseGrants
}

func (s *askStream) Context() context.Context { return s.ctx }
func (s *askStream) Send(m *nodeapi.LeaseGrants) error {
	s.out = append(s.out, m)
	return nil
}

func (s *askStream) Recv() (*nodeapi.LeaseAsks, error) {
	if len(s.in) == 0 {
		return nil, io.EOF
	}
	m := s.in[0]
	s.in = s.in[1:]
	return m, nil
}

func TestLeasesAreSettledWithTheRegionsNodesAndOtherControllersAlone(t *testing.T) {
	ask := &nodeapi.LeaseAsk{Key: make([]byte, 16), Rate: 1, Burst: 1}
	for id, want := range map[trust.Identity]codes.Code{
		who(trust.RoleProxy, "eu-west/a/1"):                        codes.OK,
		who(trust.RoleProxy, "us-east/a/1"):                        codes.FailedPrecondition,
		who(trust.RoleController, "us-east/1"):                     codes.OK,
		who(trust.RoleRouter, "eu-west/1"):                         codes.PermissionDenied,
		who(trust.RoleProber, "eu-west/1"):                         codes.PermissionDenied,
		{World: "other", Role: trust.RoleProxy, ID: "eu-west/a/1"}: codes.PermissionDenied,
	} {
		s, b := server(id), &books{}
		s.Region, s.Quota = "eu-west", b
		stream := &askStream{ctx: t.Context(), in: []*nodeapi.LeaseAsks{{Seq: 1}, {Seq: 2, Asks: []*nodeapi.LeaseAsk{ask, ask}}}}
		if err := s.Leases(stream); status.Code(err) != want {
			t.Errorf("%s: %v", id, err)
		}
		by := map[trust.Role]string{trust.RoleProxy: "eu-west/a", trust.RoleController: "region"}[id.Role]
		if want == codes.OK && (!slices.Equal(b.asked, []string{by, by}) || len(stream.out) != 2 || stream.out[1].Seq != 2 || len(stream.out[1].Grants) != 2) {
			t.Errorf("%s: %v asked, answers %v", id, b.asked, stream.out)
		}
		if want != codes.OK && len(b.asked) > 0 {
			t.Errorf("%s was granted something", id)
		}
	}
	s := server(who(trust.RoleProxy, "eu-west/a/1"))
	s.Region, s.Quota = "eu-west", &books{}
	if err := s.Leases(&askStream{ctx: t.Context(), in: []*nodeapi.LeaseAsks{{Asks: []*nodeapi.LeaseAsk{{}}}}}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("an ask that can't be: %v", err)
	}
	s.settling.Store(maxSessions)
	if err := s.Leases(&askStream{ctx: t.Context()}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one stream too many: %v", err)
	}
}

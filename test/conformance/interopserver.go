package main

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// interopServer is the server of gRPC's interoperability tests, as doc/interop-test-descriptions.md of the gRPC project has it.
// grpc-go's own serves all addresses of a machine.
type interopServer struct {
	testgrpc.UnimplementedTestServiceServer
}

// interopServe serves until stop is called.
func interopServe(addr string) (at string, stop func(), err error) {
	l, err := net.Listen("tcp", net.JoinHostPort(addr, "0"))
	if err != nil {
		return "", nil, err
	}
	s := grpc.NewServer()
	testgrpc.RegisterTestServiceServer(s, interopServer{})
	go s.Serve(l)
	return l.Addr().String(), s.Stop, nil
}

// The client's metadata that come back, ahead of the answer and behind it.
const (
	echoFirst = "x-grpc-test-echo-initial"
	echoLast  = "x-grpc-test-echo-trailing-bin"
)

// echoes gives what of the call's metadata comes back.
func echoes(ctx context.Context) (first, last metadata.MD) {
	in, _ := metadata.FromIncomingContext(ctx) // none is empty
	pick := func(key string) metadata.MD {
		if len(in[key]) == 0 {
			return nil
		}
		return metadata.MD{key: in[key]}
	}
	return pick(echoFirst), pick(echoLast)
}

func (interopServer) EmptyCall(context.Context, *testgrpc.Empty) (*testgrpc.Empty, error) {
	return &testgrpc.Empty{}, nil
}

func (interopServer) UnaryCall(ctx context.Context, in *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	first, last := echoes(ctx)
	if err := errors.Join(grpc.SetHeader(ctx, first), grpc.SetTrailer(ctx, last)); err != nil {
		return nil, err
	}
	if err := asked(in.GetResponseStatus()); err != nil {
		return nil, err
	}
	p, err := payload(in.GetResponseSize())
	return &testgrpc.SimpleResponse{Payload: p}, err
}

func (interopServer) StreamingInputCall(s testgrpc.TestService_StreamingInputCallServer) error {
	sum := 0
	for {
		in, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return s.SendAndClose(&testgrpc.StreamingInputCallResponse{AggregatedPayloadSize: int32(sum)})
		}
		if err != nil {
			return err
		}
		sum += len(in.GetPayload().GetBody())
	}
}

func (interopServer) StreamingOutputCall(in *testgrpc.StreamingOutputCallRequest, s testgrpc.TestService_StreamingOutputCallServer) error {
	return answers(in, s.Send)
}

func (interopServer) FullDuplexCall(s testgrpc.TestService_FullDuplexCallServer) error {
	first, last := echoes(s.Context())
	if err := s.SetHeader(first); err != nil {
		return err
	}
	s.SetTrailer(last)
	for {
		in, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			if err = asked(in.GetResponseStatus()); err == nil {
				err = answers(in, s.Send)
			}
		}
		if err != nil {
			return err
		}
	}
}

// asked is the status that the client wants.
func asked(s *testgrpc.EchoStatus) error {
	return status.Error(codes.Code(s.GetCode()), s.GetMessage()) // nil for OK
}

func answers(in *testgrpc.StreamingOutputCallRequest, send func(*testgrpc.StreamingOutputCallResponse) error) error {
	for _, want := range in.GetResponseParameters() {
		time.Sleep(time.Duration(want.GetIntervalUs()) * time.Microsecond)
		p, err := payload(want.GetSize())
		if err == nil {
			err = send(&testgrpc.StreamingOutputCallResponse{Payload: p})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// payload is so many zeros.
func payload(size int32) (*testgrpc.Payload, error) {
	if size < 0 || size > 16<<20 {
		return nil, status.Errorf(codes.InvalidArgument, "%d bytes", size)
	}
	return &testgrpc.Payload{Body: make([]byte, size)}, nil
}

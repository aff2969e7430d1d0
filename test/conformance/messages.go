package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
)

// serverRequest is connectrpc.conformance.v1.ServerCompatRequest: what the suite wants a server to be.
type serverRequest struct {
	protocol, version uint64
	tls               bool
	clientCert        []byte
	limit             uint64 // of a message, bytes
	cert, key         []byte // which the server may use
}

// serverResponse is connectrpc.conformance.v1.ServerCompatResponse: where the server is.
type serverResponse struct {
	host string
	port uint64
	cert []byte
}

// versions of HTTP by the suite's numbers.
const (
	http1 = 1
	http2 = 2
	http3 = 3
)

// maxMessage bounds what is read of the suite's processes.
const maxMessage = 1 << 20

var errMessage = errors.New("not a message of the suite")

// readMessage reads one message behind its length.
func readMessage(from io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(from, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxMessage {
		return nil, fmt.Errorf("%w: %d bytes", errMessage, n)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(from, b)
	return b, err
}

// framed puts a message's length ahead of it.
func framed(m []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(m))), m...)
}

// fields calls take for every field of a message.
func fields(m []byte, take func(n protowire.Number, number uint64, bytes []byte)) error {
	for len(m) > 0 {
		n, kind, used := protowire.ConsumeTag(m)
		if used < 0 {
			return errMessage
		}
		m = m[used:]
		var number uint64
		var bytes []byte
		switch kind {
		case protowire.VarintType:
			number, used = protowire.ConsumeVarint(m)
		case protowire.BytesType:
			bytes, used = protowire.ConsumeBytes(m)
		default:
			used = protowire.ConsumeFieldValue(n, kind, m)
		}
		if used < 0 {
			return errMessage
		}
		take(n, number, bytes)
		m = m[used:]
	}
	return nil
}

func parseServerRequest(m []byte) (q serverRequest, err error) {
	var creds []byte
	err = fields(m, func(n protowire.Number, number uint64, bytes []byte) {
		switch n {
		case 1:
			q.protocol = number
		case 2:
			q.version = number
		case 4:
			q.tls = number != 0
		case 5:
			q.clientCert = bytes
		case 6:
			q.limit = number
		case 7:
			creds = bytes
		}
	})
	return q, errors.Join(err, fields(creds, func(n protowire.Number, _ uint64, bytes []byte) {
		switch n {
		case 1:
			q.cert = bytes
		case 2:
			q.key = bytes
		}
	}))
}

func (q serverRequest) append(b []byte) []byte {
	for _, f := range []struct {
		n protowire.Number
		v uint64
	}{{1, q.protocol}, {2, q.version}, {4, protowire.EncodeBool(q.tls)}, {6, q.limit}} {
		b = protowire.AppendVarint(protowire.AppendTag(b, f.n, protowire.VarintType), f.v)
	}
	if !q.tls {
		return b
	}
	creds := appendBytes(appendBytes(nil, 1, q.cert), 2, q.key)
	return appendBytes(b, 7, creds)
}

func appendBytes(b []byte, n protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), v)
}

func parseServerResponse(m []byte) (a serverResponse, err error) {
	err = fields(m, func(n protowire.Number, number uint64, bytes []byte) {
		switch n {
		case 1:
			a.host = string(bytes)
		case 2:
			a.port = number
		case 3:
			a.cert = bytes
		}
	})
	return a, err
}

func (a serverResponse) append(b []byte) []byte {
	b = appendBytes(b, 1, []byte(a.host))
	b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), a.port)
	return appendBytes(b, 3, a.cert)
}

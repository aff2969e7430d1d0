package nodeapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// The bounds of a fetch. What passes them is refused by the receiver.
const (
	// MaxBlob bounds one decoded blob.
	MaxBlob = 64 << 20
	// MaxFetch bounds all blobs of one fetch together, compressed and decoded each.
	MaxFetch = 512 << 20
	// chunkSize is how much of a frame one Chunk carries.
	chunkSize = 256 << 10
	// batch is how many digests one request asks for.
	batch = 1000
)

// encoders are idle; one is a few hundred kilobytes, and an idle one holds nothing of what it encoded.
var encoders = sync.Pool{New: func() any {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil // never with these options
	}
	return enc
}}

// SendBlob compresses a blob and sends it as the chunks that Fetch reads; send is the server stream's Send.
func SendBlob(send func(*Chunk) error, digest string, blob []byte) error {
	if len(blob) > MaxBlob {
		return fmt.Errorf("nodeapi: blob %s has %d bytes, more than %d", digest, len(blob), MaxBlob)
	}
	enc, ok := encoders.Get().(*zstd.Encoder)
	if !ok {
		return errors.New("nodeapi: no zstd encoder")
	}
	frame := enc.EncodeAll(blob, nil)
	encoders.Put(enc)
	for {
		n := min(len(frame), chunkSize)
		last := n == len(frame)
		if err := send(&Chunk{Digest: digest, Data: frame[:n], Last: last}); err != nil {
			return fmt.Errorf("nodeapi: send blob %s: %w", digest, err)
		}
		if last {
			return nil
		}
		frame = frame[n:]
	}
}

// assembly puts blobs together from chunks. Nothing is given out before its digest was verified.
type assembly struct {
	dec      *zstd.Decoder
	missing  map[string]bool
	parts    map[string][]byte // compressed so far, by digest; keys are in missing
	blobs    map[string][]byte // complete and verified
	received int               // compressed bytes of this fetch
	decoded  int
}

func newAssembly(digests []string) (*assembly, error) {
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(MaxBlob))
	if err != nil {
		return nil, fmt.Errorf("nodeapi: %w", err)
	}
	a := &assembly{dec: dec, missing: map[string]bool{}, blobs: map[string][]byte{}}
	for _, d := range digests {
		a.missing[d] = true
	}
	a.restart()
	return a, nil
}

// restart forgets unfinished blobs: the next controller sends them from their start.
func (a *assembly) restart() { a.parts, a.received = map[string][]byte{}, 0 }

func (a *assembly) close() { a.dec.Close() }

func (a *assembly) wanted() []string {
	list := make([]string, 0, len(a.missing))
	for d := range a.missing {
		list = append(list, d)
	}
	return list
}

// fetch asks one controller for all that is missing, in batches.
func (a *assembly) fetch(ctx context.Context, from ControllerClient) error {
	a.restart()
	ctx, cancel := context.WithCancel(ctx) // ends a stream that is left early
	defer cancel()
	for part := range slices.Chunk(a.wanted(), batch) {
		stream, err := from.Fetch(ctx, &FetchRequest{Digests: part})
		if err != nil {
			return fmt.Errorf("nodeapi: fetch: %w", err)
		}
		if err := a.drain(stream.Recv); err != nil {
			return err
		}
	}
	return a.complete()
}

// drain reads a controller's stream to its end.
func (a *assembly) drain(recv func() (*Chunk, error)) error {
	for {
		c, err := recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = a.add(c)
		}
		if err != nil {
			return err
		}
	}
}

func (a *assembly) complete() error {
	for d := range a.missing {
		return fmt.Errorf("nodeapi: the controller did not send %d of the blobs, such as %s", len(a.missing), d)
	}
	return nil
}

func (a *assembly) add(c *Chunk) error {
	if !a.missing[c.Digest] {
		return fmt.Errorf("nodeapi: the controller sent blob %.64q, which was not asked for", c.Digest)
	}
	part := append(a.parts[c.Digest], c.Data...)
	a.received += len(c.Data)
	if len(part) > MaxBlob+MaxBlob/64 || a.received > MaxFetch {
		return fmt.Errorf("nodeapi: blob %s is larger than a fetch may be", c.Digest)
	}
	a.parts[c.Digest] = part
	if !c.Last {
		return nil
	}
	return a.finish(c.Digest, part)
}

func (a *assembly) finish(digest string, frame []byte) error {
	blob, err := a.dec.DecodeAll(frame, nil)
	if err != nil {
		return fmt.Errorf("nodeapi: blob %s: %w", digest, err)
	}
	if sum := sha256.Sum256(blob); hex.EncodeToString(sum[:]) != digest {
		return fmt.Errorf("nodeapi: blob %s arrived with another content", digest)
	}
	if a.decoded += len(blob); a.decoded > MaxFetch {
		return fmt.Errorf("nodeapi: the blobs of one fetch have more than %d bytes", MaxFetch)
	}
	delete(a.parts, digest)
	delete(a.missing, digest)
	a.blobs[digest] = blob
	return nil
}

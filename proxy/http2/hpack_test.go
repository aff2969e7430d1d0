package http2

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"
)

// fields decodes a whole block into "name: value" lines.
func fields(d *Decoder, block []byte) ([]string, error) {
	var all []string
	d.Begin()
	for len(block) > 0 {
		f, n, ok, err := d.Next(block)
		if err != nil {
			return all, err
		}
		if block = block[n:]; ok {
			all = append(all, string(f.Name)+": "+string(f.Value))
		}
	}
	return all, nil
}

// The examples of RFC 7541, appendix C.3, C.4, C.5 and C.6: consecutive blocks of one connection. C.5 and C.6 were made for
// a table of 256 bytes, whose evictions a size update ahead of the first block brings about here.
func TestTheExamplesOfTheRFCAreDecoded(t *testing.T) {
	request := [][]string{
		{":method: GET", ":scheme: http", ":path: /", ":authority: www.example.com"},
		{":method: GET", ":scheme: http", ":path: /", ":authority: www.example.com", "cache-control: no-cache"},
		{":method: GET", ":scheme: https", ":path: /index.html", ":authority: www.example.com", "custom-key: custom-value"},
	}
	response := [][]string{
		{":status: 302", "cache-control: private", "date: Mon, 21 Oct 2013 20:13:21 GMT", "location: https://www.example.com"},
		{":status: 307", "cache-control: private", "date: Mon, 21 Oct 2013 20:13:21 GMT", "location: https://www.example.com"},
		{":status: 200", "cache-control: private", "date: Mon, 21 Oct 2013 20:13:22 GMT", "location: https://www.example.com", "content-encoding: gzip",
			"set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"},
	}
	for name, c := range map[string]struct {
		blocks []string
		want   [][]string
		size   int
	}{
		"C.3": {[]string{"828684410f7777772e6578616d706c652e636f6d", "828684be58086e6f2d6361636865", "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565"}, request, 164},
		"C.4": {[]string{"828684418cf1e3c2e5f23a6ba0ab90f4ff", "828684be5886a8eb10649cbf", "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf"}, request, 164},
		"C.5": {[]string{"3fe101" + "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d546e1768747470733a2f2f7777772e6578616d706c652e636f6d",
			"4803333037c1c0bf",
			"88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f6f3d4153444a4b48514b425a584f5157454f50495541585157454f49553b206d61782d6167653d333630303b2076657273696f6e3d31"}, response, 215},
		"C.6": {[]string{"3fe101" + "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82ae43d3",
			"4883640effc1c0bf",
			"88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007"}, response, 215},
	} {
		var d Decoder
		for i, b := range c.blocks {
			block, _ := hex.DecodeString(b)
			got, err := fields(&d, block)
			if err != nil || fmt.Sprint(got) != fmt.Sprint(c.want[i]) {
				t.Fatalf("%s.%d: %q %v", name, i+1, got, err)
			}
		}
		if d.size != c.size {
			t.Errorf("%s: a table of %d bytes, want %d", name, d.size, c.size)
		}
	}
}

func TestHuffmanIsTheOneOfTheRFC(t *testing.T) {
	for c := range 256 {
		s := strings.Repeat(string([]byte{byte(c)}), 3) + "a" + string([]byte{byte(c)})
		if got, err := appendDecoded(nil, hpack.AppendHuffmanString(nil, s)); err != nil || string(got) != s {
			t.Fatalf("%q: %q %v", s, got, err)
		}
	}
}

func TestInvalidBlocksAreRefused(t *testing.T) {
	for name, b := range map[string]string{
		"index 0":                     "80",
		"an index beyond both tables": "be",
		"a name beyond both tables":   "7f0001",
		"an integer without end":      "ffffffffffff",
		"a cut integer":               "ff",
		"a cut name":                  "400a6162",
		"a name without a value":      "400161",
		"a length beyond the block":   "4001617f",
		"EOS in a string":             "00" + "84ffffffff" + "00",
		"padding of a whole byte":     "00" + "821fff" + "00",
		"padding of zeros":            "00" + "8118" + "00",
		"a table above its limit":     "3fe21f",
		"a size update behind":        "823fe101",
		"three size updates":          "202020",
	} {
		block, _ := hex.DecodeString(b)
		if got, err := fields(new(Decoder), block); err == nil {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// randomBlock writes fields as a peer of any taste would.
func randomBlock(r *rand.Rand, enc *hpack.Encoder) []hpack.HeaderField {
	var all []hpack.HeaderField
	for range r.IntN(12) {
		f := hpack.HeaderField{Name: fmt.Sprintf("name-%d", r.IntN(30)), Value: strings.Repeat("v", r.IntN(120)) + fmt.Sprint(r.IntN(10)), Sensitive: r.IntN(5) == 0}
		switch r.IntN(8) {
		case 0:
			f.Name = static[r.IntN(len(static))].name
		case 1:
			f.Value = strings.Repeat("w", r.IntN(5000))
		case 2:
			f.Value = string([]byte{byte(r.IntN(256)), byte(r.IntN(256))})
		}
		all = append(all, f)
		_ = enc.WriteField(f)
	}
	return all
}

// The table says the same as another implementation's over long connections, whatever is inserted, evicted and resized,
// and stays within twice its size.
func TestTheDynamicTableStaysInStep(t *testing.T) {
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 1))
		var out bytes.Buffer
		enc := hpack.NewEncoder(&out)
		var d Decoder
		for i := range 300 {
			out.Reset()
			if r.IntN(20) == 0 {
				enc.SetMaxDynamicTableSize(uint32(r.IntN(tableSize + 1)))
			}
			want := randomBlock(r, enc)
			got, err := fields(&d, out.Bytes())
			if err != nil || len(got) != len(want) {
				t.Fatalf("seed %d, block %d: %d fields, want %d: %v", seed, i, len(got), len(want), err)
			}
			for j, f := range want {
				if got[j] != f.Name+": "+f.Value {
					t.Fatalf("seed %d, block %d: %q, want %q", seed, i, got[j], f)
				}
			}
			if cap(d.buf) > 2*tableSize || d.size > tableSize-d.cut {
				t.Fatalf("%d bytes for a table of %d", cap(d.buf), d.size)
			}
		}
	}
}

func TestEveryStaticNameHasItsPlace(t *testing.T) {
	for i, e := range static {
		if j := nameIndex(e.name); j == 0 || static[j-1].name != e.name || j > i+1 {
			t.Errorf("%s: %d", e.name, j)
		}
		if nameIndex(strings.ToUpper(e.name)) != nameIndex(e.name) || nameIndex(e.name+"x") != 0 {
			t.Errorf("%s: by another name", e.name)
		}
	}
}

func TestWhatIsEncodedIsDecodedElsewhere(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var block []byte
		var want []string
		block = appendStatus(block, 100+r.IntN(500))
		for range r.IntN(20) {
			name, value := []string{"Content-Type", "x-request-id", "SERVER", "Set-Cookie", "x"}[r.IntN(5)], strings.Repeat("aZ9\xe4", r.IntN(100))
			block = AppendField(block, name, []byte(value))
			want = append(want, strings.ToLower(name)+": "+value)
		}
		got, err := hpack.NewDecoder(0, nil).DecodeFull(block)
		if err != nil || len(got) != len(want)+1 || got[0].Name != ":status" {
			t.Fatalf("%v %v", got, err)
		}
		for i, f := range got[1:] {
			if f.Name+": "+f.Value != want[i] {
				t.Fatalf("%q, want %q", f, want[i])
			}
		}
	}
}

// FuzzDecoder compares with another implementation: what it takes, we take alike, and what it refuses, we refuse.
func FuzzDecoder(f *testing.F) {
	for _, s := range []string{"828684410f7777772e6578616d706c652e636f6d", "3fe101828684be5886a8eb10649cbf", "400a637573746f6d2d6b65790c637573746f6d2d76616c7565", "0085ff0102030400"} {
		b, _ := hex.DecodeString(s)
		f.Add(b, b)
	}
	f.Fuzz(func(t *testing.T, one, two []byte) {
		var d Decoder
		ref := hpack.NewDecoder(tableSize, nil)
		for _, block := range [][]byte{one, two} {
			got, err := fields(&d, block)
			want, refErr := ref.DecodeFull(block)
			if err == nil && refErr != nil {
				t.Fatalf("%x is taken, elsewhere %v", block, refErr)
			}
			if err != nil {
				return // stricter in integers that no length needs, and in repeated size updates
			}
			for i, f := range want {
				if got[i] != f.Name+": "+f.Value {
					t.Fatalf("%x: %q, want %q", block, got[i], f)
				}
			}
		}
	})
}

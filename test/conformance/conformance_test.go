package main

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"slices"
	"testing"
)

func TestMessagesOfTheSuiteAreReadAsWritten(t *testing.T) {
	for _, q := range []serverRequest{
		{protocol: 3, version: http1},
		{protocol: 1, version: http3, tls: true, limit: 200 << 10, cert: []byte("cert"), key: []byte("key")},
	} {
		m, err := readMessage(bytes.NewReader(framed(q.append(nil))))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := parseServerRequest(m); err != nil || !reflect.DeepEqual(got, q) {
			t.Errorf("%+v became %+v, %v", q, got, err)
		}
	}
	a := serverResponse{host: "127.46.9.1", port: 65535, cert: []byte("pem")}
	if got, err := parseServerResponse(a.append(nil)); err != nil || !reflect.DeepEqual(got, a) {
		t.Errorf("%+v became %+v, %v", a, got, err)
	}
}

func TestWhatIsNoMessageOfTheSuiteIsRefused(t *testing.T) {
	if _, err := readMessage(bytes.NewReader(binary.BigEndian.AppendUint32(nil, maxMessage+1))); err == nil {
		t.Error("too long a message was read")
	}
	whole := serverRequest{tls: true, cert: []byte("c"), key: []byte("k")}.append(nil)
	for n := range whole {
		_, _ = parseServerRequest(whole[:n]) // any cut: no panic
	}
	if _, err := parseServerRequest(whole[:len(whole)-1]); err == nil {
		t.Error("half a message was read")
	}
	if _, err := parseServerRequest([]byte{0x3a, 2, 0xff, 0xff}); err == nil { // field 7 is no message
		t.Error("a broken message within was read")
	}
}

func TestOnlyWholeRowsPass(t *testing.T) {
	for name, c := range map[string]struct {
		rows []row
		pass bool
	}{
		"nothing":       {nil, false},
		"asked nothing": {[]row{{passed: 0, total: 0}}, false},
		"whole":         {[]row{{passed: 7, total: 7}}, true},
		"one short":     {[]row{{passed: 7, total: 7}, {passed: 6, total: 7}}, false},
		"known":         {[]row{{passed: 6, total: 7, known: 1}}, true},
		"one unknown":   {[]row{{passed: 5, total: 7, known: 1}}, false},
		"heals unknown": {[]row{{passed: 7, total: 7, known: 1}}, false},
	} {
		if err := shortfall(c.rows); (err == nil) != c.pass {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFiguresAreFoundInWhatSuitesPrint(t *testing.T) {
	var c totals
	for _, s := range []string{"Running 7 tests with reference-client for server config #1 {…}...", "Total cases: 13022", "13000 passed, 20 failed", "(Another 2 failed as expected due to being known failures/flakes.)"} {
		c.line(s)
	}
	c.line("FAILED: Basic/HTTPVersion:1/Protocol:PROTOCOL_CONNECT/unary/success:")
	if want := (totals{passed: 13000, total: 13022, known: 2, failed: []string{"Basic/HTTPVersion:1/Protocol:PROTOCOL_CONNECT/unary/success"}}); !reflect.DeepEqual(c, want) {
		t.Errorf("connectconformance: %+v", c)
	}
	var h h2specTotals
	for _, s := range []string{
		"    2: Sends invalid connection preface\r      × 2: Sends invalid connection preface",
		"      × 2: Sends invalid connection preface",
		"145 tests, 144 passed, 0 skipped, 1 failed",
	} {
		h.line(s)
	}
	if h.total != 145 || h.passed != 144 || h.known("nethttp") != 1 || h.known("loop") != 0 {
		t.Errorf("h2spec: %+v", h)
	}
}

func TestOnlyFewCasesThatMeasureTimeAreAskedAgain(t *testing.T) {
	late, other := "Deadline Propagation/HTTPVersion:1/unary/success", "Timeouts/HTTPVersion:1/unary"
	for name, c := range map[string]struct {
		failed []string
		again  bool
	}{
		"none":         {nil, false},
		"one":          {[]string{late}, true},
		"another kind": {[]string{late, other}, false},
		"many":         {slices.Repeat([]string{late}, mostAgain+1), false},
	} {
		if got := (&totals{failed: c.failed}).late(); got != c.again {
			t.Errorf("%s: %v", name, got)
		}
	}
}

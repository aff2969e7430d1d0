package planner

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/cellgate/cellgate/capacity"
	"github.com/cellgate/cellgate/cells"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func cell(id cells.CellID, limit, load float64) Cell {
	return Cell{ID: id, State: cells.Active, RPS: &load, LimitRPS: limit}
}

func history(t *testing.T) *History {
	h, err := OpenHistory(t.TempDir(), 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

func records(t *testing.T, h *History) []Record {
	var buf bytes.Buffer
	if _, err := h.WriteTo(&buf); err != nil {
		t.Fatal(err)
	}
	var list []Record
	for lines := bufio.NewScanner(&buf); lines.Scan(); {
		var r Record
		if json.Unmarshal(lines.Bytes(), &r) == nil && r.Form == HistoryForm {
			list = append(list, r)
		}
	}
	return list
}

// An API that goes away leaves figures that say their age and prove no room; when it is back, so are they.
func TestAnAbsentAPIIsWaitedForAndStaleFiguresProveNothing(t *testing.T) {
	h := history(t)
	synctest.Test(t, func(t *testing.T) {
		var failure atomic.Pointer[error]
		fail := func(err error) { failure.Store(&err) }
		fail(errors.New("connection refused"))
		p := New(Options{History: h, Read: func(context.Context) ([]Cell, error) {
			return []Cell{cell("e/a", 1000, 406), cell("u/a", 1000, 100)}, *failure.Load()
		}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Run(ctx) }()
		synctest.Wait()
		if v := p.View(time.Now()); p.Ready() == nil || v.AgeS != -1 || v.Globe.Headroom != nil || v.Warning != "connection refused" {
			t.Errorf("before the first reading: %+v", v)
		}
		fail(nil)
		time.Sleep(6 * time.Second)
		v := p.View(time.Now())
		if p.Ready() != nil || v.Warning != "" || math.Abs(*v.Cells[0].Headroom-0.42) > 1e-9 || len(v.Losses) != 4 || !v.Losses[0].Fits {
			t.Errorf("%+v", v)
		}
		fail(errors.New("gone"))
		time.Sleep(time.Minute)
		v = p.View(time.Now())
		if v.AgeS < 50 || v.Warning != "gone" || v.Globe.Headroom != nil || v.Globe.RPS != 506 || v.Losses[0].Fits || v.Losses[0].Uncertain != 1 {
			t.Errorf("stale figures are believed: %+v", v)
		}
		fail(nil)
		time.Sleep(6 * time.Second)
		if v = p.View(time.Now()); v.Globe.Headroom == nil {
			t.Errorf("%+v", v)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if got := records(t, h); len(got) != 2 || *got[0].Cells[0].RPS != 406 {
		t.Fatalf("history: %+v", got)
	}
}

func TestUnhealthyAndEvacuatedCellsTakeNothing(t *testing.T) {
	down := false
	sick, away := cell("e/a", 1000, 100), cell("e/b", 1000, 0)
	sick.Healthy, away.State = &down, cells.Evacuated
	var v View
	v.fill([]Cell{sick, away, cell("u/a", 1000, 650)}, 0, capacity.Config{})
	if v.Globe.LimitRPS != 1000 || v.Losses[0].Lost != "e/a" || v.Losses[0].UnplacedRPS != 50 {
		t.Fatalf("%+v", v)
	}
}

func TestAbsurdFiguresAreNotBelieved(t *testing.T) {
	for _, c := range []Cell{cell("e/a", 1e300, 1), cell("e/a", 1000, 1e300), cell("e/a", -1, 1), cell("e/a", 1000, -1), {ID: "e/a", LimitRPS: 1000}} {
		if _, ok := capacity.Headroom(c.load(0), capacity.Config{}); ok {
			t.Errorf("believed %+v", c)
		}
	}
}

func TestHistoryIsBoundedAndSurvivesATornLine(t *testing.T) {
	dir := t.TempDir()
	const bound = 2000
	h, err := OpenHistory(dir, bound)
	if err != nil {
		t.Fatal(err)
	}
	add := func(n int) {
		for i := range n {
			if err := h.Append(Record{At: time.Unix(int64(i), 0), Cells: []CellRecord{{ID: "e/a"}}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	add(200)
	var size int64
	for _, name := range []string{"history.jsonl", "history.jsonl.old"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	if got := records(t, h); size > 2*bound || len(got) < 10 || got[len(got)-1].At.Unix() != 199 {
		t.Fatalf("%d bytes, %d records", size, len(got))
	}
	if _, err := h.file.WriteString(`{"form":1,"at":"20`); err != nil {
		t.Fatal(err)
	}
	h.Close()
	before := len(records(t, h))
	if h, err = OpenHistory(dir, bound); err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	add(1)
	if got := len(records(t, h)); got != before+1 {
		t.Fatalf("%d records after a torn line, want %d", got, before+1)
	}
}

func TestHeadroomPageSpeaksJSONAndCSV(t *testing.T) {
	p := New(Options{History: history(t)})
	p.take([]Cell{cell("e/a", 1000, 406), cell("u/a", 100, 0)}, nil, time.Now())
	get := func(url string, header ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, url, nil)
		if len(header) == 2 {
			r.Header.Set(header[0], header[1])
		}
		w := httptest.NewRecorder()
		p.Pages()["GET /headroom"].ServeHTTP(w, r)
		return w
	}
	var v View
	if err := json.Unmarshal(get("/headroom").Body.Bytes(), &v); err != nil || *v.Cells[0].Headroom != 0.42 {
		t.Fatalf("%+v %v", v, err)
	}
	want := "scope,id,limit_rps,rps,headroom,loss_fits,loss_unplaced_rps\n"
	for _, w := range []*httptest.ResponseRecorder{get("/headroom?format=csv"), get("/headroom", "Accept", "text/csv")} {
		if got := w.Body.String(); !strings.HasPrefix(got, want) || !strings.Contains(got, "cell,e/a,1000,406,0.42,false,336\n") {
			t.Fatal(got)
		}
	}
	if w := get("/headroom?format=xml"); w.Code != http.StatusBadRequest {
		t.Fatalf("%d", w.Code)
	}
	if n := testutil.CollectAndCount(p.Collector()); n != 1+1+5+4 {
		t.Fatalf("%d metrics", n)
	}
	if problems, err := testutil.CollectAndLint(p.Collector()); err != nil || len(problems) > 0 {
		t.Fatal(problems, err)
	}
}

func TestAPIIsReadFromTheFirstThatAnswersWithTheToken(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/empty/v1/status":
			_, _ = w.Write([]byte(`{}`))
		case r.URL.Path == "/moved/v1/status":
			http.Redirect(w, r, "/v1/status", http.StatusFound)
		case r.Header.Get("Authorization") != "Bearer secret":
			w.WriteHeader(http.StatusUnauthorized)
		default:
			_, _ = w.Write([]byte(`{"version":3,"future":{},"cells":[{"id":"e/a","state":"active","healthy":null,"headroom":0.9,"rps":70,"limit_rps":1000}]}`))
		}
	}))
	srv.StartTLS()
	defer srv.Close()
	ca, token := filepath.Join(t.TempDir(), "ca.pem"), filepath.Join(t.TempDir(), "token")
	write := func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(ca, pemOf(srv))
	read := func(secret string, urls ...string) ([]Cell, error) {
		write(token, secret)
		api, err := NewAPI(urls, ca, token)
		if err != nil {
			t.Fatal(err)
		}
		defer api.Close()
		return api.Read(t.Context())
	}
	got, err := read("secret\n", "https://127.0.0.1:1", srv.URL+"/")
	if err != nil || len(got) != 1 || *got[0].RPS != 70 || got[0].Healthy != nil {
		t.Fatalf("%+v %v", got, err)
	}
	for _, c := range []struct{ token, url, says string }{
		{"wrong", srv.URL, "401"}, {"secret", srv.URL + "/empty", "names no cell"}, {"secret", srv.URL + "/moved", "redirects"}, {"secret", "https://127.0.0.1:1", "refused"},
	} {
		if _, err := read(c.token, c.url); err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), c.token+"\n") {
			t.Errorf("%s: %v", c.url, err)
		}
	}
	if _, err := NewAPI(nil, ca, token); err == nil {
		t.Error("an API without addresses")
	}
}
